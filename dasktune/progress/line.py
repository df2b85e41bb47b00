"""Progress as one line: kept up to date on a terminal, or printed now and then elsewhere."""

from __future__ import annotations

import os
from math import inf
from typing import Final, TextIO

from dasktune.progress.board import Board
from dasktune.progress.display import Display
from dasktune.progress.progress import Progress, render
from dasktune.progress.text import columns, pad

__all__ = ["PlainLines", "ProgressLine", "is_terminal", "terminal_width"]

_FALLBACK_WIDTH: Final = 80

#: Seconds between two lines because of better values.
_NEWS_INTERVAL: Final = 5.0


class PlainLines(Display):
    """Prints a line every 30 s, and on a new best value, but then not within 5 s of the last.

    Parameters
    ----------
    stream : text stream or None
        Where to.

    Examples
    --------
    >>> import sys
    >>> lines = PlainLines(sys.stdout)
    >>> lines.show(Progress(total=2, finished_before=0), board=None)
    [dasktune] 0/2 trials done · 0 running · 0 errors · 00:00
    """

    interval_s = 30.0
    tells_failures = True

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._last = -inf

    def is_due(self, now: float, improved: bool) -> bool:
        """Whether the last line is old enough."""
        return super().is_due(now, improved) or (improved and now - self._last >= _NEWS_INTERVAL)

    def update(self, progress: Progress, board: Board, now: float) -> None:
        """Print a line."""
        self._last = now
        super().update(progress, board, now)

    def show(self, progress: Progress, board: Board) -> None:
        """Print a line."""
        self.say(render(progress))

    def say(self, text: str) -> None:
        """Print a line that can be searched for."""
        super().say(f"[dasktune] {text}")


class ProgressLine(Display):
    """Keeps one line of progress up to date on a terminal.

    Parameters
    ----------
    stream : text stream or None
        The terminal.
    """

    interval_s = 0.1

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._terminal = stream
        self._shown = ""
        #: Columns that stand on the terminal's line, to be wiped by the next.
        self._standing = 0

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return terminal_width(self._terminal)

    def show(self, progress: Progress, board: Board) -> None:
        """Write the line anew."""
        # The last column stays free: a terminal would go to its next line.
        self._rewrite(render(progress, max(self.width - 1, 1)))

    def say(self, text: str) -> None:
        """Write a line above."""
        shown = self._shown
        self._rewrite(text)
        self.close()
        if shown:
            self._rewrite(shown)

    def close(self) -> None:
        """Give the line free."""
        if self._standing:
            self.stream.write("\n")
        self._standing, self._shown = 0, ""

    def _rewrite(self, line: str) -> None:
        taken = columns(line)
        self.stream.write(f"\r{pad(line, max(taken, self._standing))}")
        self._standing, self._shown = taken, line


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal, whatever somebody has put in its place."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # no file at all, or closed
        return False


def terminal_width(stream: TextIO | None) -> int:
    """Return the columns of a terminal; 80 of one that does not know."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (AttributeError, OSError, ValueError):  # it only looks like a terminal
        width = 0
    return width or _FALLBACK_WIDTH
