"""Tools for testing: virtual time, a clock that is moved by hand, the contract of schedulers."""

from dasktune.testing.clock import ManualClock
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.scheduler_contract import SchedulerContract
from dasktune.testing.simulated_executor import (
    SimulatedTrainable,
    SimulatedTrialExecutor,
    WorkerDied,
)
from dasktune.testing.simulation import simulate

__all__ = [
    "ManualClock",
    "MemoryStore",
    "SchedulerContract",
    "SimulatedTrainable",
    "SimulatedTrialExecutor",
    "WorkerDied",
    "simulate",
]
