"""Show progress as a bar and a table that rich redraws in place on a terminal."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TextIO, TypeVar

from dasktune.progress.background_stream import BackgroundStream
from dasktune.progress.display import Display
from dasktune.progress.log_relay import move_handlers
from dasktune.progress.progress import Progress, render, split_usage
from dasktune.progress.progress_table import ROWS, SYMBOLS, progress_table
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.formatting import truncate
from dasktune.trial.status import PublicStatus

T = TypeVar("T")

#: Number of lines that may wait to be drawn. Further ones are dropped.
_MAX_LINES: Final = 10_000

#: Held by the display that draws: two live displays would overwrite each other.
_DRAWING: Final = threading.Lock()

_STYLES: Final = {
    SYMBOLS[PublicStatus.RUNNING]: "cyan",
    SYMBOLS[PublicStatus.ERROR]: "red",
    SYMBOLS[PublicStatus.TERMINATED]: "green",
}

#: Number of lines besides the trials: the bar, the progress line, the table's head, a spare line.
_OTHER_LINES: Final = 4

#: Seconds that the end of the display waits for the thread that draws.
_LAST_SECONDS: Final = 1.0


class DrawingThread(Generic[T]):
    """Draws what it is given, in order: all lines that wait at once, then the newest picture.

    To draw a picture and a line above it takes rich some milliseconds. With a line for each result
    the driver's loop would do little else.

    Parameters
    ----------
    draw : callable
        ``draw(lines, picture)`` draws lines above a picture; the picture is None if it has not
        changed. Called in the thread.

    Examples
    --------
    >>> drawn = []
    >>> drawing = DrawingThread(lambda lines, picture: drawn.append((lines, picture)))
    >>> drawing.show("picture")
    >>> drawing.finish(10.0), drawn
    (True, [([], 'picture')])
    """

    # The users' threads leave lines and a picture, and the thread takes them, under one lock that
    # is free while the thread draws. `finish` may time out: the thread then ends after the drawing
    # that it is at.

    def __init__(self, draw: Callable[[Sequence[str], T | None], None]) -> None:
        self._draw = draw
        self._lines: deque[str] = deque()
        self._picture: T | None = None
        self._num_dropped = 0
        self._is_drawing = self._is_finished = False
        self._error: Exception | None = None
        # An RLock: a signal handler of the user may print while its thread does.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def add_line(self, text: str) -> None:
        """Let the thread draw a line.

        Raises
        ------
        Exception
            The exception with which an earlier drawing failed.
        """
        with self._changed:
            if len(self._lines) < _MAX_LINES:
                self._lines.append(text)
            else:
                self._num_dropped += 1
            self._wake()

    def show(self, picture: T) -> None:
        """Let the thread draw a picture in place of the last one, which it may not have drawn.

        Raises
        ------
        Exception
            The exception with which an earlier drawing failed.
        """
        with self._changed:
            self._picture = picture
            self._wake()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether everything is drawn."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._has_work or self._is_drawing), timeout)

    def finish(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, and end the thread; return whether everything is drawn."""
        is_drawn = self.wait(timeout)
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        return is_drawn

    @property
    def _has_work(self) -> bool:
        return bool(self._lines) or self._picture is not None

    def _wake(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dasktune-drawing", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            error = None
            try:
                self._draw(*work)
            except Exception as failure:  # rich, or a stream of the user, may raise anything
                error = failure
            with self._changed:
                self._error, self._is_drawing = error, False
                self._changed.notify_all()

    def _next(self) -> tuple[list[str], T | None] | None:
        """Return what to draw next, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work or self._is_finished)
            if self._is_finished:
                return None
            lines, picture, dropped = list(self._lines), self._picture, self._num_dropped
            if dropped:
                lines.append(f"[dasktune] {dropped} lines were not shown: there were too many at once")
            self._lines.clear()
            self._picture, self._num_dropped, self._is_drawing = None, 0, True
            return lines, picture


if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class LiveTable(Display):
    """Draws a bar, a line and the first trials below all other output.

    The caller's thread chooses what a picture shows, because the trials do not change meanwhile.
    A thread of the display draws it.

    Parameters
    ----------
    stream : text stream
        The terminal.

    Raises
    ------
    ImportError
        If rich is not installed.
    RuntimeError
        If another live display draws in this process.
    """

    interval_s = 0.5
    shows_trials = True
    redirects = True

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.live import Live

        super().__init__(stream)
        terminal = stream.original if isinstance(stream, BackgroundStream) else stream
        if isinstance(terminal, FileProxy) or not _DRAWING.acquire(blocking=False):
            raise RuntimeError("another live display draws on this terminal")
        self._console: Console = Console(file=stream, force_terminal=True, stderr=True)
        # If the user redirects stdout to a file or a pipe, rich must not move it to the terminal.
        to_file = not sys.stdout.isatty() if sys.stdout is not None else True
        self._live: Live | None = Live(
            console=self._console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=not to_file
        )
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._drawing: DrawingThread[RenderableType] = DrawingThread(self._draw)

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return int(self._console.width)

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Draw the bar, the line and the table; the first call starts the live display."""
        if self._live is None:
            return
        if not self._live.is_started:
            self._start(self._live)
        self._drawing.show(self._picture(progress, trial_counts))

    def print_line(self, text: str) -> None:
        """Print a line above the live display."""
        self._drawing.add_line(text)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether everything is drawn."""
        return self._drawing.wait(timeout)

    def close(self) -> None:
        """Stop the live display; its last state stays on the terminal."""
        live = self._live
        if live is None:
            return
        try:
            # The thread draws with the live display until it has finished, or its time is over.
            self._drawing.finish(_LAST_SECONDS)
        finally:  # also after Ctrl-C
            self._live = None
            self._stop(live)

    def _stop(self, live: Live) -> None:
        try:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            if live.is_started:
                live.stop()
        finally:
            _DRAWING.release()

    def _draw(self, lines: Sequence[str], picture: RenderableType | None) -> None:
        """Draw lines above a picture, in the thread."""
        from rich.text import Text

        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
        live = self._live
        if picture is not None and live is not None:
            live.update(picture, refresh=True)

    def _start(self, live: Live) -> None:
        streams = [sys.stderr, sys.stdout]
        live.start()
        # rich hides the cursor. If this process is killed, nothing would show it again.
        self._console.show_cursor(True)
        # rich has replaced sys.stderr. A log handler that holds the old stream would write into
        # the live display; with the new stream its records appear above it.
        for old, new in zip(streams, [sys.stderr, sys.stdout], strict=True):
            if new is not old:
                self._handlers += move_handlers(old, new)

    def _picture(self, progress: Progress, trial_counts: TrialCounts) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = self._console.width
        rest, usage = split_usage(progress)
        rows = max(1, min(ROWS, self._console.height - _OTHER_LINES - bool(usage)))
        head, *trials = progress_table(trial_counts, width - 1, rows)
        table = Table(box=None, pad_edge=False, header_style="bold")
        # Text objects: names of users must not be read as rich markup.
        for place, name in enumerate(head):
            table.add_column(Text(name), justify="left" if place < 2 else "right", no_wrap=True)
        for symbol, *cells in trials:
            table.add_row(Text(symbol, style=_STYLES.get(symbol, "")), *map(Text, cells))
        line = Text(render(rest, width - 1), no_wrap=True, overflow="ellipsis")
        parts: list[RenderableType] = [line]
        if usage:
            parts.append(Text(truncate(usage, width - 1), style="dim", no_wrap=True))
        if trials:
            parts.append(table)
        if progress.total:
            # A bar alone does not end its line; a grid does.
            bar = Table.grid()
            bar.add_row(ProgressBar(progress.total, progress.finished, width=width - 1))
            parts.insert(0, bar)
        return Group(*parts)
