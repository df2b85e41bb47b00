"""Show progress as a bar and a table that rich redraws in place on a terminal."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from dasktune.progress.background_stream import BackgroundStream
from dasktune.progress.display import Display
from dasktune.progress.drawing_thread import DrawingThread
from dasktune.progress.log_relay import move_handlers
from dasktune.progress.progress import Progress, render, split_usage
from dasktune.progress.progress_table import ROWS, SYMBOLS, progress_table
from dasktune.progress.trial_counts import TrialCounts
from dasktune.text.formatting import truncate
from dasktune.trial.status import PublicStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

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
