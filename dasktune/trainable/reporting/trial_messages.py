"""Messages of a worker and answers of the driver about a running trial: values that pickle.

The worker's messages are numbered from 1 in each
:class:`~dasktune.trainable.running.thread_run.ThreadRun` and end with exactly one of
:class:`Ended`, :class:`Paused`, :class:`Stopped`, :class:`Failed` and :class:`Unrestored`. A trial
that never starts sends :class:`Returned` or :class:`Stopped` as its only message. An answer of the
driver may come late or twice: the worker ignores one that does not fit the result at which user
code waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.user_error import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The trial's thread runs and is about to call user code."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The trial reported a result."""

    seq: int
    #: The user's metrics with the auto-filled fields.
    metrics: dict[str, Any] = field(repr=False)
    #: The checkpoint that was committed with it, if any.
    checkpoint: CheckpointRecord | None = None
    #: Whether user code waits for the driver's answer to this `seq`.
    awaits: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The default of a frozen class with slots takes five times as long.
        return _reported, (self.seq, self.metrics, self.checkpoint, self.awaits)


def _reported(
    seq: int, metrics: dict[str, Any], checkpoint: CheckpointRecord | None, awaits: bool
) -> Reported:
    return Reported(seq=seq, metrics=metrics, checkpoint=checkpoint, awaits=awaits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint was committed after its result was sent; it belongs to the last result."""

    seq: int
    checkpoint: CheckpointRecord
    #: Bytes of a checkpoint in the worker's memory; 0 if it is in the storage.
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """User code returned, or reported ``done``."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """User code ended because of a :class:`PauseAnswer`."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """User code ended because of a :class:`StopAnswer`."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """User code raised, has reported nothing for too long, or its process died."""

    seq: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestored:
    """User code ended because the checkpoint that it was to load is missing or damaged."""

    seq: int
    checkpoint: CheckpointRecord
    #: What the worker has found.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The worker returns the trial without having started it; its only message."""

    seq: int = 1
    #: Whether the reason is that this worker lacks the in-memory checkpoint to resume from.
    lacks_checkpoint: bool = False


Terminal = Ended | Paused | Stopped | Failed | Unrestored | Returned
Message = Started | Reported | Committed | Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueAnswer:
    """Let user code, which waits at result `seq`, continue to its next milestone."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAnswer:
    """Save a checkpoint first, if the trainable can (the class API), then continue."""

    seq: int
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Largest size in bytes that is kept in memory and not in the storage.
    in_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """Save a checkpoint, if the trainable can (the class API); user code need not wait for it.

    It is saved at the result where user code waits, or else with the next result.
    """

    #: Rises from request to request, so that the worker ignores one that arrives twice.
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAnswer:
    """End user code at the result where it waits, or at its next one; it may resume later."""

    #: Save a checkpoint first, if the trainable can (the class API).
    save: bool = True
    reason: str = ""
    #: Largest size in bytes that is kept in memory and not in the storage.
    in_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeAnswer:
    """The worker or driver ends soon: save, leave with that checkpoint, and resume elsewhere."""

    #: Seconds until the end, counted from the moment at which the trial receives this; infinite if
    #: the trial leaves with its next checkpoint only, to continue with more ranks.
    seconds: float
    reason: str = ""
    #: Whether a trial that does not ask for notices leaves at its next result. Otherwise it
    #: continues up to its next checkpoint.
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnswer:
    """End the trial at the result where user code waits, or at its next one."""

    reason: str = ""


#: An order to end.
Order = PauseAnswer | StopAnswer
Answer = ContinueAnswer | SaveAnswer | CheckpointRequest | NoticeAnswer | Order
