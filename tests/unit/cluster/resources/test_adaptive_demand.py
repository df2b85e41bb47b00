"""What an adaptive cluster is shown, and what Dask makes of it."""

from __future__ import annotations

from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.deploy import SpecCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.cluster.resources.adaptive_demand import (
    DemandSignal,
    Growth,
    demand_signal,
    signal_for,
    workers_for_bundles,
)
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory


def needs(**amounts: float) -> PlacementGroupFactory:
    return PlacementGroupFactory([amounts])


def worker(address: str = "new", nthreads: int = 1, **facts: Any) -> WorkerCapacity:
    return WorkerCapacity(address=address, nthreads=nthreads, **facts)


def ledger_of(*workers: WorkerCapacity) -> Ledger:
    ledger = Ledger()
    ledger.update({one.address: one for one in workers})
    return ledger


def dask_target(shown: DemandSignal | None, *, workers: int, threads: int, leases: int) -> int:
    """Work out what `Scheduler.adaptive_target` does, for leases and what is shown."""
    tasks, weight = (shown.tasks, shown.weight) if shown else (0, 0.0)
    cpu = min(tasks + leases, ceil(round(tasks * weight, 6)))
    if workers:
        cpu = ceil(round(cpu / threads * workers, 6))
    return cpu


@settings(max_examples=60)
@given(workers=st.integers(1, 9), each=st.integers(1, 8), waiting=st.integers(1, 900))
def test_a_full_cluster_grows_by_exactly_what_is_missing(workers: int, each: int, waiting: int) -> None:
    ledger = ledger_of(*(worker(str(number), each) for number in range(workers)))
    one = needs(CPU=1)
    while ledger.place(one, now=0.0):
        pass
    busy = workers * each
    shown = demand_signal(one, waiting, ledger, busy=busy, new_worker=worker("new", each))
    target = dask_target(shown, workers=workers, threads=busy, leases=busy)
    assert target == workers + ceil(waiting / each)


