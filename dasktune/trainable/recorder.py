"""Sends results and checkpoints to the driver, and obeys what it answers."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.packing import pack, unpack
from dasktune.storage.source import is_self_contained, snapshot
from dasktune.trainable.checkpoint_port import CheckpointPort
from dasktune.trainable.gate import Gate
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.messages import (
    Committed,
    Message,
    PauseNow,
    Reported,
    SaveAndGoOn,
    StopNow,
)
from dasktune.trainable.outbox import Outbox
from dasktune.trainable.relay import RelayedStore
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.uploader import Uploader
from dasktune.trainable.usage import UsageMeter
from dasktune.trainable.watchdog import Watchdog
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.metrics import flatten, lookup

__all__ = ["Done", "Ending", "Recorder", "Saved"]

logger = logging.getLogger(__name__)

#: What a disk says that has no room for a copy.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Done:
    """The trial's own result said ``done``."""


#: Why no further result of this run is recorded.
Ending = Done | PauseNow | StopNow


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that has a number, and exists or will."""

    record: CheckpointRecord
    #: What is still to be uploaded; None if it is committed.
    copy: Checkpoint | None = None
    #: What is to be kept in memory; empty if it goes into the storage.
    packed: bytes = b""


class Recorder:
    """The way of results and checkpoints from user code to the driver.

    A checkpoint on a local disk is committed at once: a copy of it would take as long. For any
    other storage it is copied, and uploaded while user code goes on; the outbox holds its result,
    and with it all that comes later, until it is committed. Where user code waits or ends anyway,
    there is no copy.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    outbox : Outbox
        Where messages go.
    gate : Gate
        Where user code waits.
    store : CheckpointStore
        Where checkpoints go.
    port : CheckpointPort
        What the worker does for them.
    watchdog : Watchdog
        Looks after the time between two results; what is done here does not count.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        outbox: Outbox,
        gate: Gate,
        store: CheckpointStore | RelayedStore,
        port: CheckpointPort,
        watchdog: Watchdog,
    ) -> None:
        self._spec = spec
        self._outbox = outbox
        self._gate = gate
        self._store = store
        self._port = port
        self.watchdog = watchdog
        self._uploader = Uploader(f"dasktune-{spec.trial_id}-upload", outbox.withdraw)
        #: What measures the machine for each result, if it is to be measured.
        self._meter: UsageMeter | None = None
        self._next_index = spec.next_checkpoint
        #: The checkpoint that was saved last, at first the one that the trial goes on from.
        self.newest: CheckpointRecord | None = spec.checkpoint
        #: Its files, if it is in memory.
        self._packed = port.packed
        #: Set once, with the last result.
        self.ending: Ending | None = None

    def measure_usage(self) -> None:
        """Let each result from now on say how busy the machine is."""
        self._meter = UsageMeter()

    def check(self, result: Mapping[str, Any]) -> None:
        """Refuse a result that lacks what somebody decides by.

        Raises
        ------
        ConfigError
            If a required metric is missing.
        """
        for name in self._spec.required_metrics:
            if lookup(result, name) is None:
                raise ConfigError(_missing(name, result))

    def save(
        self,
        checkpoint: Checkpoint,
        result: Mapping[str, Any],
        *,
        own: bool = False,
        in_memory: int = 0,
    ) -> Saved:
        """Save a checkpoint that belongs to `result`, which is to be published next.

        Parameters
        ----------
        checkpoint : Checkpoint
            Its files may change as soon as this returns.
        result : mapping
            The result.
        own : bool, default=False
            Whether `checkpoint` is a temporary one that nobody else knows: it needs no copy, unless
            it has links.
        in_memory : int, default=0
            Bytes up to which it is kept in memory and not in the storage.

        Raises
        ------
        Exception
            Whatever the fence raises, or the storage: then there is no checkpoint. It may be about
            an earlier one.
        """
        with self.watchdog:
            return self._save(checkpoint, result, own=own, in_memory=in_memory)

    def _save(
        self, checkpoint: Checkpoint, result: Mapping[str, Any], *, own: bool, in_memory: int
    ) -> Saved:
        # Each attempt has a number of its own: what a failed one left, or does late, harms none.
        index, self._next_index = self._next_index, self._next_index + 1
        record = self._store.plan(
            trial_dir=self._spec.trial_dir,
            index=index,
            incarnation=self._spec.incarnation,
            iteration=result["training_iteration"],
            metrics=result,
        )
        packed = pack(checkpoint, in_memory) if in_memory else None
        if packed is not None:
            self._packed = packed
            self.newest = replace(record, kind=CheckpointKind.MEMORY)
            return Saved(self.newest, packed=packed)
        copy = None
        with self._unless_stopped():
            if self._store.is_slow and self._goes_on_after(result):
                self._uploader.wait_for_room()
                alone = own and is_self_contained(checkpoint.path)
                copy = checkpoint if alone else _copy_of(checkpoint)
            if copy is None:
                self._uploader.flush()
                self._commit(checkpoint, record)
        self.newest, self._packed = record, b""
        return Saved(record, copy)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint as user code sees it."""
        with self.watchdog, self._unless_stopped():
            self._uploader.flush()
            record = self.newest or self._spec.beginning
            if record is None:
                return None
            in_memory = record.kind is CheckpointKind.MEMORY
            return unpack(self._packed) if in_memory else self._store.load(record)

    @contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Let a storage that fails be no failure of a trial that is to stop: it is not waited for.

        Raises
        ------
        TrialInterrupted
            If there was an order to stop.
        """
        try:
            yield
        except Exception as error:  # whatever the store's client raises
            if isinstance(self._gate.order, StopNow):
                raise TrialInterrupted from error
            raise

    def publish(self, result: Mapping[str, Any], saved: Saved | None) -> SaveAndGoOn | None:
        """Send a result, wait if it is a milestone, and set `ending` if it was the last one.

        Returns
        -------
        SaveAndGoOn or None
            The answer, if the driver wants a checkpoint of this moment before user code goes on.
        """
        with self.watchdog:
            answer = self._publish(result, saved)
        if self.ending is None:
            self.watchdog.renew()
        else:
            self.watchdog.close()
        return answer

    def _publish(self, result: Mapping[str, Any], saved: Saved | None) -> SaveAndGoOn | None:
        metrics = dict(result)
        if self._meter is not None:
            metrics["perf"] = self._meter()
        record = None if saved is None else saved.record
        if record is not None:
            metrics["checkpoint_dir_name"] = record.path.rpartition("/")[2]
            metrics["should_checkpoint"] = True
        done = bool(metrics["done"])
        # With an order to end there is nothing left to decide.
        awaits = not done and self._gate.order is None and self._gate.is_milestone(metrics)
        if awaits:
            # Nobody could answer what is held back.
            with self._unless_stopped():
                self._uploader.flush()
        make = partial(self._reported, metrics=metrics, checkpoint=record, awaits=awaits)
        self._send(make, saved, bounded=True, urgent=awaits)
        if done:
            self.ending = Done()
            return None
        answer = self._gate.wait() if awaits else self._gate.order
        if isinstance(answer, PauseNow | StopNow):
            self.ending = answer
        return answer if isinstance(answer, SaveAndGoOn) else None

    def is_milestone(self, result: Mapping[str, Any]) -> bool:
        """Whether the trial will wait for the driver at a result, as far as that is known."""
        return self._gate.is_milestone(result)

    def announce(self, saved: Saved) -> None:
        """Tell of a checkpoint that was saved after its result had been sent."""
        self._send(partial(self._committed, saved=saved), saved)

    def export(self, directory: str) -> None:
        """Store what was exported to a local directory, after :func:`note_exports`."""
        self._port.fence()
        self._store.export(self._spec.trial_dir, directory)

    def sweep(self) -> None:
        """Begin to delete the checkpoints that lost starts of the trial left. Returns at once."""
        self._uploader.do(self._sweep)

    def finish(self) -> None:
        """Wait until every checkpoint is committed; to be called at the end of user code.

        Raises
        ------
        BaseException
            What kept one of them from being committed. What came after it will not be told.
        """
        try:
            with self._unless_stopped():
                self._uploader.close()
        except BaseException:
            self.ending = None
            raise

    def _goes_on_after(self, result: Mapping[str, Any]) -> bool:
        """Whether user code goes on when this result is sent."""
        ends = result["done"] or self._gate.order is not None
        return not ends and not self._gate.is_milestone(result)

    def _send(
        self,
        make: Callable[[int], Message],
        saved: Saved | None,
        *,
        bounded: bool = False,
        urgent: bool = True,
    ) -> None:
        if saved is None or saved.copy is None:
            self._outbox.put(make, bounded=bounded, urgent=urgent)
        else:
            self._outbox.put(make, bounded=bounded, urgent=urgent, held=True)
            self._uploader.upload(partial(self._upload, saved.copy, saved.record))

    def _commit(self, checkpoint: Checkpoint, record: CheckpointRecord) -> None:
        incarnation = self._spec.incarnation
        self._store.write(checkpoint, record, incarnation=incarnation, fence=self._port.fence)

    def _upload(self, copy: Checkpoint, record: CheckpointRecord) -> None:
        try:
            self._commit(copy, record)
        finally:
            # Not in the thread of user code, where the last reference may be.
            shutil.rmtree(copy.path, ignore_errors=True)
        self._outbox.release()

    def _sweep(self) -> None:
        try:
            spec = self._spec
            self._store.sweep(spec.trial_dir, spec.incarnation, spec.next_checkpoint)
        except Exception:
            logger.warning(
                "Could not remove the checkpoints that lost starts of trial %s left",
                self._spec.trial_id,
                exc_info=True,
            )

    def _committed(self, seq: int, *, saved: Saved) -> Committed:
        self._uploader.check()
        if saved.packed:
            self._port.keep(saved.record.path, saved.packed)
        return Committed(seq=seq, checkpoint=saved.record, size=len(saved.packed))

    def _reported(
        self,
        seq: int,
        *,
        metrics: dict[str, Any],
        checkpoint: CheckpointRecord | None,
        awaits: bool,
    ) -> Reported:
        # Under the lock of the outbox: nothing is sent after something that was withdrawn.
        self._uploader.check()
        if awaits:
            self._gate.expect(seq)
        return Reported(seq=seq, metrics=metrics, checkpoint=checkpoint, awaits=awaits)


def _copy_of(checkpoint: Checkpoint) -> Checkpoint | None:
    """Copy a checkpoint to the local disk; None if that has no room."""
    try:
        return snapshot(checkpoint)
    except OSError as error:
        if error.errno not in _FULL:
            raise
    logger.warning("There is no room for a copy of a checkpoint; its upload is waited for.")
    return None


def _missing(name: str, result: Mapping[str, Any]) -> str:
    # Only for a message: a process of a trial's own should not load them for nothing.
    from difflib import get_close_matches

    from dasktune.result import is_auto_filled

    own = sorted(key for key in flatten(result) if not is_auto_filled(key))
    close = get_close_matches(name, own, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "Report it, or name another metric."
    # What helps comes first: tables of failures show the beginning.
    return f"metrics must hold {name!r}, got {own}. {hint} Each result is judged by it."
