"""Progress in the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final, TextIO

from dasktune.cells import html_row
from dasktune.progress.board import Board
from dasktune.progress.display import Display
from dasktune.progress.progress import Progress, render, split_usage
from dasktune.progress.table import Table, progress_table

__all__ = ["NotebookCell", "NotebookDisplay", "html_table", "page"]

_BAR: Final = '<progress max="{}" value="{}" style="width:100%"></progress>'


class NotebookCell:
    """HTML in the output of a cell, where each picture replaces the last one.

    Works in the thread in which it is used first. A notebook that is saved keeps the last picture.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, html: str) -> None:
        """Show HTML.

        Parameters
        ----------
        html : str
            With everything escaped that is the users'.
        """
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


class NotebookDisplay(Display):
    """Shows a bar, a line and the first trials in the output of a cell.

    Parameters
    ----------
    stream : text stream or None
        Where lines go.
    """

    interval_s = 1.0

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._cell = NotebookCell()

    def show(self, progress: Progress, board: Board) -> None:
        """Replace the picture."""
        self._cell.draw(page(progress, board))

    def end(self, progress: Progress, board: Board, lines: Sequence[str]) -> None:
        """Replace the picture by the last one, with what else there is to say below it."""
        self._cell.draw(page(progress, board, lines))


def page(progress: Progress, board: Board, lines: Sequence[str] = ()) -> str:
    """Return the picture as HTML.

    Parameters
    ----------
    progress : Progress
        What there is to say of the whole.
    board : Board
        The trials.
    lines : sequence of str, default=()
        What stands below.
    """
    table = progress_table(board)
    bar = _BAR.format(progress.total, progress.finished) if progress.total else ""
    below = f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""
    shown = html_table(table) if len(table) > 1 else ""
    rest, usage = split_usage(progress)
    told = "".join(f"<div>{escape(line)}</div>" for line in (render(rest), usage) if line)
    return f'<div style="font-family:monospace">{bar}{told}{shown}{below}</div>'


def html_table(table: Table) -> str:
    """Return a table as HTML, with everything escaped; of no rows nothing.

    Parameters
    ----------
    table : list of list of str
        The first row is the head.
    """
    if not table:
        return ""
    head, *rows = table
    body = "".join(html_row(row) for row in rows)
    return f"<table><thead>{html_row(head, 'th')}</thead><tbody>{body}</tbody></table>"
