"""The driver's record of a trial's run, and of the reservation that the run uses on a worker."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from dasktune.cluster.driver.actor_handle import ActorHandle
from dasktune.cluster.protocol.wire_messages import Assignment, TrialUpdate
from dasktune.isolation.ranks.rank_layout import lay_out
from dasktune.placement import Placement
from dasktune.trainable.reporting import trial_messages
from dasktune.trainable.spec import TrialSpec
from dasktune.trial import events
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.metrics import flatten
from dasktune.trial.resources import PlacementGroupFactory

#: A trial's last message is one of these.
TERMINAL = (
    trial_messages.Ended,
    trial_messages.Paused,
    trial_messages.Stopped,
    trial_messages.Failed,
    trial_messages.Unrestored,
    trial_messages.Returned,
)


@dataclass(slots=True, kw_only=True, eq=False)
class Reservation:
    """Reserved resources on one or more workers, and the runs that use them one after another.

    The first run executes on the reservation's actor. The runs behind it were prefetched: the
    worker starts the next one when the one before ends. The last run's end frees the resources.
    """

    placement: Placement
    #: The request that the placement meets.
    resources: PlacementGroupFactory
    #: Whether the worker lacks access to the storage, so that the driver relays checkpoints.
    relayed: bool = False
    #: Whether its leases overtake tasks of other programs, so that each waits for the end of one.
    overtakes: bool = False
    #: Whether all workers of the placement have access to the storage.
    all_share: bool = True
    #: The runs that have not ended, in order. Both threads use it, under the lock of
    #: `Reservations`; all fields below belong to the client's event loop.
    runs: deque[TrialRun] = field(default_factory=deque, repr=False)
    #: The actor on the worker; None before the first run starts and after the actor was released.
    actor: ActorHandle | None = None
    #: Whether the actor is open and its leases are held.
    ready: bool = False
    #: The address of the worker that caused a failure; "" for the reservation's first worker.
    blamed: str = ""
    #: Whether the blamed worker is healthy and only its resources are in use by another client.
    contended: bool = False
    #: Seconds for which the blamed worker should get no trial; 0 for the usual time.
    pause_s: float = 0.0
    #: Whether its resources were still there for another trial when it was freed. Otherwise they
    #: are for another experiment or another client.
    may_repeat: bool = True

    @property
    def address(self) -> str:
        """The worker that runs user code."""
        return self.placement.address

    def placed_spec(self, spec: TrialSpec) -> TrialSpec:
        """Return a trial's specification with the workers and GPUs of this reservation."""
        devices = self.placement.devices
        lease = None if self.actor is None else self.actor.lease
        if devices is not None and lease is not None and lease.devices:
            # The worker decides which GPUs are free. The first share belongs to the head bundle.
            devices = lease.devices[0]
        workers = tuple(bundle.address for bundle in self.placement.bundles)
        # Each rank writes its own files, so one worker without the storage is enough.
        relayed = self.relayed or (spec.ranks is not None and not self.all_share)
        placed = replace(spec, devices=devices, bundle_workers=workers, relayed=relayed)
        return placed if spec.ranks is None else replace(placed, bundle_devices=self._bundle_devices())

    def _bundle_devices(self) -> tuple[tuple[str, ...] | None, ...]:
        """Return the GPUs of each bundle, None for a bundle without any."""
        actor = self.actor
        held = [] if actor is None else [actor.lease, *actor.helper_leases]
        # Each lease has the devices of the bundles on its worker that request GPUs, in their order.
        granted = {lease.address: iter(lease.devices) for lease in held if lease is not None}
        return tuple(
            None if not bundle.devices else next(granted.get(bundle.address, iter(())), bundle.devices)
            for bundle in self.placement.bundles
        )


