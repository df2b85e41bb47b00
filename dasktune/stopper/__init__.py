"""When a trial, or everything, has trained enough."""

from dasktune.stopper.combined import CombinedStopper, StopRule, as_stopper
from dasktune.stopper.criteria import CriteriaStopper
from dasktune.stopper.experiment_plateau import ExperimentPlateauStopper
from dasktune.stopper.function import FunctionStopper
from dasktune.stopper.maximum_iteration import MaximumIterationStopper
from dasktune.stopper.stopper import NoopStopper, Stopper
from dasktune.stopper.timeout import TimeoutStopper
from dasktune.stopper.trial_plateau import TrialPlateauStopper

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
