"""Rules that several settings obey."""

from __future__ import annotations

import re
from math import isfinite
from numbers import Integral
from typing import Final

from dasktune.errors import check
from dasktune.trial.metrics import number

__all__ = [
    "LONGEST_NAME",
    "check_bool",
    "check_seconds",
    "is_int",
    "is_policy",
    "is_safe_name",
    "is_text",
]

#: A file name that is safe on disks, in URLs, and where fsspec expands ``*``, ``?`` and ``[``.
_SAFE_NAME: Final = re.compile(r"\w([\w .,=+@-]*[\w=+@-])?")

#: Bytes that the name of an experiment may have.
LONGEST_NAME: Final = 200


def is_int(value: object, *, least: int) -> bool:
    """Whether it is an integer, and at least so much."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def is_port(value: object) -> bool:
    """Whether `value` is a port at which a server can listen."""
    return is_int(value, least=1) and int(value) <= 65_535  # type: ignore[call-overload]


def is_text(value: object) -> bool:
    """Whether it is a text that says something."""
    return isinstance(value, str) and value != ""


def is_policy(value: object) -> bool:
    """Whether it can be a name or an object; a class is an object that someone forgot to make."""
    return value is None or is_text(value) or not isinstance(value, str | type)


def check_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    check(isinstance(value, bool), name, "True or False", value)


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse what is no number of seconds."""
    seconds = None if isinstance(value, bool) else number(value)
    fits = seconds is not None and isfinite(seconds) and (seconds >= 0 if zero else seconds > 0)
    check(fits, name, f"a {'non-negative' if zero else 'positive'} number of seconds", value)


def is_safe_name(name: object) -> bool:
    """Whether a directory may be called so, wherever it is."""
    return (
        isinstance(name, str)
        and _SAFE_NAME.fullmatch(name) is not None
        and ".." not in name
        and len(name.encode()) <= LONGEST_NAME
    )
