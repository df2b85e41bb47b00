"""Progress as a bar and a table that stay in place on a terminal, by rich."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Final, TextIO

from dasktune.progress.board import Board
from dasktune.progress.display import Display
from dasktune.progress.progress import Progress, render, split_usage
from dasktune.progress.table import ROWS, SYMBOLS, progress_table
from dasktune.progress.text import crop
from dasktune.trial.status import PublicStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["LiveTable"]

#: Held by who draws: two of them would overwrite each other.
_ONLY: Final = threading.Lock()

_STYLES: Final = {
    SYMBOLS[PublicStatus.RUNNING]: "cyan",
    SYMBOLS[PublicStatus.ERROR]: "red",
    SYMBOLS[PublicStatus.TERMINATED]: "green",
}

#: Lines of the picture that are no trials: the bar, the line, the table's head, one to spare.
_OTHER_LINES: Final = 4


class LiveTable(Display):
    """Draws a bar, a line and the first trials, and what is printed meanwhile above them.

    Parameters
    ----------
    stream : text stream
        The terminal.

    Raises
    ------
    ImportError
        If rich is not installed.
    RuntimeError
        If somebody else draws in this process.
    """

    interval_s = 0.5

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.live import Live

        super().__init__(stream)
        if isinstance(stream, FileProxy) or not _ONLY.acquire(blocking=False):
            raise RuntimeError("somebody else draws on this terminal")
        self._console: Console = Console(file=stream, force_terminal=True, stderr=True)
        # Who pipes the output away wants all of it there, not on the terminal.
        to_file = not sys.stdout.isatty() if sys.stdout is not None else True
        self._live: Live | None = Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stdout=not to_file,
        )
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return int(self._console.width)

    def show(self, progress: Progress, board: Board) -> None:
        """Draw the picture, from the first time on."""
        if self._live is None:
            return
        if not self._live.is_started:
            self._start(self._live)
        self._live.update(self._picture(progress, board), refresh=True)

    def say(self, text: str) -> None:
        """Write a line above the picture."""
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Give the terminal free, with the picture on it."""
        live, self._live = self._live, None
        if live is None:
            return
        try:
            for handler, stream in self._handlers:
                handler.setStream(stream)
            if live.is_started:
                live.stop()
        finally:
            _ONLY.release()

    def _start(self, live: Live) -> None:
        streams = [sys.stderr, sys.stdout]
        live.start()
        # Nobody need be left without a cursor by a process that is killed.
        self._console.show_cursor(True)
        # What has been logged to the terminal goes above the picture, not into it.
        for handler in _handlers():
            for old, new in zip(streams, [sys.stderr, sys.stdout], strict=True):
                if handler.stream is old and new is not old:
                    self._handlers.append((handler, old))
                    handler.setStream(new)
                    break

    def _picture(self, progress: Progress, board: Board) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = self._console.width
        rest, usage = split_usage(progress)
        rows = max(1, min(ROWS, self._console.height - _OTHER_LINES - bool(usage)))
        head, *trials = progress_table(board, width - 1, rows)
        table = Table(box=None, pad_edge=False, header_style="bold")
        # Text is shown as it is: users' names are no markup.
        for place, name in enumerate(head):
            table.add_column(Text(name), justify="left" if place < 2 else "right", no_wrap=True)
        for symbol, *cells in trials:
            table.add_row(Text(symbol, style=_STYLES.get(symbol, "")), *map(Text, cells))
        line = Text(render(rest, width - 1), no_wrap=True, overflow="ellipsis")
        parts: list[RenderableType] = [line]
        if usage:
            parts.append(Text(crop(usage, width - 1), style="dim", no_wrap=True))
        if trials:
            parts.append(table)
        if progress.total:
            # By itself a bar does not end its line.
            bar = Table.grid()
            bar.add_row(ProgressBar(progress.total, progress.finished, width=width - 1))
            parts.insert(0, bar)
        return Group(*parts)


def _handlers() -> list[logging.StreamHandler[TextIO]]:
    """Return all handlers of logs that write to a stream as it is."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    found = {
        id(handler): handler
        for one in loggers
        if isinstance(one, logging.Logger)
        for handler in one.handlers
        if type(handler) is logging.StreamHandler
    }
    return list(found.values())
