"""Tools for tests: experiments in virtual time, and contracts of schedulers and searchers.

They run in one thread and need no cluster. Helpers for dasktune's own tests are in ``tests/``.
"""

from dasktune.testing.clock import ManualClock
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.scheduler_contract import SchedulerContract
from dasktune.testing.searcher_contract import SearcherContract
from dasktune.testing.simulated_executor import SimulatedTrialExecutor, WorkerDied
from dasktune.testing.simulation import simulate
from dasktune.testing.trial_kind import SimulatedTrainable, TrialKind

__all__ = [
    "ManualClock",
    "MemoryStore",
    "SchedulerContract",
    "SearcherContract",
    "SimulatedTrainable",
    "SimulatedTrialExecutor",
    "TrialKind",
    "WorkerDied",
    "simulate",
]
