"""Connections between the workers of a distributed trial, over Dask's own ports and encryption.

The trial's worker opens one to each other worker of the trial. It calls its own agent directly,
which takes a quarter of the time. Both sides write a ping when they have nothing else to say. A
side that reads nothing for `lost_after_s` counts the connection as lost, so a host that vanishes is
detected without the end of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from distributed.comm import connect
from distributed.core import Status

from dasktune.cluster.worker.trainable_loader import TrainableLoader
from dasktune.isolation.ranks.fork_server import ForkServers, can_fork
from dasktune.isolation.ranks.rank_agent import RankAgent
from dasktune.isolation.ranks.rank_messages import AgentLost, FromAgent, ToAgent
from dasktune.placement import host_of

logger = logging.getLogger(__name__)

#: Pings in the time after which a silent connection counts as lost.
_PINGS: Final = 6

#: Seconds to wait for orphaned trials on a worker before its ranks start.
_ORPHAN_SECONDS: Final = 20.0

#: Seconds to wait for killed ranks, and between two looks. The kernel cannot end a process that
#: waits for a device.
_LONGEST_END: Final = 30.0
_LOOK_SECONDS: Final = 0.02

#: The name of the fork servers among the objects that the trials of a worker share.
_FORK_SERVERS: Final = "dasktune-fork-servers"

Message = ToAgent | FromAgent


class AgentChannel:
    """One end of a connection; all methods run on the event loop but `post`.

    Parameters
    ----------
    loop : tornado.ioloop.IOLoop
        The worker's event loop.
    lost_after_s : float
        Seconds of silence after which the connection is lost.
    """

    def __init__(self, loop: Any, lost_after_s: float) -> None:
        self._loop = loop
        self._lost_after_s = lost_after_s
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue()

    def post(self, message: Message) -> None:
        """Queue a message; thread-safe, and messages of one thread keep their order."""
        self._loop.add_callback(self._outgoing.put_nowait, message)

    def finish(self) -> None:
        """End the connection once the queued messages are written; thread-safe."""
        self._loop.add_callback(self._outgoing.put_nowait, None)

    async def run(self, comm: Any, receive: Callable[[Any], None]) -> str:
        """Write and read messages until the connection ends, and return why it has ended."""
        writer = asyncio.ensure_future(self._write(comm))
        reader = asyncio.ensure_future(self._read(comm, receive))
        try:
            await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            ended = reader if reader.done() else writer
            return ended.result()
        finally:
            writer.cancel()
            reader.cancel()
            comm.abort()

    async def _write(self, comm: Any) -> str:
        interval = self._lost_after_s / _PINGS
        try:
            while True:
                blob, is_last = b"", False
                with suppress(asyncio.TimeoutError):
                    queued = [await asyncio.wait_for(self._outgoing.get(), interval)]
                    while not self._outgoing.empty():
                        queued.append(self._outgoing.get_nowait())
                    is_last = None in queued
                    blob = pickle.dumps([message for message in queued if message is not None])
                await comm.write({"messages": blob})
                if is_last:
                    return "it was closed"
        except OSError as error:  # Dask's errors of connections derive from it
            return str(error)

    async def _read(self, comm: Any, receive: Callable[[Any], None]) -> str:
        try:
            while True:
                blob = (await asyncio.wait_for(comm.read(), self._lost_after_s))["messages"]
                for message in pickle.loads(blob) if blob else ():
                    receive(message)
        except asyncio.TimeoutError:
            return f"nothing came for {self._lost_after_s:g} s"
        except OSError as error:
            return str(error)


class _OwnAgent:
    """The agent on the trial's own worker; used like a channel to it. All methods are thread-safe.

    Parameters
    ----------
    worker : distributed.Worker
        The trial's worker.
    plugin : ExperimentPlugin
        The experiment's plugin on the worker.
    actor : str
        Key of the actor that runs the trial.
    topic : str
        The topic to which the driver listens for notices of the worker.
    receive : callable
        Gets the agent's messages, in order, from the agent's threads.
    """

    def __init__(
        self, worker: Any, plugin: Any, actor: str, topic: str, receive: Callable[[FromAgent], None]
    ) -> None:
        self._loop = worker.loop
        self._agent = _make_agent(worker, plugin, receive)
        self._finished = asyncio.Event()
        self._loop.add_callback(_keep, worker, plugin, actor, topic, self._agent, self._finished.wait)

    def post(self, message: ToAgent) -> None:
        """Let the agent handle a message now; it does what takes time in threads."""
        self._agent.handle(message)

    def finish(self) -> None:
        """Close the agent."""
        self._agent.close()
        self._loop.add_callback(self._finished.set)


class CommAgentLink:
    """The coordinator's connections to the agents; see `AgentLink`.

    Parameters
    ----------
    worker : distributed.Worker
        The trial's worker.
    plugin : ExperimentPlugin
        The experiment's plugin on the worker.
    actor : str
        Key of the actor that runs the trial.
    topic : str
        The topic to which the driver listens for notices of the agents' workers.
    lost_after_s : float
        Seconds of silence after which a connection is lost.
    """

    def __init__(self, worker: Any, plugin: Any, actor: str, topic: str, lost_after_s: float) -> None:
        self._worker = worker
        self._plugin = plugin
        self._actor = actor
        self._topic = topic
        op = plugin.ranks_op  # the name of the agents' handler on all workers of the experiment
        hello = {"op": op, "reply": False, "actor": actor, "topic": topic}
        self._hello = {**hello, "lost_after_s": lost_after_s}
        self._lost_after_s = lost_after_s
        self._channels: dict[str, AgentChannel | _OwnAgent] = {}

    def open(self, addresses: Sequence[str], receive: Callable[[str, FromAgent], None]) -> None:
        """Connect to the agents in the background; messages wait until then."""
        if _is_forgotten(self._plugin, self._actor):
            # No connection is made, so `send` drops all messages, and no rank starts anywhere.
            for address in addresses:
                receive(address, AgentLost(address, "the trial's driver is gone"))
            return
        for address in addresses:
            if address == self._worker.address:
                if self._plugin.ranks_op not in self._worker.handlers:
                    # The plugin's teardown, which ends the agents, has begun.
                    receive(address, AgentLost(address, "the worker is closing"))
                    continue
                own = partial(receive, address)
                self._channels[address] = _OwnAgent(self._worker, self._plugin, self._actor, self._topic, own)
                continue
            channel = self._channels[address] = AgentChannel(self._worker.loop, self._lost_after_s)
            self._worker.loop.add_callback(self._serve, address, channel, receive)

    def send(self, address: str, message: ToAgent) -> None:
        """Send a message to the agent on a worker."""
        if (channel := self._channels.get(address)) is not None:
            channel.post(message)

    def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            channel.finish()

    async def _serve(
        self, address: str, channel: AgentChannel, receive: Callable[[str, FromAgent], None]
    ) -> None:
        try:
            comm = await connect(address, **self._worker.connection_args)
            await comm.write(self._hello)
            reason = await channel.run(comm, lambda message: receive(address, message))
        except Exception as error:  # whatever it is, the ranks there are out of reach
            reason = repr(error)
        receive(address, AgentLost(address, reason))


async def serve_agent(
    worker: Any, plugin: Any, comm: Any, *, actor: str, topic: str, lost_after_s: float
) -> Status:
    """Run the agent of a distributed trial on a worker, as long as the connection lasts.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    plugin : ExperimentPlugin
        The experiment's plugin on the worker.
    comm : distributed.comm.Comm
        The connection to the coordinator.
    actor : str
        Key of the actor that runs the trial.
    topic : str
        The topic to which the driver listens.
    lost_after_s : float
        Seconds of silence after which the connection is lost.
    """
    if _is_forgotten(plugin, actor):
        comm.abort()
        return Status.dont_reply
    channel = AgentChannel(worker.loop, lost_after_s)
    agent = _make_agent(worker, plugin, channel.post)
    await _keep(worker, plugin, actor, topic, agent, partial(channel.run, comm, agent.handle))
    return Status.dont_reply


def _is_forgotten(plugin: Any, actor: str) -> bool:
    """Whether the driver of a trial is gone, if its actor is on this worker.

    Then nothing waits for the trial, and its coordinator may not have noticed it yet.
    """
    own = plugin.actors.get(actor)
    return own is not None and own.is_forgotten


def _make_agent(worker: Any, plugin: Any, send: Callable[[FromAgent], None]) -> RankAgent:
    loader = TrainableLoader(worker, plugin, None, _ORPHAN_SECONDS)
    # They are killed with the plugin, at the end of the experiment.
    servers = plugin.shared.setdefault(_FORK_SERVERS, ForkServers())
    return RankAgent(host_of(worker.address), send, loader.child_payload, servers if can_fork() else None)


async def _keep(
    worker: Any, plugin: Any, actor: str, topic: str, agent: RankAgent, use: Callable[[], Awaitable[Any]]
) -> None:
    """Keep an agent while it is used, and then until its processes have ended.

    Runs on the worker's event loop. The worker's lease holds the resources meanwhile.
    """
    _drop_finished(plugin)
    plugin.rank_agents.append((actor, agent))
    # The lease on this worker reports notices, too, but some clusters have no leases.
    reporter = plugin.report_notices(worker, topic)
    try:
        await use()
    finally:
        agent.close()
        del reporter
        deadline = worker.loop.time() + _LONGEST_END
        while not agent.finished and worker.loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        if not agent.finished:
            # It stays in the list: a lease that is released later has to wait for it, too.
            logger.warning(
                "%d s after the end of a trial the processes of its ranks are still there. They wait for a "
                "device or a disk. Their resources stay occupied until they end.",
                _LONGEST_END,
            )
        _drop_finished(plugin)


def _drop_finished(plugin: Any) -> None:
    """Forget the agents whose ranks have ended, also those that took long."""
    plugin.rank_agents[:] = [one for one in plugin.rank_agents if not one[1].finished]