@settings(max_examples=60)
@given(
    workers=st.integers(1, 9),
    each=st.integers(1, 8),
    size=st.integers(1, 3),
    waiting=st.lists(st.integers(1, 200), min_size=2, max_size=4),
)
def test_experiments_on_a_full_cluster_show_the_sum_of_what_they_lack(
    workers: int, each: int, size: int, waiting: list[int]
) -> None:
    size = min(size, each)
    leases = workers * (each // size)
    # For each experiment the cluster is full, of its own trials or those of others.
    full = ledger_of(
        *(worker(str(n), each, resources={"CPU": each}, used={"CPU": each}) for n in range(workers))
    )
    shown = [
        demand_signal(
            needs(CPU=size),
            count,
            full,
            busy=leases,
            place=place,
            sharers=len(waiting),
            new_worker=worker("new", each),
        )
        for place, count in enumerate(waiting)
    ]
    missing = sum(ceil(count / (each // size)) for count in waiting)
    tasks = sum(one.tasks for one in shown if one)
    # Tasks of one prefix have the duration that was set last.
    for one in shown:
        assert one is not None
        both = DemandSignal(tasks=tasks, weight=one.weight)
        target = dask_target(both, workers=workers, threads=workers * each, leases=leases)
        assert target == workers + missing


def test_room_on_a_worker_that_was_given_notice_is_missing() -> None:
    ledger = ledger_of(worker("stays", 2), worker("leaves", 2))
    assert demand_signal(needs(CPU=1), 4, ledger, new_worker=worker("new", 2)) is None
    # A worker that is avoided for a moment will be used again.
    ledger.avoid("stays", 1.0)
    assert demand_signal(needs(CPU=1), 4, ledger, new_worker=worker("new", 2)) is None
    ledger.avoid("leaves", 60.0, is_leaving=True)
    shown = demand_signal(needs(CPU=1), 4, ledger, new_worker=worker("new", 2))
    assert dask_target(shown, workers=2, threads=4, leases=0) == 3
    ledger.remove("leaves")
    assert ledger.leaving == frozenset()


@pytest.mark.parametrize("status", ["init", "unchecked"])
def test_workers_are_kept_until_they_are_checked(status: str) -> None:
    one, new = needs(CPU=1), worker("new")

    def target(waiting: int, *workers: WorkerCapacity, request: PlacementGroupFactory = one) -> int:
        shown = demand_signal(request, waiting, ledger_of(*workers), new_worker=new)
        threads = sum(one.nthreads for one in workers)
        return dask_target(shown, workers=len(workers), threads=threads, leases=0)

    unchecked = [worker(str(number), status=status) for number in range(2)]
    # All the room that the trials need is on workers to which Dask has given no task yet.
    assert target(2, *unchecked) == 2
    assert target(1, *unchecked) == 2
    assert target(1, worker("checked"), unchecked[0]) == 2
    # From then on each trial's lease keeps its worker.
    assert target(2, worker("a"), worker("b")) == 0
    # More are requested as ever.
    assert target(3, *unchecked) == 3
    # No new worker has room for this request, but the one to be checked has.
    assert target(9, worker("large", 4, status=status), request=needs(CPU=4)) == 1


def test_workers_that_share_a_host_are_requested_together() -> None:
    # Two hosts with two bundles each, and a worker for each bundle.
    request = HostPlacement([{"CPU": 1}] * 4, per_host=2)
    new = worker("new")
    assert demand_signal(request, 1, Ledger(), new_worker=new) == DemandSignal(tasks=4, weight=1.0)
    assert demand_signal(request, 3, Ledger(), new_worker=new) == DemandSignal(tasks=12, weight=1.0)

    def target(*addresses: str, trials: int = 1) -> int:
        ledger = ledger_of(*(worker(f"tcp://{address}") for address in addresses))
        shown = demand_signal(request, trials, ledger, new_worker=new)
        return dask_target(shown, workers=len(addresses), threads=len(addresses), leases=0)

    # Those that are there count, also if a host has not got all of its workers yet.
    assert target("a:1") == 4
    assert target("a:1", "a:2", "b:1") == 4
    assert target("a:1", "a:2", "b:1", "b:2") == 0
    # Half of a host that has as many workers as any other is of no use.
    assert target("a:1", "a:2", "a:3") == 5
    # A trial needs two hosts, whatever the room on one of them is.
    assert target("a:1", "a:2", "a:3", "a:4") == 6
    assert target("a:1", "a:2", "a:3", "a:4", trials=2) == 8
    # Hosts of one worker each: no number of them is enough, so there is an end.
    assert target("a:1", "b:1", "c:1") == 4
    assert target("a:1", "b:1", "c:1", "d:1") == 0
    strict = HostPlacement([{"CPU": 1}] * 3, "STRICT_PACK")
    assert demand_signal(strict, 1, Ledger(), new_worker=new) == DemandSignal(tasks=3, weight=1.0)
    assert demand_signal(strict, 1, Ledger(), new_worker=worker("new", 2)) == DemandSignal(
        tasks=2, weight=1.0
    )


def test_trials_larger_than_a_thread_count_as_what_they_take() -> None:
    ledger = ledger_of(worker("a", 4), worker("b", 4))
    two = needs(CPU=2)
    for _ in range(4):
        assert ledger.place(two, now=0.0)
    shown = demand_signal(two, 4, ledger, busy=4, new_worker=worker("new", 4))
    assert dask_target(shown, workers=2, threads=8, leases=4) == 4


def test_without_workers_dask_counts_in_workers() -> None:
    shown = demand_signal(needs(CPU=1), 8, Ledger(), new_worker=worker("new", 2))
    assert shown == DemandSignal(tasks=4, weight=1.0)
    assert dask_target(shown, workers=0, threads=0, leases=0) == 4


def test_a_worker_of_unknown_size_is_asked_for_alone() -> None:
    assert demand_signal(needs(CPU=1), 8, Ledger()) == DemandSignal(tasks=1, weight=1.0)


@pytest.mark.parametrize(("more", "leases"), [(0, 0), (0, 1), (0, 6), (3, 0), (3, 6), (-1, 0), (-1, 3)])
def test_dask_keeps_the_workers_that_are_there_and_starts_more(more: int, leases: int) -> None:
    ledger = ledger_of(*(worker(name, 2) for name in "abc"))
    shown = signal_for(more, ledger, busy=leases)
    assert dask_target(shown, workers=3, threads=6, leases=leases) == 3 + more


def test_bundles_that_share_a_worker_need_one() -> None:
    two, four = (ElasticPlacement(HostPlacement([{"CPU": cpus}] * 4), 1, 4) for cpus in (2, 4))
    new = worker("new", 8)
    assert workers_for_bundles([(two, 0), (four, 0)], new) == 0
    assert workers_for_bundles([(two, 2), (four, 1)], new) == 1
    assert workers_for_bundles([(two, 3), (four, 1)], new) == 2
    assert workers_for_bundles([(two, 4), (four, 2)], new) == 2
    assert workers_for_bundles([(two, 3), (four, 2)], None) == 1
    assert workers_for_bundles([(two, 1), (four, 1)], worker("new", 2)) == 1
    assert workers_for_bundles([(four, 1)], worker("new", 2)) == 0


def test_room_that_is_there_or_about_to_be_is_not_asked_for() -> None:
    # One is being looked at, one may never take a trial.
    ledger = ledger_of(worker("a", 2), worker("b", 2, status="unchecked"), worker("c", 9, status="refused"))
    shown = demand_signal(needs(CPU=1), 4, ledger, new_worker=worker())
    assert dask_target(shown, workers=3, threads=13, leases=0) == 3
    shown = demand_signal(needs(CPU=1), 5, ledger, new_worker=worker())
    assert dask_target(shown, workers=3, threads=13, leases=0) == 4


def test_workers_that_would_be_too_small_are_not_asked_for() -> None:
    assert demand_signal(needs(CPU=2), 1, Ledger(), new_worker=worker()) is None
    assert demand_signal(needs(GPU=1), 1, ledger_of(worker("a", 8)), new_worker=worker("a", 8)) is None


def test_no_more_tasks_are_shown_than_a_scheduler_easily_bears() -> None:
    shown = demand_signal(needs(CPU=1), 50_000, Ledger(), new_worker=worker())
    assert shown == DemandSignal(tasks=1000, weight=50.0)


def test_a_request_for_nothing_needs_one_worker() -> None:
    shown = demand_signal(needs(), 10, Ledger(), new_worker=worker())
    assert shown == DemandSignal(tasks=1, weight=1.0)


class Scaled(SpecCluster):  # type: ignore[misc]
    """A cluster object without a cluster."""

    def __init__(self, spec: dict[str, Any], adaptive: Any) -> None:
        self.new_spec = spec
        self._adaptive = adaptive

    def __del__(self) -> None:
        pass


def adaptive_cluster(adaptive: Any = None, **options: Any) -> Scaled:
    adaptive = adaptive or SimpleNamespace(periodic_callback=object(), target_duration=7.0)
    return Scaled({"options": options}, adaptive)


def test_a_cluster_object_tells_whether_it_is_adaptive_now() -> None:
    adaptive = SimpleNamespace(periodic_callback=object(), target_duration=7.0)
    cluster = adaptive_cluster(adaptive, nthreads=1)
    growth = Growth(cluster)
    assert growth.is_adaptive is True
    assert growth.target_duration == 7.0
    adaptive.periodic_callback = None
    assert growth.is_adaptive is False
    assert Growth(cluster, embedded=True).is_adaptive is False


@pytest.mark.parametrize("named", ["tcp://127.0.0.1:1", None, SimpleNamespace()])
def test_whether_other_clusters_grow_is_unknown(named: Any) -> None:
    growth = Growth(named)
    assert growth.is_adaptive is None
    assert growth.new_worker is None
    assert growth.target_duration == 5.0


def test_the_size_of_new_workers_is_remembered_when_all_are_gone() -> None:
    growth = Growth("tcp://127.0.0.1:1")
    assert growth.expected(Ledger()) is None
    assert growth.expected(ledger_of(worker("a", 8))) == worker("a", 8)
    assert growth.expected(Ledger()) == worker("a", 8)
    told = Growth(adaptive_cluster(nthreads=2, resources={"GPU": 1}))
    expected = told.expected(ledger_of(worker("a", 8)))
    assert expected is not None
    assert (expected.total("CPU"), expected.total("GPU")) == (2, 1)
    several_at_a_time = adaptive_cluster(nthreads=2)
    several_at_a_time.new_spec["group"] = ["-0", "-1"]
    assert Growth(several_at_a_time).new_worker is None


def test_who_may_wait_for_a_worker_that_is_large_enough() -> None:
    unknown, known = Growth("tcp://127.0.0.1:1"), Growth(adaptive_cluster(nthreads=2))
    assert not unknown.may_wait(needs(CPU=9), empty=False)
    assert unknown.may_wait(needs(CPU=9), empty=True)
    assert known.may_wait(needs(CPU=2), empty=False)
    assert not known.may_wait(needs(CPU=3), empty=True)
    assert known.limit_reason(needs(CPU=3)) == (
        "The cluster is adaptive, but every worker that it starts has CPU 2. "
    )
    assert Growth(adaptive_cluster()).may_wait(needs(CPU=9), empty=False)
    # Several workers of a host hold its part of a trial together.
    assert known.may_wait(HostPlacement([{"CPU": 2}] * 4, per_host=2), empty=False)
    assert known.may_wait(HostPlacement([{"CPU": 2}] * 4, "STRICT_PACK"), empty=False)
    assert not known.may_wait(HostPlacement([{"CPU": 3}] * 4, per_host=2), empty=False)


@pytest.mark.parametrize("facts", [{"used": {"CPU": 2}}, {"withheld": {"CPU": 1}}])
def test_a_new_worker_is_empty_although_other_experiments_use_the_one_that_was_seen(facts: Any) -> None:
    seen = worker("a", 2, resources={"CPU": 2}, **facts)
    ledger = ledger_of(seen)
    shown = demand_signal(needs(CPU=2), 3, ledger, new_worker=Growth().expected(ledger))
    assert dask_target(shown, workers=1, threads=2, leases=0) == 4
    # A trial of two bundles, each as large as a worker.
    pair = PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}])
    assert demand_signal(pair, 1, ledger, new_worker=seen) == DemandSignal(tasks=6, weight=1.0)
