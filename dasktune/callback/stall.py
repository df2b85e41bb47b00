"""A watchdog that warns while a callback blocks the driver."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from types import TracebackType
from typing import Final

logger = logging.getLogger(__name__)

#: Seconds that a hook may take before the warning.
_LONG: Final = 5.0


class StallWatch:
    """Warns from a thread if the code in its ``with`` block takes long.

    The warning comes while the code runs, so that code which never returns is reported, too.

    Parameters
    ----------
    limit_s : float, default=5.0
        Seconds that the code may take.

    Examples
    --------
    >>> watch = StallWatch()
    >>> watch.what = "what runs"
    >>> with watch:
    ...     pass
    >>> watch.close()
    """

    def __init__(self, limit_s: float = _LONG) -> None:
        #: The name of the code in the block, for the warning.
        self.what = ""
        self._limit_s = limit_s
        #: Counts entries and exits: odd inside a block. Only the driver's thread writes it.
        self._blocks = 0
        #: The thread in the block.
        self._driver = 0
        self._seen = self._warned = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._thread is None:
            weakref.finalize(self, _stop, os.getpid(), self._stopped)
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), self._stopped, self._limit_s),
                name="dasktune-stalls",
                daemon=True,
            )
            self._thread.start()
        self._driver = threading.get_ident()
        self._blocks += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks += 1

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def check(self) -> None:
        """Warn if the driver is in the same block as at the last check, once for each block."""
        # The driver may leave the block at any time during this check. Then the warning comes just
        # after the end, or names the next hook: both are harmless.
        blocks = self._blocks
        if blocks % 2 and blocks == self._seen and blocks != self._warned:
            self._warned = blocks
            logger.warning(
                "%s has taken more than %g s and blocks the driver%s: trials wait for decisions and "
                "starts meanwhile. Do slow work in a thread",
                self.what,
                self._limit_s,
                _place_of(self._driver),
            )
        self._seen = blocks


def _stop(process: int, stopped: threading.Event) -> None:
    # A fork inherits the finalizer without the thread, which may have held the event's lock.
    if os.getpid() == process:
        stopped.set()


def _watch(watch: weakref.ref[StallWatch], stopped: threading.Event, interval_s: float) -> None:
    # Periodic checks cost the driver nothing. A warning comes after up to twice the limit.
    while not stopped.wait(interval_s):
        living = watch()
        if living is not None:
            living.check()
        del living


def _place_of(thread: int) -> str:
    """Return where a thread stands now, as text for the warning; empty if it has ended."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    code = frame.f_code
    return f" in {code.co_name} ({code.co_filename}, line {frame.f_lineno})"
