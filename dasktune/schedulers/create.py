"""Create trial schedulers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dasktune.plugins import create
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.function_scheduler import FunctionScheduler
from dasktune.schedulers.halving_family.asha import AsyncHyperBandScheduler
from dasktune.schedulers.halving_family.hb_bohb import HyperBandForBOHB
from dasktune.schedulers.halving_family.hyperband import HyperBandScheduler
from dasktune.schedulers.halving_family.multi_objective import MultiObjectiveASHAScheduler
from dasktune.schedulers.halving_family.promoting import PromotingASHAScheduler
from dasktune.schedulers.halving_family.successive_halving import SuccessiveHalvingScheduler
from dasktune.schedulers.median import MedianStoppingRule
from dasktune.schedulers.pb2 import PB2
from dasktune.schedulers.population_based.pbt import PopulationBasedTraining
from dasktune.schedulers.population_based.pbt_replay import PopulationBasedTrainingReplay
from dasktune.schedulers.resources.resource_changing import ResourceChangingScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler

#: The schedulers of dasktune by name.
SCHEDULERS: Final[Mapping[str, Callable[..., TrialScheduler]]] = {
    "fifo": FIFOScheduler,
    "asha": AsyncHyperBandScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
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
    """Create a trial scheduler by its name.

    Parameters
    ----------
    name : str
        "fifo"; "asha" (also "async_hyperband", "asynchyperband"), "promoting_asha",
        "multi_objective_asha"; "hyperband", "hb_bohb", "successive_halving";
        "median_stopping_rule" (also "medianstopping"); "resource_changing"; "function"; "pbt",
        "pb2", "pbt_replay"; or the name of an entry point of another package in the group
        ``dasktune.schedulers``.
    **kwargs
        Arguments of the scheduler's constructor.

    Raises
    ------
    ConfigError
        If there is no scheduler of this name, its package cannot be imported, or an argument is
        missing, unknown or invalid.

    Examples
    --------
    >>> create_scheduler("asha", max_t=9, reduction_factor=3).max_t
    9
    """
    return create("scheduler", (TrialScheduler,), SCHEDULERS, name, kwargs)
