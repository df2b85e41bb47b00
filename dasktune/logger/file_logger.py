"""The base class of loggers that write one file into the directory of each trial."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dasktune.callback import TrialView
from dasktune.logger.trial_logger import TrialLog, TrialLoggerCallback, read_results
from dasktune.storage.fs.local_files import open_append

Row = Mapping[str, Any]


class RowFormat(ABC):
    """Encodes the results of one file. It may have a state, such as the columns of a table."""

    @abstractmethod
    def encode_all(self, rows: Sequence[Row]) -> bytes:
        """Return the whole content of the file.

        Parameters
        ----------
        rows : sequence of mapping
            All results so far.
        """

    @abstractmethod
    def encode_more(self, rows: Sequence[Row]) -> bytes | None:
        """Return the bytes to append to the file; None if it must be rewritten.

        Parameters
        ----------
        rows : sequence of mapping
            The new results.
        """

    def encode_end(self, trial: TrialView) -> bytes:
        """Return the bytes to append at the end of the trial.

        Parameters
        ----------
        trial : TrialView
            The ended trial.
        """
        return b""


class TrialFile(TrialLog):
    """Keeps a file equal to the trial's history on the driver.

    The first write replaces the whole file. So the content that an earlier driver left does not
    matter: rows of lost results, missing rows, or half a row. Later writes append to a local file,
    and rewrite a remote object, which cannot be appended to. The last write replaces the whole file
    again, because a restarted trial may have computed other results.

    Parameters
    ----------
    trial : TrialView
        The trial.
    name : str
        The file's name in the trial's directory.
    row_format : RowFormat
        Encodes the rows; used by this file only.
    """

    def __init__(self, trial: TrialView, name: str, row_format: RowFormat) -> None:
        self._trial = trial
        self._name = name
        self._row_format = row_format
        self._storage = trial.storage
        #: Counts the starts of the trial; a start may remove results from the history.
        self._starts = 0
        #: The value of `_starts` at the last write (-1: none), and the number of rows in the file.
        self._written = (-1, 0)
        self._is_over = False

    def on_restart(self) -> None:
        """Note that the trial starts again: it may drop results, or compute some again."""
        self._starts += 1

    def end(self) -> None:
        """Note that the trial will have no further results."""
        self._is_over = True

    def close(self) -> None:
        """Do nothing: the file stays as it is."""

    def write(self, retry: bool = False) -> None:
        """Bring the file up to date; the writer's thread calls this.

        Parameters
        ----------
        retry : bool, default=False
            Whether to retry a failing storage, for the storage's ``retry_seconds``.

        Raises
        ------
        ResultsUnreadable
            If older results of the trial cannot be read.
        Exception
            The storage's error.
        """
        # The driver's thread may change both fields during this write. A later start makes the next
        # write replace the file, because `as_of` differs then. The end of a trial marks the file
        # again, so a further write sees it.
        starts, is_over = self._starts, self._is_over
        as_of, count = self._written
        # If this write fails midway, the content is unknown and the next write replaces it.
        self._written = (-1, 0)
        if as_of == starts and not is_over and self._storage.is_local:
            rows = read_results(self._trial, count)
            addition = self._row_format.encode_more(rows)
            if addition is not None:
                with os.fdopen(open_append(self._storage.inside(self._name)), "ab") as file:
                    file.write(addition)
                self._written = (starts, count + len(rows))
                return
        rows = read_results(self._trial)
        content = self._row_format.encode_all(rows)
        if is_over:
            content += self._row_format.encode_end(self._trial)
        storage = self._storage if retry else self._storage.with_retry(0.0)
        storage.write_bytes(self._name, content)
        self._written = (starts, len(rows))


class FileLoggerCallback(TrialLoggerCallback):
    """Writes the history of each trial into a file, from a thread.

    The files are in the trials' directories. A file has one row for each ``training_iteration``,
    also after a trial was retried or the experiment restored: it mirrors the trial's history, and
    is not a log of calls. It may lag by some seconds, and is complete at the end of the experiment.
    """

    #: The file's name in the trial's directory.
    file_name: ClassVar[str]

    @abstractmethod
    def make_format(self) -> RowFormat:
        """Return the row format for a new file."""

    def open_log(self, trial: TrialView) -> TrialLog:
        """Return the file of a trial."""
        return TrialFile(trial, self.file_name, self.make_format())
