"""The executor on a Dask cluster: connects the runner's thread to the client's event loop.

The runner's thread calls the port's methods. The client's event loop runs the dispatcher, which
talks to the workers. The two threads share little:

- A command of the runner becomes a function call on the loop, in the order of the commands
  (`LoopCallQueue`).
- Events return through a thread-safe queue.
- `Reservations` has a lock, which both threads take for short look-ups.
- `_running` is a dict that both threads use by single operations, which are atomic. The runner's
  thread adds a run, the loop removes it. The loop removes a run only if it is still the trial's
  current one: after a thread was abandoned, the trial's next run may have been added already.
- A command for a run that ended meanwhile is harmless: the dispatcher looks the run up by its key,
  which contains the incarnation, and ignores the command.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf

from distributed import Client

from dasktune.cluster.connection.connect import Connection
from dasktune.cluster.connection.loop_calls import LoopCallQueue
from dasktune.cluster.driver.dispatcher import DispatcherSettings, TrialDispatcher
from dasktune.cluster.driver.reservations import Reservations
from dasktune.cluster.driver.trial_run import TrialRun
from dasktune.cluster.driver.wanted_room import WantedRoom
from dasktune.cluster.driver.yielding import YieldChooser
from dasktune.cluster.membership.ping import Pinger
from dasktune.cluster.membership.worker_monitor import WorkerMonitor
from dasktune.cluster.protocol.payload import Payload
from dasktune.cluster.resources.adaptive_demand import AdaptiveDemand, Growth
from dasktune.cluster.resources.insufficient import DroppedWorkers, InsufficientResources
from dasktune.cluster.sharing.share_reporter import ShareReporter
from dasktune.errors import ClusterError
from dasktune.placement import ClusterShares, Ledger, WorkerCapacity
from dasktune.runner.ports import Clock
from dasktune.storage.fs.retry import RetrySchedule
from dasktune.trainable.reporting.trial_messages import (
    Answer,
    CheckpointRequest,
    ContinueAnswer,
    PauseAnswer,
    SaveAnswer,
    StopAnswer,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial import actions
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointLost,
    CheckpointStored,
    ClusterChanged,
    ExecutorEvent,
    ShareExceeded,
    StartFailed,
)
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory

logger = logging.getLogger(__name__)

#: Seconds for which no trial is placed on a worker after a failure that is not charged. The worker
#: may be healthy, or may be leaving, which the next reading of the workers shows. After a charged
#: failure it is avoided for longer.
_AVOID_BRIEFLY = 2.0

#: Number of newly journaled messages after which the worker is polled at once, so that it deletes
#: them. Its buffer holds some thousands.
_ACK_AFTER = 1024


#: Events that arrived together are one item, because the queue costs more than most events.
_Events = queue.SimpleQueue[Sequence[ExecutorEvent] | BaseException]


class NoTrialStartsError(ClusterError):
    """No trial could start on the cluster, which answers."""


class DaskTrialExecutor:
    """Runs trials on a Dask cluster.

    Parameters
    ----------
    connection : Connection
        The connection to the cluster; not closed by the executor.
    settings : DispatcherSettings
        The experiment's limits.
    payload : Payload
        The pickled trainable and its large objects.
    prepare : callable
        ``prepare(action)`` returns a trial's specification and its pickled configuration.
    clock : Clock
        Stamps the events.
    scheduler_wait : float, default=300.0
        Seconds to wait for a lost scheduler to come back.
    admit : callable, optional
        Given all workers by address, returns them with a changed status where they may not run
        trials. Called on the client's loop at each reading of the workers.
    queue_trials : bool, optional
        Whether trials may wait for workers that do not exist yet. By default they wait while there
        is no worker at all or the cluster is known to be adaptive. If there are workers and none is
        large enough, the experiment fails after 10 s.
    growth : Growth, optional
        How the cluster grows.
    advice : str, default=""
        The trainable's advice for an error about insufficient resources.
    """

    def __init__(
        self,
        connection: Connection,
        settings: DispatcherSettings,
        *,
        payload: Payload,
        prepare: Callable[[actions.StartTrial | actions.RestoreTrial], tuple[TrialSpec, bytes]],
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
        growth = growth or Growth()
        self._insufficient = InsufficientResources(
            growth,
            queue_trials,
            advice,
            impossible_timeout=settings.impossible_timeout,
            warning_interval=settings.warning_interval,
        )
        self._dropped = DroppedWorkers(growth)
        self._demand = AdaptiveDemand(connection.client, settings.name, growth)
        #: The workers that Dask has paused, as last read.
        self._paused: set[str] = set()
        #: The resources of each worker, as last reported to the runner, and the ledger's revision.
        self._reported: tuple[dict[str, dict[str, float]], int] = {}, -1
        self._events = _Events()
        self._loop_calls = LoopCallQueue(connection.client.loop.add_callback, self._events.put)
        self._reservations = Reservations(heartbeat_timeout=settings.heartbeat_timeout)
        self._running: dict[str, TrialRun] = {}
        self._wanted = WantedRoom(self._reservations, self._running, growth)
        self._closed = False
        #: The error that ends the experiment. It is raised after the events before it.
        self._crash: BaseException | None = None
        #: Numbers of the requests for checkpoints, of all trials together.
        self._request_numbers = count(1)
        self._failed_starts = 0
        self._backoff = RetrySchedule(inf, seed=settings.name)
        self._dispatcher = self._new_dispatcher(payload)
        self._share = self._new_share()
        self._yielding = YieldChooser(settings.yields_after, can_save=settings.can_save)
        self._pinger = Pinger(connection.client)
        self._monitor = self._new_monitor(scheduler_wait)
        self._monitor_task: asyncio.Task[None] | None = None
        self._probe_task: asyncio.Task[bool] | None = None
        self._client.sync(self._open)

    @property
    def _client(self) -> Client:
        return self._connection.client

    def _new_dispatcher(self, payload: Payload) -> TrialDispatcher:
        return TrialDispatcher(
            self._client,
            self._settings,
            payload=payload,
            now=self._clock.now,
            emit=self._events.put,
            release=self._release,
            on_failure=self._on_failure,
            on_crash=self._events.put,
            on_share=lambda: self._monitor.read_at_once(),
            on_notice=self._reservations.follow_notice,
            on_nearly_ended=self._on_nearly_ended,
        )

    def _new_share(self) -> ShareReporter:
        return ShareReporter(
            self._client,
            name=self._settings.name,
            label=self._settings.label,
            weight=self._settings.weight,
            priority=self._settings.priority,
            group=self._settings.share_group,
            waiting=self._wanted.waiting_trials,
            enabled=self._settings.leases and not self._connection.embedded,
        )

    def _new_monitor(self, scheduler_wait: float) -> WorkerMonitor:
        return WorkerMonitor(
            self._client,
            scheduler_wait=scheduler_wait,
            own_prefix=self._settings.name,
            answered_at=self._answered,
            on_workers=self._on_workers,
            on_removed=self._on_removed,
            on_disconnect=self._on_disconnect,
            on_reconnect=self._on_reconnect,
            share=self._share,
            # Whatever depends on a worker's silence waits for at least half of the timeout.
            recent_s=self._settings.heartbeat_timeout / 4,
        )

    # The port

    def has_resources(self, request: PlacementGroupFactory) -> bool:
        """Whether a worker has room for this now. A warning or error reports a lasting shortage.

        Raises
        ------
        PreflightError
            If no worker can ever meet the request, on a cluster that cannot grow.
        """
        fits = self._reservations.check_room(request)
        if fits or self._running:
            self._insufficient.reset()
        else:
            self._reservations.with_ledger(partial(self._check_shortage, request, self._reservations.clock()))
        return fits

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory]) -> bool:
        """Whether all requests would fit if their trials, which run, released their resources."""
        # The runner may not know yet that one of them has ended.
        runs = [(self._running.get(trial_id), request) for trial_id, request in requests.items()]
        known = [(run, request) for run, request in runs if run is not None]
        return len(known) == len(runs) and self._reservations.has_room_instead(known)

    def worker_resources(self) -> Mapping[str, Mapping[str, float]]:
        """Return the resources of the workers as last reported."""
        return self._reported[0]

    def cluster_shares(self) -> ClusterShares | None:
        """Return the shares of all experiments as of the last reading of the workers."""
        return self._share.shares

    def note_waiting(self, request: PlacementGroupFactory | None, count: int) -> None:
        """Note the request and the number of waiting trials; an adaptive cluster is shown both."""
        (before, _), self._wanted.waiting = self._wanted.waiting, (request, count)
        if before is None and request is not None:
            # Later changes are shown at the next reading of the workers.
            self._loop_calls.call_soon(self._show_demand)
        if (before is None) != (request is None) and self._share.others:
            self._loop_calls.call_soon(self._share.report_soon)

    def note_growing(self, requests: Mapping[str, ElasticPlacement]) -> None:
        """Note which trials would start again with more resources; see the port."""
        # It is shown at the next reading of the workers.
        self._wanted.growing = requests

    def can_prefetch(self, request: PlacementGroupFactory) -> bool:
        """Whether a trial with this request can be queued behind a short one."""
        return self._reservations.can_prefetch(request, self._depth)

    def start_trial(self, action: actions.StartTrial) -> None:
        """Run a trial from its beginning."""
        self._start(action)

    def restore(self, action: actions.RestoreTrial) -> None:
        """Run a trial from a checkpoint."""
        self._start(action)

    def continue_training(self, action: actions.ContinueTraining) -> None:
        """Let a trial that waits at a milestone continue."""
        self._answer(action, ContinueAnswer(seq=action.seq, milestones=action.milestones))

    def save(self, action: actions.SaveTrial) -> None:
        """Let a trial that waits at a milestone save a checkpoint and continue."""
        in_memory = self._memory_room(action, action.kind)
        answer = SaveAnswer(seq=action.seq, milestones=action.milestones, in_memory=in_memory)
        self._answer(action, answer)

    def checkpoint_trial(self, action: actions.CheckpointTrial) -> None:
        """Let a trial save a checkpoint at the result where it waits, or else with a later one."""
        self._answer(action, CheckpointRequest(number=next(self._request_numbers)))

    def admit_others(self, action: actions.AdmitOthers) -> None:
        """End a trial's exclusive use of its workers, so that other trials may run there."""
        run = self._running.get(action.trial_id)
        if run is not None and run.incarnation == action.incarnation:
            self._reservations.admit_others(run)

    def grow_trial(self, action: actions.GrowTrial) -> None:
        """Let a trial leave with its next checkpoint, to start again with all its ranks."""
        run = self._running.get(action.trial_id)
        if run is not None and run.incarnation == action.incarnation:
            self._loop_calls.call_soon(self._dispatcher.grow, run, action.reason)

    def pause_trial(self, action: actions.LeaveWorker) -> None:
        """End a trial's run, to resume it later, or at once with other resources."""
        in_memory = self._memory_room(action, action.kind)
        answer = PauseAnswer(save=action.save, reason=action.reason, in_memory=in_memory)
        self._answer(action, answer, is_patient=isinstance(action, actions.YieldTrial))

    def stop_trial(self, action: actions.EndOnWorker) -> None:
        """End a trial on its worker."""
        at_once = isinstance(action, actions.StopTrial) and action.at_once
        self._answer(action, StopAnswer(reason=action.reason), at_once=at_once)

    def set_share(self, action: actions.SetShare) -> None:
        """Change the experiment's share of the cluster, and Dask's priority of its later tasks."""
        self._loop_calls.call_soon(self._set_share, action)

    def withdraw(self) -> None:
        """Pause all trials, each with a new checkpoint.

        Emits `TrialLost` or `TrialReturned` for each of them.
        """
        self._loop_calls.call_soon(self._dispatcher.withdraw)

    def store_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Write a checkpoint in memory to the storage.

        Emits `CheckpointStored` or `CheckpointLost`.
        """
        self._loop_calls.call_soon(self._dispatcher.store_checkpoint, checkpoint.path)

    def drop_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Release a checkpoint in memory, which may be lost already."""
        self._loop_calls.call_soon(self._dispatcher.memory.release, checkpoint.path)

    def next_events(self, timeout: float) -> Sequence[ExecutorEvent]:
        """Return the events so far, waiting at most `timeout` seconds for the first one.

        Raises
        ------
        ClusterLost
            If the scheduler was lost and has not come back within `scheduler_wait` seconds.
        ClusterError
            If no trial could start on any worker.
        """
        self._loop_calls.flush()
        if self._crash is not None:
            raise self._crash
        events: list[ExecutorEvent] = []
        with suppress(queue.Empty):
            item = self._events.get(timeout=timeout)
            while not isinstance(item, BaseException):
                # A failed start is the last event of its item. `wake` puts an empty item.
                if item:
                    self._count_starts(item[-1])
                events += item
                item = self._events.get_nowait()
            # Events before the error are returned first, so that the journal has them.
            self._crash = item
        if self._crash is not None and not events:
            raise self._crash
        return events

    def wake(self) -> None:
        """Make `next_events` return at once. Safe in any thread and in a signal handler."""
        # A SimpleQueue is reentrant: a handler may put an item while its thread puts or waits.
        self._events.put(())

    def acknowledge(self, trial_id: str, incarnation: int, seq: int) -> None:
        """Note that messages are in the journal; the worker deletes them at its next poll.

        The client's loop reads `durable_seq` without a lock. An old value only makes the worker
        keep the messages until the poll after the next one.
        """
        run = self._running.get(trial_id)
        if run is not None and run.incarnation == incarnation:
            run.durable_seq = max(run.durable_seq, seq)
            if run.durable_seq - run.sent_durable >= _ACK_AFTER:
                # Soon: a full buffer on the worker would block user code.
                self._loop_calls.call_soon(self._dispatcher.wake, run)

    def close(self) -> None:
        """Stop all trials and remove the experiment from the cluster.

        Calling it again does nothing.
        """
        if self._closed or self._client.status == "closed":
            return
        self._closed = True
        self._wanted.close()
        self._loop_calls.flush()
        self._client.sync(self._close)

    # On the runner's thread

    def _start(self, action: actions.StartTrial | actions.RestoreTrial) -> None:
        spec, config = self._prepare(action)
        run = TrialRun(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            key=f"{self._settings.name}-{action.trial_id}-{action.incarnation}",
            spec=spec,
            config=config,
        )
        if not self._reservations.reserve(run, action.resources, self._depth):
            # A worker left, or another request took the room, since `has_resources` was called.
            self._events.put([self._not_started(action)])
            return
        self._running[action.trial_id] = run
        # All trials that the runner starts before it waits for events are started together, so that
        # the scheduler gets their tasks in one message.
        self._loop_calls.add(self._start_run, run)

    @property
    def _depth(self) -> int:
        """The number of trials that one reservation may have."""
        return self._dispatcher.prefetch.depth if self._settings.reuse_actors else 1

    def _not_started(self, action: actions.StartTrial | actions.RestoreTrial) -> StartFailed:
        return StartFailed(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            time=self._clock.now(),
            reason="no worker had room for it any more",
            charged=False,
        )

    def _answer(
        self,
        action: actions.TrialAction,
        answer: Answer,
        *,
        at_once: bool = False,
        is_patient: bool = False,
    ) -> None:
        run = self._running.get(action.trial_id)
        if run is not None and run.incarnation == action.incarnation:
            self._loop_calls.call_soon(self._dispatcher.answer, run, answer, at_once, is_patient)

    def _memory_room(self, action: actions.TrialAction, kind: CheckpointKind) -> int:
        """Return the largest checkpoint, in bytes, that the trial's worker may keep in memory."""
        run = self._running.get(action.trial_id)
        in_memory = kind is CheckpointKind.MEMORY and run is not None
        return self._dispatcher.memory.room(run.address) if in_memory and run is not None else 0

    def _count_starts(self, event: ExecutorEvent) -> None:
        if isinstance(event, CheckpointLost | CheckpointStored | ClusterChanged | ShareExceeded):
            return
        if not isinstance(event, StartFailed):
            self._failed_starts = 0
            self._backoff.end()
            return
        if not event.charged:
            logger.info("trial %s has not started yet: %s", event.trial_id, event.reason)
            return
        self._failed_starts += 1
        logger.warning("trial %s did not start: %s", event.trial_id, event.reason)
        if self._failed_starts >= self._settings.max_failed_starts:
            raise NoTrialStartsError(
                f"no trial could start: {self._failed_starts} start attempts in a row failed, the "
                f"last one because: {event.reason}"
            )

    def _check_shortage(self, request: PlacementGroupFactory, now: float, ledger: Ledger, _: int) -> None:
        shares = self._share.shares
        self._insufficient.check(request, ledger, now, share="" if shares is None else shares.waiting_text)

    # On the client's loop

    async def _open(self) -> None:
        await self._on_reconnect()
        self._monitor.open()
        await self._monitor.read()
        self._monitor_task = asyncio.get_running_loop().create_task(self._monitor.run())
        self._monitor_task.add_done_callback(self._on_monitor_end)

    async def _on_reconnect(self) -> None:
        await self._dispatcher.open()
        self._share.on_reconnect()

    def _start_run(self, run: TrialRun) -> None:
        # The runner's thread made the reservation some time ago. If a worker was removed in between
        # then `_on_removed` ran before the dispatcher had this run, and did not end it.
        self._dispatcher.start(run)
        gone = self._reservations.missing_workers(run.reservation)
        for address in gone:
            self._dispatcher.mark_lost(address, f"worker {address} left the cluster", charged=False)

    async def _close(self) -> None:
        self._demand.close()
        self._pinger.close()
        await self._dispatcher.close()
        await self._share.close()
        for task in (self._monitor_task, self._probe_task):
            if task is not None:
                task.cancel()
        self._monitor.close()

    def _on_monitor_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put(error)

    def _on_workers(self, workers: Mapping[str, WorkerCapacity]) -> None:
        self._warn_of_paused(workers)
        # Without leases a trial would not wait for the tasks that it overtakes.
        request = self._wanted.waiting[0] if self._settings.leases else None
        now = asyncio.get_running_loop().time()
        allowed = self._admit(workers)
        admitted = self._reservations.with_ledger(
            lambda ledger, _: self._dispatcher.task_queues.limit(allowed, request, ledger, now)
        )
        self._dispatcher.memory.update_workers(admitted)
        for address in self._reservations.update(admitted):
            self._dispatcher.mark_lost(address, f"worker {address} left the cluster")
        if workers and self._probe_task is None:
            # There may have been no worker to probe when the connection was opened.
            loop = asyncio.get_running_loop()
            self._probe_task = loop.create_task(self._connection.probe_direct())
        self._dispatcher.trim_idle()
        self._dropped.check(asyncio.get_running_loop().time())
        self._show_demand()
        self._share.warn_of_undeclared(admitted.values())
        self._report_capacity()
        overtakes = any(worker.overtakable for worker in admitted.values())
        if (self._share.others or overtakes) and self._wanted.waiting[0] is not None:
            # There may be room now that was another experiment's, or that tasks have booked.
            self.wake()
        self._yield_trials()
        if any(worker.status == "unchecked" for worker in admitted.values()):
            self._monitor.read_soon()
        silence = self._settings.heartbeat_timeout
        # After its clock was set back a worker sends no heartbeat, and a worker without trials is
        # not polled. Its answer to a ping shows that it is alive.
        self._pinger.ping([one.address for one in workers.values() if one.age > silence / 2])
        for address, worker in workers.items():
            if worker.age > silence:
                self._dispatcher.mark_lost(
                    address,
                    f"worker {address} has sent no heartbeat for {worker.age:.0f} s: "
                    "it hangs or has lost its connection",
                )

    def _warn_of_paused(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Warn of each worker that Dask has paused since the last reading."""
        paused = {address for address, worker in workers.items() if worker.status == "paused"}
        for address in sorted(paused - self._paused):
            logger.warning(
                "worker %s is paused, because its memory is nearly full: its trials continue, and no "
                "other trial starts there until it has room again. If it stays so, give the workers more "
                "memory (memory_limit), or let the trials use less",
                address,
            )
        self._paused = paused

    def _answered(self, address: str) -> float:
        return max(self._dispatcher.answered_at(address), self._pinger.answered_at(address))

    def _show_demand(self) -> None:
        if not self._closed:
            self._demand.show(self._wanted.missing(self._share.demands))

    def _yield_trials(self) -> None:
        """Report the trials that should yield to another experiment; the experiment decides."""
        over, seconds = self._share.over
        now = asyncio.get_running_loop().time()
        runs = tuple(self._running.values()) if over else ()
        for run in self._yielding.choose(over, seconds, runs, now):
            reason = f"the experiment has held more than its share of the cluster for {seconds:.0f} s"
            event = ShareExceeded(
                trial_id=run.trial_id, incarnation=run.incarnation, reason=reason, time=self._clock.now()
            )
            self._events.put([event])

    def _set_share(self, action: actions.SetShare) -> None:
        # After the end the reporter would register the experiment on the scheduler again.
        if self._closed:
            return
        if action.priority is not None:
            self._dispatcher.set_priority(action.priority)
        if action.yields_after is not None:
            self._yielding.yields_after = action.yields_after
        self._share.set_share(weight=action.weight, priority=action.priority)

    def _report_capacity(self) -> None:
        """Report the workers' resources if they have changed.

        It waits while a run on a removed worker has not ended yet, so that the runner gets the loss
        of the trial before the smaller resources of the cluster.
        """
        offers, revision = self._reported
        # With a thousand workers it would take milliseconds to see that all have what they had.
        if self._reservations.with_ledger(lambda ledger, _: ledger.revision) == revision:
            return
        if any(map(self._has_lost_worker, tuple(self._running.values()))):
            return
        found, revision = self._reservations.with_ledger(
            lambda ledger, _: (ledger.available_resources(), ledger.revision)
        )
        self._reported = found or offers, revision
        if found and found != offers:
            self._events.put([ClusterChanged(workers=found, time=self._clock.now())])

    def _has_lost_worker(self, run: TrialRun) -> bool:
        return bool(self._reservations.missing_workers(run.reservation))

    def _on_removed(self, address: str, expected: bool, taken: int) -> None:
        worker = self._reservations.remove(address)
        reason = f"worker {address} " + ("was shut down" if expected else "died")
        if worker is not None and not expected:
            reason += _death_cause(worker, taken)
        self._dispatcher.mark_lost(address, reason, charged=not expected)

    def _on_disconnect(self) -> None:
        self._reservations.remove(None)
        self._dispatcher.mark_lost(None, "the connection to the Dask scheduler was lost", charged=False)

    def _release(self, run: TrialRun) -> bool:
        """Remove a run from its reservation; return whether that freed the reservation."""
        is_free = self._reservations.release(run)
        if self._running.get(run.trial_id) is run:
            del self._running[run.trial_id]
        return is_free

    def _on_nearly_ended(self, run: TrialRun, seconds: float) -> None:
        if self._reservations.note_nearly_ended(run, seconds):
            self.wake()

    def _on_failure(self, run: TrialRun, charged: bool) -> None:
        if run.grows and not (charged or run.reservation.blamed):
            return  # It has left to use the same workers again.
        address = run.reservation.blamed or run.address
        usual = self._settings.avoid_time if charged else _AVOID_BRIEFLY
        seconds = run.reservation.pause_s or usual
        if run.reservation.contended:
            # Another client holds the resources, so retry after random waits that become longer.
            seconds = self._backoff.next_delay()
        self._reservations.avoid(address, seconds)


def _death_cause(worker: WorkerCapacity, taken: int) -> str:
    """Return why a worker died, as far as its memory use shows.

    Parameters
    ----------
    worker : WorkerCapacity
        The worker as last read from the scheduler.
    taken : int
        Bytes that the worker used when its nanny killed it for using too much memory; 0 if the
        nanny has not reported that.
    """
    limit = worker.memory_limit
    if taken:
        return f": it used too much memory, {taken >> 20} of {limit >> 20} MiB"
    if limit and worker.memory > 0.8 * limit:
        return (
            f"; it probably exceeded its memory limit: {worker.memory >> 20} of {limit >> 20} MiB "
            "at its last heartbeat"
        )
    return ""
