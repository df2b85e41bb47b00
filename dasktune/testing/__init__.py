"""Tools for testing: virtual time, a clock that is moved by hand, the contracts of policies."""

from dasktune.testing.clock import ManualClock
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.scheduler_contract import SchedulerContract
from dasktune.testing.searcher_contract import SearcherContract
from dasktune.testing.simulated_executor import SimulatedTrialExecutor
from dasktune.testing.simulation import simulate
from dasktune.testing.steps import SimulatedTrainable
from dasktune.testing.worker_died import WorkerDied

__all__ = [
    "ManualClock",
    "MemoryStore",
    "SchedulerContract",
    "SearcherContract",
    "SimulatedTrainable",
    "SimulatedTrialExecutor",
    "WorkerDied",
    "simulate",
]
