"""The driver's view of one incarnation of a trial on a worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from dasktune.cluster.lease import Lease
from dasktune.placement import Claim, Placement
from dasktune.trainable.messages import (
    Answer,
    Committed,
    Ended,
    Failed,
    Message,
    Paused,
    PauseNow,
    Reported,
    Started,
    StopNow,
    Stopped,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.events import (
    AnyTrialEvent,
    CheckpointCommitted,
    ResultReported,
    TrialEnded,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialStarted,
    TrialStopped,
)

__all__ = ["Run", "TERMINAL", "event_of"]

#: Messages after which no other comes.
TERMINAL = (Ended, Paused, Stopped, Failed)


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One incarnation of a trial on a worker, from its placement to its last message."""

    trial_id: str
    incarnation: int
    #: Unique on the cluster.
    key: str
    placement: Placement
    spec: TrialSpec = field(repr=False)
    #: The pickled configuration.
    config: bytes = field(repr=False)
    #: Why the worker is lost; set once.
    lost: asyncio.Future[tuple[str, bool]]
    #: Whether user code may have begun: the worker was asked to run it.
    assigned: bool = False
    #: Every message up to here stands in the journal.
    ack: int = 0
    #: What the worker was last told of `ack`.
    acked: int = 0
    #: How many calls were made about it.
    calls: int = 0
    #: Every message up to here has arrived.
    have: int = 0
    #: What was decided and has not reached the worker yet.
    answers: list[Answer] = field(default_factory=list)
    #: Set when there is something to fetch or to tell.
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    #: The order to leave, once given.
    order: StopNow | PauseNow | None = None
    #: When patience with user code that does not leave ends, on the loop's clock.
    patience: float = 0.0
    #: Whether user code was interrupted or left behind: its slot is not used again.
    tainted: bool = False
    #: What holds the resources of the bundles on other workers.
    leases: list[Lease] = field(default_factory=list)
    #: The worker that keeps it from running, if one does, and whether that is merely in use.
    blamed: str = ""
    contended: bool = False
    #: Whether the experiment has been told how it ended.
    told: bool = False
    #: Whether the worker has said its last word.
    over: bool = False

    @property
    def address(self) -> str:
        """The worker that runs the trial."""
        return self.placement.address

    @property
    def claim(self) -> Claim:
        """What it holds on that worker."""
        return self.placement.claim_on(self.address)

    def use_devices_of(self, lease: Lease) -> None:
        """Run on the GPUs that the worker gave, which the ledger may not have thought of."""
        if self.spec.devices is not None and lease.devices:
            # The head's share is the first of its worker's.
            self.spec = replace(self.spec, devices=lease.devices[0])

    def lose(self, reason: str, *, charged: bool = True) -> None:
        """Note that the worker is gone; only the first reason counts."""
        if not self.lost.done():
            self.lost.set_result((reason, charged))
            self.wake.set()


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
                metrics=message.metrics,
                checkpoint=message.checkpoint,
                awaits=message.awaits,
            )
        case Committed():
            return CheckpointCommitted(**common, checkpoint=message.checkpoint)
        case Ended():
            return TrialEnded(**common)
        case Failed():
            return TrialFailed(**common, error=message.error)
        case Paused() if run.order is not None:
            return TrialPaused(**common)
        case Stopped() if isinstance(run.order, StopNow):
            return TrialStopped(**common)
        case Paused() | Stopped():
            # It left by itself: its worker retires, or it had not heard from us for too long.
            reason = f"{run.address} gave the trial up, as it retires or had lost its driver"
            return TrialLost(**common, reason=reason, charged=False)
