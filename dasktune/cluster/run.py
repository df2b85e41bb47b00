"""The driver's view of an incarnation of a trial, and of the place on a worker where it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from dasktune.cluster.slot_handle import SlotHandle
from dasktune.placement import Placement
from dasktune.trainable.messages import (
    Answer,
    Committed,
    Ended,
    Failed,
    Message,
    Paused,
    PauseNow,
    Reported,
    Returned,
    Started,
    StopNow,
    Stopped,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.events import (
    AnyTrialEvent,
    CheckpointCommitted,
    ResultReported,
    TrialEnded,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.metrics import flatten
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Run", "Seat", "TERMINAL", "event_of", "streamed"]

#: Messages after which no other comes.
TERMINAL = (Ended, Paused, Stopped, Failed, Returned)


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """A place on a worker: what is reserved there, and who uses it, one after the other.

    The first run of a seat is on the worker's slot; those behind it were handed ahead and follow by
    themselves. The seat is given up when the last one has ended.
    """

    placement: Placement
    #: What was asked for.
    resources: PlacementGroupFactory
    #: Whether the worker does not see the experiment's storage.
    relayed: bool = False
    #: Who has been given it and has not ended, in order; under the executor's lock.
    runs: deque[Run] = field(default_factory=deque, repr=False)
    #: The slot on the worker, while there is one; for the client's loop, like all that follows.
    slot: SlotHandle | None = None
    #: Whether the slot is open and holds the resources.
    ready: bool = False
    #: The worker that is to blame if it comes to nothing; "" for its own.
    blamed: str = ""
    #: Whether that worker is merely in use.
    contended: bool = False

    @property
    def address(self) -> str:
        """The worker that runs user code."""
        return self.placement.address

    def equip(self, spec: TrialSpec) -> TrialSpec:
        """Tell a trial which workers and GPUs it has."""
        devices = self.placement.devices
        lease = None if self.slot is None else self.slot.lease
        if devices is not None and lease is not None and lease.devices:
            # The worker's word counts. The head's share is the first one there.
            devices = lease.devices[0]
        workers = tuple(bundle.address for bundle in self.placement.bundles)
        return replace(spec, devices=devices, bundle_workers=workers, relayed=self.relayed)


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One incarnation of a trial on a worker, from its placement to its last message."""

    trial_id: str
    incarnation: int
    #: Unique on the cluster.
    key: str
    #: Given by the executor, with the run in its place there.
    seat: Seat = field(init=False)
    spec: TrialSpec = field(repr=False)
    #: The pickled configuration.
    config: bytes = field(repr=False)
    #: Whether its checkpoint is still on its way to the worker, through memory.
    fetching: bool = False
    #: What that is called there; empty if it is in the storage.
    memory: str = ""
    #: What keeps it there.
    copy: Any = field(default=None, repr=False)
    #: Whether the worker was asked to run it, so that user code may have begun.
    assigned: bool = False
    #: How long it has been running, as the worker said last.
    seconds: float = 0.0
    #: Every message up to here stands in the journal.
    ack: int = 0
    #: Every message up to here has arrived.
    have: int = 0
    #: What the worker was last told of `ack` and `have`.
    told_ack: int = 0
    told_have: int = 0
    #: What its worker wanted carried is, or was, under way up to this number.
    hauled: int = 0
    #: What was decided and has not reached the worker yet.
    answers: list[Answer] = field(default_factory=list)
    #: The order to leave, once given.
    order: StopNow | PauseNow | None = None
    #: Whether it was told to leave because its driver does, of which the experiment knows nothing.
    withdrawn: bool = False
    #: When patience with user code that does not leave ends, on the loop's clock.
    patience: float = 0.0
    #: Whether user code is to be interrupted with the next call.
    interrupt: bool = False
    #: Whether user code was interrupted or left behind: its slot is not used again.
    tainted: bool = False
    #: How it ended, once the worker has said its last word.
    end: AnyTrialEvent | None = None
    #: Whether the experiment has been told how it ended.
    told: bool = False

    @property
    def address(self) -> str:
        """The worker's address."""
        return self.seat.address

    @property
    def starts_from_memory(self) -> bool:
        """Whether it goes on from a checkpoint in the memory of the workers."""
        record = self.spec.checkpoint
        return record is not None and record.kind is CheckpointKind.MEMORY

    def let_go(self) -> None:
        """Need the copy of the checkpoint no longer: the worker has taken it, or never will."""
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.release()


def streamed(run: Run, seq: int, metrics: dict[str, Any], now: float) -> ResultReported:
    """Return what a result means that nobody waits for: nearly all events are made here."""
    return ResultReported(
        trial_id=run.trial_id,
        incarnation=run.incarnation,
        time=now,
        seq=seq,
        metrics=metrics,
        awaits=False,
    )


def event_of(message: Message, run: Run, now: float) -> AnyTrialEvent:
    """Return what a worker's message means to the experiment."""
    common: dict[str, Any] = {
        "trial_id": run.trial_id,
        "incarnation": run.incarnation,
        "time": now,
        "seq": message.seq,
    }
    match message:
        case Started():
            return TrialStarted(**common, worker=run.address)
        case Reported():
            return ResultReported(
                **common,
                metrics=flatten(message.metrics),
                checkpoint=message.checkpoint,
                awaits=message.awaits,
            )
        case Committed():
            return CheckpointCommitted(**common, checkpoint=message.checkpoint)
        case Ended():
            return TrialEnded(**common)
        case Failed():
            return TrialFailed(**common, error=message.error)
        case Paused() if run.order is not None and not run.withdrawn:
            return TrialPaused(**common)
        case Stopped() if isinstance(run.order, StopNow):
            return TrialStopped(**common)
        case Returned():
            return TrialReturned(**common)
        case Paused() | Stopped():
            # It left by itself: its worker retires, or it had not heard from us for too long.
            reason = f"{run.address} gave the trial up, as it retires or had lost its driver"
            if run.withdrawn:
                reason = "the experiment was interrupted"
            return TrialLost(**common, reason=reason, charged=False)
