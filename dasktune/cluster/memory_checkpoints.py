"""Checkpoints in the memory of the workers, as Dask's data.

A trial that is paused leaves its checkpoint with the experiment's plugin on its worker, and tells.
A task that is pinned there makes it Dask's: its result is the checkpoint, and this module holds its
future. So Dask spills it when memory is short, takes it along from a worker that retires, and
brings it from worker to worker, by another pinned task that depends on it; it passes neither the
scheduler nor the driver. What is lost with its worker is told, and never computed again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from distributed import Client, wait
from distributed.worker import get_worker

from dasktune.cluster.opaque import opaque
from dasktune.placement import WorkerCapacity
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage
from dasktune.storage.packing import unpack
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored
from dasktune.trial.names import checkpoint_place

__all__ = ["CheckpointGone", "MemoryCheckpoints", "hand_on", "key_of", "store", "take"]

logger = logging.getLogger(__name__)

#: Seconds that a checkpoint may take to its next worker, and slowest acceptable transfer in bytes
#: per second. It can be had from the storage as well, or be computed again.
_DEADLINE: Final = 15.0
_SLOWEST: Final = 5e6

#: Seconds for the scheduler to say who has what.
_QUESTION_DEADLINE: Final = 5.0

#: Share of a worker's memory that the checkpoints on it may take. From six tenths on Dask writes
#: data to the disk, and much of that is the trials' own already.
_SHARE: Final = 0.2


class CheckpointGone(Exception):
    """The checkpoint is nowhere, or does not come to the worker in time."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Kept:
    """A checkpoint and where it is."""

    trial_id: str
    record: CheckpointRecord
    #: Where it would be in the storage.
    storage: Storage
    size: int
    future: Any = field(repr=False)
    #: The worker that it was left on; empty when Dask may have moved it.
    address: str


def key_of(plugin: str, path: str) -> str:
    """Return the key in Dask of a checkpoint.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin.
    path : str
        Of the checkpoint's record.
    """
    return f"{plugin.partition('@')[0]}-{path.replace('/', '-')}"


async def take(plugin: str, key: str) -> bytes:
    """Make a checkpoint Dask's that a trial has left on this worker.

    Parameters
    ----------
    plugin : str
        Name of the experiment's worker plugin, which has it and lets go of it afterwards.
    key : str
        What it is called, and this task too.
    """
    packed: bytes = get_worker().plugins[plugin].kept[key]
    return packed


async def hand_on(packed: bytes) -> bytes:
    """Have a checkpoint on this worker, to which Dask has brought it."""
    return packed


def store(packed: bytes, record: CheckpointRecord, storage: Storage) -> None:
    """Write a checkpoint from this worker to the storage.

    Parameters
    ----------
    packed : bytes
        The checkpoint.
    record : CheckpointRecord
        Its record.
    storage : Storage
        The experiment's.
    """
    place = checkpoint_place(record.path)
    assert place is not None, "the path of a record is checked when it is made"
    CheckpointStore(storage).write(unpack(packed), record, incarnation=place[2])


