"""Records results and checkpoints of a trial, sends them to the driver, and applies its answers."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from dasktune.errors import CheckpointDamaged, CheckpointNotFound, ConfigError, ReportError, StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.serialization import from_bytes, to_bytes
from dasktune.storage.checkpoints.sharded import ShardedCheckpoint, StagedShards
from dasktune.storage.checkpoints.source_files import is_self_contained, local_copy
from dasktune.storage.fs.local_files import is_disk_full
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.checkpoints.relay import RelayedStore
from dasktune.trainable.checkpoints.uploader import Uploader
from dasktune.trainable.reporting.auto_metrics import UsageMeter
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.report_timeout import ReportTimeout
from dasktune.trainable.reporting.trial_messages import (
    Committed,
    Message,
    Order,
    PauseAnswer,
    Reported,
    SaveAnswer,
    StopAnswer,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.metrics import flatten, lookup

logger = logging.getLogger(__name__)

_FULL_DISK: Final = (
    "the local disk is full: a checkpoint is uploaded without a copy, and report() waits for it"
)


def _pass() -> None:
    """Allow every commit."""


def _drop(path: str, packed: bytes) -> None:
    """Drop the checkpoint. A run without an ``in_memory`` limit never calls this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHooks:
    """The worker's part in saving a trial's checkpoints: the fence, and storage in memory."""

    #: Called right before a checkpoint is committed. It raises, or blocks for a while, if this
    #: worker may not commit.
    fence: Callable[[], None] = _pass
    #: Keeps a checkpoint in the worker's memory, given its path and bytes. It is called before the
    #: checkpoint's message is sent.
    keep_in_memory: Callable[[str, bytes], None] = _drop
    #: The bytes of the checkpoint to resume from, if it was kept in memory; else empty.
    packed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The trial reported a result with ``done``."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """The trial's checkpoint is missing or damaged, so the trial has to resume from another one."""

    checkpoint: CheckpointRecord
    #: What was found.
    reason: str


#: Why no further result of this run is recorded.
Ending = Done | Order | Unusable


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved checkpoint: committed, waiting for its upload, or meant for the worker's memory."""

    record: CheckpointRecord
    #: The local copy that has to be uploaded; None if the checkpoint is committed.
    copy: Checkpoint | None = None
    #: The bytes for the worker's memory; empty if the checkpoint goes into the storage.
    packed: bytes = b""


