"""What an experiment's directory says of it, readable without dasktune."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

from dasktune.config import TuneConfig
from dasktune.space.scales import scales_of

__all__ = ["description"]


def description(
    name: str,
    trainable_name: str,
    tune_config: TuneConfig,
    param_space: Mapping[str, Any],
    total_trials: int | None,
) -> dict[str, Any]:
    """Return what ``experiment.json`` says.

    Parameters
    ----------
    name, trainable_name : str
        Of the experiment, and of what it trains.
    tune_config : TuneConfig
        Its settings.
    param_space : mapping
        What it searches.
    total_trials : int or None
        How many there will be, if that is known.
    """
    return {
        "format": 1,
        "dasktune": version("dasktune"),
        "name": name,
        "trainable": trainable_name,
        "metric": tune_config.metric,
        "mode": tune_config.mode,
        "num_samples": tune_config.num_samples,
        "total_trials": total_trials,
        "scales": scales_of(param_space),
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