class MemoryCheckpoints:
    """The driver's end. All methods but :meth:`room` are for the client's loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    plugin : str
        Name of the experiment's worker plugin.
    limit : int
        Bytes that a checkpoint may have; 0 if none is to be kept in memory.
    disk_first : bool
        Whether the storage is a local path. While all workers are on one machine, none is kept in
        memory then: to go on elsewhere from its disk takes a fifth of the time.
    emit : callable
        Takes what has become of a checkpoint.
    now : callable
        Seconds on the runner's clock, for that.
    spawn : callable
        Runs a coroutine.
    priority : float, default=0
        Of the tasks.
    """

    def __init__(
        self,
        client: Client,
        *,
        plugin: str,
        limit: int,
        disk_first: bool,
        emit: Callable[[list[CheckpointLost | CheckpointStored]], None],
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        priority: float = 0,
    ) -> None:
        self._client = client
        self._plugin = plugin
        self._limit = limit
        self._disk_first = disk_first
        #: As long as the workers are where they are.
        self._limit_now = 0
        self._emit = emit
        self._now = now
        self._spawn = spawn
        self._priority = priority
        #: By path.
        self._kept: dict[str, _Kept] = {}
        #: Bytes that were left on each worker and are still needed.
        self._weights: dict[str, int] = {}
        #: What each worker may take before its nanny ends it; 0 if that is not known. Only of those
        #: that see the storage: what others have could not be written to it.
        self._memory: Mapping[str, int] = {}

    def note_workers(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Hear of the workers that there are, by address."""
        self._memory = {
            address: worker.memory_limit
            for address, worker in workers.items()
            if worker.status == "running" and worker.shares_storage
        }
        hosts = {worker.host for worker in workers.values()}
        self._limit_now = 0 if self._disk_first and len(hosts) == 1 else self._limit

    def room(self, address: str) -> int:
        """Return how many bytes a checkpoint may have to be kept on a worker. Thread-safe."""
        memory = self._memory.get(address)
        if memory is None:
            return 0
        if not memory:
            return self._limit_now
        return max(0, min(self._limit_now, int(_SHARE * memory) - self._weights.get(address, 0)))

    def keep(
        self, trial_id: str, record: CheckpointRecord, size: int, address: str, storage: Storage
    ) -> None:
        """Take over a checkpoint that a trial has left on a worker.

        Parameters
        ----------
        trial_id : str
            Whose it is.
        record : CheckpointRecord
            Its record.
        size : int
            Bytes that it has.
        address : str
            The worker.
        storage : Storage
            The experiment's.
        """
        key = key_of(self._plugin, record.path)
        future = self._submit(opaque(take), self._plugin, key, key=key, workers=[address])
        self._kept[record.path] = _Kept(
            trial_id=trial_id,
            record=record,
            storage=storage,
            size=size,
            future=future,
            address=address,
        )
        self._weights[address] = self._weights.get(address, 0) + size

    async def bring(self, path: str, address: str) -> tuple[str, Any]:
        """See to it that a worker has a checkpoint.

        Parameters
        ----------
        path : str
            Of its record.
        address : str
            The worker that a trial is to go on on.

        Returns
        -------
        key : str
            What it is called there.
        future : Future or None
            What keeps it there, to be released when the trial has it; None if nothing has to.

        Raises
        ------
        CheckpointGone
            If it is lost. That has been told then.
        """
        kept = self._kept.get(path)
        if kept is None:
            raise CheckpointGone(f"the checkpoint {path} is lost")
        if kept.address == address and kept.future.status in ("pending", "finished"):
            return kept.future.key, None
        # From now on Dask has two copies, and may forget the first one.
        self._unsettle(kept)
        try:
            future = await self._done_with(kept, hand_on, workers=[address])
        except CheckpointGone as gone:
            self.give_up(path, f"it did not come to {address}: {gone}")
            raise
        return future.key, future

    async def store(self, path: str) -> None:
        """Have a checkpoint written to the storage by a worker that has it, and tell what came."""
        kept = self._kept.get(path)
        if kept is None:
            return  # That it is lost was told.
        record = replace(kept.record, kind=CheckpointKind.PERSISTENT)
        workers = [kept.address] if kept.address else sorted(self._memory)
        if not workers:
            self.give_up(path, "no worker sees the storage")
            return
        try:
            done = await self._done_with(kept, store, record, kept.storage, workers=workers)
        except CheckpointGone as gone:
            self.give_up(path, f"it could not be stored: {gone}")
        else:
            done.release()
            event = CheckpointStored(trial_id=kept.trial_id, checkpoint=record, time=self._now())
            self._emit([event])

    async def _done_with(
        self, kept: _Kept, function: Any, *arguments: Any, workers: Sequence[str]
    ) -> Any:
        """Do something with a checkpoint on some worker, and return the future that has done it.

        Raises
        ------
        CheckpointGone
            If that fails or is not done before the deadline.
        """
        key = f"{kept.future.key}-{uuid.uuid4().hex}"
        deadline = _DEADLINE + kept.size / _SLOWEST
        future = None
        try:
            task = opaque(function, *arguments)
            future = self._submit(task, kept.future, key=key, workers=workers)
            # Not for its result, which is not for the driver.
            await asyncio.wait_for(_wait(self._client, future), deadline)
            if future.status != "finished":
                raise CheckpointGone(f"its task is {future.status}")
        except BaseException as error:
            if future is not None:
                future.release()
            if isinstance(error, CheckpointGone) or not isinstance(error, Exception):
                raise
            late = isinstance(error, asyncio.TimeoutError)
            told = f"{deadline:.0f} s were not enough" if late else repr(error)
            raise CheckpointGone(told) from error
        return future

    def drop(self, path: str) -> None:
        """Let go of a checkpoint that nobody needs any more; it may be lost."""
        kept = self._kept.pop(path, None)
        if kept is not None:
            self._unsettle(kept)
            self._spawn(self._let_go(kept))

    def give_up(self, path: str, reason: str) -> None:
        """Tell that a checkpoint is lost; only the first time counts."""
        kept = self._kept.get(path)
        if kept is not None:
            self.drop(path)
            event = CheckpointLost(
                trial_id=kept.trial_id, path=path, reason=reason, time=self._now()
            )
            self._emit([event])

    def lose(self, address: str | None, reason: str) -> None:
        """Find out what was lost with a worker, or with the connection to the scheduler.

        Parameters
        ----------
        address : str or None
            The worker; None if Dask has forgotten all that it had for us.
        reason : str
            What was seen.
        """
        if address is None:
            for path in tuple(self._kept):
                self.give_up(path, reason)
            return
        near = {path: kept for path, kept in self._kept.items() if kept.address in (address, "")}
        if near:
            self._spawn(self._look_for(near, address, reason))

    def close(self) -> None:
        """Let go of all; that they are lost is not told."""
        for path in tuple(self._kept):
            self.drop(path)

    async def _look_for(self, near: Mapping[str, _Kept], address: str, reason: str) -> None:
        """Give up what no other worker has; a worker that retires has handed over what it had."""
        owners: Mapping[str, Iterable[str]] = {}
        try:
            asking = _who_has(self._client, [kept.future for kept in near.values()])
            owners = await asyncio.wait_for(asking, _QUESTION_DEADLINE)
        except Exception as error:
            logger.info("the scheduler did not say who has the checkpoints: %r", error)
        for path, kept in near.items():
            if set(owners.get(kept.future.key, ())) - {address}:
                self._unsettle(kept)
            elif self._kept.get(path) is kept:
                self.give_up(path, reason)

    def _unsettle(self, kept: _Kept) -> None:
        """Take note that it may be on any worker."""
        if kept.address:
            self._weights[kept.address] -= kept.size
            kept.address = ""

    async def _let_go(self, kept: _Kept) -> None:
        # One that its worker does not know of yet would stay with the plugin there.
        try:
            await asyncio.wait_for(_wait(self._client, kept.future), _QUESTION_DEADLINE)
        except Exception as error:
            logger.info("%s was let go before it was taken: %r", kept.future.key, error)
        kept.future.release()

    def _submit(self, function: Any, *arguments: Any, key: str, workers: Sequence[str]) -> Any:
        return self._client.submit(
            function,
            *arguments,
            key=key,
            pure=False,
            retries=0,
            workers=list(workers),
            priority=self._priority,
        )


async def _wait(client: Client, future: Any) -> None:
    with client.as_current():
        await wait([future])


async def _who_has(client: Client, futures: list[Any]) -> Mapping[str, Iterable[str]]:
    found: Mapping[str, Iterable[str]] = await client.who_has(futures)
    return found
