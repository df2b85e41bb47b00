"""Large objects on the workers: from the driver to one of them, and from there to the others.

They travel as Dask's data does, so neither through the scheduler nor in a task graph. A worker gets
them when the first trial is about to run there. Dask knows one copy, which the others are fetched
from; when it is lost with its worker, the driver, which has the user's own object, sends another.
What is on the cluster already the driver does not have: there the first worker makes that copy.
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

from dasktune.cluster.opaque import opaque
from dasktune.cluster.payload import Payload
from dasktune.trainable.shared_objects import Frames, SharedObject

__all__ = ["LargeObjects", "PlacingFailed", "as_data", "keep"]

logger = logging.getLogger(__name__)

#: How often it is tried to bring the objects to a worker; each time but the first with a new copy.
_ATTEMPTS: Final = 2

#: Seconds that an attempt may take, and slowest acceptable transfer in bytes per second.
_DEADLINE: Final = 30.0
_SLOWEST: Final = 5e6

#: Seconds to let Dask forget the objects.
_CLOSE_DEADLINE: Final = 5.0

_Futures = dict[str, Any]


class PlacingFailed(Exception):
    """The objects did not come to a worker in time. The worker may still be healthy."""


class LargeObjects:
    """The driver's end: sees to it that a worker has them. All methods are for the client's loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    payload : Payload
        With the objects.
    name : str
        What their keys in Dask begin with.
    plugin : str
        Name of the experiment's worker plugin, which keeps them on the workers.
    priority : float, default=0
        Of the tasks that fetch them.
    """

    def __init__(
        self, client: Client, payload: Payload, *, name: str, plugin: str, priority: float = 0
    ) -> None:
        self._client = client
        self._payload = payload
        self._name = name
        self._plugin = plugin
        self._priority = priority
        #: The workers that have them.
        self._there: set[str] = set()
        #: Several trials may begin on a worker at the same time.
        self._gates: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Sends the copy that the workers fetch; a task of its own, because any of those who wait
        #: for it may be cancelled.
        self._copy: asyncio.Task[_Futures] | None = None
        self._farewells: set[asyncio.Task[None]] = set()

    async def bring(self, address: str) -> None:
        """See to it that a worker has the objects.

        Parameters
        ----------
        address : str
            The worker's address.

        Raises
        ------
        PlacingFailed
            If they are not there before the deadline.
        """
        if not self._payload.objects or address in self._there:
            return
        async with self._gates[address]:
            if address not in self._there:
                await self._attempt(address)
                self._there.add(address)

    def lose(self, address: str | None) -> None:
        """Forget that a worker has the objects, or that any has.

        Parameters
        ----------
        address : str or None
            The worker's address; None for all workers.
        """
        if address is None:
            self._there.clear()
        self._there.discard(address or "")

    async def close(self) -> None:
        """Let Dask forget the copy; those on the workers end with the plugin."""
        self._discard(self._copy)
        if self._farewells:
            _, late = await asyncio.wait(self._farewells, timeout=_CLOSE_DEADLINE)
            for farewell in late:
                farewell.cancel()

    async def _attempt(self, address: str) -> None:
        reasons: list[str] = []
        deadline = _DEADLINE + self._payload.size / _SLOWEST + self._payload.patience
        for _ in range(_ATTEMPTS):
            copy = self._copy = self._usable_copy(address)
            try:
                return await asyncio.wait_for(self._fetch(address, copy), deadline)
            except asyncio.TimeoutError:
                reasons.append(f"not within {deadline:.0f} s")
            except Exception as error:
                reasons.append(repr(error))
            logger.info("large objects did not come to %s: %s", address, reasons[-1])
            # Perhaps the worker that has it hangs.
            self._discard(copy)
        raise PlacingFailed(
            f"the objects of with_parameters() did not come to {address}: {'; '.join(reasons)}"
        )

    def _usable_copy(self, address: str) -> asyncio.Task[_Futures]:
        copy = self._copy
        if copy is not None and (not copy.done() or _is_alive(copy)):
            return copy
        return asyncio.get_running_loop().create_task(self._send(address))

    async def _send(self, address: str) -> _Futures:
        # In a thread: what is no array is pickled as a whole, which may take seconds.
        frames = await asyncio.to_thread(self._payload.frames)
        generation = uuid.uuid4().hex
        keys = {name: f"{self._name}-object-{name}-{generation}" for name in self._payload.objects}
        data = {keys[name]: as_data(parts) for name, parts in frames.items()}
        sent: dict[str, Any] = {}
        if data:
            sent = await self._client.scatter(data, workers=[address], hash=False)
        for name, thing in self._payload.remote.items():
            # In a thread: it uses the client as if it were synchronous.
            made = await asyncio.to_thread(thing.begin, self._client, keys[name], address)
            sent[keys[name]] = made
            # To await the future itself would bring the object here.
            if (error := await made.exception()) is not None:
                raise error
        return {name: sent[key] for name, key in keys.items()}

    async def _fetch(self, address: str, copy: asyncio.Task[_Futures]) -> None:
        """Let a task on the worker depend on the copy: Dask fetches it from who has it."""
        futures = await asyncio.shield(copy)
        fetched = self._client.submit(
            opaque(keep),
            self._plugin,
            futures,
            key=f"{self._name}-keep-{uuid.uuid4().hex}",
            pure=False,
            retries=0,
            workers=[address],
            allow_other_workers=False,
            priority=self._priority,
        )
        ended = asyncio.ensure_future(_result(fetched))
        try:
            await asyncio.wait({ended})
            ended.result()
        finally:
            ended.cancel()
            ended.add_done_callback(_look_at)
            fetched.release()

    def _discard(self, copy: asyncio.Task[_Futures] | None) -> None:
        if copy is None:
            return
        if copy is self._copy:
            self._copy = None
        farewell = asyncio.get_running_loop().create_task(_forget(copy))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)


async def keep(plugin: str, data: Mapping[str, Frames]) -> None:
    """Hand the objects to the plugin; runs on the worker, which has fetched them for it.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin.
    data : mapping
        The frames of each object. They are opened in a trial's thread: it may run user code.
    """
    shared = get_worker().plugins[plugin].shared
    for name, frames in data.items():
        if name not in shared:
            shared[name] = SharedObject(frames)


def as_data(frames: Frames) -> list[Any]:
    """Return frames as what Dask moves without copying.

    Parameters
    ----------
    frames : sequence of buffers
        What :func:`dasktune.trainable.shared_objects.frames_of` returned.
    """
    head, *buffers = frames
    return [head, *(np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers)]


def _is_alive(copy: asyncio.Task[_Futures]) -> bool:
    if copy.cancelled() or copy.exception() is not None:
        return False
    return all(future.status == "finished" for future in copy.result().values())


async def _forget(copy: asyncio.Task[_Futures]) -> None:
    futures: _Futures = {}
    # It is told by whoever waits for it why there is none.
    with suppress(Exception):
        futures = await copy
    for future in futures.values():
        try:
            await asyncio.wait_for(_cancel(future), _CLOSE_DEADLINE)
        except Exception as error:
            # A scheduler that is gone has forgotten it already.
            logger.info("%s could not be given back: %r", future.key, error)


async def _result(future: Any) -> Any:
    return await future


async def _cancel(future: Any) -> None:
    await future.cancel()


def _look_at(task: asyncio.Future[Any]) -> None:
    # asyncio complains of an exception that nobody asked for.
    if not task.cancelled():
        task.exception()
