"""Trial schedulers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.errors import check
from dasktune.schedulers.asha import AsyncHyperBandScheduler
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.hb_bohb import HyperBandForBOHB
from dasktune.schedulers.hyperband import HyperBandScheduler
from dasktune.schedulers.successive_halving import SuccessiveHalvingScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["create_scheduler"]

_BY_NAME: Final[dict[str, Callable[..., TrialScheduler]]] = {
    "fifo": FIFOScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "asha": AsyncHyperBandScheduler,
    "hyperband": HyperBandScheduler,
    "hb_bohb": HyperBandForBOHB,
    "successive_halving": SuccessiveHalvingScheduler,
}


def create_scheduler(name: str, **kwargs: Any) -> TrialScheduler:
    """Make a trial scheduler by its name.

    Parameters
    ----------
    name : str
        "fifo", "asha" (also "async_hyperband" and "asynchyperband"), "hyperband", "hb_bohb" or
        "successive_halving".
    **kwargs
        What its constructor takes.

    Raises
    ------
    ConfigError
        If there is no scheduler of this name, or an argument breaks its rule.

    Examples
    --------
    >>> create_scheduler("asha", max_t=9, reduction_factor=3).max_t
    9
    """
    check(name in _BY_NAME, "scheduler", f"one of {', '.join(_BY_NAME)}", name)
    return _BY_NAME[name](**kwargs)