@dataclass(slots=True, kw_only=True, eq=False)
class TrialRun:
    """One incarnation of a trial on a worker, from its reservation to its last message.

    The runner's thread creates it and raises `durable_seq`. All other changes happen on the
    client's event loop.
    """

    trial_id: str
    incarnation: int
    #: Unique on the cluster.
    key: str
    #: Set once by `Reservations.reserve`, before the client's loop sees the run.
    reservation: Reservation = field(init=False)
    spec: TrialSpec = field(repr=False)
    #: The pickled configuration.
    config: bytes = field(repr=False)
    #: Whether a checkpoint in memory is still on its way to the worker.
    fetching: bool = False
    #: The key of that checkpoint on the worker; empty if it is in the storage.
    memory_key: str = ""
    #: The Dask future that keeps the copy on the worker until the worker has read it.
    memory_copy: Any = field(default=None, repr=False)
    #: Whether the run is in a request to the worker, so that user code may have started.
    assigned: bool = False
    #: Seconds for which the trial has been running, by the worker's last report.
    seconds: float = 0.0
    #: Every message up to this number is in the journal. The runner's thread raises it and the
    #: client's loop reads it. A stale value is safe: the worker keeps messages a little longer.
    durable_seq: int = 0
    #: Every message up to this number has arrived. Later copies of these messages are ignored.
    received_seq: int = 0
    #: When its first message and its first result arrived, on the loop's clock.
    started_at: float | None = None
    first_result_at: float | None = None
    #: Fires shortly before the predicted end.
    nearly_ended: asyncio.TimerHandle | None = field(default=None, repr=False)
    #: The values of `durable_seq` and `received_seq` that the worker has confirmed.
    sent_durable: int = 0
    sent_received: int = 0
    #: The highest number of a transfer that was started for the run.
    last_transfer: int = 0
    #: The experiment's answers that the worker has not confirmed.
    answers: list[trial_messages.Answer] = field(default_factory=list)
    #: The order to stop or pause; None until the experiment or the driver gives one.
    order: trial_messages.StopAnswer | trial_messages.PauseAnswer | None = None
    #: Whether the pause was ordered because the driver exits, and not by the experiment.
    withdrawn: bool = False
    #: Why the run leaves its worker: one of its workers was given notice. Empty without a notice.
    notice: str = ""
    #: Why the run leaves its workers with its next checkpoint, to continue with more ranks.
    grows: str = ""
    #: When to escalate the stop if user code has not obeyed it, on the loop's clock.
    escalate_at: float = 0.0
    #: Seconds between two steps of that.
    escalate_every: float = 0.0
    #: Whether the next request orders the worker to interrupt user code.
    interrupt: bool = False
    #: Whether user code of this run may still run on the actor, so that it gets no other trial.
    not_reusable: bool = False
    #: Whether user code was interrupted once; the next time its thread is abandoned.
    interrupted: bool = False
    #: The event of the run's last message, once that has arrived.
    end: events.TrialEvent | None = None
    #: Whether the experiment has been sent the event of the run's end.
    end_reported: bool = False

    @property
    def address(self) -> str:
        """The address of the worker that runs user code."""
        return self.reservation.address

    @property
    def starts_from_memory(self) -> bool:
        """Whether the run starts from a checkpoint in the workers' memory."""
        record = self.spec.checkpoint
        return record is not None and record.kind is CheckpointKind.MEMORY

    @property
    def has_cancelled_actor(self) -> bool:
        """Whether another client made Dask release the actor."""
        actor = self.reservation.actor
        return actor is not None and actor.is_cancelled

    def release_copy(self) -> None:
        """Release the copy of the checkpoint: the worker has read it, or never will."""
        copy, self.memory_copy = self.memory_copy, None
        if copy is not None:
            copy.release()

    def assignment(self) -> Assignment:
        """Return the message that assigns the run to the worker. The actor must be ready."""
        actor = self.reservation.actor
        assert actor is not None
        return Assignment(
            incarnation=self.key,
            actor=actor.key,
            spec=self.reservation.placed_spec(self.spec),
            config=self.config,
            memory_key=self.memory_key,
        )

    def pending_update(self) -> TrialUpdate | None:
        """Return the news that the worker has not confirmed; None if there are none."""
        if not self.assigned or not (
            self.answers
            or self.interrupt
            or self.received_seq > self.sent_received
            or self.durable_seq > self.sent_durable
        ):
            return None
        return TrialUpdate(
            incarnation=self.key,
            durable_seq=self.durable_seq,
            received_seq=self.received_seq,
            answers=tuple(self.answers),
            interrupt=self.interrupt,
        )

    def confirm(self, update: TrialUpdate) -> None:
        """Note that the worker has an update that :meth:`pending_update` returned."""
        # Answers that were added during the call stay. They come after the answers in the update.
        del self.answers[: len(update.answers)]
        self.sent_durable, self.sent_received = update.durable_seq, update.received_seq
        self.interrupt = self.interrupt and not update.interrupt


