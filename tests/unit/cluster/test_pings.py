"""Questions to workers, without any worker."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

from dasktune.cluster.pings import Pings
from dasktune.cluster.roll_call import call_roll, despite_hung


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
        return await call_roll(Client(), addresses, first_s=60.0, rest_s=0.01)

    assert asyncio.run(work()) == {"well"}


def test_it_is_waited_for_the_first_answer() -> None:
    async def work() -> set[str]:
        client = Client()
        asyncio.get_running_loop().call_later(0.01, client.thaw.set)
        return await call_roll(client, ["hangs", "gone"], first_s=60.0, rest_s=0.0)

    assert asyncio.run(work()) == {"hangs"}


def test_where_nobody_answers_nobody_has() -> None:
    async def work() -> list[set[str]]:
        client = Client()
        return [
            await call_roll(client, addresses, first_s=0.01, rest_s=0.0)
            for addresses in ([], ["gone"], ["hangs"])
        ]

    assert asyncio.run(work()) == [set(), set(), set()]


def test_one_question_is_asked_at_a_time_and_an_answer_counts_from_when_it_was() -> None:
    async def work() -> None:
        client = Client()
        pings = Pings(client)
        before = asyncio.get_running_loop().time()
        pings.ask([])
        pings.ask(["hangs"])
        await asyncio.sleep(0)
        pings.ask(["well"])
        client.thaw.set()
        while pings.answered("hangs") == -inf:
            await asyncio.sleep(0)
        assert client.asked == ["hangs"]
        assert before <= pings.answered("hangs") <= asyncio.get_running_loop().time()
        assert pings.answered("well") == -inf
        await asyncio.sleep(0)
        pings.ask(["well"])
        while pings.answered("well") == -inf:
            await asyncio.sleep(0)

    asyncio.run(work())


def test_what_all_workers_must_do_is_not_waited_for_if_one_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr("dasktune.cluster.roll_call._SOON", 0.01)

    async def outcome(workers: list[str], done_after: float) -> str:
        client = Client()
        client.workers = workers
        work = asyncio.sleep(done_after, "done")
        try:
            return await despite_hung(client, work, deadline_s=60.0)
        except asyncio.TimeoutError:
            return "not waited for"

    assert asyncio.run(outcome(["well"], 0.0)) == "done"
    assert asyncio.run(outcome(["well"], 0.1)) == "done"
    assert asyncio.run(outcome(["well", "hangs"], 3600.0)) == "not waited for"
