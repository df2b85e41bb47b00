"""What a worker and the driver tell each other about a running trial: values that pickle.

The worker's messages are numbered from 1 in each :class:`~dasktune.trainable.run.TrialRun` and end
with exactly one of :class:`Ended`, :class:`Paused`, :class:`Stopped` and :class:`Failed`; a trial
that is never begun has :class:`Returned` or :class:`Stopped` for its only message. The driver's
answers may come late or twice: one that no longer fits is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import ErrorInfo
from dasktune.trial.milestone import EVERY_RESULT, Milestone

__all__ = [
    "Answer",
    "Committed",
    "Ended",
    "Failed",
    "GoOn",
    "Message",
    "PauseNow",
    "Paused",
    "Reported",
    "Returned",
    "SaveAndGoOn",
    "Started",
    "StopNow",
    "Stopped",
    "Terminal",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The thread runs; user code comes next."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The trial reported a result."""

    seq: int
    #: The user's metrics with the auto-filled fields.
    metrics: dict[str, Any] = field(repr=False)
    #: The checkpoint that was committed with it, if any.
    checkpoint: CheckpointRecord | None = None
    #: Whether user code stands still until an answer for this `seq` comes.
    awaits: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # What a frozen class with slots does by itself takes five times as long.
        return _reported, (self.seq, self.metrics, self.checkpoint, self.awaits)


def _reported(
    seq: int, metrics: dict[str, Any], checkpoint: CheckpointRecord | None, awaits: bool
) -> Reported:
    return Reported(seq=seq, metrics=metrics, checkpoint=checkpoint, awaits=awaits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint was committed that does not travel with a result; it belongs to the last one."""

    seq: int
    checkpoint: CheckpointRecord
    #: Bytes of one that its worker keeps in memory; 0 if it is in the storage.
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """User code came to its end, or its own result said ``done``."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """User code is out because of a :class:`PauseNow`."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """User code is out because of a :class:`StopNow`."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """User code raised."""

    seq: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The trial was never begun here and never will be; its only message."""

    seq: int = 1
    #: Whether it is because the checkpoint in memory is not here that it should have gone on from.
    lacks_checkpoint: bool = False


Terminal = Ended | Paused | Stopped | Failed | Returned
Message = Started | Reported | Committed | Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """Let user code, which waits at result `seq`, go on to its next milestone."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAndGoOn:
    """Like :class:`GoOn`, but first save a checkpoint, where the trainable can (the class API)."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Bytes up to which it is kept in memory and not in the storage.
    in_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseNow:
    """End user code at the result where it waits, or at its next one, to go on another time."""

    #: Save a checkpoint first, where the trainable can (the class API).
    save: bool = True
    reason: str = ""
    #: Bytes up to which it is kept in memory and not in the storage.
    in_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNow:
    """End user code for good at the result where it waits, or at its next one."""

    reason: str = ""


Answer = GoOn | SaveAndGoOn | PauseNow | StopNow
