"""Trial schedulers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.schedulers.asha import AsyncHyperBandScheduler
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.function import FunctionScheduler
from dasktune.schedulers.hb_bohb import HyperBandForBOHB
from dasktune.schedulers.hyperband import HyperBandScheduler
from dasktune.schedulers.median import MedianStoppingRule
from dasktune.schedulers.multi_objective import MultiObjectiveASHAScheduler
from dasktune.schedulers.pb2 import PB2
from dasktune.schedulers.pbt import PopulationBasedTraining
from dasktune.schedulers.pbt_replay import PopulationBasedTrainingReplay
from dasktune.schedulers.promoting import PromotingASHAScheduler
from dasktune.schedulers.resource_changing import ResourceChangingScheduler
from dasktune.schedulers.successive_halving import SuccessiveHalvingScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["create_scheduler"]

#: Where other packages tell of theirs: ``name = "package.module:Class"``.
_GROUP: Final = "dasktune.schedulers"

_BY_NAME: Final[Mapping[str, Callable[..., TrialScheduler]]] = {
    "fifo": FIFOScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "asha": AsyncHyperBandScheduler,
    "hyperband": HyperBandScheduler,
    "hb_bohb": HyperBandForBOHB,
    "successive_halving": SuccessiveHalvingScheduler,
    "promoting_asha": PromotingASHAScheduler,
    "multi_objective_asha": MultiObjectiveASHAScheduler,
    "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule,
    "resource_changing": ResourceChangingScheduler,
    "pb2": PB2,
    "pbt": PopulationBasedTraining,
    "pbt_replay": PopulationBasedTrainingReplay,
    "function": FunctionScheduler,
}


def create_scheduler(name: str, **kwargs: Any) -> TrialScheduler:
    """Make a trial scheduler by its name.

    Parameters
    ----------
    name : str
        "fifo"; "asha" (also "async_hyperband", "asynchyperband"), "promoting_asha",
        "multi_objective_asha"; "hyperband", "hb_bohb", "successive_halving";
        "median_stopping_rule" (also "medianstopping"); "resource_changing"; "function"; "pbt",
        "pb2", "pbt_replay"; or one of another package, which tells of it as an entry point of the
        group ``dasktune.schedulers``.
    **kwargs
        What its constructor takes.

    Raises
    ------
    ConfigError
        If there is no scheduler of this name, another package's cannot be used, or an argument is
        missing, unknown, or breaks its rule.

    Examples
    --------
    >>> create_scheduler("asha", max_t=9, reduction_factor=3).max_t
    9
    """
    make = _BY_NAME.get(name) or _foreign(name)
    _check_arguments(name, make, kwargs)
    scheduler = make(**kwargs)
    kind = type(scheduler).__name__
    hint = "The package that tells of it is broken."
    is_one = isinstance(scheduler, TrialScheduler)
    check(is_one, f"what the entry point {name!r} makes", "a TrialScheduler", kind, hint)
    return scheduler


def _check_arguments(name: str, make: Callable[..., Any], given: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return  # it has none that can be told: calling it will tell
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(
            f"the arguments of scheduler {name!r} must be those that it takes "
            f"({', '.join(signature.parameters)}), got {given!r}: {error}"
        ) from error


def _foreign(name: str) -> Callable[..., TrialScheduler]:
    # Looked for only when it is asked for: it takes milliseconds.
    found = {entry.name: entry for entry in entry_points(group=_GROUP)}
    check(name in found, "scheduler", f"one of {', '.join([*_BY_NAME, *sorted(found)])}", name)
    try:
        make: Callable[..., TrialScheduler] = found[name].load()
    except Exception as error:
        raise ConfigError(
            f"scheduler {name!r} must be importable, got {type(error).__name__}: {error}. "
            f"It is told of by {found[name].value!r} of another package."
        ) from error
    return make
