"""What a driver reads of the workers on the scheduler, with a stand-in for the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from dasktune.cluster.membership.worker_list import KnownWorkers, read_cluster
from dasktune.placement import WorkerCapacity


class FakeScheduler:
    """A scheduler with one worker, on which tasks are processed."""

    def __init__(self, cpus: float, tasks: Mapping[str, float]) -> None:
        processing = [
            SimpleNamespace(
                key=key,
                resource_restrictions={"CPU": amount} if amount else None,
                # As Dask has it: the negative priority first.
                priority=(-5 if key.startswith("urgent") else 0, 7, 0),
            )
            for key, amount in tasks.items()
        ]
        worker = SimpleNamespace(
            address="tcp://a:1",
            host="a",
            name=0,
            nthreads=4,
            resources={"CPU": cpus},
            used_resources={"CPU": float(sum(tasks.values()))},
            processing=processing,
            extra={},
            status=SimpleNamespace(name="running"),
            last_seen=0.0,
            metrics={},
            memory_limit=None,
            versions={},
            nanny=None,
        )
        self.workers = {worker.address: worker}
        self.plugins: dict[str, Any] = {}

    async def run_on_scheduler(self, function: Any, *args: Any) -> Any:
        return function(*args, dask_scheduler=self)


def read(cpus: float, priority: float | None = None, **tasks: float) -> WorkerCapacity:
    """Return the worker as the experiment "mine" reads it."""
    demand = None if priority is None else {"priority": priority}
    named = {key.replace("_", "-"): amount for key, amount in tasks.items()}
    workers, share = asyncio.run(read_cluster(FakeScheduler(cpus, named), "mine", demand))
    assert share is None
    return workers["tcp://a:1"]


def test_own_leases_are_not_used_by_others():
    worker = read(4, mine_actor_1_lease_1=1, other_actor_1_lease_1=2, plain=1)
    assert worker.used == {"CPU": 3}
    assert read(4, mine_actor_1_lease_1=1).used == {}


def test_what_tasks_have_booked_is_read_where_some_of_them_wait():
    assert read(4, plain=4).overtakable == {}
    worker = read(4, first=4, second=3, bare=0, mine_actor_1_lease_1=1, other_actor_1_lease_1=2)
    assert worker.used == {"CPU": 9}
    assert worker.overtakable == {"CPU": 7}
    assert worker.for_trials("CPU") == 2
    # A policy does not see it, because it changes with each trial that overtakes the tasks.
    assert worker.available["CPU"] == 0


def test_tasks_with_a_higher_priority_are_not_overtaken():
    tasks = {"urgent": 8, "plain": 3}
    assert read(4, **tasks).overtakable == {"CPU": 3}
    assert read(4, priority=4, **tasks).overtakable == {"CPU": 3}
    assert read(4, priority=5, **tasks).overtakable == {"CPU": 11}
    # This experiment uses what the others leave. Its leases would wait behind the tasks.
    assert read(4, priority=-1, **tasks).overtakable == {}


def test_the_ages_are_those_that_the_driver_counts() -> None:
    seen = []

    def count_ages(heartbeats: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        seen.append(dict(heartbeats))
        return dict.fromkeys(heartbeats, 1.5)

    workers, _ = asyncio.run(read_cluster(FakeScheduler(4, {}), "mine", None, count_ages))
    assert workers["tcp://a:1"].age == 1.5
    [heartbeats] = seen
    # The stand-in for the worker has sent its only heartbeat in 1970.
    assert heartbeats["tcp://a:1"][0] == 0.0
    assert heartbeats["tcp://a:1"][1] > 1e9


def test_a_worker_is_the_same_object_until_something_changes() -> None:
    def read(age: float) -> WorkerCapacity:
        known_ages = dict.fromkeys(scheduler.workers, age)
        found = read_cluster(scheduler, "mine", None, lambda heartbeats: known_ages, known)
        return asyncio.run(found)[0]["tcp://a:1"]

    scheduler, known = FakeScheduler(4, {}), KnownWorkers(recent_s=10.0)
    first = read(0.5)
    assert first.age == 0.0
    assert read(9.5) is first
    assert read(10.0).age == 10.0
    scheduler.workers["tcp://a:1"].used_resources["CPU"] = 3.0
    changed = read(0.5)
    assert (first.used, changed.used) == ({}, {"CPU": 3.0})
    del scheduler.workers["tcp://a:1"]
    assert asyncio.run(read_cluster(scheduler, "mine", None, None, known))[0] == {}
