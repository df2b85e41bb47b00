"""Transfers checkpoints between the storage and workers without access to it; the driver's side.

A trial on such a worker requests a transfer. Only the driver can make calls, so it fetches or sends
the files in pieces, one call at a time. It collects an upload in a temporary directory and then
commits it as a worker would. For a download it loads and verifies the checkpoint before it sends
the first piece.

The transfers run on the client's event loop, the work on files in a pool of threads. A trial may
end, or its worker may be lost, at each ``await``: the next step then raises, and the temporary
directory is deleted. A file operation that has begun in a thread is not interrupted. A commit
therefore checks in its own thread, as its last act before it writes the manifest, that the trial
still runs.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from dasktune.cluster.driver.actor_handle import ActorCallFailed
from dasktune.cluster.driver.trial_run import TrialRun
from dasktune.cluster.driver.worker_link import WorkerLink, WorkerLost
from dasktune.cluster.protocol.wire_messages import Refused, TransferCall
from dasktune.errors import CheckpointDamaged, CheckpointNotFound, StorageError, TuneError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.source_files import SourceFile, source_files
from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage, is_relative_name
from dasktune.trainable.checkpoints import relay
from dasktune.trainable.reporting.trial_messages import StopAnswer
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.names import checkpoint_place

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Largest number of concurrent transfers; it bounds the driver's connections, threads and memory.
_AT_ONCE: Final = 8


class _RunEnded(Exception):
    """The trial has ended, so its transfer is not needed."""


class CheckpointRelay:
    """Performs the transfers that trials request.

    Call all methods on the client's event loop.

    Parameters
    ----------
    piece_size : int, default=4 MiB
        Bytes of a piece. Larger pieces would block the event loops at both ends for more than a few
        milliseconds; with smaller pieces the round trips would take most of the time.
    retry_interval : float, default=0.2
        Seconds between two attempts to reach a worker; its link detects a loss.
    max_silence : float, default=300.0
        Seconds without an answer after which a transfer fails although the worker is alive: its
        network is too slow for the pieces.
    """

    def __init__(
        self, *, piece_size: int = 4 << 20, retry_interval: float = 0.2, max_silence: float = 300.0
    ) -> None:
        self._piece_size = piece_size
        self._retry_interval = retry_interval
        self._max_silence = max_silence
        self._semaphore = asyncio.Semaphore(_AT_ONCE)
        self._pool = ThreadPoolExecutor(_AT_ONCE, "dasktune-relay")

    async def transfer(self, link: WorkerLink, run: TrialRun, number: int) -> None:
        """Perform a transfer, until it is done, its trial has ended, or its worker is lost.

        Parameters
        ----------
        link : WorkerLink
            The link to the worker.
        run : TrialRun
            The trial's run.
        number : int
            The number of the transfer.
        """
        async with self._semaphore:
            call = partial(self._call, link, run, number)
            try:
                error = await self._transfer_files(link, run, call)
                await call(relay.EndTransfer(error=error))
            except (WorkerLost, Refused, StorageError, _RunEnded) as why:
                # Refused: the trial cancelled the transfer after it had waited too long for the
                # driver.
                logger.info("transfer %d of trial %s was cancelled: %r", number, run.trial_id, why)

    async def is_damaged(self, link: WorkerLink, run: TrialRun, record: CheckpointRecord) -> bool:
        """Whether a checkpoint in the storage is missing or damaged as the driver sees it.

        False also if the storage cannot be read: then nothing is known about the checkpoint.

        Parameters
        ----------
        link : WorkerLink
            The link to the worker that could not load it.
        run : TrialRun
            The run that was to load it.
        record : CheckpointRecord
            The checkpoint.

        Raises
        ------
        WorkerLost
            If the worker is lost in the meantime.
        """
        storage = run.spec.storage
        store = CheckpointStore(storage.with_retry(storage.retry_seconds, partial(_is_wanted, link, run)))
        async with self._semaphore:
            try:
                await self._in_thread(link, store.load, record)
            except (CheckpointNotFound, CheckpointDamaged):
                return True
            except StorageError as error:
                logger.warning("the driver cannot read the checkpoint %s: %s", record.path, error)
        return False

    def close(self) -> None:
        """Start no further file operations, and do not wait for the running ones."""
        self._pool.shutdown(wait=False)

    async def _transfer_files(
        self, link: WorkerLink, run: TrialRun, call: Callable[[relay.Step], Any]
    ) -> TuneError | None:
        """Transfer the files, and return the error that the trial should get, if any."""
        storage = run.spec.storage
        is_wanted = partial(_is_wanted, link, run)
        store = CheckpointStore(storage.with_retry(storage.retry_seconds, is_wanted))
        try:
            transfer: relay.Transfer = await call(relay.GetTransfer())
            match transfer:
                case relay.UploadTransfer():
                    await self._upload(link, run, transfer, store, call)
                case relay.DownloadTransfer():
                    await self._download(link, transfer, store, call)
                case relay.ExportTransfer():
                    trial_dir = run.spec.trial_dir
                    store_it = partial(_export, link, run, store, trial_dir)
                    await self._fetch_files(link, transfer.files, store_it, call)
                case relay.LogChunk():
                    add = partial(_append_logs, run.spec, storage)
                    await self._fetch_files(link, transfer.files, add, call)
                case relay.RemoveStale():
                    spec = run.spec
                    keep, begin = spec.incarnation, spec.next_checkpoint
                    await self._in_thread(link, store.remove_stale, spec.trial_dir, keep, begin)
        except (WorkerLost, _RunEnded):
            raise
        except TuneError as error:
            return error
        except Refused as refusal:
            # The last line of the worker's traceback has the exception.
            why = str(refusal).strip().rpartition("\n")[2]
            return StorageError(f"a file on {link.address} could not be read or written: {why}")
        except Exception as error:  # the store's client may raise any exception
            return StorageError(f"the driver could not use {storage}: {storage.explain(error)}")
        return None

    async def _upload(
        self,
        link: WorkerLink,
        run: TrialRun,
        upload: relay.UploadTransfer,
        store: CheckpointStore,
        call: Callable[[relay.Step], Any],
    ) -> None:
        record, spec = upload.record, run.spec
        place = checkpoint_place(record.path)
        if place is None or (place[0], place[2]) != (spec.trial_dir, spec.incarnation):
            raise StorageError(f"{record.path!r:.80} is not a checkpoint of {run.key}")
        fence = partial(_check_running, link, run)
        commit = partial(store.write, record=record, incarnation=spec.incarnation, fence=fence)
        await self._fetch_files(link, upload.files, commit, call)

    async def _fetch_files(
        self,
        link: WorkerLink,
        files: tuple[relay.LocalFile, ...],
        store_it: Callable[[Checkpoint], None],
        call: Callable[[relay.Step], Any],
    ) -> None:
        """Fetch files from the worker into a directory, then call a function with all of them."""
        spool = await self._in_thread(link, Checkpoint.temporary)
        try:
            for index, file in enumerate(files):
                if not is_relative_name(file.name):
                    raise StorageError(f"the file name {file.name!r:.80} points outside its directory")
                # An empty file has one piece.
                for offset in range(0, max(file.size, 1), self._piece_size):
                    size = min(self._piece_size, file.size - offset)
                    data = await call(relay.ReadPiece(file=index, offset=offset, size=size))
                    if len(data) != size:
                        raise StorageError(f"the file {file.name!r} shrank during the transfer")
                    await self._in_thread(link, relay.write_piece, spool.path, file.name, offset, data)
            await self._in_thread(link, store_it, spool)
        finally:
            self._pool.submit(shutil.rmtree, spool.path, ignore_errors=True)

    async def _download(
        self,
        link: WorkerLink,
        download: relay.DownloadTransfer,
        store: CheckpointStore,
        call: Callable[[relay.Step], Any],
    ) -> None:
        checkpoint = await self._in_thread(link, store.load, download.record)
        for file in await self._in_thread(link, source_files, checkpoint):
            offset, data = 0, None
            # An empty file is sent as one empty piece.
            while data is None or len(data) == self._piece_size:
                data = await self._in_thread(link, _piece, file, offset, self._piece_size)
                await call(relay.WritePiece(name=file.name, offset=offset, data=data))
                offset += len(data)

    async def _in_thread(self, link: WorkerLink, work: Callable[..., T], *args: Any) -> T:
        """Run file operations in a thread; raise as soon as the worker is lost."""
        loop = asyncio.get_running_loop()
        return await link.unless_lost(loop.run_in_executor(self._pool, work, *args))

    async def _call(self, link: WorkerLink, run: TrialRun, number: int, step: relay.Step) -> Any:
        """Perform a step on the worker, and repeat the call until it answers.

        A step may run twice, as the worker may have performed a call that was not answered in time.
        Reading a piece changes nothing, and writing the same piece again gives the same file.
        """
        request = TransferCall(incarnation=run.key, number=number, step=step)
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            actor = run.reservation.actor
            if run.key not in link.runs or actor is None:
                raise _RunEnded
            try:
                return await link.unless_lost(actor.transfer_step(request))
            except ActorCallFailed as failure:
                logger.info("%s", failure)
                if loop.time() - since > self._max_silence:
                    raise StorageError(
                        f"a checkpoint could not be sent between the driver and {link.address}: "
                        f"{failure}. Use a storage_path that this worker can access."
                    ) from failure
                await link.unless_lost(asyncio.sleep(self._retry_interval))


def _is_wanted(link: WorkerLink, run: TrialRun) -> bool:
    """Whether the trial still runs and has no stop order. Called in threads; changes nothing."""
    return run.key in link.runs and not link.is_lost and not isinstance(run.order, StopAnswer)


def _check_running(link: WorkerLink, run: TrialRun) -> None:
    """Raise if the trial has ended, so that it commits no checkpoint. Called in threads."""
    if run.key not in link.runs or link.is_lost:
        raise StorageError(f"{run.key} has ended")


def _export(
    link: WorkerLink, run: TrialRun, store: CheckpointStore, trial_dir: str, spool: Checkpoint
) -> None:
    _check_running(link, run)
    store.export(trial_dir, spool.path)


def _append_logs(spec: TrialSpec, storage: Storage, spool: Checkpoint) -> None:
    place = storage.child("trials", spec.trial_dir)
    for name in dict.fromkeys(spec.log_files or ()):
        with suppress(FileNotFoundError):
            chunk = Path(spool.path, name).read_bytes()
            if place.is_local:
                # Append to the file instead of writing it again, because it may be large.
                os.makedirs(place.inside(), exist_ok=True)
                with os.fdopen(local_files.open_append(place.inside(name)), "ab") as file:
                    file.write(chunk)
                continue
            before = place.read_bytes(name) if place.exists(name) else b""
            place.write_bytes(name, before + chunk)


def _piece(file: SourceFile, offset: int, size: int) -> bytes:
    # The files of a loaded checkpoint are local. Buffered, because an unbuffered read may return
    # fewer bytes than requested, which `_download` would take for the end of the file.
    with io.BufferedReader(file.open()) as stream:  # type: ignore[type-var]
        stream.seek(offset)
        return stream.read(size)
