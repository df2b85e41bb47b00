"""Calls functions on the client's event loop from another thread, in order and in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class LoopCallQueue:
    """Calls functions on an event loop, in the order in which they were added.

    Waking a loop costs ten times as much as most calls, so it is woken once for many calls.

    No call is lost, whatever the interleaving. A producer first adds its call and then reads the
    flag; the loop first clears the flag and then takes the calls. If the producer reads a set flag,
    the loop has not cleared it yet, and finds the call after that. If it reads a cleared flag, it
    wakes the loop again. Two producers may both wake the loop; the second wake-up finds no call.

    Parameters
    ----------
    wake : callable
        Calls a function on the loop; may be called in any thread.
    on_crash : callable
        Called with the exception of a call: a bug, which would otherwise be silent.
    """

    def __init__(
        self, wake: Callable[[Callable[[], None]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._wake = wake
        self._on_crash = on_crash
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the loop, after the functions that were added before."""
        self.add(function, *arguments)
        self.flush()

    def add(self, function: Callable[..., None], *arguments: Any) -> None:
        """Add a function, which is called after the next :meth:`call_soon` or :meth:`flush`."""
        self._waiting.append((function, arguments))

    def flush(self) -> None:
        """Call the functions that were added. Without any, the loop is not woken."""
        if self._waiting and not self._woken:
            self._woken = True
            self._wake(self._run)

    def _run(self) -> None:
        # Cleared before the calls are taken, so that a call that is added later wakes the loop.
        self._woken = False
        while self._waiting:
            function, arguments = self._waiting.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self._on_crash(error)
