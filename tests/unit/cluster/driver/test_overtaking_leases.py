"""Leases that overtake the tasks of other programs, and how long they keep workers idle."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from wire_kit import FakeFuture, run_virtually

from dasktune.cluster.driver.actor_pool import ActorPool, PoolLimits
from dasktune.cluster.driver.task_queues import TaskQueues
from dasktune.cluster.resources.resource_lease import LeaseFailed
from dasktune.placement import Ledger, PlacedBundle, Placement, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory


class Worker:
    """Runs tasks of one length on its CPUs, without end, and starts a waiting lease before them."""

    def __init__(self, task_s: float, cpus: int = 1, phase_s: float = 0.0) -> None:
        self.task_s, self.cpus = task_s, cpus
        #: When each CPU next ends a task, and the leases, with their CPUs, that hold or wait.
        self.ends = [phase_s + task_s * (number + 1) / cpus for number in range(cpus)]
        self.waiting: dict[str, float] = {}
        self.held: dict[str, float] = {}
        #: CPU-seconds in which neither a task nor a trial ran.
        self.idle_s = 0.0
        #: The longest time for which a CPU was idle at once.
        self.longest_s = 0.0


class Cluster:
    """As much of a Dask client as leases need, in virtual time."""

    def __init__(self, **workers: Worker) -> None:
        self.workers = workers
        self.on_granted: Any = None

    def as_current(self) -> Any:
        return nullcontext()

    def map(self, *_: Any, key: list[str], **options: Any) -> list[FakeFuture]:
        of_keys = dask.get_annotations()
        return [self._start(one, **{name: of(one) for name, of in of_keys.items()}) for one in key]

    def _start(self, key: str, workers: list[str], resources: dict[str, float], **_: Any) -> FakeFuture:
        task = self._run(self.workers[workers[0]], key, resources.get("CPU", 0))
        return FakeFuture(asyncio.ensure_future(task))

    async def _run(self, worker: Worker, key: str, needs: float) -> None:
        """Collect CPUs as tasks end, hold them, and give them to tasks at the end."""
        now = asyncio.get_running_loop().time
        taken: list[float] = []
        try:
            for _ in range(int(needs)):
                worker.ends = [_next_end(end, worker.task_s, now()) for end in worker.ends]
                end = min(worker.ends)
                worker.ends.remove(end)
                try:
                    await asyncio.sleep(end - now())
                except asyncio.CancelledError:
                    worker.ends.append(end)
                    raise
                taken.append(now())
            self.on_granted(key, ())
            await asyncio.sleep(1e9)
        finally:
            for since in taken:
                worker.idle_s += now() - since
                worker.longest_s = max(worker.longest_s, now() - since)
                worker.ends.append(now() + worker.task_s)


def _next_end(end: float, task_s: float, now: float) -> float:
    while end <= now:
        end += task_s
    return end


class Experiment:
    """Starts one trial beside tasks of other programs, as the driver does."""

    def __init__(self, cluster: Cluster, request: PlacementGroupFactory) -> None:
        self.cluster, self.request = cluster, request
        self.queues = TaskQueues()
        self.ledger = Ledger()
        self.attempts = 0

        async def ensure_on(address: str, factor: float) -> None:
            pass

        self.pool = ActorPool(
            cluster,
            name="x",
            plugin="x",
            actor_settings={},
            objects=SimpleNamespace(ensure_on=ensure_on),  # type: ignore[arg-type]
            priority=0,
            leases=True,
            limits=PoolLimits(open_timeout=15.0, lease_timeout=10.0, idle_time=1.0, idle_lease_time=0.25),
            spawn=asyncio.ensure_future,  # type: ignore[arg-type]
        )
        cluster.on_granted = self.pool.on_lease_granted

    async def start(self, *, until: float) -> float | None:
        """Return when all leases of the trial are held; None if they are not by then."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await asyncio.sleep(1.0)
            full = {
                address: WorkerCapacity(
                    address=address,
                    resources={"CPU": worker.cpus},
                    used={"CPU": 9 * worker.cpus},
                    overtakable={"CPU": 9 * worker.cpus},
                )
                for address, worker in self.cluster.workers.items()
            }
            self.ledger.update(self.queues.limit(full, self.request, self.ledger, loop.time()))
            placement = self.ledger.place(self.request, now=loop.time())
            if placement is None:
                continue
            self.attempts += 1
            actor = self.pool.acquire(placement)
            actor.open = _opened  # type: ignore[method-assign]
            patience_s = self.queues.patience_s
            try:
                await self.pool.make_ready(actor, placement, patience_s=patience_s)
            except LeaseFailed:
                self.queues.on_given_up(patience_s, loop.time())
            else:
                return loop.time()
            finally:
                await actor.close()
                self.ledger.release(placement)
        return None


