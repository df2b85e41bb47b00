"""Checks that several settings share."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from math import isfinite
from numbers import Integral
from typing import Final

from dasktune.errors import check
from dasktune.trial.metrics import number

#: Longest name of a group of experiments. Each demand has it.
_LONGEST_GROUP: Final = 200

#: A file name that is safe on disks, in URLs, and where fsspec expands ``*``, ``?`` and ``[``: all
#: characters but ASCII's punctuation, of which only some is safe. One class for all characters that
#: are not ASCII's would take 10 ms to compile.
_SAFE_NAME: Final = re.compile(
    r"(?:\w|[^\x00-\x7f])(?:(?:[\w .,=+@-]|[^\x00-\x7f])*(?:[\w=+@-]|[^\x00-\x7f]))?", re.ASCII
)

#: Maximum length of an experiment's name, in bytes.
LONGEST_NAME: Final = 200


def is_int(value: object, *, least: int) -> bool:
    """Whether `value` is an integer of at least `least`."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def is_port(value: object) -> bool:
    """Whether `value` is a port at which a server can listen."""
    return is_int(value, least=1) and int(value) <= 65_535  # type: ignore[call-overload]


def is_text(value: object) -> bool:
    """Whether `value` is a non-empty text."""
    return isinstance(value, str) and value != ""


def is_policy(value: object) -> bool:
    """Whether `value` is None, a name or an object; a class is neither."""
    return value is None or is_text(value) or not isinstance(value, str | type)


def check_bool(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is True or False."""
    check(isinstance(value, bool), name, "True or False", value)


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise ConfigError unless `value` is a positive number of seconds, or 0 if `zero` is set."""
    seconds = None if isinstance(value, bool) else number(value)
    fits = seconds is not None and isfinite(seconds) and (seconds >= 0 if zero else seconds > 0)
    check(fits, name, f"a {'non-negative' if zero else 'positive'} number of seconds", value)


def check_weight(value: object, name: str = "weight") -> None:
    """Raise ConfigError unless `value` is the weight of an experiment's share of a cluster."""
    weight = None if isinstance(value, bool) else number(value)
    fits = weight is not None and isfinite(weight) and weight > 0
    check(fits, name, "a positive finite number", value)


def check_priority(value: object, name: str = "priority") -> None:
    """Raise ConfigError unless `value` is the priority of an experiment."""
    priority = None if isinstance(value, bool) else number(value)
    check(priority is not None and isfinite(priority), name, "a finite number", value)


def check_share(
    weight: object,
    priority: object,
    yields_after: object,
    names: Sequence[str] = ("weight", "priority", "yields_after"),
) -> None:
    """Raise ConfigError unless one of the values is given, and those that are given are valid."""
    first, second, third = names
    is_given = (weight, priority, yields_after) != (None, None, None)
    check(is_given, first, f"given if {second} and {third} are not", weight)
    if weight is not None:
        check_weight(weight, first)
    if priority is not None:
        check_priority(priority, second)
    if yields_after is not None:
        check_yields_after(yields_after, third)


def check_share_group(value: object, name: str = "share_group") -> None:
    """Raise ConfigError unless `value` is the name of a group of experiments, or None."""
    fits = value is None or (isinstance(value, str) and 0 < len(value) <= _LONGEST_GROUP)
    check(fits, name, f"None or a text of 1 to {_LONGEST_GROUP} characters", value)


def check_yields_after(value: object, name: str = "yields_after") -> None:
    """Raise ConfigError unless `value` is a number of seconds, or infinity."""
    seconds = None if isinstance(value, bool) else number(value)
    check(seconds is not None and seconds >= 0, name, "a number of seconds, at least 0", value)


def is_safe_name(name: object) -> bool:
    """Whether `name`, once normalised, is a valid directory name on every storage.

    Invisible characters are refused, and accents without a letter before them.
    """
    if not isinstance(name, str):
        return False
    name = normalised_name(name)
    return (
        _SAFE_NAME.fullmatch(name) is not None
        and name.isprintable()
        and not unicodedata.combining(name[0])
        and ".." not in name
        and len(name.encode()) <= LONGEST_NAME
    )


def normalised_name(name: str) -> str:
    """Return the one of several equal forms of a name that all systems understand (Unicode's NFC).

    Examples
    --------
    >>> normalised_name("gro\u0308ße") == "größe"
    True
    """
    return unicodedata.normalize("NFC", name)
