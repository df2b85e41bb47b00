"""Bringing large objects to workers, with a cluster that is made up."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasktune.cluster.data.broadcast import BroadcastFailed, ObjectBroadcast
from dasktune.cluster.protocol.payload import Payload
from dasktune.trainable.data.shared_objects import RemoteObject


class Remote:
    """A future of Dask."""

    def __init__(self, key: str, error: Exception | None = None) -> None:
        self.key = key
        self.status = "finished"
        self.error = error
        self.released = False

    def __await__(self) -> Any:
        if self.error is not None:
            raise self.error
        yield from asyncio.sleep(0).__await__()

    async def cancel(self) -> None:
        self.status = "cancelled"

    def release(self) -> None:
        self.released = True

    async def exception(self) -> Exception | None:
        await asyncio.sleep(0)
        return self.error


class Cluster:
    """A client that keeps count; fetching fails as often as a test wants."""

    def __init__(self, *, failures: int = 0, hangs: bool = False) -> None:
        self.copies: list[tuple[str, Remote]] = []
        self.fetches: list[tuple[str, Remote]] = []
        self.failures = itertools.chain([RuntimeError("lost")] * failures, itertools.repeat(None))
        self.hangs = hangs

    async def scatter(self, data: Any, *, workers: list[str], hash: bool) -> dict[str, Remote]:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        futures = {key: Remote(key) for key in data}
        self.copies += [(workers[0], future) for future in futures.values()]
        return futures

    def submit(self, function: Any, *args: Any, workers: list[str], **options: Any) -> Remote:
        fetch = Remote(options["key"], next(self.failures))
        self.fetches.append((workers[0], fetch))
        return fetch


def objects(cluster: Any, **options: Any) -> ObjectBroadcast:
    payload = Payload(blob=b"", objects={"data-0": np.zeros(10)}, code="installed")
    return ObjectBroadcast(cluster, payload, name="dasktune-1", plugin="plugin", **options)


def test_one_copy_is_sent_and_each_worker_fetches_it_once() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        there = objects(cluster)
        await asyncio.gather(*(there.ensure_on(address) for address in "aabbca"))
        await there.ensure_on("a")
        await there.close()

    asyncio.run(scenario())
    assert [at for at, _ in cluster.copies] == ["a"]
    assert sorted(at for at, _ in cluster.fetches) == ["a", "b", "c"]
    assert all(future.released for _, future in cluster.fetches)
    assert cluster.copies[0][1].status == "cancelled"
    assert cluster.copies[0][1].key.startswith("dasktune-1-object-data-0-")


class There(RemoteObject):
    """What a worker makes, with the given errors at first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.made: list[tuple[str, Remote]] = []

    def begin(self, client: Any, key: str, address: str) -> Remote:
        made = Remote(key, self.errors.pop() if self.errors else None)
        self.made.append((address, made))
        return made


@pytest.mark.parametrize("errors", [[], [RuntimeError("lost")]])
def test_what_is_on_the_cluster_is_made_there_and_nothing_is_sent(errors: list[Exception]) -> None:
    cluster, thing = Cluster(), There(*errors)
    payload = Payload(blob=b"", objects={"data-0": thing}, code="installed")

    async def scenario() -> None:
        there = ObjectBroadcast(cluster, payload, name="dasktune-1", plugin="plugin")
        for address in "aba":
            await there.ensure_on(address)
        await there.close()

    asyncio.run(scenario())
    assert not cluster.copies
    assert [at for at, _ in thing.made] == ["a"] * (1 + len(errors))
    assert [at for at, _ in cluster.fetches] == ["a", "b"]
    assert all(made.status == "cancelled" for _, made in thing.made if made.error is None)


def test_a_copy_that_was_lost_is_sent_again_when_needed() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        there = objects(cluster)
        await there.ensure_on("a")
        cluster.copies[0][1].status = "cancelled"
        there.forget_worker("a")
        assert len(cluster.copies) == 1
        await there.ensure_on("b")
        await there.close()

    asyncio.run(scenario())
    assert [at for at, _ in cluster.copies] == ["a", "b"]


def test_after_a_lost_connection_every_worker_is_asked_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        there = objects(cluster)
        await there.ensure_on("a")
        there.forget_worker(None)
        await there.ensure_on("a")
        await there.close()

    asyncio.run(scenario())
    assert [at for at, _ in cluster.fetches] == ["a", "a"]


def test_a_failed_fetch_is_tried_once_more_with_a_new_copy() -> None:
    cluster = Cluster(failures=1)

    async def scenario() -> None:
        there = objects(cluster)
        await there.ensure_on("a")
        await there.close()

    asyncio.run(scenario())
    assert len(cluster.copies) == len(cluster.fetches) == 2
    assert len({future.key for _, future in cluster.copies}) == 2
    assert all(future.status == "cancelled" for _, future in cluster.copies)


@pytest.mark.parametrize("trouble", [{"failures": 2}, {"hangs": True}])
def test_a_worker_that_cannot_get_them_is_an_error_that_says_why(trouble: Any) -> None:
    async def scenario() -> None:
        there = objects(Cluster(**trouble), timeout_s=0.01, close_timeout_s=0.01)
        with pytest.raises(BroadcastFailed, match=r"with_parameters.*did not reach a: .*;"):
            await there.ensure_on("a")
        await there.close()

    asyncio.run(scenario())


def test_a_cancelled_wait_takes_nothing_from_the_others() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        there = objects(cluster)
        lost = asyncio.ensure_future(there.ensure_on("a"))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(there.ensure_on("b"))
        await asyncio.sleep(0)
        lost.cancel()
        await other
        await there.close()

    asyncio.run(scenario())
    assert [at for at, _ in cluster.copies] == ["a"]
    assert [at for at, _ in cluster.fetches] == ["b"]


def test_an_experiment_without_large_objects_asks_nothing() -> None:
    async def scenario() -> None:
        nothing = ObjectBroadcast(SimpleNamespace(), Payload(blob=b""), name="n", plugin="p")
        await nothing.ensure_on("a")
        await nothing.close()

    asyncio.run(scenario())
