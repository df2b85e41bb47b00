"""Reading JSON that anyone may have written: nothing that other programs would read otherwise.

It imports little, because the processes of trials read manifests.
"""

from __future__ import annotations

import json
import re
from math import inf, nan
from typing import Any, Final

from dasktune.errors import StorageError

__all__ = ["as_count", "is_shallow", "loads", "parse"]

#: Digits of the longest integer that Python reads unless it is told otherwise. Longer ones would
#: take a time that grows with the square of their length.
_MAX_DIGITS: Final = 4300
#: A longer one has a block of so many digits that begins at a multiple of their number.
_DIGITS: Final = _MAX_DIGITS // 2
#: Brackets within brackets that are read. What reads a value after us may be recursive.
_MAX_NESTING: Final = 128

_BRACKETS: Final = re.compile(r"[\[\]{}]")

#: What stands behind ``$float``.
_FLOATS: Final = {"nan": nan, "inf": inf, "-inf": -inf}


def parse(data: bytes) -> Any:
    """Return what a file of strict JSON says; ``$`` means nothing special.

    Parameters
    ----------
    data : bytes
        The whole file.

    Raises
    ------
    StorageError
        If it is not ASCII, no JSON, or names a key twice; if it has NaN or infinity, an integer of
        more than 4,300 digits, or brackets within brackets deeper than 128.

    Examples
    --------
    >>> parse(b'{"size": 3}')
    {'size': 3}
    """
    try:
        return loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"not strict JSON: {data[:80]!r} ({error})") from error


def loads(text: str, *, marked: bool = False) -> Any:
    """Return what a text of strict JSON says.

    Parameters
    ----------
    text : str
        Of ASCII characters.
    marked : bool, default=False
        Whether ``$`` in keys means what :mod:`~dasktune.storage.json_lines` tells.

    Raises
    ------
    ValueError, RecursionError
        If :func:`parse` would refuse it.

    Examples
    --------
    >>> loads('{"loss": {"$float": "inf"}}', marked=True)
    {'loss': inf}
    """
    if not is_shallow(text):
        raise ValueError(f"brackets within brackets, deeper than {_MAX_NESTING}")
    # To be asked about each integer takes time, so it is only done where a long one may be: where
    # all is digits from one multiple of a block's length to the next.
    blocks = range(0, len(text), _DIGITS) if len(text) > _MAX_DIGITS else ()
    asks = any(text[at : at + _DIGITS].isdigit() for at in blocks)
    return _DECODERS[marked, asks].decode(text)


def is_shallow(text: str) -> bool:
    """Whether brackets are nested in JSON no deeper than is read, found without recursion."""
    if text.count("[") + text.count("{") <= _MAX_NESTING:
        return True
    # Backslashes stand in strings only. Without what they escape, every other part between quotes
    # lies outside of strings. In what is no JSON that is wrong, and the parser says so.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in _BRACKETS.findall(outside):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_NESTING:
            return False
    return True


def as_count(value: object) -> int:
    """Return `value`, read from JSON, if it is a count of something.

    Raises
    ------
    ValueError
        If it is no integer from 0 to 2**63 - 1. JSON knows true and 1.0, and Python takes them
        for 1.

    Examples
    --------
    >>> as_count(3)
    3
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Whoever checks a file with another program may be shown the other value.
        raise ValueError("a key stands in an object twice")
    return found


def _unmarked(pairs: list[tuple[str, Any]]) -> Any:
    found = _object(pairs)
    if len(found) == 1 and "$float" in found:
        word = found["$float"]
        if isinstance(word, str) and word in _FLOATS:
            return _FLOATS[word]
        raise ValueError('"$float" must be "nan", "inf" or "-inf"')
    if not any(key.startswith("$$") for key in found):
        return found
    return _object([(key[1:] if key.startswith("$$") else key, item) for key, item in pairs])


def _integer(text: str) -> int:
    digits = len(text.lstrip("-"))
    if digits > _MAX_DIGITS:
        raise ValueError(f"an integer of {digits} digits")
    return int(text)


def _refuse(literal: str) -> Any:
    raise ValueError(f"{literal} is not JSON")


_DECODERS: Final = {
    (marked, asks): json.JSONDecoder(
        object_pairs_hook=_unmarked if marked else _object,
        parse_int=_integer if asks else None,
        parse_constant=_refuse,
    )
    for marked in (False, True)
    for asks in (False, True)
}
