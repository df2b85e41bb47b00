"""Checkpoints in the workers' memory, held as Dask data.

A paused trial stores its checkpoint in the experiment's plugin on its worker, and reports it. A
task that is pinned to this worker returns the checkpoint, and this module holds the task's future.
So Dask spills the checkpoint when memory is short, and moves it from a worker that retires. To
transfer the checkpoint to another worker, this module pins a task there that depends on it. The
transfer passes neither through the scheduler nor through the driver. If the checkpoint is lost with
its worker, Dask does not recompute it, and this module reports the loss.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from distributed import Client, wait

from dasktune.cluster.connection.by_value import by_value
from dasktune.cluster.data.kept_checkpoints import adopt, identity, key_of, store
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored

logger = logging.getLogger(__name__)

#: The slowest acceptable transfer in bytes per second.
_SLOWEST: Final = 5e6

#: Largest share of a worker's memory that its checkpoints may use. Dask spills data to the disk
#: when 60 % of the memory is in use, and the trials themselves use much of that.
_SHARE: Final = 0.2


class CheckpointGone(Exception):
    """The checkpoint is lost, or does not reach the worker in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskWaits:
    """How :class:`MemoryCheckpoints` waits for Dask, and for how long.

    Parameters
    ----------
    until_done : callable, default=distributed.wait
        Takes a list of futures, and returns an awaitable that ends when they are done.
    transfer_seconds : float, default=15.0
        Seconds within which a small checkpoint must reach its next worker. If it is late, the trial
        resumes from an older checkpoint in the storage, or starts again.
    answer_seconds : float, default=5.0
        Seconds to wait for the scheduler's answer.
    """

    until_done: Callable[[list[Any]], Awaitable[object]] = wait
    transfer_seconds: float = 15.0
    answer_seconds: float = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class _MemoryCheckpoint:
    """A checkpoint and its location."""

    trial_id: str
    record: CheckpointRecord
    #: The storage to which the checkpoint can be written.
    storage: Storage
    #: Size in bytes.
    size: int
    future: Any = field(repr=False)
    #: The worker on which the trial left it; empty if Dask may have moved it.
    address: str


