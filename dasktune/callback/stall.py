"""Noticing that a callback holds up the driver, while it does."""

from __future__ import annotations

import logging
import threading
import weakref
from types import TracebackType
from typing import Final

__all__ = ["StallWatch"]

logger = logging.getLogger(__name__)

#: Seconds for which a callback may run before it is talked about.
_LONG: Final = 5.0


class StallWatch:
    """Warns of what takes long inside its ``with`` blocks, from a thread of its own.

    The warning comes while it lasts: what never returns would not be told of otherwise.

    Parameters
    ----------
    limit_s : float, default=5.0
        Seconds that are long.

    Examples
    --------
    >>> watch = StallWatch()
    >>> watch.what = "what runs"
    >>> with watch:
    ...     pass
    >>> watch.close()
    """

    def __init__(self, limit_s: float = _LONG) -> None:
        #: What is inside the block, for the warning.
        self.what = ""
        self._limit_s = limit_s
        #: Counts the blocks; odd inside of one.
        self._blocks = 0
        self._seen = self._warned = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._thread is None:
            weakref.finalize(self, self._over.set)
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), self._over, self._limit_s),
                name="dasktune-stalls",
                daemon=True,
            )
            self._thread.start()
        self._blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._blocks += 1

    def close(self) -> None:
        """Watch no longer."""
        self._over.set()

    def look(self) -> None:
        """Warn if it is in the same block as at the last look; once for each."""
        blocks = self._blocks
        if blocks % 2 and blocks == self._seen and blocks != self._warned:
            self._warned = blocks
            logger.warning(
                "%s has taken more than %g s and holds up the driver: trials that wait for a "
                "decision or a place wait, too. Let it do what takes long in a thread",
                self.what,
                self._limit_s,
            )
        self._seen = blocks


def _watch(watch: weakref.ref[StallWatch], over: threading.Event, interval_s: float) -> None:
    # To look now and then costs the watched nothing; a warning may take up to twice the limit.
    while not over.wait(interval_s):
        living = watch()
        if living is not None:
            living.look()
        del living
