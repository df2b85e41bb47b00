"""``CSVLoggerCallback``: the results of each trial in ``progress.csv``."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import ClassVar

from dasktune.logger.file_logger import FileLoggerCallback, Row, RowFormat
from dasktune.text.formatting import csv_cell


class CSVLoggerCallback(FileLoggerCallback):
    """Writes ``progress.csv`` into the directory of each trial.

    The first line has the column names; nested names are joined by ``/``. A metric that first
    appears in a later result gets a column, too: the file is then rewritten, with empty cells in
    the earlier rows. A text that a spreadsheet would execute as a formula begins with ``'``.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[CSVLoggerCallback()])
    """

    file_name: ClassVar[str] = "progress.csv"

    def make_format(self) -> RowFormat:
        """Return the row format for a new file."""
        return _CsvFormat()


class _CsvFormat(RowFormat):
    def __init__(self) -> None:
        #: The columns of the first line.
        self._columns: list[str] = []

    def encode_all(self, rows: Sequence[Row]) -> bytes:
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        return _lines([self._columns]) + self._rows(rows) if self._columns else b""

    def encode_more(self, rows: Sequence[Row]) -> bytes | None:
        known = set(self._columns)
        return self._rows(rows) if all(row.keys() <= known for row in rows) else None

    def _rows(self, rows: Sequence[Row]) -> bytes:
        return _lines([[row.get(name, "") for name in self._columns] for row in rows])


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([list(map(csv_cell, row)) for row in rows])
    # A character that UTF-8 cannot encode (a lone surrogate) must not prevent the file.
    return text.getvalue().encode("utf-8", "replace")
