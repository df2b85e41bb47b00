"""Stoppers: rules that end single trials or the whole experiment.

Schedulers, which compare trials with each other, are in ``dasktune.schedulers``.
"""

from dasktune.stopper.combined import CombinedStopper, StopRule, as_stopper
from dasktune.stopper.criteria import CriteriaStopper
from dasktune.stopper.function_stopper import FunctionStopper
from dasktune.stopper.maximum_iteration import MaximumIterationStopper
from dasktune.stopper.plateau import ExperimentPlateauStopper, TrialPlateauStopper
from dasktune.stopper.stopper import NoopStopper, Stopper
from dasktune.stopper.timeout import TimeoutStopper

__all__ = [
    "CombinedStopper",
    "CriteriaStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "StopRule",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "as_stopper",
]
