"""Loggers that keep a record of each trial up to date, from a thread of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from dasktune.callback import TrialView, TrialViews
from dasktune.logger.file_writer import FileWriter
from dasktune.logger.logger import LoggerCallback

__all__ = ["TrialLog", "TrialLoggerCallback"]

#: Seconds from one round of writing to the next; an object is written as a whole each time.
_INTERVAL: Final = 1.0
_REMOTE_INTERVAL: Final = 10.0


class TrialLog(ABC):
    """The record of one trial, which follows what the driver knows of it."""

    @abstractmethod
    def renew(self) -> None:
        """Hear that the trial starts again: it may give up results, or compute some anew."""

    @abstractmethod
    def end(self) -> None:
        """Hear that there will be no more results."""

    @abstractmethod
    def write(self, patient: bool = False) -> None:
        """Bring the record up to date; may be called in another thread than all else.

        Parameters
        ----------
        patient : bool, default=False
            Whether to go on trying where the place it is kept at fails.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of a trial that has not ended when the experiment does, as after Ctrl-C."""


class TrialLoggerCallback(LoggerCallback):
    """Keeps a :class:`TrialLog` of each trial up to date, from a thread."""

    def __init__(self) -> None:
        self._writer: FileWriter | None = None
        self._logs: dict[str, TrialLog] = {}
        #: Trials whose records were not up to date when the last driver died.
        self._owed: set[str] = set()

    @abstractmethod
    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the record of a trial.

        Parameters
        ----------
        trial : TrialView
            As it is at the moment of asking, at any time.
        """

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Forget an earlier experiment."""
        self._writer, self._logs, self._owed = None, {}, set()

    def get_state(self) -> dict[str, Any]:
        """Return which records are not up to date."""
        unwritten = [] if self._writer is None else self._writer.unwritten
        return {"unwritten": sorted({*unwritten, *self._owed})}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take note of which records are not up to date."""
        self._owed.update(state["unwritten"])

    def on_step_begin(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Write what the last driver has not written."""
        self._pay(trials)

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """Bring all records up to date."""
        self._pay(trials)
        writer, self._writer = self._writer, None
        logs, self._logs = self._logs, {}
        if writer is not None:
            writer.close()
        for log in logs.values():
            log.close()

    def log_trial_start(self, trial: TrialView) -> None:
        """Look at its whole history again: it may have gone back."""
        self._log(trial).renew()

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        """Have its record brought up to date."""
        self._mark(trial, self._log(trial))

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """Have its record brought to the end."""
        log = self._log(trial)
        log.end()
        self._mark(trial, log)
        del self._logs[trial.trial_id]

    def _pay(self, trials: TrialViews) -> None:
        for trial_id in sorted(self._owed):
            trial = trials.named(trial_id)
            if trial.is_finished():
                self.log_trial_end(trial)
            else:
                self._mark(trial, self._log(trial))
        self._owed.clear()

    def _log(self, trial: TrialView) -> TrialLog:
        log = self._logs.get(trial.trial_id)
        if log is None:
            log = self._logs[trial.trial_id] = self.open_log(trial.present)
        return log

    def _mark(self, trial: TrialView, log: TrialLog) -> None:
        if self._writer is None:
            storage = trial.storage
            interval_s = _INTERVAL if storage.is_local else _REMOTE_INTERVAL
            self._writer = FileWriter(patience_s=storage.patience, interval_s=interval_s)
        self._writer.mark(trial.trial_id, log.write)
