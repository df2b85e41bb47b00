"""Calls to many workers, which travel together."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Any, NamedTuple

import pytest

from dasktune.cluster.connection.batched_calls import BatchedCalls, run_on_worker
from dasktune.placement import WorkerCapacity


class Worker(NamedTuple):
    #: The scheduler does not know the address on which it listens.
    contact_address: str
    address: str = "tcp://0.0.0.0:1"


class Client:
    """Runs functions on workers that are only names; a worker called "hangs" never answers."""

    def __init__(self) -> None:
        #: The workers of each call of `run`, and the addresses of each call to the scheduler.
        self.asked: list[list[str]] = []
        self.told: list[list[str]] = []

    async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        self.asked.append(workers)
        if "hangs" in workers:
            await asyncio.Event().wait()
        answers: dict[str, Any] = {}
        for address in workers:
            try:
                answer = function(*args, **({"dask_worker": Worker(address)} if len(workers) > 1 else {}))
                answers[address] = await answer if isawaitable(answer) else answer
            except Exception as error:
                answers[address] = error
        return answers

    async def run_on_scheduler(self, function: Any, addresses: list[str]) -> None:
        self.told.append(addresses)
        function(addresses, None)


def inverse(x: float) -> float:
    return 1 / x


def negative(x: float) -> float:
    return -x


def on_scheduler(addresses: list[str], dask_scheduler: Any) -> None:
    if "unknown" in addresses:
        raise KeyError("unknown")


def test_four_messages_carry_the_calls_for_a_thousand_workers() -> None:
    client = Client()
    names = [f"tcp://{number}" for number in range(1, 1001)]

    async def work() -> list[float]:
        calls = BatchedCalls(client)
        many = (calls.run_on_worker(name, inverse, number) for number, name in enumerate(names, 1))
        return await asyncio.gather(*many)

    assert asyncio.run(work()) == [1 / number for number in range(1, 1001)]
    assert client.asked == [names[first : first + 256] for first in range(0, 1000, 256)]


def test_each_call_gets_its_own_result_or_exception() -> None:
    client = Client()

    async def work() -> list[Any]:
        calls = BatchedCalls(client)
        return await asyncio.gather(
            calls.run_on_worker("a", inverse, 4),
            calls.run_on_worker("b", inverse, 0),
            calls.run_on_worker("b", negative, 1),
            calls.run_on_worker("a", inverse, 2),
            return_exceptions=True,
        )

    first, failed, other, second = asyncio.run(work())
    assert (first, other, second) == (0.25, -1, 0.5)
    assert isinstance(failed, ZeroDivisionError)
    # Calls of different functions, and two calls for one worker, do not travel together.
    assert sorted(map(sorted, client.asked)) == [["a"], ["a", "b"], ["b"]]


def test_a_worker_that_hangs_delays_the_others_only_for_a_while() -> None:
    client = Client()

    async def work() -> list[Any]:
        calls = BatchedCalls(client, longest_s=0.01)
        hanging = asyncio.ensure_future(calls.run_on_worker("hangs", inverse, 1))
        others = await asyncio.gather(*(calls.run_on_worker(name, inverse, 2) for name in "ab"))
        assert not hanging.done()
        hanging.cancel()
        calls.close()
        return others

    assert asyncio.run(work()) == [0.5, 0.5]
    assert sorted(map(len, client.asked)) == [1, 1, 1, 3]


def test_after_a_combined_call_that_was_too_slow_few_calls_are_made_at_a_time() -> None:
    class Slow(Client):
        def __init__(self) -> None:
            super().__init__()
            self.running = self.most = 0

        async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
            if len(workers) > 1:
                await asyncio.Event().wait()
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            try:
                # Dask returns any awaitable.
                return await super().run(function, *args, workers=workers, on_error=on_error)
            finally:
                self.running -= 1

    client = Slow()

    async def work() -> list[Any]:
        calls = BatchedCalls(client, longest_s=0.01)
        # More of them hang than calls are made at a time. The others do not wait for them.
        hanging = [asyncio.ensure_future(calls.run_on_worker("hangs", inverse, 1)) for _ in range(40)]
        others = [calls.run_on_worker(f"tcp://{number}", inverse, number) for number in range(1, 101)]
        found = await asyncio.wait_for(asyncio.gather(*others), 60.0)
        assert not any(one.done() for one in hanging)
        calls.close()
        return found

    assert asyncio.run(work()) == [1 / number for number in range(1, 101)]
    assert client.most >= 32


def test_a_call_whose_deadline_is_over_leaves_the_others_alone() -> None:
    client = Client()

    async def work() -> list[Any]:
        calls = BatchedCalls(client, longest_s=60.0)
        workers = [WorkerCapacity(address=name) for name in ("hangs", "well")]
        late, other = await asyncio.gather(
            run_on_worker(calls, workers[0], 0.01, inverse, 1),
            asyncio.wait_for(calls.run_on_worker("well", negative, 1), 60.0),
        )
        calls.close()
        return [type(late), other]

    assert asyncio.run(work()) == [TimeoutError, -1]


def test_calls_that_come_before_the_answer_to_another_one_travel_together() -> None:
    client = Client()
    answer = asyncio.Event()

    async def slow() -> None:
        await answer.wait()

    async def work() -> None:
        calls = BatchedCalls(client)
        more = []
        for name in ("first", "a", "b", "c"):
            more.append(asyncio.ensure_future(calls.run_on_worker(name, slow)))
            while not client.asked:
                await asyncio.sleep(0)
        answer.set()
        await asyncio.gather(*more)
        # All are answered, so the next one need not wait.
        await calls.run_on_worker("last", slow)

    asyncio.run(work())
    assert client.asked == [["first"], ["a", "b", "c"], ["last"]]


def test_a_call_that_is_not_answered_delays_the_next_one_only_for_a_moment() -> None:
    client = Client()

    async def work() -> list[float]:
        calls = BatchedCalls(client, longest_s=60.0)
        hanging = asyncio.ensure_future(calls.run_on_worker("hangs", inverse, 1))
        while not client.asked:
            await asyncio.sleep(0)
        others = (asyncio.wait_for(calls.run_on_worker(name, inverse, 2), 60.0) for name in "ab")
        found = await asyncio.gather(*others)
        hanging.cancel()
        calls.close()
        return found

    assert asyncio.run(work()) == [0.5, 0.5]
    assert client.asked == [["hangs"], ["a", "b"]]


def test_the_scheduler_gets_the_addresses_of_all_workers_at_once() -> None:
    client = Client()

    async def work() -> None:
        calls = BatchedCalls(client)
        await asyncio.gather(*(calls.tell_scheduler(on_scheduler, name) for name in "abc"))
        with pytest.raises(KeyError, match="unknown"):
            await calls.tell_scheduler(on_scheduler, "unknown")

    asyncio.run(work())
    assert client.told == [["a", "b", "c"], ["unknown"]]
