"""What the executor reports of the trials that wait, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dasktune.cluster.driver.executor import DaskTrialExecutor
from dasktune.cluster.driver.reservations import Reservations
from dasktune.cluster.resources.adaptive_demand import DemandSignal, Growth
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory


def test_an_experiment_requests_what_the_workers_can_hold_until_it_ends() -> None:
    ledger = Ledger()
    ledger.update({"a": WorkerCapacity(address="a", nthreads=3, resources={"CPU": 3})})
    executor = object.__new__(DaskTrialExecutor)
    executor._waiting = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4), 5
    executor._closed = False
    waiting = executor._waiting_trials(ledger, 0)
    assert waiting.plain == [([{"CPU": 1}] * 3, "PACK", 5)]
    # Other experiments would leave room for trials that start no more.
    executor._closed = True
    assert executor._waiting_trials(ledger, 0).plain == []


def test_an_adaptive_cluster_is_shown_what_trials_lack_that_wait_or_else_that_would_grow() -> None:
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=2)})
    run: Any = SimpleNamespace(reservation=None)
    assert reservations.reserve(run, request.resized(2), 1)
    shown: list[DemandSignal | None] = []
    executor: Any = object.__new__(DaskTrialExecutor)
    executor._closed = False
    executor._growth = Growth()
    executor._share = SimpleNamespace(demands=None)
    executor._demand = SimpleNamespace(show=shown.append)
    executor._reservations = reservations
    executor._running = {"trial": run}
    executor._waiting = None, 0
    executor.note_growing({})
    executor._show_demand()
    assert shown.pop() is None
    # The worker has two threads and a lease. One more worker is missing. The runner does not know
    # yet that one of these trials has ended.
    executor.note_growing({"trial": request, "ended": request})
    executor._show_demand()
    assert shown.pop() == DemandSignal(tasks=3, weight=4 / 3)
    # Three workers are missing for the trials that wait.
    executor._waiting = PlacementGroupFactory([{"CPU": 1}]), 6
    executor._show_demand()
    assert shown.pop() == DemandSignal(tasks=7, weight=8 / 7)
    executor._waiting = None, 0
    # The new worker is kept until the trial has left.
    reservations.update({name: WorkerCapacity(address=name, nthreads=2) for name in "ab"})
    executor._show_demand()
    assert shown.pop() == DemandSignal(tasks=3, weight=4 / 3)
    # One that nothing will use is not, unless another experiment may need it.
    reservations.update({name: WorkerCapacity(address=name, nthreads=2) for name in "abc"})
    executor._show_demand()
    assert shown.pop() == DemandSignal(tasks=3, weight=4 / 3)
    executor._share.demands = 1, 2, 0
    executor._show_demand()
    assert shown.pop() == DemandSignal(tasks=3, weight=2.0)
    executor._share.demands = None
    # New workers would be too small for a rank.
    executor.note_growing({"trial": ElasticPlacement(HostPlacement([{"CPU": 3}] * 4), 1, 4)})
    executor._show_demand()
    assert shown.pop() is None