class Recorder:
    """Records the results and checkpoints of a trial.

    A checkpoint for a local disk is committed at once, since a copy would take as long. For any
    other storage it is copied to the local disk and uploaded while user code continues. The outbox
    holds its result, and all later messages, until the checkpoint is committed. There is no copy
    where user code waits or ends anyway.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    outbox : Outbox
        The trial's messages to the driver.
    gate : MilestoneGate
        Holds user code at milestones.
    store : CheckpointStore or RelayedStore
        Commits and loads checkpoints.
    hooks : CheckpointHooks
        The worker's fence and memory for checkpoints.
    report_timeout : ReportTimeout
        Measures the time between two results; the time spent here does not count.
    """

    # Three threads meet here.
    #
    # - The reporting thread saves and publishes. There is one at a time: `Session` serialises
    #   reports by a lock, and a class trainable has one thread.
    # - The uploader's thread commits copies, then releases or withdraws held messages.
    # - The worker's event loop answers (`MilestoneGate`) and collects messages (`Outbox`).
    #
    # `_send` puts a held message before it queues the upload, so a release or a withdrawal always
    # finds its message. Uploads end in the order of their messages: there is one queue and one
    # thread, and the reporting thread fills both in the same order.
    #
    # When an upload fails, the uploader first sets its failure, then withdraws all held messages.
    # A new message checks for the failure under the outbox's lock, which the withdrawal needs, too:
    # either the message sees the failure and is not sent, or it is in the outbox and is withdrawn.
    # So the driver never sees a result that follows a checkpoint which does not exist.

    def __init__(
        self,
        spec: TrialSpec,
        *,
        outbox: Outbox,
        gate: MilestoneGate,
        store: CheckpointStore | RelayedStore,
        hooks: CheckpointHooks,
        report_timeout: ReportTimeout,
    ) -> None:
        self._spec = spec
        self._outbox = outbox
        self._gate = gate
        self._store = store
        self._hooks = hooks
        self.report_timeout = report_timeout
        self._uploader = Uploader(f"dasktune-{spec.trial_id}-upload", outbox.withdraw)
        #: Measures CPU and memory use for each result; None if not requested.
        self._meter: UsageMeter | None = None
        self._next_index = spec.next_checkpoint
        #: The checkpoint that was saved last; at first the one that the trial resumes from.
        self.newest: CheckpointRecord | None = spec.checkpoint
        #: The bytes of `newest`, if it is in memory.
        self._packed = hooks.packed
        #: Why the run ends; set with the last result.
        self.ending: Ending | None = None

    def measure_usage(self) -> None:
        """Add the use of CPUs and memory to each result from now on."""
        self._meter = UsageMeter()

    def check(self, result: Mapping[str, Any]) -> None:
        """Refuse a result without a metric that the searcher, scheduler or stopper needs.

        Raises
        ------
        ConfigError
            If a required metric is missing.
        """
        for name in self._spec.required_metrics:
            if lookup(result, name) is None:
                raise _missing(name, result)

    def save(
        self,
        checkpoint: Checkpoint,
        result: Mapping[str, Any],
        *,
        temporary: bool = False,
        in_memory: int = 0,
    ) -> Saved:
        """Save a checkpoint of `result`, which is published next.

        Parameters
        ----------
        checkpoint : Checkpoint
            The checkpoint; its files may change as soon as this returns.
        result : mapping
            The result.
        temporary : bool, default=False
            Whether only the recorder uses the files of `checkpoint`. They are not copied then,
            unless there are links among them.
        in_memory : int, default=0
            Largest size in bytes that is kept in the worker's memory and not in the storage.

        Raises
        ------
        Exception
            An error of the fence or the storage, or of the upload of an earlier checkpoint. There
            is no checkpoint then.
        """
        with self.report_timeout:
            return self._save(checkpoint, result, temporary=temporary, in_memory=in_memory)

    def _save(
        self, checkpoint: Checkpoint, result: Mapping[str, Any], *, temporary: bool, in_memory: int
    ) -> Saved:
        # Each attempt gets a new number. So a failed attempt that is still writing, or has left
        # files, cannot damage a later checkpoint.
        index, self._next_index = self._next_index, self._next_index + 1
        record = self._store.plan(
            trial_dir=self._spec.trial_dir,
            index=index,
            incarnation=self._spec.incarnation,
            iteration=result["training_iteration"],
            metrics=result,
        )
        packed = to_bytes(checkpoint, in_memory) if in_memory else None
        if packed is not None:
            self._packed = packed
            self.newest = replace(record, kind=CheckpointKind.MEMORY)
            return Saved(self.newest, packed=packed)
        copy = None
        with self._unless_stopped():
            if self._store.is_slow and self._continues_after(result):
                copy = self._copy(checkpoint, temporary=temporary)
            if copy is None:
                self._uploader.flush()
                record = self._commit(checkpoint, record)
        self.newest, self._packed = record, b""
        return Saved(record, copy)

    def _copy(self, checkpoint: Checkpoint, *, temporary: bool) -> Checkpoint | None:
        """Copy a checkpoint to the local disk when another upload may wait; None if it is full."""
        if isinstance(checkpoint, ShardedCheckpoint):
            # One at a time: it may be as large as the disks of its hosts allow.
            self._uploader.flush()
        self._uploader.wait_for_room()
        if isinstance(checkpoint, ShardedCheckpoint):
            staged = checkpoint.stage()
            if staged is None:
                logger.warning(_FULL_DISK)
            return staged
        if temporary and is_self_contained(checkpoint.path):
            return checkpoint
        return _copy_of(checkpoint)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint for user code, once its upload has ended.

        Raises
        ------
        TrialInterrupted
            If the checkpoint is missing or damaged. `ending` says so, and the driver lets the trial
            resume from an older one. It is no error of user code, which must not handle it.
        StorageError
            If the storage cannot be read, or the initial checkpoint is missing or damaged.
        """
        with self.report_timeout, self._unless_stopped():
            self._uploader.flush()
            record = self.newest or self._spec.initial_checkpoint
            if record is None:
                return None
            if record.kind is CheckpointKind.MEMORY:
                return from_bytes(self._packed)
            try:
                return self._store.load(record)
            except (CheckpointNotFound, CheckpointDamaged) as error:
                if self.newest is None or isinstance(self._gate.order, StopAnswer):
                    raise
                self.ending = Unusable(record, str(error))
                raise TrialInterrupted from error

    def newest_record(self) -> CheckpointRecord | None:
        """Return the newest checkpoint's record once its upload has ended; None without one."""
        with self.report_timeout, self._unless_stopped():
            self._uploader.flush()
            return self.newest or self._spec.initial_checkpoint

    def lose(self, reason: str) -> None:
        """Set `ending` because a process of the trial has found its newest checkpoint unusable.

        Parameters
        ----------
        reason : str
            What was found.

        Raises
        ------
        TrialInterrupted
            If the trial has been ordered to stop: the order counts, and not the checkpoint.
        StorageError
            If it is the experiment's initial checkpoint, which nothing replaces.
        """
        with self._unless_stopped():
            if self.newest is None or isinstance(self._gate.order, StopAnswer):
                raise StorageError(reason)
            self.ending = Unusable(self.newest, reason)

    @contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Turn a storage error into TrialInterrupted if the trial has been ordered to stop.

        The storage is not retried for such a trial, and its failure is not the trial's.

        Raises
        ------
        TrialInterrupted
            If an order to stop has come before the error.
        """
        try:
            yield
        except Exception as error:  # the store's client may raise any exception
            if isinstance(self._gate.order, StopAnswer):
                raise TrialInterrupted from error
            raise

    def publish(self, result: Mapping[str, Any], saved: Saved | None) -> SaveAnswer | None:
        """Send a result, wait if it is a milestone, and set `ending` if it was the last one.

        Returns
        -------
        SaveAnswer or None
            The answer, if the driver requests a checkpoint before user code continues.
        """
        with self.report_timeout:
            answer = self._publish(result, saved)
        if self.ending is None:
            self.report_timeout.reset()
        else:
            self.report_timeout.close()
        return answer

    def _publish(self, result: Mapping[str, Any], saved: Saved | None) -> SaveAnswer | None:
        metrics = dict(result)
        if self._meter is not None:
            metrics["perf"] = self._meter()
        record = None if saved is None else saved.record
        if record is not None:
            metrics["checkpoint_dir_name"] = record.path.rpartition("/")[2]
            metrics["should_checkpoint"] = True
        done = bool(metrics["done"])
        # With an order to end, the driver has nothing left to decide. An order that comes after
        # this line is safe, too: `wait` returns it at once, and the gate ignores the driver's
        # answer to this result.
        awaits = not done and self._gate.order is None and self._gate.is_milestone(metrics)
        if awaits:
            # The driver cannot answer a result that the outbox holds.
            with self._unless_stopped():
                self._uploader.flush()
        make = partial(self._reported, metrics=metrics, checkpoint=record, awaits=awaits)
        self._send(make, saved, bounded=True, urgent=awaits)
        if done:
            self.ending = Done()
            return None
        answer = self._gate.wait() if awaits else self._gate.order
        if isinstance(answer, Order):
            self.ending = answer
        elif record is not None and self._gate.has_notice:
            # After the driver's decision: the trial resumes elsewhere from this checkpoint, and is
            # not asked about this result again.
            self.ending = PauseAnswer(save=False, reason="it was given notice")
            return None
        return answer if isinstance(answer, SaveAnswer) else None

    def take_checkpoint_request(self) -> bool:
        """Return whether the driver has requested a checkpoint since the last call."""
        return self._gate.take_checkpoint_request()

    @property
    def has_notice(self) -> bool:
        """Whether the trial was given notice, so that it leaves with its next checkpoint."""
        return self._gate.has_notice

    def ask_notice(self) -> tuple[float, str] | None:
        """Return the seconds left and the reason of a notice; None without one."""
        return self._gate.ask_notice()

    def is_save_due(self) -> bool:
        """Whether user code should save, because the trial is about to leave."""
        return self._gate.is_save_due()

    def is_milestone(self, result: Mapping[str, Any]) -> bool:
        """Whether the trial will wait for the driver's decision at a result."""
        return self._gate.is_milestone(result)

    def send_checkpoint(self, saved: Saved) -> None:
        """Send a checkpoint that was saved after its result was sent."""
        self._send(partial(self._committed, saved=saved), saved)

    def export(self, directory: str) -> None:
        """Copy the exports in a local directory, with their list, to the trial's directory."""
        self._hooks.fence()
        self._store.export(self._spec.trial_dir, directory)

    def remove_stale_checkpoints(self) -> None:
        """Start deleting the checkpoints left by lost starts of the trial. Returns at once."""
        self._uploader.do(self._remove_stale)

    def finish(self) -> None:
        """Wait until every checkpoint is committed. Called when user code has ended.

        The session is closed before, so no report can add an upload after this.

        Raises
        ------
        BaseException
            The failure of an upload. The result of that checkpoint, and all later ones, are not
            sent.
        """
        try:
            with self._unless_stopped():
                self._uploader.close()
        except BaseException:
            self.ending = None
            raise

    def _continues_after(self, result: Mapping[str, Any]) -> bool:
        """Whether user code continues at once when this result is sent.

        An order to end may come right after. Then the checkpoint is uploaded although user code
        ends, and `finish` waits for it.
        """
        ends = result["done"] or self._gate.order is not None or self._gate.has_notice
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
            held: list[Message] = []

            def make_held(seq: int) -> Message:
                held.append(make(seq))
                return held[0]

            self._outbox.put(make_held, bounded=bounded, urgent=urgent, held=True)
            self._uploader.upload(partial(self._upload, saved.copy, saved.record, held))

    def _commit(self, checkpoint: Checkpoint, record: CheckpointRecord) -> CheckpointRecord:
        """Write a checkpoint, and return its record with the seconds that this took."""
        incarnation, begun = self._spec.incarnation, time.perf_counter()
        self._store.write(checkpoint, record, incarnation=incarnation, fence=self._hooks.fence)
        return replace(record, seconds=time.perf_counter() - begun)

    def _upload(self, copy: Checkpoint, record: CheckpointRecord, held: list[Message]) -> None:
        try:
            record = self._commit(copy, record)
        finally:
            # Delete the copy in this thread: otherwise the thread that drops the last reference
            # deletes it, which may be the reporting thread.
            if isinstance(copy, StagedShards):
                copy.discard()
            else:
                shutil.rmtree(copy.path, ignore_errors=True)
        [message] = held
        assert isinstance(message, Reported | Committed)
        self._outbox.release(replace(message, checkpoint=record))

    def _remove_stale(self) -> None:
        try:
            spec = self._spec
            self._store.remove_stale(spec.trial_dir, spec.incarnation, spec.next_checkpoint)
        except Exception:
            logger.warning(
                "could not remove the checkpoints that lost starts of trial %s left",
                self._spec.trial_id,
                exc_info=True,
            )

    def _committed(self, seq: int, *, saved: Saved) -> Committed:
        self._uploader.check()
        if saved.packed:
            self._hooks.keep_in_memory(saved.record.path, saved.packed)
        return Committed(seq=seq, checkpoint=saved.record, size=len(saved.packed))

    def _reported(
        self, seq: int, *, metrics: dict[str, Any], checkpoint: CheckpointRecord | None, awaits: bool
    ) -> Reported:
        # Called under the outbox's lock, see the class: nothing is sent after a message that was
        # withdrawn, and the driver cannot answer before the gate expects the answer.
        self._uploader.check()
        if awaits:
            self._gate.expect(seq)
        return Reported(seq=seq, metrics=metrics, checkpoint=checkpoint, awaits=awaits)


def _copy_of(checkpoint: Checkpoint) -> Checkpoint | None:
    """Copy a checkpoint to the local disk; None if the disk is full."""
    try:
        return local_copy(checkpoint)
    except OSError as error:
        if not is_disk_full(error):
            raise
    logger.warning(_FULL_DISK)
    return None


def _missing(name: str, result: Mapping[str, Any]) -> ConfigError:
    # Imported here: a trial's process needs these modules for this message only.
    from difflib import get_close_matches

    from dasktune.results.result import is_auto_filled

    flat = flatten(result)
    if name in flat:
        # Deep inside a result the path may be spelled in several ways; the name is what users know.
        return ConfigError(
            f"metrics[{name!r}] must be a value, got None. Report float('nan') if it is undefined this "
            "time, or set TuneConfig(strict_metrics=False)."
        )
    own = sorted(key for key in flat if not is_auto_filled(key))
    close = get_close_matches(name, own, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "Report it, or name another metric."
    # The advice is short and early: tables of failures show the first characters.
    return ReportError(f"metrics must hold {name!r}, got {own}. {hint} Each result is judged by it.")
