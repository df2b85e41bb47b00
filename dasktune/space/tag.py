"""The experiment tag of a variant, as in Ray Tune."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dasktune.trial.metrics import flatten

#: Tags become parts of file names, which are limited to 255 bytes on most systems.
_MAX_LENGTH: Final = 100
_NOT_PORTABLE: Final = re.compile(r"[^a-zA-Z0-9_.+-]+")


def experiment_tag(number: int, resolved: Mapping[str, Any]) -> str:
    """Return the tag of a variant: its number and the values that distinguish it.

    The tag has at most 100 characters, all allowed in file names; further values are left out.

    Parameters
    ----------
    number : int
        Number of variants before this one.
    resolved : mapping of str to object
        Values by path, with ``/`` between the names; only the last name is shown.

    Examples
    --------
    >>> experiment_tag(3, {"optimizer/lr": 0.000123456, "layers/0": 64, "act": "re lu"})
    '3_act=re_lu,layers_0=64,lr=0.0001235'
    """
    tag, separator = str(number), "_"
    for path, value in sorted(flatten(resolved).items()):
        pair = f"{separator}{_short_name(path)}={_short_value(value)}"
        if len(tag) + len(pair) > _MAX_LENGTH:
            break
        tag, separator = tag + pair, ","
    return tag


def _short_name(path: str) -> str:
    """Return the last name of `path`, with the indices after it."""
    parts = path.split("/")
    first = len(parts) - 1
    while first > 0 and parts[first].isdigit():
        first -= 1
    return _portable("_".join(parts[first:]))


def _short_value(value: Any) -> str:
    return _portable(f"{value:.4g}" if isinstance(value, float) else str(value))


def _portable(text: str) -> str:
    return _NOT_PORTABLE.sub("_", text).strip("_")