class MemoryCheckpoints:
    """Tracks an experiment's checkpoints in memory.

    All methods but :meth:`room` run on the client's event loop. A checkpoint may be released, or
    its worker lost, at each ``await``. So the methods look it up again, or act only if it is still
    the same object in `_kept`.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop the methods must be called.
    plugin : str
        Name of the experiment's worker plugin.
    limit : int
        Largest checkpoint in bytes; 0 keeps none in memory.
    disk_first : bool
        Whether to keep none in memory while all workers are on one machine. With the storage on a
        local disk, resuming on another worker from the disk then takes a fifth of the time.
    emit : callable
        Called with events about a checkpoint that was lost or stored.
    now : callable
        Returns the seconds on the runner's clock, for the events.
    spawn : callable
        Runs a coroutine in the background.
    priority : float, default=0
        Dask's priority of the tasks.
    waits : DaskWaits, optional
        How to wait for Dask.
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
        waits: DaskWaits | None = None,
    ) -> None:
        self._client = client
        self._waits = waits or DaskWaits()
        self._plugin = plugin
        self._limit = limit
        self._disk_first = disk_first
        #: `limit`, or 0 if the current workers keep none in memory.
        self._limit_now = 0
        self._emit = emit
        self._now = now
        self._spawn = spawn
        #: Dask's priority of the tasks that are submitted from now on.
        self.priority = priority
        #: The checkpoints by path.
        self._kept: dict[str, _MemoryCheckpoint] = {}
        #: Bytes of the checkpoints that trials left on each worker and that are still there.
        self._weights: dict[str, int] = {}
        #: The memory limit of each worker in bytes; 0 if it is unknown. It contains only workers
        #: with access to the storage, because others could not write a checkpoint there. The
        #: mapping is replaced and never changed, so other threads may read it.
        self._memory: Mapping[str, int] = {}

    def update_workers(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Note the current workers, by address."""
        self._memory = {
            address: worker.memory_limit
            for address, worker in workers.items()
            if worker.status == "running" and worker.shares_storage
        }
        hosts = {worker.host for worker in workers.values()}
        self._limit_now = 0 if self._disk_first and len(hosts) == 1 else self._limit

    def room(self, address: str) -> int:
        """Return the largest checkpoint, in bytes, that a worker may keep. Thread-safe.

        The runner's thread calls it while the loop may change the values. A worker may then keep a
        checkpoint too many or too few, which is harmless: its share is only a guideline.
        """
        memory = self._memory.get(address)
        if memory is None:
            return 0
        if not memory:
            return self._limit_now
        return max(0, min(self._limit_now, int(_SHARE * memory) - self._weights.get(address, 0)))

    def add(self, trial_id: str, record: CheckpointRecord, size: int, address: str, storage: Storage) -> None:
        """Hold a checkpoint that a trial has left on a worker.

        Parameters
        ----------
        trial_id : str
            The trial.
        record : CheckpointRecord
            The record of the checkpoint.
        size : int
            The size of the checkpoint in bytes.
        address : str
            The address of the worker.
        storage : Storage
            The experiment's storage.
        """
        key = key_of(self._plugin, record.path)
        future = self._submit(by_value(adopt), self._plugin, key, key=key, workers=[address])
        self._kept[record.path] = _MemoryCheckpoint(
            trial_id=trial_id, record=record, storage=storage, size=size, future=future, address=address
        )
        self._weights[address] = self._weights.get(address, 0) + size

    async def fetch_to(self, path: str, address: str) -> tuple[str, Any]:
        """Transfer a checkpoint to a worker.

        Parameters
        ----------
        path : str
            The path of the checkpoint's record.
        address : str
            The address of the worker on which the trial will resume.

        Returns
        -------
        key : str
            The key of the checkpoint on that worker.
        future : Future or None
            Keeps a copy on that worker until it is released; None if the original is there.

        Raises
        ------
        CheckpointGone
            If the checkpoint is lost. The loss has been reported by then.
        """
        kept = self._kept.get(path)
        if kept is None:
            raise CheckpointGone(f"the checkpoint {path} is lost")
        if kept.address == address and kept.future.status in ("pending", "finished"):
            return kept.future.key, None
        # From now on Dask has two copies, and may drop the first one.
        self._clear_location(kept)
        try:
            future = await self._run_with(kept, identity, workers=[address])
        except CheckpointGone as gone:
            self.mark_lost(path, f"it did not come to {address}: {gone}")
            raise
        return future.key, future

    async def store(self, path: str) -> None:
        """Let a worker that has a checkpoint write it to the storage, and report the outcome."""
        kept = self._kept.get(path)
        if kept is None:
            return  # Its loss was already reported.
        record = replace(kept.record, kind=CheckpointKind.PERSISTENT)
        workers = [kept.address] if kept.address else sorted(self._memory)
        if not workers:
            self.mark_lost(path, "no worker has access to the storage")
            return
        try:
            done = await self._run_with(kept, store, record, kept.storage, workers=workers)
        except CheckpointGone as gone:
            self.mark_lost(path, f"it could not be stored: {gone}")
        else:
            done.release()
            # From here on a loss of the worker is no loss of the checkpoint.
            self.release(path)
            event = CheckpointStored(trial_id=kept.trial_id, checkpoint=record, time=self._now())
            self._emit([event])

    async def _run_with(
        self, kept: _MemoryCheckpoint, function: Any, *arguments: Any, workers: Sequence[str]
    ) -> Any:
        """Run a function with a checkpoint on one of the workers, and return the task's future.

        Raises
        ------
        CheckpointGone
            If the function fails or is not done before the deadline.
        """
        key = f"{kept.future.key}-{uuid.uuid4().hex}"
        deadline = self._waits.transfer_seconds + kept.size / _SLOWEST
        future = None
        try:
            task = by_value(function, *arguments)
            future = self._submit(task, kept.future, key=key, workers=workers)
            # `wait`, because awaiting the future would transfer its result to the driver.
            await asyncio.wait_for(self._wait(future), deadline)
            if future.status != "finished":
                raise CheckpointGone(f"its task is {future.status}")
        except BaseException as error:
            if future is not None:
                future.release()
            if isinstance(error, CheckpointGone) or not isinstance(error, Exception):
                raise
            late = isinstance(error, asyncio.TimeoutError)
            reason = f"{deadline:.0f} s were not enough" if late else repr(error)
            raise CheckpointGone(reason) from error
        return future

    def release(self, path: str) -> None:
        """Release a checkpoint that is no longer needed; does nothing if it was lost."""
        kept = self._kept.pop(path, None)
        if kept is not None:
            self._clear_location(kept)
            self._spawn(self._release_future(kept))

    def mark_lost(self, path: str, reason: str) -> None:
        """Report that a checkpoint is lost; only the first call has an effect."""
        kept = self._kept.get(path)
        if kept is not None:
            self.release(path)
            event = CheckpointLost(trial_id=kept.trial_id, path=path, reason=reason, time=self._now())
            self._emit([event])

    def on_worker_lost(self, address: str | None, reason: str) -> None:
        """Find and report the checkpoints that were lost with a worker, or with the scheduler.

        Parameters
        ----------
        address : str or None
            The address of the worker; None if Dask has lost all data of the experiment.
        reason : str
            Why the worker counts as lost.
        """
        if address is None:
            for path in tuple(self._kept):
                self.mark_lost(path, reason)
            return
        near = {path: kept for path, kept in self._kept.items() if kept.address in (address, "")}
        if near:
            self._spawn(self._find_survivors(near, address, reason))

    def close(self) -> None:
        """Release all checkpoints, without reporting them as lost."""
        for path in tuple(self._kept):
            self.release(path)

    async def _find_survivors(self, near: Mapping[str, _MemoryCheckpoint], address: str, reason: str) -> None:
        """Mark checkpoints lost that no other worker has. A retiring worker moves them first."""
        owners: Mapping[str, Iterable[str]] = {}
        try:
            asking = _who_has(self._client, [kept.future for kept in near.values()])
            owners = await asyncio.wait_for(asking, self._waits.answer_seconds)
        except Exception as error:
            logger.info("the scheduler did not answer where the checkpoints are: %r", error)
        for path, kept in near.items():
            if set(owners.get(kept.future.key, ())) - {address}:
                self._clear_location(kept)
            # A checkpoint that was released or replaced since the request is not reported.
            elif self._kept.get(path) is kept:
                self.mark_lost(path, reason)

    def _clear_location(self, kept: _MemoryCheckpoint) -> None:
        """Note that the checkpoint may be on any worker."""
        if kept.address:
            self._weights[kept.address] -= kept.size
            kept.address = ""

    async def _release_future(self, kept: _MemoryCheckpoint) -> None:
        # Wait until Dask has the checkpoint. Otherwise the plugin on the worker would keep it.
        try:
            await asyncio.wait_for(self._wait(kept.future), self._waits.answer_seconds)
        except Exception as error:
            logger.info("%s was released before Dask had it: %r", kept.future.key, error)
        kept.future.release()

    async def _wait(self, future: Any) -> None:
        with self._client.as_current():
            await self._waits.until_done([future])

    def _submit(self, function: Any, *arguments: Any, key: str, workers: Sequence[str]) -> Any:
        return self._client.submit(
            function,
            *arguments,
            key=key,
            pure=False,
            retries=0,
            workers=list(workers),
            priority=self.priority,
        )


async def _who_has(client: Client, futures: list[Any]) -> Mapping[str, Iterable[str]]:
    found: Mapping[str, Iterable[str]] = await client.who_has(futures)
    return found
