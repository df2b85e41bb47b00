"""Loggers that keep one file for each trial, in its directory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from dasktune.callback import TrialView, TrialViews
from dasktune.logger.file_writer import FileWriter
from dasktune.logger.logger import LoggerCallback
from dasktune.logger.trial_file import Format, TrialFile

__all__ = ["FileLoggerCallback"]

#: Seconds from one round of writing to the next; an object is written as a whole each time.
_INTERVAL: Final = 1.0
_REMOTE_INTERVAL: Final = 10.0


class FileLoggerCallback(LoggerCallback):
    """Writes what the driver knows of each trial into a file, from a thread.

    The files lie in the trials' directories, wherever these are. A file holds one row for each
    ``training_iteration``, also after trials were tried again and experiments restored: it is a
    picture of the trial's history, not a log of calls. It is at most some seconds behind, and
    complete when the experiment has ended.
    """

    #: The file's name in the trial's directory.
    file_name: ClassVar[str]

    @abstractmethod
    def make_format(self) -> Format:
        """Return how rows stand in a new file."""

    def __init__(self) -> None:
        self._writer: FileWriter | None = None
        self._files: dict[str, TrialFile] = {}
        #: Files that were not up to date when the last driver died.
        self._owed: set[str] = set()

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Forget an earlier experiment."""
        self._writer, self._files, self._owed = None, {}, set()

    def get_state(self) -> dict[str, Any]:
        """Return which files are not up to date."""
        unwritten = [] if self._writer is None else self._writer.unwritten
        return {"unwritten": sorted({*unwritten, *self._owed})}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take note of which files are not up to date."""
        self._owed.update(state["unwritten"])

    def on_step_begin(self, iteration: int, trials: TrialViews, **info: Any) -> None:
        """Write what the last driver has not written."""
        self._pay(trials)

    def on_experiment_end(self, trials: TrialViews, **info: Any) -> None:
        """Bring all files up to date."""
        self._pay(trials)
        writer, self._writer, self._files = self._writer, None, {}
        if writer is not None:
            writer.close()

    def log_trial_start(self, trial: TrialView) -> None:
        """Look at its whole history again: it may have gone back."""
        self._file(trial).renew()

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        """Have the file brought up to date."""
        self._mark(trial, self._file(trial))

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        """Have the file brought to its end."""
        file = self._file(trial)
        file.end()
        self._mark(trial, file)
        del self._files[trial.trial_id]

    def _pay(self, trials: TrialViews) -> None:
        for trial_id in sorted(self._owed):
            trial = trials.named(trial_id)
            if trial.is_finished():
                self.log_trial_end(trial)
            else:
                self._mark(trial, self._file(trial))
        self._owed.clear()

    def _file(self, trial: TrialView) -> TrialFile:
        file = self._files.get(trial.trial_id)
        if file is None:
            file = TrialFile(trial.present, self.file_name, self.make_format())
            self._files[trial.trial_id] = file
        return file

    def _mark(self, trial: TrialView, file: TrialFile) -> None:
        if self._writer is None:
            storage = trial.storage
            interval_s = _INTERVAL if storage.is_local else _REMOTE_INTERVAL
            self._writer = FileWriter(patience_s=storage.patience, interval_s=interval_s)
        self._writer.mark(trial.trial_id, file.write)
