"""Progress as one line: rewritten in place on a terminal, or printed repeatedly elsewhere."""

from __future__ import annotations

import os
from math import inf
from typing import Final, TextIO

from dasktune.progress.display import Display
from dasktune.progress.progress import Progress, render
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.formatting import column_width, pad

__all__ = ["PlainLines", "ProgressLine", "is_terminal", "terminal_width"]

_FALLBACK_WIDTH: Final = 80

#: Minimum age of the last line, in seconds, when a new best value is printed.
_IMPROVEMENT_INTERVAL_S: Final = 5.0


class PlainLines(Display):
    """Prints a line every 30 s, and for a new best value if the last line is at least 5 s old.

    Parameters
    ----------
    stream : text stream or None
        The stream to print to; if None, nothing is printed.

    Examples
    --------
    >>> import sys
    >>> lines = PlainLines(sys.stdout)
    >>> lines.show(Progress(total=2, finished_before=0), trial_counts=None)
    [dasktune] 0/2 trials done · 0 running · 0 errors · 00:00
    """

    interval_s = 30.0
    shows_failures = True

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        #: Time of the last line, in seconds of the experiment's clock.
        self._last = -inf

    def is_due(self, now: float, improved: bool) -> bool:
        """Whether the last line is old enough for another one."""
        if super().is_due(now, improved):
            return True
        return improved and now - self._last >= _IMPROVEMENT_INTERVAL_S

    def update(self, progress: Progress, trial_counts: TrialCounts, now: float) -> None:
        """Print a line, and remember its time."""
        self._last = now
        super().update(progress, trial_counts, now)

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Print the progress as one line."""
        self.print_line(render(progress))

    def print_line(self, text: str) -> None:
        """Print a line with the prefix ``[dasktune]``, so that it can be found in a log."""
        super().print_line(f"[dasktune] {text}")


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
        #: Width of the line on the terminal, in columns. A shorter next line is padded to this
        #: width, to overwrite all of it.
        self._columns = 0

    @property
    def width(self) -> int:
        """Width of the terminal in columns."""
        return terminal_width(self._terminal)

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Rewrite the line."""
        # A character in the last column would make some terminals begin a new line.
        self._rewrite(render(progress, max(self.width - 1, 1)))

    def print_line(self, text: str) -> None:
        """Print a line above the progress line."""
        shown = self._shown
        self._rewrite(text)
        self.close()
        if shown:
            self._rewrite(shown)

    def close(self) -> None:
        """End the progress line, so that other output begins below it."""
        if self._columns:
            self.stream.write("\n")
        self._columns, self._shown = 0, ""

    def _rewrite(self, line: str) -> None:
        columns = column_width(line)
        self.stream.write(f"\r{pad(line, max(columns, self._columns))}")
        self._columns, self._shown = columns, line


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False if it is closed or has no ``isatty()``."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # the user replaced the stream, or closed it
        return False


def terminal_width(stream: TextIO | None) -> int:
    """Return the width of a terminal in columns; 80 if the terminal does not report it."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (AttributeError, OSError, ValueError):  # `isatty()` is true, but there is no terminal
        width = 0
    return width or _FALLBACK_WIDTH
