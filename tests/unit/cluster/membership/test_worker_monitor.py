"""How often the workers are read, in virtual time and without a scheduler."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from wire_kit import run_virtually

from dasktune.cluster.membership.worker_monitor import WorkerMonitor


class Client:
    """A client whose scheduler takes these seconds for its readings; the last ones are repeated."""

    status = "running"

    def __init__(self, *seconds: float) -> None:
        self.scheduler_comm = SimpleNamespace(interval=0.01)
        self.read_at: list[float] = []
        self._seconds = list(seconds)

    async def run_on_scheduler(self, *args: Any) -> Any:
        self.read_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._seconds.pop(0) if len(self._seconds) > 1 else self._seconds[0])
        return {}, {}, None

    def subscribe_topic(self, *args: Any) -> None: ...

    def unsubscribe_topic(self, *args: Any) -> None: ...


def monitor_of(client: Any) -> WorkerMonitor:
    async def reconnect() -> None: ...

    share: Any = SimpleNamespace(demand=lambda: None, on_answer=lambda answer: None)
    return WorkerMonitor(
        client,
        scheduler_wait=60.0,
        own_prefix="mine",
        answered_at=lambda address: 0.0,
        on_workers=lambda workers: None,
        on_removed=lambda address, expected, taken: None,
        on_disconnect=lambda: None,
        on_reconnect=reconnect,
        share=share,
    )


def pauses(client: Client) -> list[float]:
    """Return the seconds between the beginnings of six readings."""

    async def watch() -> None:
        monitor = monitor_of(client)
        monitor.open()
        running = asyncio.ensure_future(monitor.run())
        while len(client.read_at) < 6:
            await asyncio.sleep(0.1)
        monitor.close()
        running.cancel()
        await asyncio.wait((running,))

    run_virtually(watch())
    return [after - before for before, after in pairwise(client.read_at)]


@pytest.mark.parametrize(("seconds", "pause"), [(0.01, 1.01), (0.03, 1.53), (0.5, 2.0)])
def test_readings_take_a_small_part_of_the_time_and_are_never_rare(seconds: float, pause: float) -> None:
    # The first pause does not know yet how long the readings take.
    assert pauses(Client(seconds))[1:] == pytest.approx([pause] * 4)


def test_one_slow_reading_delays_no_other() -> None:
    assert pauses(Client(0.01, 0.01, 0.9, 0.01)) == pytest.approx([1.01, 1.01, 1.9, 1.01, 1.01])


def test_the_client_sends_its_messages_without_delay() -> None:
    client = Client(0.01)
    pauses(client)
    assert client.scheduler_comm.interval == 0.001


def test_a_connection_that_is_lost_before_the_first_reading_is_found_by_it() -> None:
    async def read() -> bool:
        client: Any = Client(0.01)
        client.status, client.scheduler_comm = "connecting", None
        monitor = monitor_of(client)
        monitor.open()
        return await monitor.read()

    assert run_virtually(read()) is False
