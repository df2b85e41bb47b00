"""The fencing token of a trial: the number of its newest start, in the trial's directory.

A worker that the driver has marked lost may still run. The token keeps its start of the trial from
committing checkpoints after the next start on another worker.
"""

from __future__ import annotations

import re
from typing import Final

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage

__all__ = ["advance_fence", "check_fence", "fence_of"]

#: File with the token in a trial's directory. A start with a lower number must not commit.
_FENCE_FILE: Final = ".incarnation"
_NUMBER: Final = re.compile(rb"[0-9]{1,18}\n")


def fence_of(storage: Storage, trial_dir: str) -> int:
    """Return the fencing token of a trial; 0 if it has none.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trial_dir : str
        Name of the trial's directory.

    Raises
    ------
    StorageError
        If the file does not hold a number, or cannot be read.

    Examples
    --------
    >>> storage = Storage("memory://doctest-fence")
    >>> advance_fence(storage, "a", 2)
    >>> advance_fence(storage, "a", 1)
    >>> fence_of(storage, "a")
    2
    """
    try:
        content = storage.read_bytes("trials", trial_dir, _FENCE_FILE)
    except FileNotFoundError:
        return 0
    if not _NUMBER.fullmatch(content):
        raise StorageError(
            f"{_FENCE_FILE} of trial {trial_dir} must be a number, got {content[:80]!r}. Delete the file."
        )
    return int(content)


def advance_fence(storage: Storage, trial_dir: str, incarnation: int) -> None:
    """Raise the token to `incarnation`, so that earlier starts can no longer commit checkpoints.

    Parameters
    ----------
    storage, trial_dir
        As for :func:`fence_of`.
    incarnation : int
        Number of a start of the trial. A token that is already higher does not change.
    """
    if fence_of(storage, trial_dir) < incarnation:
        storage.write_bytes(f"trials/{trial_dir}/{_FENCE_FILE}", b"%d\n" % incarnation)


def check_fence(storage: Storage, trial_dir: str, incarnation: int) -> None:
    """Raise StorageError if a start of the trial after `incarnation` has raised the token.

    Parameters
    ----------
    storage, trial_dir
        As for :func:`fence_of`.
    incarnation : int
        Number of the start that commits a checkpoint.
    """
    newest = fence_of(storage, trial_dir)
    if newest > incarnation:
        raise StorageError(
            f"start {incarnation} of trial {trial_dir} must not commit a checkpoint, since start "
            f"{newest} has taken over"
        )
