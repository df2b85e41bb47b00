"""How an actor and the lease of its resources are made ready, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from wire_kit import FakeFuture, run_virtually

from dasktune.cluster.data.broadcast import BroadcastFailed
from dasktune.cluster.driver.actor_pool import ActorPool, PoolLimits
from dasktune.cluster.resources.resource_lease import LeaseFailed, LeaseUnsupported
from dasktune.placement import PlacedBundle, Placement

PLACEMENT = Placement(
    number=1, bundles=(PlacedBundle(address="tcp://a", resources={"CPU": 1}, declared={"CPU": 1}),)
)


PAIR = Placement(
    number=2,
    bundles=tuple(
        PlacedBundle(address=address, resources={"CPU": 1}, declared={"CPU": 1})
        for address in ("tcp://a", "tcp://b")
    ),
)


class Worker:
    """Stands for the client of one worker, which takes some time for a lease, and for an actor."""

    def __init__(
        self, *, lease_s: float, actor_s: float, error: Exception | None = None, ensure_on: Any = None
    ) -> None:
        self.lease_s, self.actor_s, self.error = lease_s, actor_s, error
        #: The tasks that were submitted, each with the time.
        self.submitted: list[tuple[str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.pool = ActorPool(
            self,  # type: ignore[arg-type]
            name="x",
            plugin="x",
            actor_settings={},
            objects=SimpleNamespace(ensure_on=ensure_on or _nothing),  # type: ignore[arg-type]
            priority=0,
            leases=True,
            limits=PoolLimits(open_timeout=15.0, lease_timeout=10.0, idle_time=1.0, idle_lease_time=0.25),
            spawn=asyncio.ensure_future,  # type: ignore[arg-type]
        )

    def as_current(self) -> Any:
        return nullcontext()

    def map(self, *_: Any, key: list[str], actor: bool, **options: Any) -> list[FakeFuture]:
        now = asyncio.get_running_loop().time()
        self.submitted += [("actor" if actor else "lease", now) for _ in key]
        started = [asyncio.ensure_future(self._create() if actor else self._grant(one)) for one in key]
        self.tasks += started
        return [FakeFuture(one) for one in started]

    async def _create(self) -> None:
        await asyncio.sleep(self.actor_s)

    async def _grant(self, key: str) -> None:
        await asyncio.sleep(self.lease_s)
        if self.error is not None:
            raise self.error
        self.pool.on_lease_granted(key, ())
        await asyncio.sleep(1e9)


async def _nothing(address: str, factor: float) -> None:
    pass


@pytest.mark.parametrize(
    ("lease_s", "actor_s", "ready_s"), [(3.0, 2.0, 3.0), (2.0, 3.0, 3.0), (9.0, 24.0, 24.0)]
)
def test_an_actor_is_created_while_its_lease_is_requested(
    lease_s: float, actor_s: float, ready_s: float
) -> None:
    async def work() -> tuple[float, bool]:
        worker = Worker(lease_s=lease_s, actor_s=actor_s)
        actor = worker.pool.acquire(PLACEMENT)
        await worker.pool.make_ready(actor, PLACEMENT)
        found = asyncio.get_running_loop().time(), worker.pool.is_ready(actor)
        await actor.close()
        return found

    assert run_virtually(work()) == (ready_s, True)


def test_an_actor_whose_lease_is_refused_is_closed() -> None:
    async def work() -> tuple[bool, set[bool]]:
        worker = Worker(lease_s=1e6, actor_s=1.0)
        actor = worker.pool.acquire(PLACEMENT)
        with pytest.raises(LeaseFailed, match="within 10 s"):
            await worker.pool.make_ready(actor, PLACEMENT)
        assert [one for one, _ in worker.submitted] == ["lease", "actor"]
        opened = actor.is_open
        await actor.close()
        # The actor was there, and its task had ended; that of the lease is cancelled.
        return opened, {task.done() for task in worker.tasks}

    assert run_virtually(work()) == (True, {True})


def test_an_actor_that_is_closed_while_it_is_made_ready_leaves_no_task() -> None:
    async def work() -> set[bool]:
        worker = Worker(lease_s=1e6, actor_s=1e6)
        actor = worker.pool.acquire(PLACEMENT)
        making = asyncio.ensure_future(worker.pool.make_ready(actor, PLACEMENT))
        await asyncio.sleep(1.0)
        await actor.close()
        assert len(worker.tasks) == 2
        with suppress(Exception):
            await making
        return {task.cancelled() for task in worker.tasks}

    assert run_virtually(work()) == {True}


def test_a_worker_whose_dask_supports_no_leases_gets_an_actor_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> tuple[float, bool]:
        worker = Worker(lease_s=1.0, actor_s=3.0, error=LeaseUnsupported("no secede"))
        actor = worker.pool.acquire(PLACEMENT)
        await worker.pool.make_ready(actor, PLACEMENT)
        found = asyncio.get_running_loop().time(), worker.pool.is_ready(actor)
        await actor.close()
        return found

    assert run_virtually(work()) == (3.0, True)
    assert "trials run without leases" in caplog.text


def test_an_actor_whose_objects_do_not_arrive_leaves_no_task() -> None:
    async def fail(address: str, factor: float) -> None:
        raise BroadcastFailed("no objects")

    async def work() -> set[bool]:
        worker = Worker(lease_s=1.0, actor_s=1e6, ensure_on=fail)
        actor = worker.pool.acquire(PLACEMENT)
        with pytest.raises(BroadcastFailed):
            await worker.pool.make_ready(actor, PLACEMENT)
        await actor.close()
        return {task.cancelled() for task in worker.tasks}

    assert run_virtually(work()) == {True}


def test_a_trial_on_several_workers_acquires_its_leases_in_turn_while_its_actor_is_created() -> None:
    async def work() -> tuple[float, list[tuple[str, float]]]:
        worker = Worker(lease_s=2.0, actor_s=1.0)
        actor = worker.pool.acquire(PAIR)
        await worker.pool.make_ready(actor, PAIR)
        found = asyncio.get_running_loop().time(), worker.submitted
        await actor.close()
        return found

    assert run_virtually(work()) == (4.0, [("lease", 0.0), ("actor", 0.0), ("lease", 2.0)])


def test_no_actor_is_created_while_its_lease_waits_for_tasks_of_others() -> None:
    async def work() -> list[tuple[str, float]]:
        # Dask could not retire the worker meanwhile.
        worker = Worker(lease_s=50.0, actor_s=1.0)
        actor = worker.pool.acquire(PLACEMENT)
        await worker.pool.make_ready(actor, PLACEMENT, patience_s=100.0)
        await actor.close()
        return worker.submitted

    assert run_virtually(work()) == [("lease", 0.0), ("actor", 50.0)]
