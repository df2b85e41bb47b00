"""Loggers that keep one file for each trial, in its directory."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from dasktune.callback import TrialView
from dasktune.logger.trial_file import Format, TrialFile
from dasktune.logger.trial_logger import TrialLog, TrialLoggerCallback

__all__ = ["FileLoggerCallback"]


class FileLoggerCallback(TrialLoggerCallback):
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

    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the file of a trial."""
        return TrialFile(trial, self.file_name, self.make_format())
