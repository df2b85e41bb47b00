"""Tools for tests: experiments in virtual time, and contracts of schedulers and searchers.

They run in one thread and need no cluster. Helpers for dasktune's own tests are in ``tests/``.
"""

from dasktune.in_process.manual_clock import ManualClock
from dasktune.in_process.simulated_executor import SimulatedTrialExecutor, WorkerDied
from dasktune.in_process.trial_kind import SimulatedTrainable, TrialKind
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.scheduler_contract import SchedulerContract
from dasktune.testing.searcher_contract import SearcherContract
from dasktune.testing.simulation import simulate

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
