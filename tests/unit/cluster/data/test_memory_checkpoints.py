"""Checkpoints in the memory of workers, with a cluster that is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.data.kept_checkpoints import key_of
from dasktune.cluster.data.memory_checkpoints import (
    CheckpointGone,
    DaskWaits,
    MemoryCheckpoints,
)
from dasktune.cluster.protocol.wire_messages import Assignment, Request
from dasktune.cluster.worker.assignment import AssignedTrial
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.trial_messages import Returned
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored

PLUGIN = "dasktune-1@client"


class Remote:
    """A future of Dask, done as soon as it is waited for unless it hangs."""

    def __init__(self, key: str, function: Any, workers: list[str] | None) -> None:
        self.key, self.function, self.workers = key, function, workers
        self.status = "pending"
        self.becomes = "finished"
        self.released = False

    def release(self) -> None:
        self.released = True


class Cluster:
    """A client that keeps count of what it was asked to do."""

    def __init__(self) -> None:
        self.tasks: list[Remote] = []
        self.owners: dict[str, tuple[str, ...]] = {}
        self.becomes = "finished"
        self.is_mute = False

    def as_current(self) -> Any:
        return nullcontext()

    def submit(self, function: Any, *arguments: Any, key: str, **options: Any) -> Remote:
        if any(isinstance(one, Remote) and one.status == "cancelled" for one in arguments):
            raise CancelledError(key)
        task = Remote(key, function, options["workers"])
        task.becomes = self.becomes
        self.tasks.append(task)
        return task

    async def who_has(self, futures: list[Remote]) -> dict[str, tuple[str, ...]]:
        if self.is_mute:
            raise OSError("no connection")
        return {one.key: self.owners.get(one.key, ()) for one in futures}


async def wait(futures: list[Remote]) -> None:
    for one in futures:
        if one.becomes == "hangs":
            await asyncio.Event().wait()
        if one.becomes == "slow":
            await asyncio.sleep(0.05)
            one.becomes = "finished"
        one.status = one.becomes


class Lab:
    """The driver's end, within a loop."""

    def __init__(self, limit: int = 1000, disk_first: bool = False, **waits: Any) -> None:
        self.cluster = Cluster()
        self.events: list[CheckpointLost | CheckpointStored] = []
        self.work: list[asyncio.Task[None]] = []
        self.memory = MemoryCheckpoints(
            self.cluster,  # type: ignore[arg-type]
            plugin=PLUGIN,
            limit=limit,
            disk_first=disk_first,
            emit=self.events.extend,
            now=lambda: 7.0,
            spawn=lambda work: self.work.append(asyncio.ensure_future(work)),
            waits=DaskWaits(until_done=wait, **waits),
        )

    def keep(self, index: int = 0, address: str = "a", size: int = 100) -> str:
        path = f"trials/t/checkpoint_{index:06d}_i01"
        record = CheckpointRecord(path=path, index=index, iteration=1, kind=CheckpointKind.MEMORY)
        self.memory.add("t", record, size, address, Storage("memory://m"))
        return path

    async def settle(self) -> None:
        while self.work:
            await self.work.pop()

    @property
    def lost(self) -> list[str]:
        return [one.path for one in self.events if isinstance(one, CheckpointLost)]


def play(scenario: Callable[[Lab], Coroutine[Any, Any, None]], **options: Any) -> Lab:
    async def work() -> Lab:
        lab = Lab(**options)
        await scenario(lab)
        await lab.settle()
        return lab

    return asyncio.run(work())


def test_what_a_trial_leaves_becomes_dasks_on_that_worker() -> None:
    async def scenario(lab: Lab) -> None:
        lab.keep(address="a")

    [task] = play(scenario).cluster.tasks
    assert task.workers == ["a"]
    assert task.key == key_of(PLUGIN, "trials/t/checkpoint_000000_i01")
    assert task.key.startswith("dasktune-1-")