async def _opened(*_: Any, **__: Any) -> None:
    pass


PAIR = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD")


def test_a_worker_does_not_wait_for_another_one_whose_task_lasts_long() -> None:
    async def work() -> tuple[float | None, list[float], list[float]]:
        cluster = Cluster(a=Worker(1.0), b=Worker(1e6))
        started = await Experiment(cluster, PAIR).start(until=3780)
        workers = cluster.workers.values()
        return started, [one.idle_s for one in workers], [one.longest_s for one in workers]

    started, idle, longest = run_virtually(work())
    assert started is None
    assert max(longest) <= 480
    # Three quarters of the time are for the tasks.
    assert sum(idle) <= 3780 / 4


@pytest.mark.parametrize("task_s", [1.0, 20.0, 100.0, 400.0])
def test_a_trial_on_several_workers_starts_beside_tasks_of_minutes(task_s: float) -> None:
    async def work() -> tuple[float | None, float, int]:
        cluster = Cluster(a=Worker(task_s), b=Worker(task_s, phase_s=0.6 * task_s))
        experiment = Experiment(cluster, PAIR)
        started = await experiment.start(until=50 * 3600)
        idle = sum(worker.idle_s for worker in cluster.workers.values())
        return started, idle, experiment.attempts

    started, idle, attempts = run_virtually(work())
    assert started is not None
    assert idle <= started / 4 + task_s
    assert attempts <= 8


@pytest.mark.parametrize(("number", "cpus"), [(4, 2), (3, 2), (8, 4)])
def test_a_trial_with_more_bundles_than_workers_starts_beside_tasks(number: int, cpus: int) -> None:
    async def work() -> float | None:
        cluster = Cluster(a=Worker(1.0, cpus), b=Worker(1.0, cpus))
        return await Experiment(cluster, PlacementGroupFactory([{"CPU": 1}] * number)).start(until=60)

    assert run_virtually(work()) is not None


def test_one_worker_does_not_keep_the_first_of_its_cpus_idle_for_the_last_one() -> None:
    async def work() -> tuple[float | None, float]:
        cluster = Cluster(a=Worker(7200.0, cpus=4))
        started = await Experiment(cluster, PlacementGroupFactory([{"CPU": 4}])).start(until=7200)
        return started, cluster.workers["a"].longest_s

    started, longest = run_virtually(work())
    assert started is None
    assert longest <= 480


def test_a_lease_of_one_cpu_keeps_no_room_idle_and_waits_for_an_hour() -> None:
    async def work() -> tuple[float | None, float]:
        cluster = Cluster(a=Worker(3000.0))
        started = await Experiment(cluster, PlacementGroupFactory([{"CPU": 1}])).start(until=3600)
        return started, cluster.workers["a"].longest_s

    assert run_virtually(work()) == (3000.0, 0.0)


def test_tasks_that_have_not_ended_do_not_count_as_a_slow_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        cluster = Cluster(a=Worker(1e6, cpus=2))
        experiment = Experiment(cluster, PlacementGroupFactory([{"CPU": 2}]))
        bundle = PlacedBundle(address="a", resources={"CPU": 2}, declared={"CPU": 2})
        placement = Placement(number=1, bundles=(bundle,))
        for _ in range(9):
            actor = experiment.pool.acquire(placement)
            with pytest.raises(LeaseFailed, match=r"did not grant .* within 1 s"):
                await experiment.pool.make_ready(actor, placement, patience_s=1.0)
            await actor.close()
        assert caplog.text == ""
        # A lease on a free worker counts.
        begun = asyncio.get_running_loop().time()
        actor = experiment.pool.acquire(placement)
        with pytest.raises(LeaseFailed):
            await experiment.pool.make_ready(actor, placement)
        assert asyncio.get_running_loop().time() - begun == 10.0
        await actor.close()

    run_virtually(work())
    assert "worker a is slow to start a trial" in caplog.text
