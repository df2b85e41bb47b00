"""Tools for testing: experiments in virtual time, a clock that is moved by hand."""

from dasktune.testing.clock import ManualClock
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.simulated_executor import (
    SimulatedTrainable,
    SimulatedTrialExecutor,
    WorkerDied,
)
from dasktune.testing.simulation import simulate

__all__ = [
    "ManualClock",
    "MemoryStore",
    "SimulatedTrainable",
    "SimulatedTrialExecutor",
    "WorkerDied",
    "simulate",
]
