"""The session of user code in a rank: `report` is a barrier of all ranks."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dasktune.errors import CheckpointDamaged, CheckpointNotFound, ReportError, StorageError
from dasktune.isolation.ranks.rank_messages import (
    AskCheckpoint,
    CheckpointLoaded,
    NewestCheckpoint,
    OfferedFile,
    RankReport,
    Reduced,
    ReduceMetrics,
    Release,
    ShardWritten,
    ToRank,
    UnusableCheckpoint,
    WordOfRank,
    WriteShard,
    pack_metrics,
    unpack_metrics,
)
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.source_files import source_files
from dasktune.trainable.api.session import Notice, TuneContext
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.fork_guard import check_not_forked
from dasktune.trainable.ranks import RankInfo
from dasktune.trainable.reporting.plain_metrics import plain_metrics
from dasktune.trainable.running.error_info import error_info
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo


class RankSession:
    """Connects user code in a rank to the coordinator of the trial.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    info : RankInfo
        The rank.
    send : callable
        Sends a message to the coordinator.
    """

    # User code may call from several threads: the lock lets one call at a time wait for answers.
    # The coordinator answers each question once and in order, so an answer belongs to the call that
    # holds the lock.

    def __init__(self, spec: TrialSpec, info: RankInfo, send: Callable[[WordOfRank], None]) -> None:
        self.context = TuneContext(spec, info)
        #: The user's function that reduces the metrics of all ranks; None without one.
        self.reduce: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None
        #: Whether the trial has ended at a report.
        self.has_left = False
        self._spec = spec
        self._send = send
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[ToRank] = queue.SimpleQueue()
        self._number = 0
        self._closed = False
        #: Whether user code has asked for notices, and the newest answer: whether it should save,
        #: and the end that was announced, on the monotonic clock, with the reason.
        self._asks_for_notices = False
        self._is_save_due = False
        self._notice: tuple[float, str] | None = None

    @property
    def has_reported(self) -> bool:
        """Whether user code has come to a report."""
        return self._number > 0

    def answer(self, message: ToRank) -> None:
        """Take an answer of the coordinator; called by the receiving thread."""
        self._answers.put(message)

    def close(self) -> None:
        """Refuse later reports: user code has ended."""
        self._closed = True

    def report(self, metrics: object, checkpoint: object = None) -> None:
        """Wait until all ranks report and the result is recorded; see :func:`dasktune.report`.

        Parameters
        ----------
        metrics : dict
            The metrics of this rank.
        checkpoint : Checkpoint, optional
            This rank's files of the checkpoint.

        Raises
        ------
        TrialInterrupted
            If the trial ends at this report, on all ranks.
        """
        with self.protected("report()"), self._lock:
            if self.has_left or self._closed:
                raise TrialInterrupted
            path = None if checkpoint is None else _path_of(checkpoint)
            files = () if path is None else _offer(path)
            number = self._number + 1
            report = RankReport(
                number=number,
                metrics=pack_metrics(plain_metrics(metrics)),
                checkpoint=path,
                files=files,
                asks_for_notices=self._asks_for_notices,
            )
            self._send(report)
            # Not before: user code may catch an error of the lines above, and report again.
            self._number = number
            self._wait_for_release(path)

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of the trial; see :func:`dasktune.get_checkpoint`."""
        with self.protected("get_checkpoint()"), self._lock:
            if self.has_left or self._closed:
                raise TrialInterrupted  # there is no answer any more
            self._send(AskCheckpoint())
            answer = self._answers.get()
            assert isinstance(answer, NewestCheckpoint), answer
            if answer.record is None:
                return None
            try:
                return self._store().load(answer.record)
            except (CheckpointNotFound, CheckpointDamaged) as error:
                self._send(UnusableCheckpoint(reason=str(error)))
                self.has_left = True
                raise TrialInterrupted from error
            finally:
                self._send(CheckpointLoaded())

    def should_checkpoint(self) -> bool:
        """Whether the trial is to save soon; see :func:`dasktune.should_checkpoint`.

        The answer changes at a report, so it is the same on all ranks between two reports.
        """
        with self.protected("should_checkpoint()"):
            self._asks_for_notices = True
            return self._is_save_due

    def get_notice(self) -> Notice | None:
        """Return the notice that the trial was given; see :func:`dasktune.get_notice`."""
        with self.protected("get_notice()"):
            self._asks_for_notices = True
            if self._notice is None:
                return None
            end, reason = self._notice
            return Notice(seconds=max(0.0, end - time.monotonic()), reason=reason)

    @contextmanager
    def protected(self, function: str) -> Iterator[None]:
        """Refuse a call in a process that user code has forked. A rank is never interrupted.

        Parameters
        ----------
        function : str
            The function that user code has called.
        """
        check_not_forked(self._pid, function, "Call it in the process of the rank.")
        yield

    def _wait_for_release(self, path: str | None) -> None:
        while True:
            answer = self._answers.get()
            if isinstance(answer, WriteShard):
                self._send(self._write_shard(path, answer))
                continue
            if isinstance(answer, ReduceMetrics):
                self._send(self._reduce(answer))
                continue
            assert isinstance(answer, Release), answer
            assert answer.number == self._number, answer
            if answer.leave:
                self.has_left = True
                raise TrialInterrupted
            if answer.error is not None:
                raise exception_of(answer.error)
            self._is_save_due = answer.save_due
            if answer.notice is not None:
                seconds, reason = answer.notice
                self._notice = time.monotonic() + seconds, reason
            return

    def _reduce(self, order: ReduceMetrics) -> Reduced:
        assert self.reduce is not None
        try:
            reduced = plain_metrics(self.reduce([unpack_metrics(one) for one in order.metrics]))
            return Reduced(number=order.number, metrics=pack_metrics(reduced))
        except Exception as error:  # the user's function may raise any exception
            # Not raised here: the release raises it on all ranks, so that none waits for another.
            return Reduced(number=order.number, error=error_info(error))

    def _write_shard(self, path: str | None, order: WriteShard) -> ShardWritten:
        assert path is not None
        try:
            entries = self._store().write_shard(path, order.path, order.names)
        except Exception as error:  # the store's client may raise any exception
            return ShardWritten(error=error_info(error))
        return ShardWritten(entries=entries)

    def _store(self) -> CheckpointStore:
        storage = self._spec.storage
        return CheckpointStore(storage.with_retry(storage.retry_seconds))


def _path_of(checkpoint: object) -> str:
    if not isinstance(checkpoint, Checkpoint):
        raise ReportError(
            f"checkpoint must be a Checkpoint, got {type(checkpoint).__name__}. "
            f"Write Checkpoint.from_directory(path)."
        )
    return Checkpoint.from_directory(checkpoint.path).path


def _offer(path: str) -> tuple[OfferedFile, ...]:
    """Return the files of a local checkpoint."""
    host, files = os.uname().nodename, []
    for file in source_files(path):
        assert file.path is not None
        status = os.stat(file.path)
        files.append(OfferedFile(name=file.name, identity=(host, status.st_dev, status.st_ino)))
    return tuple(files)


def exception_of(error: ErrorInfo) -> BaseException:
    """Return the exception that another process has got.

    Parameters
    ----------
    error : ErrorInfo
        The exception as text and, if it can be pickled, as itself.
    """
    if error.pickled:
        exception = pickle.loads(error.pickled)
        if isinstance(exception, BaseException):
            return exception
    return StorageError(error.message)
