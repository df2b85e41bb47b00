"""``JsonLoggerCallback``: the results of each trial in ``result.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, ClassVar

from dasktune.logger.file_logger import FileLoggerCallback, Row, RowFormat
from dasktune.storage.journal.json_lines import plain


class JsonLoggerCallback(FileLoggerCallback):
    """Writes ``result.json`` into the directory of each trial: one JSON object per line.

    It is strict JSON: NaN is ``null``, infinities are ``"Infinity"`` and ``"-Infinity"``, and a
    value of any other type that JSON lacks is the beginning of its repr. The configuration is in
    ``params.json``, which every experiment writes.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[JsonLoggerCallback()])
    """

    file_name: ClassVar[str] = "result.json"

    def make_format(self) -> RowFormat:
        """Return the row format for a new file."""
        return _JsonLinesFormat()


class _JsonLinesFormat(RowFormat):
    def encode_all(self, rows: Sequence[Row]) -> bytes:
        return b"".join(map(_line, rows))

    def encode_more(self, rows: Sequence[Row]) -> bytes | None:
        return self.encode_all(rows)


def _line(row: Row) -> bytes:
    return json.dumps(_strict_json(plain(row)), allow_nan=False).encode("ascii") + b"\n"


def _strict_json(value: Any) -> Any:
    """Return the output of `plain` without the markers, which only the journal needs."""
    if isinstance(value, Mapping):
        if value.keys() == {"$float"}:
            number = float(value["$float"])
            return None if isnan(number) else "Infinity" if number > 0 else "-Infinity"
        if value.keys() == {"$repr"}:
            return value["$repr"]
        return {name.removeprefix("$"): _strict_json(item) for name, item in value.items()}
    return [_strict_json(item) for item in value] if isinstance(value, list) else value
