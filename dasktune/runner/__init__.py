"""The loop that drives an experiment, and the ports that it needs."""

from dasktune.runner.ports import (
    Clock,
    ExperimentStore,
    Observer,
    SystemClock,
    Thinker,
    TrialExecutor,
)
from dasktune.runner.stage import Stage
from dasktune.runner.thinking import ThinkingAtOnce, ThinkingThread
from dasktune.runner.trial_runner import TrialRunner

__all__ = [
    "Clock",
    "ExperimentStore",
    "Observer",
    "Stage",
    "SystemClock",
    "Thinker",
    "ThinkingAtOnce",
    "ThinkingThread",
    "TrialExecutor",
    "TrialRunner",
]