def test_it_need_not_move_where_it_is_but_has_to_anywhere_else() -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep(address="a")
        key, copy = await lab.memory.fetch_to(path, "a")
        assert (key, copy) == (lab.cluster.tasks[0].key, None)
        assert len(lab.cluster.tasks) == 1
        key, copy = await lab.memory.fetch_to(path, "b")
        moved = lab.cluster.tasks[1]
        assert (key, copy) == (moved.key, moved)
        assert (moved.workers, moved.released) == (["b"], False)
        # Dask may have forgotten the first copy since.
        await lab.memory.fetch_to(path, "a")
        assert lab.cluster.tasks[2].workers == ["a"]

    assert play(scenario).events == []


@pytest.mark.parametrize("fate", ["error", "lost", "hangs"])
def test_what_does_not_come_is_lost_once(fate: str) -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep(size=0)
        lab.cluster.becomes = fate
        for _ in range(2):
            with pytest.raises(CheckpointGone):
                await lab.memory.fetch_to(path, "b")

    lab = play(scenario, transfer_seconds=0.0 if fate == "hangs" else 60.0)
    assert len(lab.lost) == 1
    assert [task.released for task in lab.cluster.tasks] == [True, True]


def test_a_large_checkpoint_has_a_second_for_each_5_megabytes() -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep(size=50_000_000)
        lab.cluster.becomes = "slow"
        await lab.memory.fetch_to(path, "b")

    assert play(scenario, transfer_seconds=0.0).lost == []


def test_what_another_client_has_cancelled_is_lost_even_where_it_was() -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep(address="a")
        lab.cluster.tasks[0].status = lab.cluster.tasks[0].becomes = "cancelled"
        with pytest.raises(CheckpointGone):
            await lab.memory.fetch_to(path, "a")

    assert len(play(scenario).lost) == 1


