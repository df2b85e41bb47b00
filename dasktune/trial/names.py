"""Checks names that become part of a path, so that no untrusted name leads out of a directory."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

#: Bytes that a file's name may have on the usual disks.
_LONGEST: Final = 255

#: A checkpoint's path, with the number of digits that dasktune writes, so that each checkpoint has
#: exactly one path.
_CHECKPOINT: Final = re.compile(
    r"trials/([^/]+)/checkpoint_([0-9]{6}|[1-9][0-9]{6,8})_i([0-9]{2}|[1-9][0-9]{2,8})"
)


def is_one_name(name: object) -> TypeGuard[str]:
    r"""Whether `name` can be a single file or directory, the same on every disk and store.

    Separators, ``.`` and ``..``, control characters and invalid Unicode are refused.

    Examples
    --------
    >>> is_one_name("a_00000"), is_one_name(".."), is_one_name("a/b"), is_one_name("a\nb")
    (True, False, False, False)
    """
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and "\\" not in name
        and name.isprintable()
        and len(name.encode()) <= _LONGEST
    )


def checkpoint_place(path: object) -> tuple[str, int, int] | None:
    """Return the trial's directory, the number and the incarnation in the path of a checkpoint.

    None if dasktune would not give this path to a checkpoint.

    Examples
    --------
    >>> checkpoint_place("trials/a_00000/checkpoint_000003_i02")
    ('a_00000', 3, 2)
    >>> checkpoint_place("trials/../checkpoint_000003_i02") is None
    True
    """
    match = _CHECKPOINT.fullmatch(path) if isinstance(path, str) else None
    if match is None or not is_one_name(match[1]):
        return None
    return match[1], int(match[2]), int(match[3])
