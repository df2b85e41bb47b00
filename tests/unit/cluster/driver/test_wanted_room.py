"""What is reported of the trials that wait or would grow, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dasktune.cluster.driver.reservations import Reservations
from dasktune.cluster.driver.wanted_room import WantedRoom
from dasktune.cluster.resources.adaptive_demand import DemandSignal, Growth
from dasktune.placement import WorkerCapacity
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory


def test_an_experiment_requests_what_the_workers_can_hold_until_it_ends() -> None:
    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=3, resources={"CPU": 3})})
    wanted = WantedRoom(reservations, {}, Growth())
    wanted.waiting = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4), 5
    assert wanted.waiting_trials().plain == [([{"CPU": 1}] * 3, "PACK", 5)]
    # Other experiments would leave room for trials that start no more.
    wanted.close()
    assert wanted.waiting_trials().plain == []


def test_an_adaptive_cluster_is_shown_what_trials_lack_that_wait_or_else_that_would_grow() -> None:
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=2)})
    run: Any = SimpleNamespace(reservation=None)
    assert reservations.reserve(run, request.resized(2), 1)
    wanted = WantedRoom(reservations, {"trial": run}, Growth())
    assert wanted.missing(None) is None
    # The worker has two threads and a lease. One more worker is missing. The runner does not know
    # yet that one of these trials has ended.
    wanted.growing = {"trial": request, "ended": request}
    assert wanted.missing(None) == DemandSignal(tasks=3, weight=4 / 3)
    # Three workers are missing for the trials that wait.
    wanted.waiting = PlacementGroupFactory([{"CPU": 1}]), 6
    assert wanted.missing(None) == DemandSignal(tasks=7, weight=8 / 7)
    wanted.waiting = None, 0
    # The new worker is kept until the trial has left.
    reservations.update({name: WorkerCapacity(address=name, nthreads=2) for name in "ab"})
    assert wanted.missing(None) == DemandSignal(tasks=3, weight=4 / 3)
    # One that nothing will use is not, unless another experiment may need it.
    reservations.update({name: WorkerCapacity(address=name, nthreads=2) for name in "abc"})
    assert wanted.missing(None) == DemandSignal(tasks=3, weight=4 / 3)
    assert wanted.missing((1, 2, 0)) == DemandSignal(tasks=3, weight=2.0)
    # New workers would be too small for a rank.
    wanted.growing = {"trial": ElasticPlacement(HostPlacement([{"CPU": 3}] * 4), 1, 4)}
    assert wanted.missing(None) is None


def test_a_cluster_that_never_grows_is_shown_nothing() -> None:
    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=1)})
    wanted = WantedRoom(reservations, {}, Growth(embedded=True))
    wanted.waiting = PlacementGroupFactory([{"CPU": 1}]), 6
    assert wanted.missing(None) is None
