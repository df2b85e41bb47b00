"""Dispatches trials to the workers and frees their resources when they end.

There is one :class:`~dasktune.cluster.driver.worker_link.WorkerLink` for each worker, and one
reservation for each trial or queue of short trials. The dispatcher makes the actor of a reservation
ready and assigns the runs to its link.

Everything here runs on the client's event loop. Tasks that get an actor ready or fetch a checkpoint
may find after each ``await`` that their run has ended: it was stopped, its worker was lost, or
another worker that it needs was lost. So they check that its link still has the run before they use
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import cloudpickle
from distributed import Client

from dasktune.cluster.connection.by_value import PortablePlugin
from dasktune.cluster.data.broadcast import BroadcastFailed, ObjectBroadcast
from dasktune.cluster.data.memory_checkpoints import CheckpointGone, MemoryCheckpoints
from dasktune.cluster.driver.actor_handle import ActorCallFailed, ActorHandle
from dasktune.cluster.driver.actor_pool import ActorPool, PoolLimits, WorkerSlow
from dasktune.cluster.driver.checkpoint_relay import CheckpointRelay
from dasktune.cluster.driver.prefetch import STEADY_S, PrefetchPolicy
from dasktune.cluster.driver.task_queues import TaskQueues
from dasktune.cluster.driver.trial_run import Reservation, TrialRun
from dasktune.cluster.driver.worker_link import LinkCallbacks, WorkerLink, WorkerLost
from dasktune.cluster.membership.ping import wait_unless_hung
from dasktune.cluster.membership.stale_plugins import plugin_name, remove_stale_plugins
from dasktune.cluster.protocol.payload import Payload
from dasktune.cluster.protocol.wire_messages import (
    LeaseGranted,
    ReportsReady,
    ShareChanged,
    WorkerNoticed,
    decode_notification,
)
from dasktune.cluster.resources.resource_lease import LeaseFailed
from dasktune.cluster.worker import experiment_plugin as plugin_module
from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin, process_group
from dasktune.text.formatting import one_line
from dasktune.trainable.reporting.trial_messages import (
    Answer,
    Committed,
    NoticeAnswer,
    Returned,
    StopAnswer,
    Unrestored,
)
from dasktune.trial.events import (
    ExecutorEvent,
    StartFailed,
    TrialEvent,
    TrialLost,
)

logger = logging.getLogger(__name__)

#: Seconds to wait for the workers to add or remove the plugin. The wait ends earlier if a worker
#: hangs.
_PLUGIN_DEADLINE = 10.0

#: Added to Dask's priority of the experiment's tasks, so that thousands of earlier tasks of other
#: programs do not delay them. They end or secede at once, and those that request resources ask for
#: what is free, or overtake one task at a time, see `TaskQueues`.
_ABOVE_TASKS = 0.5

#: Number of attempts to register the plugin. An attempt fails if a worker dies during it.
_REGISTER_ATTEMPTS = 5

#: Least number of seconds between two polls of a worker without a notification. The loss of a
#: notification delays results by up to this time.
_POLL_INTERVAL = 1.0

#: With many workers, the seconds between two polls of a worker are this times the number of
#: workers. A poll takes about 1 ms, so polls without a notification take at most a tenth of the
#: loop's time.
_SECONDS_PER_WORKER = 0.01


#: Most columns of the reason of a notice, which comes from another program.
_LONGEST_REASON = 200

#: Seconds after its announced end in which the loss of a worker is still due to its notice.
_LATE_END = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    """Limits of an experiment on the cluster, in seconds unless noted.

    `name` is unique on the cluster. `heartbeat_timeout`, `driver_ttl`, `stop_grace` and `priority`
    are the user's, see :class:`~dasktune.RunConfig`. `reuse_actors` is whether an actor runs
    several trials, one after another. `leases` is whether actors reserve Dask resources.
    `memory_limit` is the largest checkpoint, in bytes, that is kept in the workers' memory; 0 keeps
    none there. `weight` and `label`, the name that users know, are for the fair share of the
    cluster, as are the user's `yields_after` and `share_group`. With `disk_first` no checkpoint is
    kept in memory while all workers are on one machine. The fields that have a comment are not
    settings of the user.
    """

    name: str
    heartbeat_timeout: float = 30.0
    driver_ttl: float = 30.0
    stop_grace: float = 10.0
    reuse_actors: bool = True
    leases: bool = True
    memory_limit: int = 0
    disk_first: bool = False
    priority: float = 0
    weight: float = 1.0
    label: str = ""
    yields_after: float = inf
    share_group: str = ""
    #: Whether a trial that is paused at its next result loses no step: its class can save.
    can_save: bool = False
    #: Whether trials run on several processes, so that user code runs on all workers of a trial.
    distributed: bool = False
    #: How long a worker may take to create an actor. A slow worker gets longer the next time, also
    #: for the two limits below; see `StartPacer`.
    open_timeout: float = 15.0
    #: How long a worker may take to grant a lease. The ledger chose a worker with room, so a lease
    #: that waits longer has lost a race against another client.
    lease_timeout: float = 10.0
    #: How long an attempt to send the large objects to a worker may take, in addition to the time
    #: that their size allows.
    broadcast_timeout: float = 30.0
    #: How long an idle actor is kept. Dask does not retire a worker that has an actor, and logs a
    #: warning if it tries. An adaptive cluster decides within 3 s to retire an idle worker.
    idle_time: float = 1.0
    #: How long an idle actor keeps its lease. The next trial mostly comes within milliseconds.
    #: Until then other clients wait for the resources, and Dask does not scale the worker down.
    idle_lease_time: float = 0.25
    #: How long no trial is placed on a worker that has just failed.
    avoid_time: float = 15.0
    #: Number of failed starts in a row, on any workers, after which the experiment fails. A start
    #: that was only slow does not count.
    max_failed_starts: int = 20
    #: How long no worker may be able to meet a request before the experiment fails.
    impossible_timeout: float = 10.0
    #: Time between two warnings while no trial can run.
    warning_interval: float = 60.0
    #: Mean deviation of the durations of trials, in seconds, up to which the end of a trial is
    #: predicted.
    steady_s: float = STEADY_S

    @property
    def fence_after(self) -> float:
        """Seconds of silence of the driver after which a worker commits no checkpoint.

        It is much shorter than `heartbeat_timeout`: a worker that is cut off stops committing
        before the driver marks it lost and starts its trials elsewhere.
        """
        return self.heartbeat_timeout / 3


class TrialDispatcher:
    """Runs trials on the workers and emits their events.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    settings : DispatcherSettings
        The experiment's limits.
    payload : Payload
        The pickled trainable and its large objects.
    now : callable
        Returns the seconds on the runner's clock, for the events.
    emit : callable
        Called with events. The events of each trial come in order.
    release : callable
        Called with a run that has ended, before its last event is emitted. Returns whether its
        reservation was freed, because no other run is queued on it.
    on_failure : callable
        Called with a run that did not start or was lost, and whether the trial was charged.
    on_crash : callable
        Called with an unexpected exception of a background task: a bug, which would otherwise leave
        trials waiting for ever.
    on_share : callable
        Called when the experiment's share of the cluster has changed.
    on_notice : callable
        Called with the address of a worker that was given notice, and the seconds for which it
        gets no trial.
    on_nearly_ended : callable
        Called with a run shortly before its predicted end, and the seconds for which its actor may
        get the next one.
    make_link : callable, default=WorkerLink
        Makes the link to a worker, with the arguments of `WorkerLink`.
    """

    def __init__(
        self,
        client: Client,
        settings: DispatcherSettings,
        *,
        payload: Payload,
        now: Callable[[], float],
        emit: Callable[[Sequence[ExecutorEvent]], None],
        release: Callable[[TrialRun], bool],
        on_failure: Callable[[TrialRun, bool], None],
        on_crash: Callable[[BaseException], None],
        on_share: Callable[[], None],
        on_notice: Callable[[str, float], None],
        on_nearly_ended: Callable[[TrialRun, float], None] = lambda run, seconds: None,
        make_link: Callable[..., WorkerLink] = WorkerLink,
    ) -> None:
        self.prefetch = PrefetchPolicy(steady_s=settings.steady_s)
        self.task_queues = TaskQueues()
        self._client = client
        self._settings = settings
        self._plugin = ExperimentPlugin(
            plugin_name(settings.name, client.id),
            payload.blob,
            terminal=process_group(),
            driver=os.getpid(),
        )
        self._objects = ObjectBroadcast(
            client,
            payload,
            name=settings.name,
            plugin=self._plugin.name,
            priority=settings.priority + _ABOVE_TASKS,
            timeout_s=settings.broadcast_timeout,
        )
        self._now = now
        self._emit = emit
        self._release = release
        self._on_failure = on_failure
        self._on_crash = on_crash
        self._on_share = on_share
        self._on_notice = on_notice
        self._on_nearly_ended = on_nearly_ended
        self._make_link = make_link
        #: When the workers that were given notice end, on the loop's clock, by address.
        self._noticed: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Number of actors that are being made ready.
        self._num_starting = 0
        self.memory = self._new_memory()
        self._links: dict[str, WorkerLink] = {}
        self._callbacks = LinkCallbacks(
            emit=emit,
            on_end=self._on_run_ended,
            on_transfer=self._start_transfer,
            on_memory=self._on_memory,
            on_unrestored=self._on_unrestored,
            is_noticed=self._has_notice,
            on_start=self._on_run_started,
        )
        self._relay = CheckpointRelay()
        self._pool = self._new_pool()

    def _new_memory(self) -> MemoryCheckpoints:
        settings = self._settings
        return MemoryCheckpoints(
            self._client,
            plugin=self._plugin.name,
            limit=settings.memory_limit,
            disk_first=settings.disk_first,
            emit=self._emit,
            now=self._now,
            spawn=self._spawn,
            priority=settings.priority + _ABOVE_TASKS,
        )

    def _new_pool(self) -> ActorPool:
        settings = self._settings
        return ActorPool(
            self._client,
            name=settings.name,
            plugin=self._plugin.name,
            actor_settings={
                "driver_ttl": settings.driver_ttl,
                "fence_after": settings.fence_after,
                "stop_grace": settings.stop_grace,
                "reuse": settings.reuse_actors,
            },
            objects=self._objects,
            priority=settings.priority + _ABOVE_TASKS,
            leases=settings.leases,
            distributed=settings.distributed,
            limits=PoolLimits(
                open_timeout=settings.open_timeout,
                lease_timeout=settings.lease_timeout,
                idle_time=settings.idle_time,
                idle_lease_time=settings.idle_lease_time,
            ),
            spawn=self._spawn,
        )

    # Methods for the executor

    async def open(self) -> None:
        """Register the plugin on the workers and subscribe to notifications.

        Called again after a lost connection, which loses the subscription.
        """
        # The module is never unregistered, because another experiment of this process may need the
        # registration at this moment.
        cloudpickle.register_pickle_by_value(plugin_module)
        await asyncio.gather(remove_stale_plugins(self._client), self._register())
        self._client.subscribe_topic(self._settings.name, self._on_notification)

    def start(self, run: TrialRun) -> None:
        """Start a run on its reservation, as soon as the actor is ready."""
        reservation = run.reservation
        link = self._link_to(reservation.address)
        link.runs[run.key] = run
        if reservation.actor is None:
            reservation.actor = self._pool.acquire(reservation.placement)
            reservation.ready = self._pool.is_ready(reservation.actor)
            if not reservation.ready:
                self._spawn(self._make_ready(reservation, reservation.actor, link))
        if run.starts_from_memory:
            run.fetching = True
            self._spawn(self._fetch_checkpoint(run, link))
        self._assign_if_ready(run, link)

    def answer(self, run: TrialRun, answer: Answer, at_once: bool = False, is_patient: bool = False) -> None:
        """Send an answer to a run; ignored if the run has ended.

        With `at_once`, an order to stop interrupts user code at once. With `is_patient`, an order
        to pause never does.
        """
        link = self._links.get(run.address)
        if link is not None and run.key in link.runs:
            link.answer(run, answer, at_once=at_once, is_patient=is_patient)

    def grow(self, run: TrialRun, reason: str) -> None:
        """Let a run leave with its next checkpoint, however late that comes."""
        link = self._links.get(run.address)
        # A run with an order leaves already.
        if link is not None and run.key in link.runs and run.order is None:
            run.grows = reason
            # No other run is queued behind it.
            run.not_reusable = True
            link.answer(run, NoticeAnswer(seconds=inf, reason=reason))

    def set_priority(self, priority: float) -> None:
        """Change Dask's priority of the tasks that are submitted from now on."""
        for part in (self._pool, self._objects, self.memory):
            part.priority = priority + _ABOVE_TASKS

    def withdraw(self) -> None:
        """Pause all runs and let each save a checkpoint, because the driver exits."""
        for run in reversed(self._runs()):
            link = self._links[run.address]
            # The end of a run also ends the runs queued behind it.
            if run.key in link.runs:
                link.withdraw(run)

    def store_checkpoint(self, path: str) -> None:
        """Write a checkpoint in memory to the storage, because the driver exits."""
        self._spawn(self.memory.store(path))

    def wake(self, run: TrialRun) -> None:
        """Poll a run's worker soon."""
        link = self._links.get(run.address)
        if link is not None:
            link.wake()

    def mark_lost(self, address: str | None, reason: str, *, charged: bool = True) -> None:
        """Mark a worker lost, or all workers if `address` is None, and end the runs that need it.

        The link is removed first: a worker that starts again at the same address gets a new link,
        while the old link still ends its runs. A second call for the same loss finds no link and
        no runs, and its other effects are idempotent.
        """
        for gone in tuple(self._links) if address is None else (address,):
            link = self._links.pop(gone, None)
            # The loss of a worker that was given notice says nothing about its trials.
            is_charged = charged and not self._has_notice(gone)
            dependents = [] if address is None else self._runs_needing(address)
            suspects = len(dependents) + (0 if link is None else link.suspects)
            if link is not None:
                link.mark_lost(reason, charged=is_charged, shared=bool(dependents))
            for run in dependents:
                # The end of a run also ends the runs queued behind it.
                if run.key in self._links[run.address].runs:
                    run.reservation.blamed = gone
                    self._links[run.address].abandon(run, reason, charged=is_charged, shared=suspects > 1)
        # Idle actors hold leases. If a worker restarted at this address, Dask would grant
        # them there, although the actors themselves are lost.
        self._pool.drop_idle(address)
        if address is not None:
            # A worker that starts at the same address has no notice. If it is the same worker after
            # all, it reports its notice again with the next trial.
            self._noticed.pop(address, None)
        self._objects.forget_worker(address)
        self.memory.on_worker_lost(address, reason)

    def _runs_needing(self, address: str) -> list[TrialRun]:
        """Return the runs of other links that need this worker besides their own."""
        return [run for run in self._runs() if address in run.reservation.placement.addresses]

    def answered_at(self, address: str) -> float:
        """Return when a worker last answered a poll, on the loop's clock."""
        link = self._links.get(address)
        return -inf if link is None else link.answered_at

    def trim_idle(self) -> None:
        """Close the actors that have been idle for a while."""
        self._pool.trim_idle()

    async def close(self) -> None:
        """Stop all runs and remove the experiment from the cluster."""
        for run in self._runs():
            self.answer(run, StopAnswer(reason="the experiment was closed"))
        await self._wait_for_runs()
        self.memory.close()
        # Mark the links lost instead of cancelling their tasks: `asyncio.wait_for` swallows a
        # cancellation that arrives in the same pass of the loop as its result.
        self.mark_lost(None, "the experiment was closed", charged=False)
        if self._num_starting:
            # An actor or a lease that begins without the plugin would log an error on its worker.
            await self._wait_for_tasks()
        if self._client.status == "running":
            self._client.unsubscribe_topic(self._settings.name)
            # At the same time, because each worker itself waits for the release of its actors.
            await asyncio.gather(self._wait_for_tasks(), self._objects.close(), self._unregister())
        await self._wait_for_tasks()
        self._relay.close()

    async def _wait_for_tasks(self) -> None:
        # Tasks that end may spawn further tasks, which close actors. Each of these has a deadline.
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _wait_for_runs(self) -> None:
        """Wait until the ends of all runs are reported, but not for abandoned threads."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * self._settings.stop_grace + 1
        # Without a task no link is left that could report an end: all have ended by an error.
        while self._tasks and any(not run.end_reported for run in self._runs()) and loop.time() < deadline:
            await asyncio.wait(tuple(self._tasks), timeout=0.1, return_when=asyncio.FIRST_COMPLETED)

    async def _register(self) -> None:
        for left in reversed(range(_REGISTER_ATTEMPTS)):
            registering = self._client.register_plugin(PortablePlugin(self._plugin))
            try:
                await wait_unless_hung(self._client, registering, deadline_s=_PLUGIN_DEADLINE)
                break
            except asyncio.TimeoutError:
                # The scheduler has the plugin and gives it to every worker that joins.
                logger.warning("a worker did not confirm the experiment's plugin; it may hang")
                break
            except OSError:
                # A worker died during the call, and other workers may not have the plugin yet. An
                # idempotent plugin would not be sent again.
                if not left:
                    raise
                self._plugin.idempotent = False
        self._plugin.idempotent = True

    async def _unregister(self) -> None:
        work = self._client.unregister_worker_plugin(self._plugin.name)
        try:
            await wait_unless_hung(self._client, work, deadline_s=_PLUGIN_DEADLINE)
        except Exception as error:
            # A worker hangs, or the scheduler was restarted and does not have the plugin.
            logger.info("the plugin could not be removed from every worker: %r", error)

    # Links and reservations

    def _runs(self) -> list[TrialRun]:
        return [run for link in self._links.values() for run in link.runs.values()]

    def _link_to(self, address: str) -> WorkerLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._make_link(
                address,
                heartbeat_timeout=self._settings.heartbeat_timeout,
                stop_grace=self._settings.stop_grace,
                now=self._now,
                interval=self._interval,
                callbacks=self._callbacks,
            )
            self._spawn(self._run_link(link))
        return link

    async def _run_link(self, link: WorkerLink) -> None:
        await link.poll_loop()
        # The link may have detected the loss itself. If `mark_lost` was first, the address may
        # already have a new link.
        if self._links.get(link.address) is link:
            del self._links[link.address]

    def _interval(self) -> tuple[float, float]:
        """Return the seconds between polls without a notification, and the batch window."""
        longest = self._settings.fence_after / 2
        scaled = _SECONDS_PER_WORKER * len(self._links)
        return min(max(_POLL_INTERVAL, scaled), longest), min(scaled, longest)

    async def _make_ready(self, reservation: Reservation, actor: ActorHandle, link: WorkerLink) -> None:
        # The task begins a pass of the loop after it was created, so its run may have ended before.
        # It may also end while this waits. Its end closes the actor, and the reservation may then
        # have another one, which has a task of its own.
        if reservation.actor is not actor:
            return
        patience_s = self.task_queues.patience_s if reservation.overtakes else None
        self._num_starting += 1
        try:
            await link.unless_lost(self._pool.make_ready(actor, reservation.placement, patience_s=patience_s))
        except (LeaseFailed, BroadcastFailed, ActorCallFailed, WorkerSlow) as failure:
            if isinstance(failure, LeaseFailed) and failure.timed_out and patience_s is not None:
                self.task_queues.on_given_up(patience_s, asyncio.get_running_loop().time())
            if reservation.actor is actor:
                self._refuse(reservation, link, failure)
        except WorkerLost:
            # The link ends the runs, and the end of the last one closes the actor.
            pass
        else:
            if reservation.actor is actor:
                self._assign_all(reservation, link)
        finally:
            self._num_starting -= 1

    def _refuse(self, reservation: Reservation, link: WorkerLink, failure: Exception) -> None:
        """End the runs of a reservation whose actor could not be made ready."""
        if isinstance(failure, LeaseFailed):
            reservation.blamed, reservation.contended = failure.address, failure.contended
        # A dead worker is marked lost. So this worker is alive.
        is_slow = isinstance(failure, WorkerSlow)
        if isinstance(failure, WorkerSlow):
            reservation.pause_s = failure.pause_s
        # Ending the first run also returns the runs queued behind it.
        for run in [run for run in link.runs.values() if run.reservation is reservation][:1]:
            link.refuse(run, str(failure), charged=not (reservation.contended or is_slow))

    def _assign_all(self, reservation: Reservation, link: WorkerLink) -> None:
        """Assign the runs of a reservation whose actor is ready."""
        reservation.ready = True
        for run in link.runs.values():
            if run.reservation is reservation:
                self._assign_if_ready(run, link)

    async def _fetch_checkpoint(self, run: TrialRun, link: WorkerLink) -> None:
        """Move the checkpoint in memory that a run starts from to its worker."""
        record = run.spec.checkpoint
        assert record is not None
        try:
            run.memory_key, run.memory_copy = await link.unless_lost(
                self.memory.fetch_to(record.path, run.address)
            )
        except CheckpointGone as gone:
            logger.info("trial %s resumes from an older checkpoint: %s", run.trial_id, gone)
            link.return_run(run)
        except WorkerLost:
            pass  # The link ends the runs.
        else:
            run.fetching = False
            if run.key in link.runs:
                self._assign_if_ready(run, link)
            else:
                # The run ended while its checkpoint was moved.
                run.release_copy()

    def _assign_if_ready(self, run: TrialRun, link: WorkerLink) -> None:
        if run.reservation.ready and not run.fetching:
            link.assign(run)

    def _on_memory(self, run: TrialRun, message: Committed | Returned) -> None:
        record = run.spec.checkpoint
        if isinstance(message, Committed):
            self.memory.add(run.trial_id, message.checkpoint, message.size, run.address, run.spec.storage)
        elif record is not None:
            self.memory.mark_lost(record.path, f"{run.address} no longer has it")

    def _on_unrestored(self, link: WorkerLink, run: TrialRun, message: Unrestored) -> None:
        self._spawn(self._check_damage(link, run, message))

    async def _check_damage(self, link: WorkerLink, run: TrialRun, message: Unrestored) -> None:
        """End a run whose checkpoint is missing or damaged, after the driver has looked at it, too.

        A worker whose disk is mounted wrongly finds no checkpoint at all. If that were believed, a
        trial could lose all its checkpoints within seconds.
        """
        try:
            confirmed = await self._relay.is_damaged(link, run, message.checkpoint)
        except WorkerLost:
            return  # The link ends the runs.
        link.end_unrestored(run, message, confirmed=confirmed)

    def _on_run_started(self, run: TrialRun) -> None:
        due = self.prefetch.next_due_s if self._settings.reuse_actors else None
        if due is not None:
            # The message may be late.
            left = max(0.0, due - run.seconds)
            run.nearly_ended = asyncio.get_running_loop().call_later(left, self._note_nearly_ended, run)

    def _note_nearly_ended(self, run: TrialRun) -> None:
        # A failure may have come meanwhile, or trials of other durations.
        if self.prefetch.next_due_s is not None:
            self._on_nearly_ended(run, self.prefetch.due_for_s)

    def _on_run_ended(self, link: WorkerLink, run: TrialRun, end: TrialEvent | None) -> None:
        """Free the resources of a run, then emit its last event.

        The order matters: on the event the runner, in its own thread, looks for free resources for
        the next trial. The resources of this run must be free by then.
        """
        if run.nearly_ended is not None:
            run.nearly_ended.cancel()
        reservation = run.reservation
        failed = isinstance(end, TrialLost | StartFailed)
        usable = not failed and not run.not_reusable and reservation.ready
        if not usable:
            self.prefetch.pause()
        elif run.seconds:
            self.prefetch.observe(run.seconds)
        is_free = self._release(run)
        if reservation.actor is not None and (is_free or not usable):
            actor, reservation.actor, reservation.ready = reservation.actor, None, False
            if usable and self._settings.reuse_actors:
                self._pool.keep_idle(actor, keeps_lease=reservation.may_repeat)
            else:
                self._pool.close(actor)
        if not usable:
            # Return the runs queued on this actor, the last one first: each goes to the front.
            for other in reversed(
                [other for other in link.runs.values() if other.reservation is reservation]
            ):
                link.return_run(other)
        if isinstance(end, TrialLost | StartFailed):
            self._on_failure(run, end.charged)
        if end is not None:
            self._emit([end])

    def _start_transfer(self, link: WorkerLink, run: TrialRun, number: int) -> None:
        self._spawn(self._relay.transfer(link, run, number))

    def _on_notification(self, event: tuple[float, Any]) -> None:
        match decode_notification(event[1]):
            case LeaseGranted(lease, devices):
                self._pool.on_lease_granted(lease, devices)
            case ReportsReady(address):
                link = self._links.get(address)
                if link is not None:
                    link.wake()
            case ShareChanged():
                self._on_share()
            case WorkerNoticed(address, seconds, reason):
                self._handle_notice(address, seconds, reason)

    def _handle_notice(self, address: str, seconds: float, reason: str) -> None:
        """Place no trials on a worker that was given notice, and let those that need it leave.

        The worker itself tells the trials that run there. The notification may be repeated.
        """
        reason = one_line(reason, _LONGEST_REASON)
        if not self._has_notice(address):
            logger.warning(
                "worker %s ends in %.0f s (%s): its trials save, leave and resume on other workers",
                address,
                seconds,
                reason,
            )
        self._noticed[address] = asyncio.get_running_loop().time() + seconds
        self._on_notice(address, seconds)
        self.prefetch.pause()
        for run in reversed(self._runs()):
            link = self._links[run.address]
            if run.key in link.runs and run.address == address:
                link.notice(run, seconds, reason, tell=False)
            elif run.key in link.runs and address in run.reservation.placement.addresses:
                link.notice(run, seconds, reason, tell=True)
        self._pool.drop_idle(address)

    def _has_notice(self, address: str) -> bool:
        """Whether a worker was given notice; its end may come a little later than announced."""
        end = self._noticed.get(address, -inf)
        return asyncio.get_running_loop().time() < end + _LATE_END

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)
