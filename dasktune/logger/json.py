"""``result.json``: the results of each trial as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, ClassVar

from dasktune.logger.file_logger import FileLoggerCallback
from dasktune.logger.trial_file import Format, Row
from dasktune.storage.json_lines import plain

__all__ = ["JsonLoggerCallback"]


class JsonLoggerCallback(FileLoggerCallback):
    """Writes ``result.json`` into the directory of each trial: one object a line.

    It is strict JSON: NaN is ``null``, infinities are ``"Infinity"`` and ``"-Infinity"``, and what
    JSON has no word for is the start of its repr. The configuration is in ``params.json``, which
    every experiment writes.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[JsonLoggerCallback()])
    """

    file_name: ClassVar[str] = "result.json"

    def make_format(self) -> Format:
        """Return how rows stand in a new file."""
        return _Lines()


class _Lines(Format):
    def whole(self, rows: Sequence[Row]) -> bytes:
        return b"".join(map(_line, rows))

    def more(self, rows: Sequence[Row]) -> bytes | None:
        return self.whole(rows)


def _line(row: Row) -> bytes:
    return json.dumps(_told(plain(row)), allow_nan=False).encode("ascii") + b"\n"


def _told(value: Any) -> Any:
    """Return what `plain` gave without its marks, which only the journal needs."""
    if isinstance(value, Mapping):
        if value.keys() == {"$float"}:
            number = float(value["$float"])
            return None if isnan(number) else "Infinity" if number > 0 else "-Infinity"
        if value.keys() == {"$repr"}:
            return value["$repr"]
        return {name.removeprefix("$"): _told(item) for name, item in value.items()}
    return [_told(item) for item in value] if isinstance(value, list) else value
