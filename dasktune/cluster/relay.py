"""Carries checkpoints between the storage and workers that do not see it; the driver's side.

A trial there says what it wants, and the driver, which alone can call, fetches or brings it in
pieces, one call at a time. What goes up is gathered in a temporary directory and then committed as
a worker would do it; what comes down was verified before. Everything but the work on files, which
has threads of its own, runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from dasktune.cluster.envelope import Carriage, Refused
from dasktune.cluster.line import Line, WorkerLost
from dasktune.cluster.run import Run
from dasktune.cluster.slot_handle import SlotFailed
from dasktune.errors import StorageError, TuneError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage, is_relative_name
from dasktune.storage.source import SourceFile, source_files
from dasktune.trainable.messages import StopNow
from dasktune.trainable.relay import (
    Download,
    EndHaul,
    Export,
    Haul,
    LocalFile,
    Look,
    Put,
    Step,
    Sweep,
    Take,
    Upload,
    Words,
    write_piece,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.names import checkpoint_place

__all__ = ["Relay"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Bytes of a piece. Larger ones would hold up the event loops at both ends for longer, which takes
#: milliseconds each; with smaller ones the way there and back would take most of the time.
_PIECE: Final = 4 << 20

#: Hauls that are carried at the same time: connections, threads and memory of the driver.
_AT_ONCE: Final = 8

#: Seconds between two attempts to reach a worker that did not answer; its line knows if it is lost.
_RETRY_PAUSE: Final = 0.2

#: Seconds without an answer after which a haul is given up, though the worker is there: its network
#: is too slow for the pieces.
_PATIENCE: Final = 300.0


class _Unwanted(Exception):
    """The trial has ended, so nobody waits for the outcome."""


class Relay:
    """Carries what the trials of workers that do not see the storage want carried.

    All methods are for the client's event loop.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._pool = ThreadPoolExecutor(_AT_ONCE, "dasktune-relay")

    async def carry(self, line: Line, run: Run, number: int) -> None:
        """Carry something to its end, or until its trial has ended or its worker is lost.

        Parameters
        ----------
        line : Line
            To the worker.
        run : Run
            The trial, as it runs there.
        number : int
            Of the haul.
        """
        async with self._turns:
            call = partial(_call, line, run, number)
            try:
                error = await self._outcome(line, run, call)
                await call(EndHaul(error=error))
            except (WorkerLost, Refused, StorageError, _Unwanted) as why:
                # Refused: the trial has given it up, as its driver was silent for too long.
                logger.info("haul %d of trial %s was dropped: %r", number, run.trial_id, why)

    def close(self) -> None:
        """Begin nothing new; files that are being written at this moment come to their end."""
        self._pool.shutdown(wait=False)

    async def _outcome(self, line: Line, run: Run, call: Callable[[Step], Any]) -> TuneError | None:
        """Carry something, and return what went wrong that its trial is to know."""
        storage = run.spec.storage
        is_wanted = partial(_is_wanted, line, run)
        store = CheckpointStore(storage.patient(storage.patience, is_wanted))
        try:
            haul: Haul = await call(Look())
            match haul:
                case Upload():
                    await self._up(line, run, haul, store, call)
                case Download():
                    await self._down(line, haul, store, call)
                case Export():
                    trial_dir = run.spec.trial_dir
                    store_it = partial(_export, line, run, store, trial_dir)
                    await self._gathered(line, haul.files, store_it, call)
                case Words():
                    add = partial(_add_words, run.spec, storage)
                    await self._gathered(line, haul.files, add, call)
                case Sweep():
                    spec = run.spec
                    keep, begin = spec.incarnation, spec.next_checkpoint
                    await self._do(line, store.sweep, spec.trial_dir, keep, begin)
        except (WorkerLost, _Unwanted):
            raise
        except TuneError as error:
            return error
        except Refused as refusal:
            # Of the worker's traceback the last line says what.
            why = str(refusal).strip().rpartition("\n")[2]
            return StorageError(f"a file on {line.address} could not be read or written: {why}")
        except Exception as error:  # whatever the store's client raises
            return StorageError(f"the driver could not use {storage}: {storage.explain(error)}")
        return None

    async def _up(
        self,
        line: Line,
        run: Run,
        upload: Upload,
        store: CheckpointStore,
        call: Callable[[Step], Any],
    ) -> None:
        record, spec = upload.record, run.spec
        place = checkpoint_place(record.path)
        if place is None or (place[0], place[2]) != (spec.trial_dir, spec.incarnation):
            raise StorageError(f"{record.path!r:.80} is no checkpoint of {run.key}")
        fence = partial(_check_wanted, line, run)
        commit = partial(store.write, record=record, incarnation=spec.incarnation, fence=fence)
        await self._gathered(line, upload.files, commit, call)

    async def _gathered(
        self,
        line: Line,
        files: tuple[LocalFile, ...],
        store_it: Callable[[Checkpoint], None],
        call: Callable[[Step], Any],
    ) -> None:
        """Fetch files of the worker, and do with them together what is to be done."""
        spool = await self._do(line, Checkpoint.temporary)
        try:
            for at, file in enumerate(files):
                if not is_relative_name(file.name):
                    raise StorageError(f"{file.name!r:.80} leads out of its directory")
                for offset in _offsets(file.size):
                    size = min(_PIECE, file.size - offset)
                    data = await call(Take(file=at, offset=offset, size=size))
                    if len(data) != size:
                        raise StorageError(f"the file {file.name!r} became shorter on its way")
                    await self._do(line, write_piece, spool.path, file.name, offset, data)
            await self._do(line, store_it, spool)
        finally:
            self._pool.submit(shutil.rmtree, spool.path, ignore_errors=True)

    async def _down(
        self, line: Line, download: Download, store: CheckpointStore, call: Callable[[Step], Any]
    ) -> None:
        checkpoint = await self._do(line, store.load, download.record)
        for file in await self._do(line, source_files, checkpoint):
            offset, data = 0, None
            # An empty file is sent, too.
            while data is None or len(data) == _PIECE:
                data = await self._do(line, _piece, file, offset)
                await call(Put(name=file.name, offset=offset, data=data))
                offset += len(data)

    async def _do(self, line: Line, work: Callable[..., T], *args: Any) -> T:
        """Do something with files in a thread; nobody waits for it when the worker is lost."""
        loop = asyncio.get_running_loop()
        return await line.unless_lost(loop.run_in_executor(self._pool, work, *args))


