"""What a worker does for the checkpoints of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["CheckpointPort"]


def _pass() -> None:
    """Let every checkpoint pass."""


def _drop(path: str, packed: bytes) -> None:
    """Keep nothing: only who is told to keep checkpoints in memory has a use for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPort:
    """The way of a trial's checkpoints past its worker."""

    #: Called right before a checkpoint comes into being in the storage. It raises, or blocks for a
    #: while, if this worker may not commit.
    fence: Callable[[], None] = _pass
    #: Takes the path and the bytes of one that is to be kept in memory, before its message is sent.
    keep: Callable[[str, bytes], None] = _drop
    #: What the trial goes on from, if that was kept in memory.
    packed: bytes = field(default=b"", repr=False)
