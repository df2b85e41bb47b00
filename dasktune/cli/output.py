"""Write text, CSV and JSON to standard output, without control characters on a terminal."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any

from dasktune.text.formatting import csv_cell, one_line


def write(text: str) -> None:
    """Write a text and a line feed; control characters in it must have been replaced."""
    sys.stdout.write(f"{text}\n")


def terminal_width() -> int | None:
    """Return the columns of the terminal; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV; control characters are replaced only if a terminal shows them.

    A text that a spreadsheet would execute as a formula begins with ``'``.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    on_terminal = sys.stdout.isatty()
    for row in chain([head], rows):
        texts = [_plain(csv_cell(value)) for value in row]
        writer.writerow([one_line(text) for text in texts] if on_terminal else texts)


def write_json(value: Any) -> None:
    """Write a value as JSON, with null for numbers that are not finite."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False, default=str)
    # json.dumps escapes every other control character.
    write(text.replace("\x7f", "\\u007f"))


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(_finite(value), default=str)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
