"""``progress.csv``: the results of each trial as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import ClassVar

from dasktune.logger.file_logger import FileLoggerCallback
from dasktune.logger.trial_file import Format, Row

__all__ = ["CSVLoggerCallback"]


class CSVLoggerCallback(FileLoggerCallback):
    """Writes ``progress.csv`` into the directory of each trial.

    The first line names the columns, nested metrics joined by ``/``. A metric that comes later than
    the first result gets a column, too: the file is then written anew, with nothing in the rows
    that lack it.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[CSVLoggerCallback()])
    """

    file_name: ClassVar[str] = "progress.csv"

    def make_format(self) -> Format:
        """Return how rows stand in a new file."""
        return _Table()


class _Table(Format):
    def __init__(self) -> None:
        #: Those of the first line.
        self._columns: list[str] = []

    def whole(self, rows: Sequence[Row]) -> bytes:
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        return _lines([self._columns]) + self._rows(rows) if self._columns else b""

    def more(self, rows: Sequence[Row]) -> bytes | None:
        known = set(self._columns)
        return self._rows(rows) if all(row.keys() <= known for row in rows) else None

    def _rows(self, rows: Sequence[Row]) -> bytes:
        return _lines([[row.get(name, "") for name in self._columns] for row in rows])


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    # What no encoding can tell must not cost the file.
    return text.getvalue().encode("utf-8", "replace")
