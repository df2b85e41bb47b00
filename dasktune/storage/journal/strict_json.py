"""Reads untrusted JSON, and refuses text that other programs might read differently.

The module imports little, because child processes import it to read manifests.
"""

from __future__ import annotations

import json
import re
from math import inf, nan
from typing import Any, Final

from dasktune.errors import StorageError

#: Digits of the longest integer that is read: Python's default limit. The time for longer ones
#: grows with the square of their length.
_MAX_DIGITS: Final = 4300
#: Length of the blocks into which text is divided to find long integers: an integer of more than
#: `_MAX_DIGITS` digits fills at least one block.
_DIGITS: Final = _MAX_DIGITS // 2
#: Deepest nesting of brackets that is read, since later code may be recursive.
_MAX_NESTING: Final = 128

_BRACKETS: Final = re.compile(r"[\[\]{}]")

#: The values of ``$float``.
_FLOATS: Final = {"nan": nan, "inf": inf, "-inf": -inf}


def parse(data: bytes) -> Any:
    """Return the value of a file of strict JSON; ``$`` has no special meaning.

    Parameters
    ----------
    data : bytes
        The whole file.

    Raises
    ------
    StorageError
        If it is not ASCII, not JSON, or has a key twice in an object; if it has NaN or infinity, an
        integer of more than 4,300 digits, or brackets nested deeper than 128.

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
    """Return the value of a text of strict JSON.

    Parameters
    ----------
    text : str
        ASCII characters.
    marked : bool, default=False
        Whether ``$`` in keys is a mark of :mod:`~dasktune.storage.journal.json_lines`.

    Raises
    ------
    ValueError, RecursionError
        If :func:`parse` would refuse it.

    Examples
    --------
    >>> loads('{"loss": {"$float": "inf"}}', marked=True)
    {'loss': inf}
    """
    if not within_max_depth(text):
        raise ValueError(f"brackets nested deeper than {_MAX_NESTING}")
    # Checking each integer takes time. So it is done only if there may be a long one: if a whole
    # block consists of digits.
    blocks = range(0, len(text), _DIGITS) if len(text) > _MAX_DIGITS else ()
    asks = any(text[at : at + _DIGITS].isdigit() for at in blocks)
    return _DECODERS[marked, asks].decode(text)


def within_max_depth(text: str) -> bool:
    """Whether the nesting of brackets in JSON is within the limit, found without recursion."""
    if text.count("[") + text.count("{") <= _MAX_NESTING:
        return True
    # Backslashes occur in strings only. Without the characters that they escape, every other part
    # between quotes is outside of strings. For text that is not JSON this is wrong, but then the
    # parser raises.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in _BRACKETS.findall(outside):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_NESTING:
            return False
    return True


def as_count(value: object) -> int:
    """Return `value`, read from JSON, if it is a count.

    Raises
    ------
    ValueError
        If it is not an integer from 0 to 2**63 - 1. True and 1.0 are refused, too, although they
        are equal to 1.

    Examples
    --------
    >>> as_count(3)
    3
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Another program may use the other value.
        raise ValueError("an object has a key twice")
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