async def _call(line: Line, run: Run, number: int, step: Step) -> Any:
    """Have the worker take a step, however often it must be asked."""
    carriage = Carriage(incarnation=run.key, number=number, step=step)
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        slot = run.seat.slot
        if run.key not in line.runs or slot is None:
            raise _Unwanted
        try:
            return await line.unless_lost(slot.carry(carriage))
        except SlotFailed as failure:
            logger.info("%s", failure)
            if loop.time() - since > _PATIENCE:
                raise StorageError(
                    f"a checkpoint could not be sent between the driver and {line.address}: "
                    f"{failure}. Use a storage_path that this worker sees."
                ) from failure
            await line.unless_lost(asyncio.sleep(_RETRY_PAUSE))


def _is_wanted(line: Line, run: Run) -> bool:
    """Whether the trial is there and to go on; for any thread."""
    return run.key in line.runs and not line.is_lost and not isinstance(run.order, StopNow)


def _check_wanted(line: Line, run: Run) -> None:
    """Let only a trial that the experiment has to do with come to a checkpoint."""
    if run.key not in line.runs or line.is_lost:
        raise StorageError(f"{run.key} has ended")


def _export(
    line: Line, run: Run, store: CheckpointStore, trial_dir: str, spool: Checkpoint
) -> None:
    _check_wanted(line, run)
    store.export(trial_dir, spool.path)


def _add_words(spec: TrialSpec, storage: Storage, spool: Checkpoint) -> None:
    place = storage.child("trials", spec.trial_dir)
    for name in dict.fromkeys(spec.log_files or ()):
        with suppress(FileNotFoundError):
            words = Path(spool.path, name).read_bytes()
            if place.is_local:
                # Little comes at a time, and there may be much already.
                os.makedirs(place.path(), exist_ok=True)
                with open(place.path(name), "ab") as file:
                    file.write(words)
                continue
            before = place.read_bytes(name) if place.exists(name) else b""
            place.write_bytes(name, before + words)


def _offsets(size: int) -> Iterator[int]:
    """Yield where the pieces of a file begin; an empty file has one, too."""
    yield from range(0, max(size, 1), _PIECE)


def _piece(file: SourceFile, offset: int) -> bytes:
    # What was loaded is local; without a buffer a read may be short before the end.
    with io.BufferedReader(file.open()) as stream:  # type: ignore[type-var]
        stream.seek(offset)
        return stream.read(_PIECE)
