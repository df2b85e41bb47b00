"""The driver's loop and its ports: executor, store, clock, observers and background runner.

The decisions are made in `dasktune.experiment`. The ports are implemented in `dasktune.cluster` and
`dasktune.storage`, and for tests in `dasktune.testing`.
"""

from dasktune.runner.background import BackgroundThread, RunInline
from dasktune.runner.ports import (
    BackgroundRunner,
    Clock,
    Environment,
    Observer,
    StorePort,
    SystemClock,
    TrialExecutor,
)
from dasktune.runner.trial_runner import TrialRunner

__all__ = [
    "BackgroundRunner",
    "BackgroundThread",
    "Clock",
    "Environment",
    "Observer",
    "RunInline",
    "StorePort",
    "SystemClock",
    "TrialExecutor",
    "TrialRunner",
]
