"""The worker's end of the link to a driver: one for all actors of an experiment on the worker.

All actors share one notifier and one poll, so the driver's cost grows with the number of workers
and not with the number of trials.

All methods but the constructor, `of`, `start_watch` and `notify` run on the worker's event loop.
`poll` has no ``await``, so each request is applied as a whole, and no trial's end comes in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Any

from tornado.ioloop import PeriodicCallback

from dasktune.cluster.protocol.wire_messages import (
    Assignment,
    Reply,
    ReportsReady,
    Request,
    TransferCall,
    TrialReport,
)
from dasktune.cluster.worker.assignment import AssignedTrial
from dasktune.cluster.worker.driver_liveness import DriverLiveness
from dasktune.cluster.worker.worker_notices import NoticeReporter, WorkerNotices
from dasktune.errors import StorageError
from dasktune.trainable.checkpoints.relay import Transfer
from dasktune.trainable.reporting.encoding import size_of_packed
from dasktune.trainable.reporting.outbox import Urgency
from dasktune.trainable.reporting.trial_messages import NoticeAnswer, PauseAnswer

#: Seconds between two checks of whether the driver is still in contact.
_WATCH_INTERVAL = 1.0

#: Seconds before the end at which a trial without a new checkpoint leaves with its last one. With a
#: short notice it is half of the time.
_LEAVE_BEFORE = 10.0


class Notifier:
    """Notifies the driver at once or after a window, and not again before the driver has polled.

    The driver polls the worker after each notification. To save polls, the notification of a
    streamed result waits for a time window, in which more results may arrive. A message that the
    driver must act on is notified at once.

    A notification may be lost when a connection breaks. The driver also polls at regular intervals,
    so messages are then late by one interval at most, and none is lost.

    All methods must be called on the worker's event loop.

    Parameters
    ----------
    send : callable
        Sends a notification.
    call_later : callable
        ``call_later(seconds, function)`` starts a timer and returns its handle.
    cancel : callable
        ``cancel(handle)`` cancels a timer.
    """

    def __init__(
        self,
        send: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        cancel: Callable[[Any], None],
    ) -> None:
        #: Seconds from the first streamed result to the notification, as set by each poll.
        self.batch_window = 0.0
        self._send = send
        self._call_later = call_later
        self._cancel = cancel
        self._timer: Any = None
        #: Whether a notification was sent since the last poll.
        self._is_pending = False

    def notify(self, urgency: Urgency) -> None:
        """Notify the driver, unless a notification was sent since its last poll.

        ``Urgency.RETRY`` always notifies, because that notification may have been lost.
        """
        if self._is_pending and urgency < Urgency.RETRY:
            return
        if urgency >= Urgency.NOW:
            self._send_now()
        elif self._timer is None:
            self._timer = self._call_later(self.batch_window, self._send_now)

    def on_poll(self) -> None:
        """Note that the driver polls: the next message notifies again."""
        self._cancel_timer()
        self._is_pending = False

    def _send_now(self) -> None:
        self._cancel_timer()
        self._is_pending = True
        self._send()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._cancel(timer)


class WorkerEndpoint:
    """Answers the driver's polls and notifies the driver of new messages.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    plugin : ExperimentPlugin
        The experiment's plugin on the worker, which has the actors.
    topic : str
        The topic of the notifications.
    fence_after : float
        Seconds of silence of the driver after which no checkpoint is committed.
    largest_reply : int, default=16 MiB
        Bytes of messages after which no further report is added to a reply; the driver then polls
        again. A call has a deadline, and a single trial may have that many bytes.
    timer : callable, default=time.monotonic
        Returns seconds on a monotonic clock, to measure the driver's silence.
    """

    def __init__(
        self,
        worker: Any,
        plugin: Any,
        topic: str,
        fence_after: float,
        *,
        largest_reply: int = 16 << 20,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.liveness = DriverLiveness(fence_after, timer=timer)
        self._largest_reply = largest_reply
        self._worker = worker
        self._plugin = plugin
        #: The topic to which the driver listens.
        self.topic = topic
        self._trials: dict[str, AssignedTrial] = {}
        #: Number of the newest request, and the assignments in it that were refused.
        self._newest = 0
        self._refused: tuple[tuple[str, str], ...] = ()
        self._notices = WorkerNotices.of(worker)
        self._reporter = NoticeReporter(worker, topic)
        self._notifier = Notifier(self._send_notification, worker.loop.call_later, worker.loop.remove_timeout)
        self._watch_timer: PeriodicCallback | None = None

    @classmethod
    def of(cls, worker: Any, plugin: Any, topic: str, fence_after: float) -> WorkerEndpoint:
        """Return the experiment's endpoint on a worker; the first call creates it."""
        # Actors are created in several threads at a time. `setdefault` is atomic: one endpoint
        # wins, and the others are discarded before they are used.
        endpoint: WorkerEndpoint = plugin.endpoints.setdefault(topic, cls(worker, plugin, topic, fence_after))
        endpoint._notices.add(endpoint)
        return endpoint

    def start_watch(self) -> None:
        """Check every second whether the driver is gone, while there are actors. Thread-safe."""
        self._worker.loop.add_callback(self._start_watch)

    def poll(self, request: Request) -> Reply:
        """Apply a request of the driver, and return the news that the driver does not have.

        A request may arrive twice, because the driver repeats it when no reply came in time. An old
        copy may even arrive after a newer request, over another connection. Each part tolerates it:

        - Assignments and interrupts count only in a request with a new number, so no trial starts
          twice, and none is interrupted while it cleans up after an interrupt.
        - Sequence numbers only rise, and a trial ignores an answer that it already has.
        - An ended incarnation never runs again, so forgetting it twice is harmless.
        - The worker keeps the messages of a lost reply until the driver confirms them.
        """
        if any(trial.is_busy for trial in self._trials.values()):
            self.liveness.on_call(request.number)
        else:
            # The driver had no reason to poll, so its silence says nothing.
            self.liveness.reset(request.number)
        self._notifier.batch_window = request.batch_window
        for incarnation in request.ended:
            self._trials.pop(incarnation, None)
        new: list[AssignedTrial] = []
        repeated = request.number <= self._newest
        if not repeated:
            self._newest = request.number
            new, self._refused = self._register(request.assignments)
        for update in request.updates:
            trial = self._trials.get(update.incarnation)
            if trial is not None:
                trial.apply(update, repeated=repeated)
                for answer in update.answers:
                    if isinstance(answer, NoticeAnswer) and not repeated:
                        self.notice_trial(trial, answer)
        # After the updates: a trial with a stop order in the same request is never started.
        for trial in new:
            self._plugin.actors[trial.assignment.actor].enqueue(trial)
        # Before the messages are collected, so that a later message causes a new notification.
        self._notifier.on_poll()
        reports, more = self._gather()
        return Reply(reports=reports, more=more, refused=self._refused)

    async def transfer_step(self, call: TransferCall) -> Transfer | bytes | None:
        """Perform one step of a transfer in a thread, so that files do not block the loop.

        Raises
        ------
        StorageError
            If the trial no longer runs here.
        OSError
            If a file cannot be read or written.
        """
        trial = self._trials.get(call.incarnation)
        if trial is None or trial.run is None:
            raise StorageError("the trial no longer runs on this worker")
        return await asyncio.to_thread(trial.run.transfers.perform, call.number, call.step)

    def notify(self, trial: AssignedTrial, urgency: Urgency) -> None:
        """Notify the driver of a trial's messages: at once, or after the batch window. Thread-safe.

        The notification is sent on the loop. If a poll has collected the messages by then, none is
        sent.
        """
        self._worker.loop.add_callback(self._notify, trial, urgency)

    def notify_now(self) -> None:
        """Notify the driver of something other than a trial's messages."""
        self._notifier.notify(Urgency.NOW)

    def on_notice(self, notice: NoticeAnswer) -> None:
        """Give the notice of the worker to its trials, and report it to the driver.

        A notice that arrives twice changes nothing: each trial keeps the earliest end, ignores
        orders when it has left, and is interrupted once.
        """
        for trial in tuple(self._trials.values()):
            self.notice_trial(trial, notice)
        self._reporter.on_notice(notice)
        self.notify_now()

    def notice_trial(self, trial: AssignedTrial, notice: NoticeAnswer) -> None:
        """Let a trial leave with its next checkpoint, or in time before the end without one."""
        trial.notice(notice)
        if notice.seconds == inf:
            return  # The trial is to have other workers; nothing ends here.
        before = min(_LEAVE_BEFORE, notice.seconds / 2)
        order = PauseAnswer(save=True, reason=notice.reason)
        later = self._worker.loop.call_later
        later(notice.seconds - before, trial.end_with, order)
        if not notice.urgent:
            # A trial with an urgent notice is interrupted by the driver, or ends with the worker.
            later(notice.seconds - before / 2, trial.interrupt_if_busy)

    def _register(
        self, assignments: Iterable[Assignment]
    ) -> tuple[list[AssignedTrial], tuple[tuple[str, str], ...]]:
        """Return the new trials, and the incarnations that are refused, each with the reason."""
        new: list[AssignedTrial] = []
        refused: list[tuple[str, str]] = []
        for assignment in assignments:
            incarnation = assignment.incarnation
            if assignment.actor not in self._plugin.actors:
                refused.append((incarnation, f"there is no actor {assignment.actor} here"))
                continue
            # Read now: after the reply the driver releases the copy that keeps it on this worker.
            packed = self._find_checkpoint(assignment.memory_key) if assignment.memory_key else b""
            self._trials[incarnation] = trial = AssignedTrial(assignment, packed)
            new.append(trial)
        notice = self._notices.current
        if new and notice is not None:
            # The driver did not know of the notice, or its notification was lost.
            for trial in new:
                trial.return_unstarted()
            self._reporter.on_notice(notice)
        return new, tuple(refused)

    def _find_checkpoint(self, key: str) -> bytes | None:
        """Return a checkpoint that Dask or the plugin holds on this worker; None if it is gone."""
        if key in self._worker.data:
            packed: bytes = self._worker.data[key]
            return packed
        return self._plugin.checkpoints.get(key)  # type: ignore[no-any-return]

    def _gather(self) -> tuple[tuple[TrialReport, ...], bool]:
        """Return as many reports as fit into a reply, and whether there may be more."""
        gathered: list[TrialReport] = []
        size = 0
        for trial in tuple(self._trials.values()):
            if size >= self._largest_reply:
                # Move the reported trials to the end, so that the others come first next time.
                for one in gathered:
                    self._trials[one.incarnation] = self._trials.pop(one.incarnation)
                return tuple(gathered), True
            if (report := trial.report()) is not None:
                gathered.append(report)
                size += size_of_packed(report.messages)
        return tuple(gathered), False

    def _notify(self, trial: AssignedTrial, urgency: Urgency) -> None:
        if trial.has_messages:
            self._notifier.notify(urgency)

    def _send_notification(self) -> None:
        # A worker that shuts down may have no connection. The driver also polls without being
        # notified.
        with suppress(OSError):
            self._worker.log_event(self.topic, ReportsReady(self._worker.address).encode())

    def _start_watch(self) -> None:
        if self._watch_timer is None:
            self._watch_timer = PeriodicCallback(self._check_drivers, _WATCH_INTERVAL * 1000)
            self._watch_timer.start()

    def _check_drivers(self) -> None:
        for actor in tuple(self._plugin.actors.values()):
            actor.check_driver()
        if not self._plugin.actors and self._watch_timer is not None:
            self._watch_timer.stop()
            self._watch_timer = None
