"""Connections between the workers of a distributed trial."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any

from distributed.core import Status
from wire_kit import run_virtually

from dasktune.cluster.worker.agent_link import AgentChannel, CommAgentLink, serve_agent
from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin
from dasktune.cluster.worker.worker_notices import WorkerNotices
from dasktune.isolation.ranks.rank_messages import AgentLost, HoldPort, KillRanks

FORGOTTEN = {"trial": SimpleNamespace(is_forgotten=True)}


def test_no_rank_is_started_for_an_actor_that_is_forgotten():
    aborted: list[bool] = []
    comm = SimpleNamespace(abort=lambda: aborted.append(True))
    plugin = SimpleNamespace(actors=FORGOTTEN, rank_agents=[])
    worker = SimpleNamespace(loop=None, address="tcp://127.0.0.1:1")
    served = serve_agent(worker, plugin, comm, actor="trial", topic="topic", lost_after_s=1.0)
    assert asyncio.run(served) is Status.dont_reply
    assert aborted == [True]
    assert plugin.rank_agents == []


def test_the_coordinator_of_an_actor_that_is_forgotten_connects_to_no_agent():
    plugin = SimpleNamespace(actors=FORGOTTEN, rank_agents=[], ranks_op="ranks")
    worker = SimpleNamespace(loop=None, address="tcp://127.0.0.1:1")
    link = CommAgentLink(worker, plugin, "trial", "topic", 1.0)
    got: list[Any] = []
    addresses = ["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"]
    link.open(addresses, lambda address, message: got.append((address, message)))
    assert got == [(one, AgentLost(one, "the trial's driver is gone")) for one in addresses]
    link.send(addresses[0], HoldPort())  # It is dropped.
    link.close()


def test_no_agent_is_made_on_a_worker_that_closes():
    plugin = SimpleNamespace(actors={}, rank_agents=[], ranks_op="ranks")
    worker = SimpleNamespace(loop=None, address="tcp://127.0.0.1:1", handlers={})
    link = CommAgentLink(worker, plugin, "trial", "topic", 1.0)
    got: list[Any] = []
    link.open([worker.address], lambda address, message: got.append((address, message)))
    assert got == [(worker.address, AgentLost(worker.address, "the worker is closing"))]
    link.send(worker.address, HoldPort())  # It is dropped.
    assert plugin.rank_agents == []


class Comm:
    """One end of a connection."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.peer = self
        #: Whether its end is noticed by the other side; the end of a host that vanishes is not.
        self.vanishes = False
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, message: Any) -> None:
        self.written.append(message)
        self.peer._queue.put_nowait(message)

    async def read(self) -> Any:
        message = await self._queue.get()
        if message is None:
            raise OSError("the other side has closed the connection")
        return message

    def abort(self) -> None:
        if not self.vanishes:
            self.peer._queue.put_nowait(None)


def connected() -> tuple[Comm, Comm]:
    one, other = Comm(), Comm()
    one.peer, other.peer = other, one
    return one, other


def channel_of(lost_after_s: float) -> AgentChannel:
    loop = asyncio.get_running_loop()
    return AgentChannel(SimpleNamespace(add_callback=loop.call_soon), lost_after_s)


def test_messages_that_wait_are_sent_together_in_their_order_before_the_end():
    async def exchange() -> None:
        sender, got = channel_of(60.0), []
        one, other = connected()
        for message in (HoldPort(), KillRanks()):
            sender.post(message)
        sender.finish()
        await asyncio.sleep(0)  # The callbacks have run.
        ends = await asyncio.gather(sender.run(one, print), channel_of(60.0).run(other, got.append))
        assert ends == ["it was closed", "the other side has closed the connection"]
        assert got == [HoldPort(), KillRanks()]
        assert len(one.written) == 1

    asyncio.run(exchange())


def test_a_ping_has_no_message_and_silence_is_the_loss_of_the_connection():
    async def exchange() -> None:
        got: list[Any] = []
        one, other = connected()
        one.vanishes = True
        running = asyncio.ensure_future(channel_of(0.06).run(one, print))
        reading = asyncio.ensure_future(channel_of(0.06).run(other, got.append))
        while len(one.written) < 2:
            await asyncio.sleep(0.001)
        running.cancel()
        assert await reading == "nothing came for 0.06 s"
        assert got == []

    # In virtual time: where the loop came late, neither end would hear the other one in time.
    run_virtually(exchange())


def test_a_worker_with_ranks_reports_its_notices_as_long_as_they_are_served():
    reported: list[str] = []

    async def serve() -> None:
        worker = SimpleNamespace(
            loop=SimpleNamespace(time=time.monotonic, add_callback=lambda call, *given: call(*given)),
            address="tcp://127.0.0.1:1",
            log_event=lambda topic, event: reported.append(f"{topic}: {event['reason']}"),
        )
        plugin = ExperimentPlugin("dasktune-x@client", b"")
        ended = asyncio.Event()

        async def read() -> None:
            await ended.wait()
            raise OSError("closed")

        async def write(message: object) -> None: ...

        comm = SimpleNamespace(read=read, write=write, abort=lambda: None)
        serving = asyncio.ensure_future(
            serve_agent(worker, plugin, comm, actor="trial", topic="topic", lost_after_s=60.0)
        )
        await asyncio.sleep(0)
        notices = WorkerNotices.of(worker)
        notices.give(60.0, "spot")
        ended.set()
        await serving
        gc.collect()
        notices.give(60.0, "too late")

    asyncio.run(serve())
    assert reported == ["topic: spot"]
