"""Messages between a worker and its child process: values that pickle.

The worker sends `InitChild` first. All its messages about a trial follow the trial's `RunTrial`, in
order. The child may send `ChildMessages`, `StoreCheckpoint`, `AskCommit`, `RequestTransfer` and
`ReportTimedOut` any number of times, and sends `ChildFinished` once for each `RunTrial`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.checkpoints.relay import Transfer
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.reporting.encoding import Content
from dasktune.trainable.reporting.trial_messages import Answer, Order
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class InitChild:
    """The first message to a child: set up the process."""

    #: Process id of the worker; the child dies with it.
    parent: int
    #: File descriptor for the tracebacks of crashes.
    crash_file: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrial:
    """Run a trial."""

    spec: TrialSpec
    payload: ChildPayload
    #: Whether the object of a class trainable is kept for the next trial.
    reuse: bool = False
    #: The checkpoint to resume from, if it was kept in memory.
    packed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTrial:
    """Pass an answer of the driver to the trial."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Every message up to this number is in the driver's journal."""

    ack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Interrupt user code; if the trial does not end, the worker kills the child."""

    #: The order to end, which user code may have already; None to stop.
    order: Order | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAllowed:
    """The answer to `AskCommit`."""

    #: Why the checkpoint may not be committed; None if it may.
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopChild:
    """Exit: the process is not needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDone:
    """The answer to `RequestTransfer`."""

    number: int
    #: The error; None if the transfer was done.
    error: TuneError | None


ToChild = (
    InitChild | RunTrial | AnswerTrial | Acknowledge | Interrupt | CommitAllowed | TransferDone | StopChild
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildMessages:
    """Messages of the trial to the driver, each with its number."""

    messages: tuple[tuple[int, Content], ...]
    #: Whether the driver should collect them at once.
    urgent: bool

    def __reduce__(self) -> tuple[Any, ...]:
        # Several times as fast as the default of a frozen class with slots.
        return _child_messages, (self.messages, self.urgent)


def _child_messages(messages: tuple[tuple[int, Content], ...], urgent: bool) -> ChildMessages:
    return ChildMessages(messages=messages, urgent=urgent)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheckpoint:
    """Keep a checkpoint in the worker's memory; the message about it follows."""

    #: The path in the checkpoint's record.
    path: str
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCommit:
    """Ask whether a checkpoint may be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTransfer:
    """Request a transfer between the worker's disk and the storage, through the driver."""

    #: Number of the transfer, which the child has assigned.
    number: int
    transfer: Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTimedOut:
    """User code has reported nothing for too long; the child interrupts it."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFinished:
    """The trial's thread has ended."""

    #: The trial's last message, pickled.
    terminal: bytes
    #: Changes of the process that the next trial must not see; empty if there are none.
    changes: str


FromChild = ChildMessages | StoreCheckpoint | AskCommit | RequestTransfer | ReportTimedOut | ChildFinished
