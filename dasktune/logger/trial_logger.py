"""The base class of loggers that keep a log of each trial up to date, from a thread."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from dasktune.callback import TrialView, TrialViews
from dasktune.logger.logger import LoggerCallback

logger = logging.getLogger(__name__)

#: Seconds between rounds of writing. Remote files are rewritten as a whole, so less often.
_INTERVAL: Final = 1.0
_REMOTE_INTERVAL: Final = 10.0

#: The maximum fraction of the time that rounds may take; a slow round delays the next one.
_SHARE: Final = 0.1


class TrialLog(ABC):
    """The log of one trial, which follows the trial's history.

    The driver's thread calls all methods except :meth:`write`, which the writer's thread calls.
    """

    @abstractmethod
    def on_restart(self) -> None:
        """Note that the trial starts again: it may drop results, or compute some again."""

    @abstractmethod
    def end(self) -> None:
        """Note that the trial will have no further results."""

    @abstractmethod
    def write(self, retry: bool = False) -> None:
        """Bring the log up to date.

        Parameters
        ----------
        retry : bool, default=False
            Whether to retry if the storage or service fails.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the log of a trial that is unfinished at the end, such as after Ctrl-C."""


class TrialLoggerCallback(LoggerCallback):
    """Base class of loggers that keep a :class:`TrialLog` of each trial up to date."""

    def __init__(self) -> None:
        self._writer: FileWriter | None = None
        self._logs: dict[str, TrialLog] = {}
        #: Trials whose logs were not up to date when the last driver died.
        self._unwritten: set[str] = set()

    @abstractmethod
    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the log of a trial.

        Parameters
        ----------
        trial : TrialView
            A view of the trial's current state.
        """

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Reset the state of an earlier experiment."""
        self._writer, self._logs, self._unwritten = None, {}, set()

    def get_state(self) -> dict[str, Any]:
        """Return the ids of the trials whose logs are not up to date."""
        unwritten = [] if self._writer is None else self._writer.unwritten
        return {"unwritten": sorted({*unwritten, *self._unwritten})}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the ids of the trials whose logs were not up to date."""
        self._unwritten.update(state["unwritten"])

    def on_step_begin(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Mark the logs that the last driver has not written."""
        self._mark_unwritten(trials)

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """Bring all logs up to date."""
        self._mark_unwritten(trials)
        writer, self._writer = self._writer, None
        logs, self._logs = self._logs, {}
        try:
            if writer is not None:
                writer.close()
        finally:
            for log in logs.values():
                log.close()

    def log_trial_start(self, trial: TrialView) -> None:
        """Note that the trial's history may have changed."""
        self._log(trial).on_restart()

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        """Mark the trial's log to be written."""
        self._mark(trial, self._log(trial))

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """Mark the trial's log to be written for the last time."""
        log = self._log(trial)
        log.end()
        self._mark(trial, log)
        del self._logs[trial.trial_id]

    def _mark_unwritten(self, trials: TrialViews) -> None:
        for trial_id in sorted(self._unwritten):
            trial = trials.named(trial_id)
            if trial.is_finished():
                self.log_trial_end(trial)
            else:
                self._mark(trial, self._log(trial))
        self._unwritten.clear()

    def _log(self, trial: TrialView) -> TrialLog:
        log = self._logs.get(trial.trial_id)
        if log is None:
            log = self._logs[trial.trial_id] = self.open_log(trial.present)
        return log

    def _mark(self, trial: TrialView, log: TrialLog) -> None:
        if self._writer is None:
            storage = trial.storage
            interval_s = _INTERVAL if storage.is_local else _REMOTE_INTERVAL
            self._writer = FileWriter(retry_seconds=storage.retry_seconds, interval_s=interval_s)
        self._writer.mark(trial.trial_id, log.write)


def read_results(trial: TrialView, start: int = 0) -> list[dict[str, Any]]:
    """Return the results of a trial for its log.

    Parameters
    ----------
    trial : TrialView
        The trial.
    start : int, default=0
        Index of the first result.

    Raises
    ------
    ResultsUnreadable
        If older results cannot be read. The logs of other trials are written nevertheless.
    """
    try:
        return trial.history_since(start)
    except Exception as error:  # results in the journal have any error of its storage
        raise ResultsUnreadable(error) from error


class ResultsUnreadable(Exception):
    """The results that belong into a file cannot be read; other files are not concerned.

    Parameters
    ----------
    cause : Exception
        The error of the history.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class FileWriter:
    """Writes all marked files in rounds, from a thread.

    It queues files, not rows. So the queue cannot grow beyond the number of files, however slow the
    storage is, and the driver never blocks. A failed round is retried. A file that raises
    :class:`ResultsUnreadable` is tried again in the next round, and does not end this one.

    Parameters
    ----------
    retry_seconds : float
        Seconds of failures after which the writer raises the storage's error.
    interval_s : float
        Minimum seconds from one round to the next.

    Examples
    --------
    >>> writer = FileWriter(retry_seconds=10.0, interval_s=1.0)
    >>> writer.mark("greeting", lambda retry: print("hello"))
    >>> writer.close()
    hello
    """

    def __init__(self, *, retry_seconds: float, interval_s: float) -> None:
        self._retry_seconds = retry_seconds
        self._interval_s = interval_s
        #: {name of a file to write in the next round: ``write(retry)``}
        self._marked: dict[str, Callable[[bool], None]] = {}
        #: The same for files of the current round that are not written yet.
        self._writing: dict[str, Callable[[bool], None]] = {}
        #: Protects both dicts; never held while a file is written.
        self._lock = threading.Lock()
        #: Held during a round, so that two rounds never write one file at the same time.
        self._round_lock = threading.Lock()
        self._closed = threading.Event()
        self._failing_since: float | None = None
        self._error: Exception | None = None
        #: Names of the files whose results could not be read, each of which was logged once.
        self._unreadable: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def unwritten(self) -> list[str]:
        """The names of the files that are not up to date, including files being written."""
        with self._lock:
            return sorted({*self._marked, *self._writing})

    def mark(self, name: str, write: Callable[[bool], None]) -> None:
        """Request that a file is brought up to date in the next round.

        Several marks may result in one call of `write`.

        Parameters
        ----------
        name : str
            The file's name.
        write : callable
            ``write(retry)`` brings the file up to date with the state at the time of the call.

        Raises
        ------
        Exception
            The storage's error, if it has failed for longer than `retry_seconds`.
        """
        if self._error is not None:
            raise self._error
        with self._lock:
            self._marked[name] = write
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dasktune-files", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, then write all marked files, with the retries of their storage.

        Raises
        ------
        Exception
            The storage's error; or that of the first file whose results cannot be read, after all
            others were written.
        """
        # The last round runs here, after the thread has ended: no mark can be missed.
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        unreadable = self._round(retry=True)
        if unreadable is not None:
            raise unreadable

    def _run(self) -> None:
        pause = self._interval_s
        while not self._closed.wait(pause) and self._error is None:
            begun = monotonic()
            try:
                self._round(retry=False)
            except Exception as error:  # the store's client may raise any exception
                self._on_failure(error)
            else:
                self._failing_since = None
            pause = max(self._interval_s, (monotonic() - begun) / _SHARE)

    def _round(self, *, retry: bool) -> Exception | None:
        """Write all marked files; return the error of the first one with unreadable results."""
        with self._round_lock:
            return self._write_marked(retry)

    def _write_marked(self, retry: bool) -> Exception | None:
        unreadable: Exception | None = None
        with self._lock:
            self._writing, self._marked = self._marked, {}
        try:
            for name in tuple(self._writing):
                # The driver may mark this file again while it is written. The mark is kept in
                # `_marked`, so the next round writes what this call may have missed.
                try:
                    self._writing[name](retry)
                except ResultsUnreadable as error:
                    unreadable = unreadable or error.cause
                    self._on_unreadable(name, error.cause)
                else:
                    with self._lock:
                        del self._writing[name]
        finally:
            with self._lock:
                # After an error, keep the marks of unwritten files; newer marks have precedence.
                self._marked = {**self._writing, **self._marked}
                self._writing = {}
        return unreadable

    def _on_unreadable(self, name: str, error: Exception) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            logger.warning("a logger cannot read the results of %s, will retry: %r", name, error)

    def _on_failure(self, error: Exception) -> None:
        now = monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.warning("cannot write the files of a logger, will retry: %r", error)
        if now - self._failing_since >= self._retry_seconds:
            self._error = error
