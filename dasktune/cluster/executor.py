"""Runs trials as Dask actors: the port between the runner and the cluster.

Two threads meet here. The runner's thread gives commands and takes events; the client's event loop
talks to the workers, in :mod:`dasktune.cluster.service`. A command is handed to the loop, an event
comes back through a queue, and nothing else is shared but the seating, which has a lock.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from distributed import Client

from dasktune.cluster.backoff import Backoff
from dasktune.cluster.connect import Connection
from dasktune.cluster.demand import Demand, Growth, Signal, signal
from dasktune.cluster.errands import Errands
from dasktune.cluster.payload import Payload
from dasktune.cluster.pings import Pings
from dasktune.cluster.run import Run
from dasktune.cluster.seating import Seating
from dasktune.cluster.service import ServiceSettings, TrialService
from dasktune.cluster.shortage import Shortage
from dasktune.cluster.watch import ClusterWatch
from dasktune.errors import ClusterError
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.runner.ports import Clock
from dasktune.trainable.messages import Answer, GoOn, PauseNow, SaveAndGoOn, StopNow
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.actions import (
    AdmitOthers,
    ContinueTraining,
    FailTrial,
    PauseTrial,
    RecallTrial,
    ResizeTrial,
    RestoreTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialAction,
)
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointLost,
    CheckpointStored,
    ClusterChanged,
    ExecutorEvent,
    StartFailed,
)
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["DaskTrialExecutor"]

logger = logging.getLogger(__name__)

#: Seconds for which nothing is placed on a worker that has just failed.
_AVOID = 15.0

#: And on one of which nothing bad is known: it may be leaving, which the next reading shows.
_AVOID_BRIEFLY = 2.0

#: Starts in a row that may fail, on whatever worker, before the cluster counts as unusable.
_MOST_FAILED_STARTS = 20

#: Results in the journal after which the worker hears of it at once; it buffers some thousands.
_ACK_AFTER = 1024


#: What streamed together is one item: a queue costs more than most events.
_Events = queue.SimpleQueue[Sequence[ExecutorEvent] | BaseException]


class DaskTrialExecutor:
    """Runs trials on a Dask cluster.

    Parameters
    ----------
    connection : Connection
        To the cluster; not closed by the executor.
    settings : ServiceSettings
        Limits, in seconds.
    payload : Payload
        The trainable.
    prepare : callable
        ``prepare(action)`` gives a trial's specification and its pickled configuration.
    clock : Clock
        Stamps the events.
    scheduler_wait : float, default=300.0
        Seconds that a lost scheduler may take to come back.
    admit : callable, optional
        Given all workers by address, returns them with another status where they may not take
        trials. Called on the client's loop at each reading of the workers.
    queue_trials : bool, optional
        Whether trials may wait for workers that are not there. None waits while there is no worker
        at all, or the cluster is known to be adaptive, and fails after 10 s if there are some and
        none is large enough.
    growth : Growth, optional
        What is known of how the cluster grows.
    advice : str, default=""
        What the trainable has to say where the resources do not suffice.
    """

    def __init__(
        self,
        connection: Connection,
        settings: ServiceSettings,
        *,
        payload: Payload,
        prepare: Callable[[StartTrial | RestoreTrial], tuple[TrialSpec, bytes]],
        clock: Clock,
        scheduler_wait: float = 300.0,
        admit: Callable[[Mapping[str, WorkerCapacity]], Mapping[str, WorkerCapacity]] = dict,
        queue_trials: bool | None = None,
        growth: Growth | None = None,
        advice: str = "",
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._prepare = prepare
        self._clock = clock
        self._admit = admit
        self._growth = growth or Growth()
        self._shortage = Shortage(self._growth, queue_trials, advice)
        self._demand = Demand(connection.client, settings.name, self._growth)
        #: What each worker had for us when it was told last.
        self._offers: dict[str, dict[str, float]] = {}
        #: What could start if there was room: what each asks for, and how many.
        self._waiting: tuple[PlacementGroupFactory | None, int] = (None, 0)
        self._events = _Events()
        self._errands = Errands(connection.client.loop.add_callback, self._events.put)
        self._seating = Seating(heartbeat_timeout=settings.heartbeat_timeout)
        self._running: dict[str, Run] = {}
        self._closed = False
        #: What has gone wrong for good, to be raised once the events before it are taken.
        self._crash: BaseException | None = None
        self._failed_starts = 0
        self._backoff = Backoff(settings.name)
        self._service = self._new_service(payload)
        self._pings = Pings(connection.client)
        self._watch = self._new_watch(scheduler_wait)
        self._watching: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[bool] | None = None
        self._client.sync(self._open)

    @property
    def _client(self) -> Client:
        return self._connection.client

    def _new_service(self, payload: Payload) -> TrialService:
        return TrialService(
            self._client,
            self._settings,
            payload=payload,
            now=self._clock.now,
            emit=self._events.put,
            on_free=self._on_free,
            on_trouble=self._on_trouble,
            on_crash=self._events.put,
        )

    def _new_watch(self, scheduler_wait: float) -> ClusterWatch:
        return ClusterWatch(
            self._client,
            scheduler_wait=scheduler_wait,
            ours=self._settings.name,
            answered=self._answered,
            on_workers=self._on_workers,
            on_removed=self._on_removed,
            on_disconnect=self._on_disconnect,
            on_reconnect=self._service.open,
        )

    # The port

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether a worker has room for this now.

        Raises
        ------
        PreflightError
            If no worker ever will, on a cluster that cannot grow.
        """
        fits = self._seating.has_room(request)
        if fits or self._running:
            self._shortage.end()
        else:
            now = time.monotonic()
            self._seating.study(lambda ledger, _: self._shortage.note(request, ledger, now))
        return fits

    def offers(self) -> Mapping[str, Mapping[str, float]]:
        """Return what the workers were last told to have."""
        return self._offers

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Hear what could start if there was room; an adaptive cluster is shown it."""
        (before, _), self._waiting = self._waiting, (request, count)
        if before is None and request is not None:
            # Later changes are shown at the next reading of the workers.
            self._errands.call_soon(self._show_demand)

    def takes_ahead(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial that needs this can follow one that ends within milliseconds."""
        return self._seating.takes_ahead(request, self._depth)

    def start_trial(self, action: StartTrial) -> None:
        """Run a trial from its beginning."""
        self._start(action)

    def restore(self, action: RestoreTrial) -> None:
        """Run a trial on from a checkpoint."""
        self._start(action)

    def continue_training(self, action: ContinueTraining) -> None:
        """Let a trial that waits at a milestone go on."""
        self._answer(action, GoOn(seq=action.seq, milestones=action.milestones))

    def save(self, action: SaveTrial) -> None:
        """Let a trial that waits at a milestone save a checkpoint and go on."""
        in_memory = self._room(action, action.kind)
        answer = SaveAndGoOn(seq=action.seq, milestones=action.milestones, in_memory=in_memory)
        self._answer(action, answer)

    def admit_others(self, action: AdmitOthers) -> None:
        """Let others run on a trial's worker, where it was to be alone."""
        run = self._running.get(action.trial_id)
        if run is not None and run.incarnation == action.incarnation:
            self._seating.admit_others(run)

    def pause_trial(self, action: PauseTrial | ResizeTrial | RecallTrial) -> None:
        """Take a trial off its worker, to go on later, or at once with other resources."""
        in_memory = self._room(action, action.kind)
        answer = PauseNow(save=action.save, reason=action.reason, in_memory=in_memory)
        self._answer(action, answer)

    def stop_trial(self, action: StopTrial | FailTrial) -> None:
        """End a trial on its worker."""
        self._answer(action, StopNow(reason=action.reason))

    def withdraw(self) -> None:
        """Have every trial save what it can and leave: each is told to be lost or returned."""
        self._errands.call_soon(self._service.withdraw)

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Write a checkpoint in memory to the storage; it is told to be stored or lost."""
        self._errands.call_soon(self._service.store, checkpoint.path)

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Let go of a checkpoint in memory, which may be lost already."""
        self._errands.call_soon(self._service.memory.drop, checkpoint.path)

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return what has happened, waiting at most `timeout` seconds for the first event.

        Raises
        ------
        ClusterLost
            If the scheduler is gone and has not come back in time.
        ClusterError
            If no trial gets going on any worker.
        """
        if self._crash is not None:
            raise self._crash
        events: list[ExecutorEvent] = []
        with suppress(queue.Empty):
            item = self._events.get(timeout=timeout)
            while not isinstance(item, BaseException):
                # A start that failed is an item of its own; an empty one only wakes.
                if item:
                    self._count_starts(item[-1])
                events += item
                item = self._events.get_nowait()
            # What happened before comes first: it is to stand in the journal.
            self._crash = item
        if self._crash is not None and not events:
            raise self._crash
        return events

    def wake(self) -> None:
        """Let the runner wait no longer; for any thread."""
        self._events.put(())

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Let the worker forget what stands in the journal; it hears of it with the next call."""
        run = self._running.get(trial_id)
        if run is not None and run.incarnation == incarnation:
            run.ack = max(run.ack, seq)
            if run.ack - run.told_ack >= _ACK_AFTER:
                # Before the worker's buffer is full and user code has to wait.
                self._errands.call_soon(self._service.wake, run)

    def close(self) -> None:
        """Stop what still runs, as far as it obeys, and take everything off the cluster.

        Calling it again does nothing.
        """
        if self._closed or self._client.status == "closed":
            return
        self._closed = True
        self._client.sync(self._close)

    # On the runner's thread

    def _start(self, action: StartTrial | RestoreTrial) -> None:
        spec, config = self._prepare(action)
        run = Run(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            key=f"{self._settings.name}-{action.trial_id}-{action.incarnation}",
            spec=spec,
            config=config,
        )
        if not self._seating.seat(run, action.resources, self._depth):
            # The room was taken between the question and the start.
            self._events.put([self._not_started(action)])
            return
        self._running[action.trial_id] = run
        self._errands.call_soon(self._serve, run)

    @property
    def _depth(self) -> int:
        """How many trials a seat may have."""
        return self._service.pace.depth if self._settings.reuse_actors else 1

    def _not_started(self, action: StartTrial | RestoreTrial) -> StartFailed:
        return StartFailed(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            time=self._clock.now(),
            reason="no worker had room for it any more",
            charged=False,
        )

    def _answer(self, action: TrialAction, answer: Answer) -> None:
        run = self._running.get(action.trial_id)
        if run is not None and run.incarnation == action.incarnation:
            self._errands.call_soon(self._service.answer, run, answer)

    def _room(self, action: TrialAction, kind: CheckpointKind) -> int:
        """Return how many bytes a trial's checkpoint may have to be kept on its worker."""
        run = self._running.get(action.trial_id)
        in_memory = kind is CheckpointKind.MEMORY and run is not None
        return self._service.memory.room(run.address) if in_memory and run is not None else 0

    def _count_starts(self, event: ExecutorEvent) -> None:
        if isinstance(event, CheckpointLost | CheckpointStored | ClusterChanged):
            return
        if not isinstance(event, StartFailed):
            self._failed_starts = 0
            self._backoff.reset()
            return
        if not event.charged:
            logger.info("trial %s has to wait: %s", event.trial_id, event.reason)
            return
        self._failed_starts += 1
        logger.warning("trial %s did not start: %s", event.trial_id, event.reason)
        if self._failed_starts >= _MOST_FAILED_STARTS:
            raise ClusterError(
                f"no trial gets going on this cluster; {self._failed_starts} starts in a row "
                f"failed, the last one because: {event.reason}"
            )

    # On the client's loop

    async def _open(self) -> None:
        await self._service.open()
        self._watch.open()
        await self._watch.read()
        self._watching = asyncio.get_running_loop().create_task(self._watch.run())
        self._watching.add_done_callback(self._on_watch_end)

    def _serve(self, run: Run) -> None:
        self._service.serve(run)
        gone = self._seating.missing(run.seat)
        for address in gone:
            self._service.lose(address, f"worker {address} left the cluster", charged=False)

    async def _close(self) -> None:
        self._demand.close()
        self._pings.close()
        await self._service.close()
        for task in (self._watching, self._settling):
            if task is not None:
                task.cancel()
        self._watch.close()

    def _on_watch_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put(error)

    def _on_workers(self, workers: Mapping[str, WorkerCapacity]) -> None:
        admitted = self._admit(workers)
        self._service.memory.note_workers(admitted)
        for address in self._seating.update(admitted):
            self._service.lose(address, f"worker {address} left the cluster")
        if workers and self._settling is None:
            # There may have been no worker to try when the connection was made.
            loop = asyncio.get_running_loop()
            self._settling = loop.create_task(self._connection.settle_direct())
        self._service.trim()
        self._show_demand()
        self._tell_cluster()
        if any(worker.status == "unchecked" for worker in admitted.values()):
            self._watch.look_soon()
        silence = self._settings.heartbeat_timeout
        # Where the clock is put back, workers send no heartbeat, and nobody talks with idle ones.
        self._pings.ask([one.address for one in workers.values() if one.age > silence / 2])
        for address, worker in workers.items():
            if worker.age > silence:
                self._service.lose(
                    address,
                    f"worker {address} has sent no heartbeat for {worker.age:.0f} s: "
                    "it hangs or is cut off",
                )

    def _answered(self, address: str) -> float:
        return max(self._service.answered(address), self._pings.answered(address))

    def _show_demand(self) -> None:
        request, count = self._waiting
        if self._closed:
            return
        if request is None or self._growth.is_adaptive is False:
            self._demand.show(None)
            return
        self._demand.show(self._seating.study(partial(self._missing, request, count)))

    def _tell_cluster(self) -> None:
        """Tell what the workers have, if it has changed, and once the losses are told."""
        offers = self._seating.study(lambda ledger, _: ledger.offers())
        runs = tuple(self._running.values())
        if offers and offers != self._offers and not any(map(self._is_at_loss, runs)):
            self._offers = offers
            self._events.put([ClusterChanged(workers=offers, time=self._clock.now())])

    def _is_at_loss(self, run: Run) -> bool:
        return bool(self._seating.missing(run.seat))

    def _missing(
        self, request: PlacementGroupFactory, count: int, ledger: Ledger, seats: int
    ) -> Signal | None:
        new = self._growth.expected(ledger)
        return signal(request, count, ledger, busy=seats, new_worker=new)

    def _on_removed(self, address: str, expected: bool, taken: int) -> None:
        worker = self._seating.remove(address)
        reason = f"worker {address} " + ("was shut down" if expected else "died")
        if worker is not None and not expected:
            reason += _of_what(worker, taken)
        self._service.lose(address, reason, charged=not expected)

    def _on_disconnect(self) -> None:
        self._seating.remove(None)
        self._service.lose(None, "the connection to the Dask scheduler was lost", charged=False)

    def _on_free(self, run: Run) -> bool:
        """Take a run off its seat, and say whether the seat was given up because of it."""
        is_free = self._seating.leave(run)
        if self._running.get(run.trial_id) is run:
            del self._running[run.trial_id]
        return is_free

    def _on_trouble(self, run: Run, charged: bool) -> None:
        address = run.seat.blamed or run.address
        seconds = _AVOID if charged else _AVOID_BRIEFLY
        if run.seat.contended:
            seconds = self._backoff.next()
        self._seating.avoid(address, seconds)


def _of_what(worker: WorkerCapacity, taken: int) -> str:
    """Return what a worker has died of, as far as its memory tells.

    Parameters
    ----------
    worker : WorkerCapacity
        The worker at its last reading.
    taken : int
        Bytes that it had taken when its nanny ended it for that, or 0.
    """
    limit = worker.memory_limit
    if taken:
        return f": it took too much memory, {taken >> 20} of {limit >> 20} MiB"
    if limit and worker.memory > 0.8 * limit:
        return (
            f"; its memory was probably exceeded: {worker.memory >> 20} of {limit >> 20} MiB "
            "at its last heartbeat"
        )
    return ""