def test_who_stops_waiting_leaves_nothing_behind() -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep()
        lab.cluster.becomes = "hangs"
        waiting = asyncio.ensure_future(lab.memory.fetch_to(path, "b"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert lab.cluster.tasks[1].released

    assert play(scenario).lost == []


def test_a_worker_that_is_gone_takes_along_what_no_other_has() -> None:
    async def scenario(lab: Lab) -> None:
        doomed, moved, elsewhere = lab.keep(0, "a"), lab.keep(1, "a"), lab.keep(2, "b")
        lab.cluster.owners[key_of(PLUGIN, moved)] = ("a", "c")
        lab.memory.on_worker_lost("a", "it died")
        await lab.settle()
        assert lab.lost == [doomed]
        # The scheduler does not know where it is now: it may have been on the next one, too.
        lab.cluster.owners.clear()
        lab.memory.on_worker_lost("c", "it died as well")
        await lab.settle()
        assert lab.lost == [doomed, moved]
        lab.memory.on_worker_lost("d", "it held nothing")
        assert lab.work == []
        await lab.memory.fetch_to(elsewhere, "b")

    reasons = [event.reason for event in play(scenario).events]
    assert reasons == ["it died", "it died as well"]


def test_a_scheduler_that_does_not_answer_has_nothing() -> None:
    async def scenario(lab: Lab) -> None:
        lab.keep()
        lab.cluster.is_mute = True
        lab.memory.on_worker_lost("a", "it died")

    assert len(play(scenario).lost) == 1


def test_what_was_released_meanwhile_is_no_loss() -> None:
    async def scenario(lab: Lab) -> None:
        path = lab.keep()
        lab.memory.on_worker_lost("a", "it died")
        lab.memory.release(path)
        lab.memory.release(path)

    assert play(scenario).events == []


def test_with_the_connection_all_is_lost() -> None:
    async def scenario(lab: Lab) -> None:
        lab.keep(0, "a")
        lab.keep(1, "b")
        lab.memory.on_worker_lost(None, "the scheduler is gone")

    assert len(play(scenario).lost) == 2


def test_what_is_released_before_it_was_taken_comes_first() -> None:
    async def scenario(lab: Lab) -> None:
        lab.memory.release(lab.keep(0))
        assert not lab.cluster.tasks[0].released
        lab.cluster.becomes = "hangs"
        lab.keep(1)
        lab.memory.close()

    assert [task.released for task in play(scenario, answer_seconds=0.01).cluster.tasks] == [True, True]


def test_a_driver_that_leaves_gets_what_was_stored_and_what_was_not() -> None:
    async def scenario(lab: Lab) -> None:
        first, second = lab.keep(0), lab.keep(1)
        await lab.memory.store(first)
        lab.cluster.becomes = "error"
        await lab.memory.store(second)
        await lab.memory.store("trials/t/checkpoint_000009_i01")

    stored, lost = play(scenario).events
    assert stored.checkpoint.kind is CheckpointKind.PERSISTENT
    assert stored.time == 7.0
    assert "could not be stored" in lost.reason


def test_a_worker_keeps_no_more_than_its_share() -> None:
    async def scenario(lab: Lab) -> None:
        memory = lab.memory
        assert memory.room("a") == 0
        limits = {"a": 2000, "b": 1_000_000, "c": 0}
        workers = {
            address: WorkerCapacity(address=address, memory_limit=limit) for address, limit in limits.items()
        }
        workers["d"] = WorkerCapacity(address="d", shares_storage=False)
        memory.update_workers(workers)
        # Nothing is left where it could not be stored from when the driver leaves.
        assert [memory.room(address) for address in "abcd"] == [400, 1000, 1000, 0]
        path = lab.keep(0, "a", size=300)
        assert memory.room("a") == 100
        lab.keep(1, "a", size=300)
        assert memory.room("a") == 0
        memory.release(path)
        assert memory.room("a") == 100

    play(scenario)


def test_a_disk_that_all_workers_share_is_used_first() -> None:
    memory = Lab(disk_first=True).memory
    near = WorkerCapacity(address="a", host="here")
    memory.update_workers({"a": near})
    assert memory.room("a") == 0
    memory.update_workers({"a": near, "b": WorkerCapacity(address="b", host="there")})
    assert memory.room("a") == memory.room("b") == 1000
    memory.update_workers({"a": near})
    assert memory.room("a") == 0


# On the worker


def assigned(data: dict[str, bytes], kept: dict[str, bytes]) -> AssignedTrial:
    """Assign a trial that needs a checkpoint to a worker where Dask and the plugin have these."""
    queue: list[AssignedTrial] = []
    actor = SimpleNamespace(enqueue=queue.append)
    plugin = SimpleNamespace(checkpoints=kept, endpoints={}, actors={"actor": actor})
    loop = SimpleNamespace(call_later=None, remove_timeout=None)
    endpoint = WorkerEndpoint.of(SimpleNamespace(data=data, loop=loop), plugin, "topic", 60.0)
    spec: Any = None
    trial = Assignment(incarnation="t-1", actor="actor", spec=spec, config=b"", memory_key="k")
    endpoint.poll(Request(number=1, assignments=(trial,)))
    return queue[0]


def test_a_checkpoint_is_found_before_and_after_dask_has_taken_it() -> None:
    assert assigned({"k": b"1"}, {}).checkpoint == b"1"
    assert assigned({}, {"k": b"1"}).checkpoint == b"1"
    assert not assigned({}, {}).is_waiting


def test_a_trial_whose_checkpoint_is_not_there_is_given_back_and_says_why() -> None:
    turn = AssignedTrial(SimpleNamespace(incarnation="t-1"), None)  # type: ignore[arg-type]
    assert not turn.is_waiting
    news = turn.report()
    assert news is not None
    [entry] = news.messages
    assert decode(*entry) == Returned(lacks_checkpoint=True)
