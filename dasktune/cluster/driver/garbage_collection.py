"""Makes Python look for garbage less often while a driver runs, as Dask does in its servers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from distributed import Worker

#: The thresholds of Dask's scheduler and workers: three times those of Python before 3.13.
_THRESHOLDS: Final = (2_100, 30, 30)


class _Thresholds:
    """The thresholds of this process, while any of its threads has a driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers = 0
        self._before = self._raised = gc.get_threshold()

    def begin(self) -> None:
        """Raise the thresholds if they are lower; the first driver does."""
        with self._lock:
            self._drivers += 1
            # With 0 the collector is off.
            if self._drivers == 1 and (before := gc.get_threshold())[0]:
                self._before = before
                gc.set_threshold(*map(max, before, _THRESHOLDS))
                self._raised = gc.get_threshold()

    def end(self) -> None:
        """Restore the thresholds, unless they were changed meanwhile; the last driver does."""
        with self._lock:
            self._drivers -= 1
            if not self._drivers and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)


_THIS_PROCESS: Final = _Thresholds()


@contextmanager
def rarer_collections() -> Iterator[None]:
    """Raise the thresholds of Python's garbage collector, unless this process has a worker by now.

    With 1,000 workers a driver has 120,000 objects, and looking through all of them again and again
    took a sixth of its time. User code in this process, such as a callback, may keep what is in a
    reference cycle for longer. That of trials may hold a GPU's memory, so nothing is changed where
    a worker runs.
    """
    if len(Worker._instances):
        yield
        return
    _THIS_PROCESS.begin()
    try:
        yield
    finally:
        _THIS_PROCESS.end()
