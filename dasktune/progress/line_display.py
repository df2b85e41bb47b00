"""Progress as one line: rewritten in place on a terminal, or printed repeatedly elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from math import inf
from typing import Any, Final, TextIO, cast

from dasktune.progress.display import Display
from dasktune.progress.log_relay import move_handlers
from dasktune.progress.progress import Progress, render
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.formatting import column_width, pad

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
    """Keeps one line of progress up to date on a terminal, below all other output.

    From the first picture to the end it replaces ``sys.stderr``, and ``sys.stdout`` if both are
    terminals: a text that is written there clears the line, which is then drawn again below it.

    Parameters
    ----------
    stream : text stream or None
        The terminal.
    """

    interval_s = 0.1

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._terminal = stream
        if stream is not None:
            self.messages = cast(TextIO, AboveLine(self, stream))
        # Any thread may print while the driver's thread draws. Writes to the terminal do not block.
        # An RLock: a signal handler may print while its thread does.
        self._lock = threading.RLock()
        self._shown = ""
        #: Width of the line on the terminal, in columns. A shorter next line is padded to this
        #: width, to overwrite all of it.
        self._columns = 0
        #: Whether the last text has not ended its row, so that there is no room for the line.
        self._is_mid_row = False
        #: What has replaced streams of `sys`, by name; None while the display is not open.
        self._replaced: dict[str, AboveLine] | None = None
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    @property
    def width(self) -> int:
        """Width of the terminal in columns."""
        return terminal_width(self._terminal)

    @property
    def is_open(self) -> bool:
        """Whether texts of others have to be written above the line."""
        return self._replaced is not None

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Rewrite the line."""
        if not self.is_open:
            self._replace_streams()
        with self._lock:
            # A character in the last column would make some terminals begin a new line.
            self._shown = render(progress, max(self.width - 1, 1))
            if not self._is_mid_row:
                columns = column_width(self._shown)
                self.stream.write(f"\r{pad(self._shown, max(columns, self._columns))}")
                self._columns = columns

    def print_line(self, text: str) -> None:
        """Print a line above the progress line."""
        self.write_above(f"{text}\n")

    def write_above(self, text: str) -> None:
        """Write a text above the progress line, which is drawn again when the text's row has ended.

        Parameters
        ----------
        text : str
            The text.
        """
        with self._lock:
            clear = f"\r{' ' * self._columns}\r" if self._columns else ""
            self._is_mid_row = not text.endswith("\n")
            line = "" if self._is_mid_row else self._shown
            self.stream.write(f"{clear}{text}{line}")
            self._columns = column_width(line)

    def close(self) -> None:
        """End the progress line, so that other output begins below it."""
        try:
            # `setStream` flushes, which waits for no terminal as long as the line is open.
            for handler, stream in self._handlers:
                handler.setStream(stream)
        finally:  # also after Ctrl-C: the background stream drops later texts
            replaced, self._replaced, self._handlers = self._replaced or {}, None, []
            for name, ours in replaced.items():
                if getattr(sys, name) is ours:
                    setattr(sys, name, ours.original)
            with self._lock:
                if self._is_mid_row:
                    self.write_above("\n")  # draws the last picture
                if self._columns:
                    self.stream.write("\n")
                self._columns, self._shown, self._is_mid_row = 0, "", False

    def _replace_streams(self) -> None:
        self._replaced = {}
        terminal = getattr(self._terminal, "original", self._terminal)
        if terminal is None or terminal is not sys.stderr:
            return
        for name, old in (("stderr", terminal), ("stdout", sys.stdout)):
            if old is terminal or (is_terminal(old) and is_terminal(terminal)):
                new = self._replaced[name] = AboveLine(self, old)
                setattr(sys, name, new)
                self._handlers += move_handlers(old, cast(TextIO, new))


class AboveLine:
    """Takes the place of a text stream, and writes above a progress line while that is open.

    Parameters
    ----------
    line : ProgressLine
        The progress line.
    original : text stream
        The stream.
    """

    def __init__(self, line: ProgressLine, original: TextIO) -> None:
        self._line = line
        self.original = original
        self._process = os.getpid()

    @property
    def is_above(self) -> bool:
        """Whether the line is open in this process: a fork lacks the thread that writes it."""
        return self._line.is_open and os.getpid() == self._process

    def write(self, text: str) -> int:
        """Write a text."""
        if not text or not self.is_above:
            return self.original.write(text)
        self._line.write_above(text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write several texts as one."""
        self.write("".join(texts))

    def flush(self) -> None:
        """Flush the stream, or wait a moment for the thread that writes the texts."""
        if self.is_above:
            _ = self._line.stream.is_behind  # waits: the process may end without the thread
        else:
            self.original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


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
