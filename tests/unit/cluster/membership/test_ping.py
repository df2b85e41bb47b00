"""Questions to workers, without any worker."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

from dasktune.cluster.membership.ping import Pinger, ping_workers, wait_unless_hung


class Client:
    """Runs what the scheduler would, with workers that answer, never do, or cannot be reached."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.thaw = asyncio.Event()
        self.workers = ["well"]

    async def run_on_scheduler(self, function: Any, *arguments: Any) -> Any:
        scheduler = SimpleNamespace(rpc=self._rpc, workers=self.workers)
        found = function(*arguments, dask_scheduler=scheduler)
        return await found if asyncio.iscoroutine(found) else found

    def _rpc(self, address: str) -> Any:
        async def echo(data: bytes) -> None:
            self.asked.append(address)
            if address == "hangs":
                await self.thaw.wait()
            if address == "gone":
                raise OSError("connection refused")

        return SimpleNamespace(echo=echo)


def test_only_an_answer_is_an_answer() -> None:
    async def work() -> set[str]:
        addresses = ["gone", "hangs", "well"]
        return await ping_workers(Client(), addresses, first_s=60.0, rest_s=0.01)

    assert asyncio.run(work()) == {"well"}


def test_it_is_waited_for_the_first_answer() -> None:
    async def work() -> set[str]:
        client = Client()
        asyncio.get_running_loop().call_later(0.01, client.thaw.set)
        return await ping_workers(client, ["hangs", "gone"], first_s=60.0, rest_s=0.0)

    assert asyncio.run(work()) == {"hangs"}


def test_where_none_answers_none_has() -> None:
    async def work() -> list[set[str]]:
        client = Client()
        return [
            await ping_workers(client, addresses, first_s=0.01, rest_s=0.0)
            for addresses in ([], ["gone"], ["hangs"])
        ]

    assert asyncio.run(work()) == [set(), set(), set()]


def test_one_question_is_asked_at_a_time_and_an_answer_counts_from_when_it_was() -> None:
    async def work() -> None:
        client = Client()
        pings = Pinger(client)
        before = asyncio.get_running_loop().time()
        pings.ping([])
        pings.ping(["hangs"])
        await asyncio.sleep(0)
        pings.ping(["well"])
        client.thaw.set()
        while pings.answered_at("hangs") == -inf:
            await asyncio.sleep(0)
        assert client.asked == ["hangs"]
        assert before <= pings.answered_at("hangs") <= asyncio.get_running_loop().time()
        assert pings.answered_at("well") == -inf
        await asyncio.sleep(0)
        pings.ping(["well"])
        while pings.answered_at("well") == -inf:
            await asyncio.sleep(0)

    asyncio.run(work())


def test_what_all_workers_must_do_is_not_waited_for_if_one_hangs() -> None:
    async def outcome(workers: list[str], done_after: float) -> str:
        client = Client()
        client.workers = workers
        work = asyncio.sleep(done_after, "done")
        try:
            return await wait_unless_hung(client, work, deadline_s=60.0, answer_s=0.01)
        except asyncio.TimeoutError:
            return "not waited for"

    assert asyncio.run(outcome(["well"], 0.0)) == "done"
    assert asyncio.run(outcome(["well"], 0.1)) == "done"
    assert asyncio.run(outcome(["well", "hangs"], 3600.0)) == "not waited for"


def test_a_call_to_many_workers_gets_more_time_before_all_are_pinged() -> None:
    async def pinged(workers: int) -> int:
        client = Client()
        client.workers = [f"tcp://{number}" for number in range(workers)]
        work = asyncio.sleep(0.5, "done")
        assert await wait_unless_hung(client, work, deadline_s=60.0, answer_s=0.01) == "done"
        return len(client.asked)

    # Two workers get 0.02 s more, and a thousand 10 s.
    assert [asyncio.run(pinged(count)) for count in (2, 1_000)] == [2, 0]
