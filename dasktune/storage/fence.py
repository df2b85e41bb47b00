"""Which start of a trial is the newest, written where all of its writers can see it."""

from __future__ import annotations

import re
from typing import Final

from dasktune.errors import StorageError
from dasktune.storage.location import Storage

__all__ = ["fence_of", "raise_fence", "refuse_superseded"]

#: Holds in a trial's directory the number of its newest start: older ones may commit nothing more.
_FENCE_FILE: Final = ".incarnation"
_NUMBER: Final = re.compile(rb"[0-9]{1,18}\n")


def fence_of(storage: Storage, trial_dir: str) -> int:
    """Return the number of a trial's newest start that has said so, 0 if none has.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trial_dir : str
        Name of the trial's directory.

    Raises
    ------
    StorageError
        If something else stands there, or it cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-fence")
    >>> raise_fence(storage, "a", 2)
    >>> raise_fence(storage, "a", 1)
    >>> fence_of(storage, "a")
    2
    """
    try:
        content = storage.read_bytes("trials", trial_dir, _FENCE_FILE)
    except FileNotFoundError:
        return 0
    if not _NUMBER.fullmatch(content):
        raise StorageError(
            f"{_FENCE_FILE} of trial {trial_dir} must be a number, got {content[:80]!r}. Delete it."
        )
    return int(content)


def raise_fence(storage: Storage, trial_dir: str, incarnation: int) -> None:
    """Let no start of a trial before `incarnation` commit a checkpoint any more.

    Parameters
    ----------
    storage, trial_dir
        As for :func:`fence_of`.
    incarnation : int
        Number of a start. A fence that is higher already stays.
    """
    if fence_of(storage, trial_dir) < incarnation:
        storage.write_bytes(f"trials/{trial_dir}/{_FENCE_FILE}", b"%d\n" % incarnation)


def refuse_superseded(storage: Storage, trial_dir: str, incarnation: int) -> None:
    """Raise StorageError if a later start of the trial has taken over.

    Parameters
    ----------
    storage, trial_dir
        As for :func:`fence_of`.
    incarnation : int
        Who asks.
    """
    newest = fence_of(storage, trial_dir)
    if newest > incarnation:
        raise StorageError(
            f"start {incarnation} of trial {trial_dir} must commit nothing any more, since start "
            f"{newest} has taken over"
        )
