"""What a worker and the process of a trial tell each other: values that pickle.

Whatever the worker says about a trial comes after its `Begin`, in order. The trial's process says
`Said`, `Keep`, `MayCommit`, `Carry` and `Hung` as often as it likes, and `Over` once for each
`Begin`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.contents import Content
from dasktune.trainable.messages import Answer
from dasktune.trainable.parcel import Parcel
from dasktune.trainable.relay import Haul
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.events import ErrorInfo

__all__ = [
    "Acknowledge",
    "Begin",
    "Carried",
    "Carry",
    "FromChild",
    "Hello",
    "Hung",
    "Interrupt",
    "Keep",
    "Leave",
    "MayCommit",
    "Over",
    "Said",
    "Tell",
    "ToChild",
    "Verdict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message: how the child becomes what its worker needs."""

    #: Process id of the worker, without which the child has nothing to live for.
    parent: int
    #: File descriptor for the tracebacks of crashes.
    crash_file: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Run a trial."""

    spec: TrialSpec
    parcel: Parcel
    #: Whether the object of a class trainable is kept for the next trial.
    reuse: bool = False
    #: The checkpoint to go on from, if that was kept in memory.
    packed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Pass on an answer of the driver."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Every message up to this number stands in the driver's journal."""

    ack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Interrupt user code, as far as Python allows; a kill follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to `MayCommit`."""

    #: Why not; None to commit.
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Exit: the process is not needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The answer to `Carry`."""

    number: int
    #: Why it was not carried; None if it was.
    error: TuneError | None


ToChild = Hello | Begin | Tell | Acknowledge | Interrupt | Verdict | Carried | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Messages of the trial to the driver, each with its number."""

    messages: tuple[tuple[int, Content], ...]
    #: Whether the driver should come for them at once.
    urgent: bool

    def __reduce__(self) -> tuple[Any, ...]:
        # Several times as fast as what a frozen class with slots does by itself.
        return _said, (self.messages, self.urgent)


def _said(messages: tuple[tuple[int, Content], ...], urgent: bool) -> Said:
    return Said(messages=messages, urgent=urgent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep a checkpoint in the worker's memory; the message about it follows."""

    #: Of its record.
    path: str
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MayCommit:
    """Ask whether a checkpoint may come into being."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """Ask the worker to have something carried between its disk and the storage."""

    #: The child's number of it.
    number: int
    haul: Haul


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """User code has come to no result for too long; it is being interrupted."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The trial's thread has ended."""

    #: Its last message, pickled.
    terminal: bytes
    #: What the trial has left behind that the next one must not find; empty if nothing.
    traces: str


FromChild = Said | Keep | MayCommit | Carry | Hung | Over
