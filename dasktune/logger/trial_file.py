"""One file with the results of one trial, whatever becomes of the trial and of its driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.callback import TrialView
from dasktune.logger.trial_logger import TrialLog

__all__ = ["Format", "TrialFile"]

Row = Mapping[str, Any]


class Format(ABC):
    """How results stand in a file. It is asked for one file, from the beginning on."""

    @abstractmethod
    def whole(self, rows: Sequence[Row]) -> bytes:
        """Return the file from its beginning.

        Parameters
        ----------
        rows : sequence of mapping
            All results so far.
        """

    @abstractmethod
    def more(self, rows: Sequence[Row]) -> bytes | None:
        """Return what is to be added to the file; None if it must be written as a whole.

        Parameters
        ----------
        rows : sequence of mapping
            The results since.
        """

    def last(self, trial: TrialView) -> bytes:
        """Return what ends the file.

        Parameters
        ----------
        trial : TrialView
            It has ended.
        """
        return b""


class TrialFile(TrialLog):
    """Keeps a file equal to the results that the driver knows of a trial.

    It begins with the whole file. So it does not matter what an earlier driver has left there: rows
    of results that were lost with it, too few of them, or half a row. After that a file on a disk
    grows, and an object, which cannot, is written anew. The end writes the whole once more, for
    what a trial computed again after a restart may differ.

    Parameters
    ----------
    trial : TrialView
        Whose results.
    name : str
        The file's, in the trial's directory.
    form : Format
        How they stand there; used by this file only.
    """

    def __init__(self, trial: TrialView, name: str, form: Format) -> None:
        self._trial = trial
        self._name = name
        self._form = form
        self._storage = trial.storage
        #: Counts the starts of the trial; a start may take results back.
        self._starts = 0
        #: Rows that stand there, and the start as of which; -1 for never.
        self._written = (-1, 0)
        self._is_over = False

    def renew(self) -> None:
        """Hear that the trial starts again: it may give up results, or compute some anew."""
        self._starts += 1

    def end(self) -> None:
        """Hear that there will be no more results."""
        self._is_over = True

    def close(self) -> None:
        """Leave the file as it is."""

    def write(self, patient: bool = False) -> None:
        """Bring the file up to date; may be called in another thread than all else.

        Parameters
        ----------
        patient : bool, default=False
            Whether to go on trying where the storage fails, for as long as it was given.

        Raises
        ------
        Exception
            What the storage raised.
        """
        # Read once: the trial may go on meanwhile.
        starts, is_over = self._starts, self._is_over
        as_of, count = self._written
        # Until it is written, nobody knows what stands there.
        self._written = (-1, 0)
        if as_of == starts and not is_over and self._storage.is_local:
            rows = self._trial.history_since(count)
            more = self._form.more(rows)
            if more is not None:
                with open(self._storage.inside(self._name), "ab") as file:
                    file.write(more)
                self._written = (starts, count + len(rows))
                return
        rows = self._trial.history_since()
        content = self._form.whole(rows)
        if is_over:
            content += self._form.last(self._trial)
        storage = self._storage if patient else self._storage.patient(0.0)
        storage.write_bytes(self._name, content)
        self._written = (starts, len(rows))
