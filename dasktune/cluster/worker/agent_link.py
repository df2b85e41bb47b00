"""Connections between the workers of a distributed trial, over Dask's own ports and encryption.

The trial's worker opens one to each worker of the trial, itself included. Both sides write a ping
when they have nothing else to say. A side that reads nothing for `lost_after_s` counts the
connection as lost, so a host that vanishes is detected without the end of the connection.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from distributed.comm import connect
from distributed.core import Status

from dasktune.cluster.worker.trainable_loader import TrainableLoader
from dasktune.isolation.rank_agent import RankAgent
from dasktune.isolation.rank_group import AgentLost
from dasktune.isolation.rank_layout import host_of
from dasktune.isolation.rank_messages import FromAgent, ToAgent

__all__ = ["CommAgentLink", "serve_agent"]

#: Pings in the time after which a silent connection counts as lost.
_PINGS: Final = 6

#: Seconds to wait for orphaned trials on a worker before its ranks start.
_ORPHAN_SECONDS: Final = 20.0

#: Seconds to wait for killed ranks, and between two looks. The kernel cannot end a process that
#: waits for a device.
_LONGEST_END: Final = 30.0
_LOOK_SECONDS: Final = 0.02

Message = ToAgent | FromAgent


class _Channel:
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
                blob = b""
                with suppress(asyncio.TimeoutError):
                    message = await asyncio.wait_for(self._outgoing.get(), interval)
                    if message is None:
                        return "it was closed"
                    blob = pickle.dumps(message)
                await comm.write({"message": blob})
        except OSError as error:  # Dask's errors of connections derive from it
            return str(error)

    async def _read(self, comm: Any, receive: Callable[[Any], None]) -> str:
        try:
            while True:
                blob = (await asyncio.wait_for(comm.read(), self._lost_after_s))["message"]
                if blob:
                    receive(pickle.loads(blob))
        except asyncio.TimeoutError:
            return f"nothing came for {self._lost_after_s:g} s"
        except OSError as error:
            return str(error)


class CommAgentLink:
    """The coordinator's connections to the agents; see `AgentLink`.

    Parameters
    ----------
    worker : distributed.Worker
        The trial's worker.
    op : str
        The name of the agents' handler on all workers of the experiment.
    actor : str
        Key of the actor that runs the trial.
    topic : str
        The topic to which the driver listens for notices of the agents' workers.
    lost_after_s : float
        Seconds of silence after which a connection is lost.
    """

    def __init__(self, worker: Any, op: str, actor: str, topic: str, lost_after_s: float) -> None:
        self._worker = worker
        hello = {"op": op, "reply": False, "actor": actor, "topic": topic}
        self._hello = {**hello, "lost_after_s": lost_after_s}
        self._lost_after_s = lost_after_s
        self._channels: dict[str, _Channel] = {}

    def open(self, addresses: Sequence[str], receive: Callable[[str, FromAgent | AgentLost], None]) -> None:
        """Connect to the agents in the background; messages wait until then."""
        for address in addresses:
            channel = self._channels[address] = _Channel(self._worker.loop, self._lost_after_s)
            self._worker.loop.add_callback(self._serve, address, channel, receive)

    def send(self, address: str, message: ToAgent) -> None:
        """Send a message to the agent on a worker."""
        self._channels[address].post(message)

    def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            channel.finish()

    async def _serve(
        self, address: str, channel: _Channel, receive: Callable[[str, FromAgent | AgentLost], None]
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
    own = plugin.actors.get(actor)
    if own is not None and own.is_forgotten:
        # The driver is gone, so nothing waits for this trial, whose coordinator has not noticed it
        # yet. The agent on the trial's own worker is asked first, so no rank starts anywhere.
        comm.abort()
        return Status.dont_reply
    channel = _Channel(worker.loop, lost_after_s)
    loader = TrainableLoader(worker, plugin, None, _ORPHAN_SECONDS)
    agent = RankAgent(host_of(worker.address), channel.post, loader.child_payload)
    plugin.rank_agents.append((actor, agent))
    # The lease on this worker reports notices, too, but some clusters have no leases.
    reporter = plugin.report_notices(worker, topic)
    try:
        await channel.run(comm, agent.handle)
    finally:
        agent.close()
        del reporter
        # The worker's lease holds the resources until the processes have ended.
        deadline = worker.loop.time() + _LONGEST_END
        while agent.processes and worker.loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        plugin.rank_agents.remove((actor, agent))
    return Status.dont_reply