def is_about_memory(
    message: trial_messages.Message,
) -> TypeGuard[trial_messages.Committed | trial_messages.Returned]:
    """Whether a message is about a checkpoint in memory: one was left there, or one is missing."""
    match message:
        case trial_messages.Committed(size=size):
            return size > 0
        case trial_messages.Returned(lacks_checkpoint=lacks):
            return lacks
        case _:
            return False


def streamed_result(run: TrialRun, seq: int, metrics: dict[str, Any], now: float) -> events.ResultReported:
    """Return the event of a streamed result, for which the trial does not wait.

    This function makes nearly all events of an experiment, so it is kept fast.
    """
    return events.ResultReported(
        trial_id=run.trial_id, incarnation=run.incarnation, time=now, seq=seq, metrics=metrics, awaits=False
    )


def event_from_message(message: trial_messages.Message, run: TrialRun, now: float) -> events.TrialEvent:
    """Return the experiment's event for a trial's message."""
    common: dict[str, Any] = {
        "trial_id": run.trial_id,
        "incarnation": run.incarnation,
        "time": now,
        "seq": message.seq,
    }
    match message:
        case trial_messages.Started():
            return events.TrialStarted(**common, worker=run.address, ranks=_places_of_ranks(run))
        case trial_messages.Reported():
            return events.ResultReported(
                **common,
                metrics=flatten(message.metrics),
                checkpoint=message.checkpoint,
                awaits=message.awaits,
            )
        case trial_messages.Committed():
            return events.CheckpointCommitted(**common, checkpoint=message.checkpoint)
        case trial_messages.Ended():
            return events.TrialEnded(**common)
        case trial_messages.Failed():
            return events.TrialFailed(**common, error=message.error)
        case trial_messages.Unrestored():
            path = message.checkpoint.path
            return events.RestoreFailed(**common, path=path, reason=message.reason)
        case trial_messages.Paused() if run.order is not None and not run.withdrawn:
            return events.TrialPaused(**common)
        case trial_messages.Stopped() if isinstance(run.order, trial_messages.StopAnswer):
            return events.TrialStopped(**common)
        case trial_messages.Returned():
            return events.TrialReturned(**common)
        case trial_messages.Paused() | trial_messages.Stopped():
            # The experiment did not order it. The trial is lost without a failure and runs again
            # elsewhere.
            return events.TrialLost(**common, reason=_reason_to_leave(run), charged=False)


def _places_of_ranks(run: TrialRun) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the worker and the GPUs of each rank; nothing for a trial of one process."""
    if run.spec.ranks is None:
        return ()
    spec = run.reservation.placed_spec(run.spec)
    return tuple(
        (place.address, spec.bundle_devices[place.bundle] or ()) for place in lay_out(spec.bundle_workers)
    )


def _reason_to_leave(run: TrialRun) -> str:
    """Return why a run has left its worker although the experiment did not order it."""
    if run.withdrawn:
        return "the experiment was interrupted"
    if run.notice:
        return f"{run.address} stopped the trial after a notice: {run.notice}"
    if run.grows:
        return f"it has left to start again: {run.grows}"
    return f"{run.address} stopped the trial, as it retires or lost contact to its driver"
