"""The base class of loggers that keep a log of each trial up to date, from a thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from dasktune.callback import TrialView, TrialViews
from dasktune.logger.file_writer import FileWriter, ResultsUnreadable
from dasktune.logger.logger import LoggerCallback

#: Seconds between rounds of writing. Remote files are rewritten as a whole, so less often.
_INTERVAL: Final = 1.0
_REMOTE_INTERVAL: Final = 10.0


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
