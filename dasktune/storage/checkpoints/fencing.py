"""The fencing token of a trial: the number of its newest start, in the trial's directory.

A worker that the driver has marked lost may still run. The token keeps its start of the trial from
committing checkpoints after the next start on another worker.

Each start writes a file whose name has its number, and the token is the highest of these numbers.
"""

# A single file with the number would have to be read before it is written, and a start that hangs
# between the two would lower the token when it continues. Names cannot be lowered. The orders:
#
# - Two starts write their files in any order, or at the same time: the higher number wins.
# - A start deletes the files of lower numbers when its own is written. So the highest number stays
#   at every moment, also if a lower start writes its file again later.
# - A start dies between its file and the deletion: the next start deletes both.

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage

#: Names of the files; a start with a lower number than the highest one must not commit.
_FENCE: Final = re.compile(r"\.incarnation-([0-9]{6}|[1-9][0-9]{6,17})")


def fence_of(storage: Storage, trial_dir: str) -> int:
    """Return the fencing token of a trial; 0 if it has none.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    trial_dir : str
        Name of the trial's directory.

    Examples
    --------
    >>> storage = Storage("memory://doctest-fence")
    >>> _ = advance_fence(storage, "a", 2)
    >>> _ = advance_fence(storage, "a", 1)
    >>> fence_of(storage, "a")
    2
    """
    return max(_numbers(storage.names("trials", trial_dir)), default=0)


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := _FENCE.fullmatch(name))]


def advance_fence(storage: Storage, trial_dir: str, incarnation: int) -> list[str]:
    """Raise the token to `incarnation`, so that earlier starts can no longer commit checkpoints.

    Parameters
    ----------
    storage, trial_dir
        As for :func:`fence_of`.
    incarnation : int
        Number of a start of the trial. A token that is already higher does not change.

    Returns
    -------
    list of str
        The names in the trial's directory, listed after the token was raised.
    """
    folder = f"trials/{trial_dir}"
    storage.write_bytes(f"{folder}/.incarnation-{incarnation:06d}", b"%d\n" % incarnation)
    names = storage.names("trials", trial_dir)
    for number in _numbers(names):
        if number < incarnation:
            storage.remove(f"{folder}/.incarnation-{number:06d}")
    return names


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
