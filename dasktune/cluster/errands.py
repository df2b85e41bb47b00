"""Handing work to the client's event loop from another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Errands"]


class Errands:
    """Calls functions on an event loop, in the order in which they were handed over.

    To wake a loop costs ten times as much as most errands, so it is done once for many.

    Parameters
    ----------
    wake : callable
        Has a function called on the loop; may be called in any thread.
    on_crash : callable
        Called with what an errand raised: a bug, and better than a silent hang.
    """

    def __init__(
        self,
        wake: Callable[[Callable[[], None]], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._wake = wake
        self._on_crash = on_crash
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call something on the loop, after what was to be called there before."""
        self._waiting.append((function, arguments))
        if not self._woken:
            self._woken = True
            self._wake(self._run)

    def _run(self) -> None:
        # First: what comes after the last look must wake the loop again.
        self._woken = False
        while self._waiting:
            function, arguments = self._waiting.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self._on_crash(error)
