"""The loop that drives an experiment, and the ports that it needs."""

from dasktune.runner.ports import Clock, ExperimentStore, Observer, SystemClock, TrialExecutor
from dasktune.runner.trial_runner import TrialRunner

__all__ = [
    "Clock",
    "ExperimentStore",
    "Observer",
    "SystemClock",
    "TrialExecutor",
    "TrialRunner",
]
