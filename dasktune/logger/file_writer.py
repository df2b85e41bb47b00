"""A thread that keeps files up to date, so that the driver need not wait for their storage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

__all__ = ["FileWriter"]

logger = logging.getLogger(__name__)

#: A round may take this share of the time; else the next one waits for longer.
_SHARE: Final = 0.1


class FileWriter:
    """Writes what was marked, round by round.

    What waits is a set of files, and not of rows: however slow the storage is, it cannot grow
    beyond them, and nobody waits for it. A round that fails is tried again.

    Parameters
    ----------
    patience_s : float
        Seconds for which the storage may fail until it is given up.
    interval_s : float
        Seconds from one round to the next at least.

    Examples
    --------
    >>> writer = FileWriter(patience_s=10.0, interval_s=1.0)
    >>> writer.mark("greeting", lambda patient: print("hello"))
    >>> writer.close()
    hello
    """

    def __init__(self, *, patience_s: float, interval_s: float) -> None:
        self._patience_s = patience_s
        self._interval_s = interval_s
        #: What is to be called for each file; told whether to be patient with the storage.
        self._marked: dict[str, Callable[[bool], None]] = {}
        #: What the thread has in hand.
        self._writing: dict[str, Callable[[bool], None]] = {}
        self._lock = threading.Lock()
        #: Held for a round.
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._failing_since: float | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def unwritten(self) -> list[str]:
        """The names of the files that are not up to date."""
        with self._lock:
            return sorted({*self._marked, *self._writing})

    def mark(self, name: str, write: Callable[[bool], None]) -> None:
        """Have a file brought up to date soon; several marks may come to one call.

        Parameters
        ----------
        name : str
            The file's.
        write : callable
            ``write(patient)`` writes all that is to stand in it by then.

        Raises
        ------
        Exception
            What the storage raised, if it has gone on failing for too long.
        """
        if self._error is not None:
            raise self._error
        with self._lock:
            self._marked[name] = write
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dasktune-files", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Bring all files up to date, with the patience of their storage.

        Raises
        ------
        Exception
            What the storage raised.
        """
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        self._round(patient=True)

    def _run(self) -> None:
        pause = self._interval_s
        while not self._over.wait(pause) and self._error is None:
            begun = monotonic()
            try:
                self._round(patient=False)
            except Exception as error:  # whatever the storage's client raises
                self._note(error)
            else:
                self._failing_since = None
            pause = max(self._interval_s, (monotonic() - begun) / _SHARE)

    def _round(self, *, patient: bool) -> None:
        with self._turn:
            self._write_marked(patient)

    def _write_marked(self, patient: bool) -> None:
        with self._lock:
            self._writing, self._marked = self._marked, {}
        try:
            for name in tuple(self._writing):
                self._writing[name](patient)
                with self._lock:
                    del self._writing[name]
        finally:
            with self._lock:
                # Those that it did not come to, unless they were marked again meanwhile.
                self._marked = {**self._writing, **self._marked}
                self._writing = {}

    def _note(self, error: Exception) -> None:
        now = monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.warning("files of a logger cannot be written now, and will be later: %r", error)
        if now - self._failing_since >= self._patience_s:
            self._error = error
