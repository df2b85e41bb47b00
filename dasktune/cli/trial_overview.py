"""What the command line shows of one trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dasktune.cli.experiment_overview import Overview
from dasktune.dashboard.model.rank_places import RANK_COLUMNS
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.text.formatting import format_duration, format_value, one_line
from dasktune.text.text_table import fields_text, table_text


def trial_text(trial: TrialProjection, overview: Overview, width: int | None) -> str:
    """Return a trial's state, configuration, last result and ranks as text.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    overview : Overview
        Its experiment.
    width : int, optional
        Columns of the terminal; None for no limit.
    """
    return "\n\n".join(_parts(trial, overview, width))


def trial_facts(trial: TrialProjection, overview: Overview) -> dict[str, Any]:
    """Return the same as plain values.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    overview : Overview
        Its experiment.
    """
    ranks = [] if trial.ranks is None else list(trial.ranks.rows())
    return {
        **_state(trial, overview),
        "config": trial.config,
        "metrics": trial.metrics,
        "max_ranks": trial.max_ranks or None,
        "ranks": [dict(zip(RANK_COLUMNS, row, strict=True)) for row in ranks],
    }


def _parts(trial: TrialProjection, overview: Overview, width: int | None) -> Iterator[str]:
    state = _state(trial, overview)
    yield fields_text({**state, "runtime_s": format_duration(trial.runtime(overview.projection.elapsed))})
    yield _section("Configuration", trial.config)
    if trial.metrics:
        yield _section("Last result", trial.metrics)
    if trial.ranks is not None:
        rows = [[one_line(cell) for cell in row] for row in trial.ranks.rows()]
        yield f"Ranks: {trial.ranks.number}\n{_indented(table_text(RANK_COLUMNS, rows, width))}"


def _state(trial: TrialProjection, overview: Overview) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "status": trial.outcome,
        "iteration": trial.iteration,
        "worker": trial.worker or None,
        "starts": trial.starts,
        "failures": trial.failures or None,
        "lost with a worker": trial.losses or None,
        "checkpoint": trial.checkpoint or None,
        "directory": f"{overview.storage}/trials/{trial.folder}" if trial.folder else None,
        "reason": trial.error or trial.reason or None,
    }


def _section(title: str, values: Mapping[str, Any]) -> str:
    shown = {one_line(name): format_value(value) for name, value in values.items()}
    return f"{title}\n{_indented(fields_text(shown) or '(empty)')}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
