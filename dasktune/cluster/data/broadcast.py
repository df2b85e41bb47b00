"""Broadcasts large objects: from the driver to one worker, and from there to the others.

The objects are scattered as Dask data, so they pass neither through the scheduler nor through a
task graph. A worker gets them before the first trial starts there. The driver sends one copy to a
worker, and the other workers fetch from it. If that worker is lost, the driver sends another copy.
An object that exists only on the cluster is not sent: it is rebuilt on the first worker that needs
it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
from distributed import Client
from distributed.worker import get_worker

from dasktune.cluster.connection.by_value import by_value
from dasktune.cluster.connection.futures import cancel, consume_exception, result_of
from dasktune.cluster.protocol.payload import Payload
from dasktune.trainable.data.shared_objects import Frames, SharedObject

logger = logging.getLogger(__name__)

#: Number of attempts to transfer the objects to a worker. Each retry uses a new copy.
_ATTEMPTS: Final = 2

#: The slowest acceptable transfer in bytes per second.
_SLOWEST: Final = 5e6

_Futures = dict[str, Any]


class BroadcastFailed(Exception):
    """The objects did not reach a worker in time. The worker may still be healthy.

    Parameters
    ----------
    message : str
        What happened.
    timed_out : bool, default=False
        Whether each attempt missed its deadline and nothing else is known to be wrong.
    """

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class ObjectBroadcast:
    """Transfers the objects of an experiment to its workers, on the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    payload : Payload
        Contains the objects.
    name : str
        Prefix of the objects' keys in Dask.
    plugin : str
        Name of the experiment's worker plugin, which holds the objects on the workers.
    priority : float, default=0
        Dask's priority of the tasks that fetch the objects.
    timeout_s : float, default=30.0
        Seconds that an attempt to transfer the objects to a worker may take; large objects get
        more.
    close_timeout_s : float, default=5.0
        Seconds that cancelling the objects' futures may take.
    """

    def __init__(
        self,
        client: Client,
        payload: Payload,
        *,
        name: str,
        plugin: str,
        priority: float = 0,
        timeout_s: float = 30.0,
        close_timeout_s: float = 5.0,
    ) -> None:
        self._client = client
        self._payload = payload
        self._name = name
        self._plugin = plugin
        #: Dask's priority of the tasks that are submitted from now on.
        self.priority = priority
        self._timeout_s, self._close_timeout_s = timeout_s, close_timeout_s
        #: The workers that have the objects.
        self._workers: set[str] = set()
        #: One lock for each worker: several trials may start there at the same time, and the first
        #: one fetches the objects for all.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Sends the copy from which the workers fetch. It is a separate task, because each caller
        #: that waits for it may be cancelled.
        self._copy: asyncio.Task[_Futures] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def ensure_on(self, address: str, factor: float = 1.0) -> None:
        """Transfer the objects to a worker, unless it has them.

        If the worker is lost during the transfer, its link cancels the caller.

        Parameters
        ----------
        address : str
            The worker's address.
        factor : float, default=1.0
            By how much the deadlines are multiplied, for a slow worker.

        Raises
        ------
        BroadcastFailed
            If the objects do not arrive before the deadline.
        """
        if not self._payload.objects or address in self._workers:
            return
        async with self._locks[address]:
            if address not in self._workers:
                await self._attempt(address, factor)
                self._workers.add(address)

    def forget_worker(self, address: str | None) -> None:
        """Record that a worker, or all workers, no longer have the objects.

        Parameters
        ----------
        address : str or None
            The worker's address; None for all workers.
        """
        if address is None:
            self._workers.clear()
        self._workers.discard(address or "")

    async def close(self) -> None:
        """Cancel the copy. The workers delete the objects when the plugin is removed."""
        self._discard(self._copy)
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=self._close_timeout_s)
            for task in late:
                task.cancel()

    async def _attempt(self, address: str, factor: float) -> None:
        reasons: list[str] = []
        timed_out = True
        usual = self._timeout_s + self._payload.size / _SLOWEST + self._payload.rebuild_seconds
        deadline = factor * usual
        for _ in range(_ATTEMPTS):
            copy = self._copy = self._usable_copy(address)
            try:
                return await asyncio.wait_for(self._fetch(address, copy), deadline)
            except asyncio.TimeoutError:
                reasons.append(f"not within {deadline:.0f} s")
            except Exception as error:
                timed_out = False
                reasons.append(repr(error))
            logger.info("large objects did not reach %s: %s", address, reasons[-1])
            # The worker that has the copy may hang, so the next attempt uses a new copy.
            self._discard(copy)
        raise BroadcastFailed(
            f"the objects of with_parameters() did not reach {address}: {'; '.join(reasons)}", timed_out
        )

    def _usable_copy(self, address: str) -> asyncio.Task[_Futures]:
        copy = self._copy
        if copy is not None and (not copy.done() or _is_alive(copy)):
            return copy
        return asyncio.get_running_loop().create_task(self._send(address))

    async def _send(self, address: str) -> _Futures:
        # In a thread: objects other than arrays are pickled as a whole, which may take seconds.
        frames = await asyncio.to_thread(self._payload.frames)
        generation = uuid.uuid4().hex
        keys = {name: f"{self._name}-object-{name}-{generation}" for name in self._payload.objects}
        data = {keys[name]: as_data(parts) for name, parts in frames.items()}
        sent: dict[str, Any] = {}
        if data:
            sent = await self._client.scatter(data, workers=[address], hash=False)
        for name, remote in self._payload.remote.items():
            # In a thread: `begin` makes blocking calls of the client.
            future = await asyncio.to_thread(remote.begin, self._client, keys[name], address)
            sent[keys[name]] = future
            # Awaiting the future itself would transfer the object to the driver.
            if (error := await future.exception()) is not None:
                raise error
        return {name: sent[key] for name, key in keys.items()}

    async def _fetch(self, address: str, copy: asyncio.Task[_Futures]) -> None:
        """Run a task on the worker that depends on the copy, so that Dask fetches it there."""
        # Shielded: this caller may be cancelled, while others still wait for the copy.
        futures = await asyncio.shield(copy)
        fetched = self._client.submit(
            by_value(register_objects),
            self._plugin,
            futures,
            key=f"{self._name}-keep-{uuid.uuid4().hex}",
            pure=False,
            retries=0,
            workers=[address],
            allow_other_workers=False,
            priority=self.priority,
        )
        ended = asyncio.ensure_future(result_of(fetched))
        try:
            await asyncio.wait({ended})
            ended.result()
        finally:
            ended.cancel()
            ended.add_done_callback(consume_exception)
            fetched.release()

    def _discard(self, copy: asyncio.Task[_Futures] | None) -> None:
        if copy is None:
            return
        if copy is self._copy:
            self._copy = None
        task = asyncio.get_running_loop().create_task(_cancel_copy(copy, self._close_timeout_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def register_objects(plugin: str, data: Mapping[str, Frames]) -> None:
    """Register the objects with the plugin; runs on a worker after Dask has fetched them there.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin.
    data : mapping
        The frames of each object. They are unpickled in a trial's thread, as that may run user
        code.
    """
    shared = get_worker().plugins[plugin].shared
    for name, frames in data.items():
        if name not in shared:
            shared[name] = SharedObject(frames)


def as_data(frames: Frames) -> list[Any]:
    """Return pickle frames as values that Dask transfers without copying them.

    Parameters
    ----------
    frames : sequence of buffers
        The result of :func:`dasktune.trainable.data.shared_objects.frames_of`.
    """
    head, *buffers = frames
    return [head, *(np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers)]


def _is_alive(copy: asyncio.Task[_Futures]) -> bool:
    if copy.cancelled() or copy.exception() is not None:
        return False
    return all(future.status == "finished" for future in copy.result().values())


async def _cancel_copy(copy: asyncio.Task[_Futures], timeout_s: float) -> None:
    futures: _Futures = {}
    # If the copy failed, the callers that wait for it report the error.
    with suppress(Exception):
        futures = await copy
    for future in futures.values():
        try:
            await asyncio.wait_for(cancel(future), timeout_s)
        except Exception as error:
            # A scheduler that was lost or restarted no longer has the future.
            logger.info("%s could not be cancelled: %r", future.key, error)
