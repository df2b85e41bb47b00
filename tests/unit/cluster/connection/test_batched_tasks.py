"""Tasks for several workers, which the scheduler gets in one message."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import dask
import pytest

from dasktune.cluster.connection.batched_tasks import BatchedTasks


class Future:
    """What a task returns. Counts the futures that were dropped."""

    dropped = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def __del__(self) -> None:
        Future.dropped += 1


class Client:
    """Runs tasks at once, and records the messages; one that is closed raises."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed = False

    def as_current(self) -> Any:
        return nullcontext()

    def map(self, function: Any, blobs: list[bytes], **options: Any) -> list[Future]:
        if self.closed:
            raise RuntimeError("the client is closed")
        of_keys = {name: [of(key) for key in options["key"]] for name, of in dask.get_annotations().items()}
        self.sent.append({**options, **of_keys})
        return [Future(function(blob)) for blob in blobs]


def test_tasks_of_one_pass_of_the_loop_travel_together_each_with_its_own_worker_and_resources() -> None:
    client = Client()

    async def work() -> list[Future]:
        tasks = BatchedTasks(client)
        return await asyncio.gather(
            *(
                tasks.submit(
                    divmod,
                    number,
                    4,
                    key=f"key-{number}",
                    address=f"tcp://{number}",
                    resources={"CPU": number},
                    annotations={"memory": 10 * number},
                    priority=2,
                )
                for number in (1, 2, 9)
            )
        )

    assert [future.value for future in asyncio.run(work())] == [(0, 1), (0, 2), (2, 1)]
    [message] = client.sent
    assert message["key"] == ["key-1", "key-2", "key-9"]
    assert message["workers"] == [["tcp://1"], ["tcp://2"], ["tcp://9"]]
    assert message["resources"] == [{"CPU": 1}, {"CPU": 2}, {"CPU": 9}]
    assert message["memory"] == [10, 20, 90]
    assert (message["priority"], message["actor"], message["allow_other_workers"]) == (2, False, False)


def test_tasks_of_another_kind_travel_alone_and_so_do_those_that_come_later() -> None:
    client = Client()

    async def work() -> None:
        tasks = BatchedTasks(client)
        await asyncio.gather(
            tasks.submit(int, "ff", named={"base": 16}, key="a", address="tcp://1"),
            tasks.submit(int, key="b", address="tcp://1", actor=True),
            tasks.submit(int, key="c", address="tcp://1", resources={"CPU": 1}),
            tasks.submit(int, key="d", address="tcp://1", priority=1),
            tasks.submit(int, key="e", address="tcp://2"),
        )
        await tasks.submit(int, key="f", address="tcp://1")

    asyncio.run(work())
    assert [message["key"] for message in client.sent] == [["a", "e"], ["b"], ["c"], ["d"], ["f"]]
    assert [message["actor"] for message in client.sent] == [False, True, False, False, False]


def test_thousands_of_tasks_are_sent_in_several_messages() -> None:
    client = Client()

    async def work() -> None:
        tasks = BatchedTasks(client)
        await asyncio.gather(*(tasks.submit(int, key=str(n), address="tcp://1") for n in range(1000)))

    asyncio.run(work())
    assert [len(message["key"]) for message in client.sent] == [256, 256, 256, 232]


def test_the_future_of_a_caller_that_was_cancelled_is_dropped() -> None:
    client = Client()

    async def work() -> Any:
        tasks = BatchedTasks(client)
        cancelled = asyncio.ensure_future(tasks.submit(int, key="a", address="tcp://1"))
        other = asyncio.ensure_future(tasks.submit(int, key="b", address="tcp://1"))
        await asyncio.sleep(0)
        cancelled.cancel()
        before = Future.dropped
        kept = await other
        return kept, Future.dropped - before

    kept, dropped = asyncio.run(work())
    assert (kept.value, dropped) == (0, 1)


def test_each_caller_learns_that_the_client_is_closed() -> None:
    client = Client()
    client.closed = True

    async def work() -> list[Any]:
        tasks = BatchedTasks(client)
        both = (tasks.submit(int, key=key, address="tcp://1") for key in "ab")
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = asyncio.run(work())
    for error in (first, second):
        with pytest.raises(RuntimeError, match="closed"):
            raise error
