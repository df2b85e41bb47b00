"""Encodes records as lines of strict JSON: any record, and equal records as equal lines.

Values that JSON cannot represent are written as a dict with one key that starts with ``$``:
``{"$float": "nan"}`` (decoded to the number) and ``{"$repr": "..."}`` (stays text). A key of the
user that starts with ``$`` gets a second ``$``, so the two cannot be confused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Any, Final

import numpy as np

from dasktune.errors import StorageError
from dasktune.storage.journal.strict_json import loads, within_max_depth

#: Largest number of elements of an array that is written out; of a larger one the repr is kept.
MAX_ARRAY: Final = 1024
#: Largest number of characters that are kept of a repr.
MAX_REPR: Final = 200
#: Deepest values that are written out; of deeper ones the repr is kept, since a structure may
#: contain itself.
_MAX_DEPTH: Final = 64
#: Bits of the largest integer that is written out: Python prints only some thousand digits.
_MAX_BITS: Final = 8192
#: Addresses in default reprs would make equal runs write different journals.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)

#: Returns JSON values as ASCII text without spaces; raises for other values.
compact = _ENCODER.encode


def encode(record: Mapping[str, Any]) -> bytes:
    r"""Return `record` as one line, with the line feed; equal records give equal bytes.

    Parameters
    ----------
    record : mapping
        Any values. NaN and infinities survive; numpy scalars, arrays of at most 1,024 elements,
        tuples, sets and enums become plain values; anything else becomes the start of its repr.

    Examples
    --------
    >>> encode({"loss": float("nan"), "step": 3})
    b'{"loss":{"$float":"nan"},"step":3}\n'
    """
    try:
        text = compact(record)
    except (ValueError, TypeError, RecursionError):
        text = compact(plain(record))
    else:
        if '"$' in text or not within_max_depth(text):
            text = compact(plain(record))
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> Any:
    """Return the record in a line of :func:`encode`.

    Parameters
    ----------
    line : bytes
        One line, with or without its line feed.

    Raises
    ------
    StorageError
        If it is not a line of strict JSON.

    Examples
    --------
    >>> decode(b'{"loss":{"$float":"-inf"}}')
    {'loss': -inf}
    """
    try:
        text = line.decode("ascii")
        return loads(text, marked='"$' in text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"not a line of strict JSON: {line[:80]!r} ({error})") from error


def round_trips(value: Mapping[str, Any]) -> bool:
    """Whether a value is the same after :func:`encode` and :func:`decode`.

    Parameters
    ----------
    value : mapping
        Any values.

    Examples
    --------
    >>> round_trips({"lr": 0.1, "layers": [64, 64]}), round_trips({"layers": (64, 64)})
    (True, False)
    """
    try:
        # As text, because NaN is not equal to itself and True is equal to 1.
        return repr(decode(encode(value))) == repr(value)
    except Exception:  # the user's own __repr__ may raise anything
        return False


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as strict JSON values, with the marks that this module describes.

    Parameters
    ----------
    value : object
        Any object.
    depth : int, default=0
        Depth of `value` in the record.
    """
    if depth > _MAX_DEPTH:
        return _described(value)
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else _described(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        # The iteration order of a set differs between runs.
        return sorted((plain(item, depth + 1) for item in value), key=compact)
    return _numpy(value, depth)


def _numpy(value: Any, depth: int) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.size <= MAX_ARRAY:
        items = value.tolist()
        # `tolist` returns some types (long double, structured records) unchanged.
        if not isinstance(items, np.generic):
            return plain(items, depth + 1)
    return _described(value)


def _described(value: object) -> dict[str, str]:
    try:
        text = _ADDRESS.sub("", repr(value))
    except Exception:  # from user code; the record must be written anyway
        text = f"<{type(value).__name__} that has no repr>"
    return {"$repr": text[:MAX_REPR]}


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if key is None or isinstance(key, bool):
        # The same text as on the fast path of `encode`.
        return json.dumps(key)
    text = key if isinstance(key, str) else str(key)
    return f"${text}" if text.startswith("$") else text
