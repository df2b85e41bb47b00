"""The driver's link to one worker: polls it about all trials that run there.

One poll at a time carries everything that the driver has for the worker, and returns everything
that the worker has for the driver. A notification, an answer or a loss only wakes the poll loop.

Everything here runs on the client's event loop, so other code interleaves only at an ``await``.
While a poll is under way the dispatcher may assign runs, add answers, end runs and mark the worker
lost. The code after the ``await`` therefore removes only what its own request contained.

A poll may reach the worker twice, because a poll without an answer is repeated with the same
number. The worker starts and interrupts trials once for each number. Applying the rest of a poll
twice has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeVar

from dasktune.cluster.connection.futures import consume_exception
from dasktune.cluster.driver.actor_handle import CALL_DEADLINE, ActorCallFailed
from dasktune.cluster.driver.trial_run import (
    TERMINAL,
    TrialRun,
    event_from_message,
    is_about_memory,
    streamed_result,
)
from dasktune.cluster.protocol.wire_messages import Refused, Reply, Request, TrialUpdate
from dasktune.trainable.reporting.encoding import Packed, decode, unpack
from dasktune.trainable.reporting.trial_messages import (
    Answer,
    Committed,
    NoticeAnswer,
    Order,
    PauseAnswer,
    Returned,
    StopAnswer,
    Unrestored,
)
from dasktune.trial.events import (
    ResultReported,
    StartFailed,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStopped,
)
from dasktune.trial.user_error import ErrorInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Why a trial is lost if another client made Dask release its actor.
_CANCELLED = "another client cancelled its actor, or restarted all workers"

#: Maximum number of seconds for the cleanup of a trial that is stopped at once.
_CLEANUP_SECONDS = 2.0

#: Numbers all polls of this process. A second link to an address continues to count, so the worker
#: does not take its polls for repeated ones of the first link.
_numbers = count(1)


class WorkerLost(Exception):
    """The worker of a link is lost."""

    def __init__(self, reason: str, charged: bool, shared: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        #: Whether the loss counts as a failure of a trial that may have caused it.
        self.charged = charged
        #: Whether trials on other workers also used this worker, and may have caused the loss.
        self.shared = shared


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCallbacks:
    """The functions that a link calls, on the client's loop.

    Parameters
    ----------
    emit : callable
        Called with events, in order, of a trial that continues.
    on_end : callable
        Called with the link, a run that has ended, and the event of its end. The event is None if
        it was emitted before.
    on_transfer : callable
        Called with the link, a run and the number of a transfer that its trial requests.
    on_memory : callable
        Called with a run and its message about a checkpoint in memory: the trial has left one on
        the worker, or the one that it should have started from is missing there.
    on_unrestored : callable
        Called with the link, a run and its last message: its checkpoint in the storage is missing
        or damaged. The run ends by :meth:`WorkerLink.end_unrestored`.
    on_start : callable, optional
        Called with a run whose first message has arrived.
    is_noticed : callable, optional
        Called with an address. Returns whether the worker was given notice of its end, so that its
        loss says nothing about its trials.
    """

    emit: Callable[[Sequence[TrialEvent]], None]
    on_end: Callable[[WorkerLink, TrialRun, TrialEvent | None], None]
    on_transfer: Callable[[WorkerLink, TrialRun, int], None]
    on_memory: Callable[[TrialRun, Committed | Returned], None]
    on_unrestored: Callable[[WorkerLink, TrialRun, Unrestored], None]
    on_start: Callable[[TrialRun], None] = lambda run: None
    is_noticed: Callable[[str], bool] = lambda address: False


class WorkerLink:
    """Polls a worker until it is lost.

    Parameters
    ----------
    address : str
        The worker's address.
    heartbeat_timeout : float
        Seconds without an answer after which the worker is marked lost.
    stop_grace : float
        Seconds from a stop order to the interrupt, and from the interrupt to abandoning the thread.
    now : callable
        Returns the seconds on the runner's clock, for the events.
    interval : callable
        Returns the seconds between two polls without a notification, and the seconds for which the
        worker may collect results before it notifies the driver.
    callbacks : LinkCallbacks
        Called with the events of the trials.
    retry_interval : float, default=0.2
        Seconds between two attempts to reach a worker that did not answer.
    """

    def __init__(
        self,
        address: str,
        *,
        heartbeat_timeout: float,
        stop_grace: float,
        now: Callable[[], float],
        interval: Callable[[], tuple[float, float]],
        callbacks: LinkCallbacks,
        retry_interval: float = 0.2,
    ) -> None:
        self.address = address
        #: The runs of this worker that have not ended, by key, assigned or not.
        self.runs: dict[str, TrialRun] = {}
        #: When the worker last answered, on the loop's clock.
        self.answered_at = -inf
        self._heartbeat_timeout = heartbeat_timeout
        self._stop_grace = stop_grace
        self._now = now
        self._interval = interval
        self._callbacks = callbacks
        self._retry_interval = retry_interval
        self._loop = asyncio.get_running_loop()
        #: Assigned runs that no request has contained.
        self._unsent: list[TrialRun] = []
        #: Runs with an order to stop or pause, by key.
        self._stopping: dict[str, TrialRun] = {}
        #: Keys of ended runs that the worker may forget.
        self._ended: list[str] = []
        #: Whether the worker or the driver has something to send, so that the next poll is due.
        self._has_work = False
        #: The future that the poll loop waits for between two polls.
        self._wakeup: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[tuple[str, bool, bool]] = self._loop.create_future()

    # Methods for the dispatcher

    def wake(self) -> None:
        """Poll at once: the worker or the driver has something to send."""
        self._has_work = True
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def assign(self, run: TrialRun) -> None:
        """Run a trial on the actor of its reservation, which is ready."""
        run.assigned = True
        self._unsent.append(run)
        self.wake()

    def answer(
        self, run: TrialRun, answer: Answer, *, at_once: bool = False, is_patient: bool = False
    ) -> None:
        """Send an answer to a trial.

        With `at_once`, an order to stop interrupts user code at once, and leaves little time for
        its cleanup. With `is_patient`, user code is never interrupted: it may take any time until
        its next result, so that no step is lost.
        """
        run.answers.append(answer)
        if isinstance(answer, Order):
            self._order(run, answer, at_once=at_once, is_patient=is_patient)
        self.wake()

    def _order(
        self,
        run: TrialRun,
        order: Order,
        *,
        at_once: bool = False,
        is_patient: bool = False,
    ) -> None:
        """Note the order to end that a run gets, and when to escalate it."""
        run.order = order
        if not is_patient:
            self._escalate_later(run, at_once=at_once)

    def _escalate_later(self, run: TrialRun, *, at_once: bool = False) -> None:
        run.escalate_every = min(self._stop_grace, _CLEANUP_SECONDS) if at_once else self._stop_grace
        run.escalate_at = self._loop.time() + (0.0 if at_once else self._stop_grace)
        self._stopping[run.key] = run

    def withdraw(self, run: TrialRun) -> None:
        """Pause a run because the driver exits, as if its worker retired."""
        if not run.assigned:
            self.return_run(run)
        elif run.order is None:
            run.withdrawn = True
            # The worker orders the pause in time: at once if user code does not ask for notices.
            reason = "the experiment was interrupted"
            self.answer(run, NoticeAnswer(seconds=self._stop_grace, reason=reason, urgent=True))
            self._order(run, PauseAnswer(save=True, reason=reason))
        elif run.key not in self._stopping and not run.end_reported:
            # Its order to pause was patient. The end of the driver is not.
            self._escalate_later(run)
            self.wake()

    def notice(self, run: TrialRun, seconds: float, reason: str, *, tell: bool) -> None:
        """Note that a worker of the run was given notice; the run leaves with its next checkpoint.

        With `tell`, the notice is sent to the trial: another worker that it uses has the notice.
        """
        run.notice = run.notice or reason
        # No other run is queued behind it.
        run.not_reusable = True
        if not run.assigned:
            self.return_run(run)
        elif tell:
            self.answer(run, NoticeAnswer(seconds=seconds, reason=reason))

    def mark_lost(self, reason: str, *, charged: bool = True, shared: bool = False) -> None:
        """Mark the worker lost, and end its poll loop and runs. Only the first call counts."""
        if not self._lost.done():
            self._lost.set_result((reason, charged, shared))
            self.wake()

    def refuse(self, run: TrialRun, reason: str, *, charged: bool = True) -> None:
        """End a run that cannot start, or whose actor is gone."""
        run.not_reusable = True
        kind = TrialLost if run.received_seq else StartFailed
        self._finish(run, self._event(run, kind, reason=reason, charged=charged))

    def abandon(self, run: TrialRun, reason: str, *, charged: bool, shared: bool) -> None:
        """End a run because another worker that it uses is lost.

        The trial may still be running here. Its later reports are ignored, because the run is no
        longer in `runs`, and closing its actor stops it.
        """
        run.not_reusable = True
        charged = charged and run.assigned and len(run.reservation.runs) == 1
        facts = {"reason": reason, "charged": charged, "shared": shared}
        self._finish(run, self._event(run, TrialLost, **facts))

    def return_run(self, run: TrialRun) -> None:
        """End a run that has not started, without a failure: its trial is scheduled again."""
        self._finish(run, self._event(run, TrialReturned))

    def end_unrestored(self, run: TrialRun, message: Unrestored, *, confirmed: bool) -> None:
        """End a run whose checkpoint is missing or damaged, as its worker says.

        If the driver cannot confirm that, the worker cannot run the trial, and is charged.
        """
        run.not_reusable = True
        if confirmed:
            self._finish(run, event_from_message(message, run, self._now()))
            return
        reason = f"{self.address} cannot load a checkpoint that the driver finds intact: {message.reason}"
        self._finish(run, self._event(run, TrialLost, seq=message.seq, reason=reason))

    @property
    def suspects(self) -> int:
        """How many trials could have caused the worker's death."""
        # Only one of the runs queued on a reservation is running, so count reservations. A run
        # whose end is already reported is not counted again.
        return len({run.reservation for run in self.runs.values() if run.assigned and not run.end_reported})

    @property
    def is_lost(self) -> bool:
        """Whether the worker was marked lost."""
        return self._lost.done()

    async def unless_lost(self, work: Awaitable[T]) -> T:
        """Await something, and stop waiting when the worker is lost.

        If the result and the loss arrive in the same pass of the loop, the loss counts. That is
        safe: the runs end as lost, and a lost run's messages are ignored in any case.

        Raises
        ------
        WorkerLost
            If the worker is lost.
        """
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        # Otherwise asyncio would log an exception that is raised after the loss.
        task.add_done_callback(consume_exception)
        try:
            first: set[asyncio.Future[Any]] = {task, self._lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise WorkerLost(*self._lost.result())
            return task.result()
        finally:
            task.cancel()

    async def poll_loop(self) -> None:
        """Poll until the worker is lost, then end its runs."""
        try:
            while True:
                await self._wait()
                if request := self._next_request():
                    await self._poll(*request)
        except WorkerLost as loss:
            loss.charged = loss.charged and not self._callbacks.is_noticed(self.address)
            self.mark_lost(loss.reason, charged=loss.charged, shared=loss.shared)
            # The driver may have marked the worker lost before, and forgotten its notice since.
            self._end_all(WorkerLost(*self._lost.result()))

    # The poll loop

    async def _wait(self) -> None:
        """Wait for a reason to poll, or until the next regular poll is due."""
        if not self._has_work:
            # Nothing can wake the link between the check and the new future: there is no await.
            wakeup = self._wakeup = self._loop.create_future()
            timer = self._loop.call_later(self._timeout(), self.wake) if self.runs else None
            await wakeup
            if timer is not None:
                timer.cancel()
        if self.is_lost:
            raise WorkerLost(*self._lost.result())
        # Cleared before the poll: a notification that arrives during the poll may be about a report
        # that the reply does not contain, and must cause another poll.
        self._has_work = False

    def _timeout(self) -> float:
        timeout = self._interval()[0]
        # No request has a run that is not assigned yet, so its stop is not escalated either.
        due = [run.escalate_at for run in self._stopping.values() if run.assigned]
        return min(timeout, max(0.0, min(due) - self._loop.time())) if due else timeout

    def _next_request(self) -> tuple[Request, list[TrialRun], list[tuple[TrialRun, TrialUpdate]]] | None:
        """Return the next request with its new runs and updates; None if no run is assigned."""
        if not any(run.assigned for run in self.runs.values()):
            return None
        self._escalate_stops()
        self._end_cancelled()
        # A run may have ended between its assignment and now.
        new = [run for run in self._unsent if run.key in self.runs]
        updates = [(run, update) for run in self.runs.values() if (update := run.pending_update())]
        self._unsent.clear()
        request = Request(
            number=next(_numbers),
            batch_window=self._interval()[1],
            assignments=tuple(run.assignment() for run in new),
            updates=tuple(update for _, update in updates),
            ended=tuple(self._ended),
        )
        return request, new, updates

    async def _poll(
        self, request: Request, new: list[TrialRun], updates: list[tuple[TrialRun, TrialUpdate]]
    ) -> None:
        try:
            reply = await self._call(request)
            if reply is None:
                return
        except Refused as refusal:
            for run in new or tuple(self.runs.values()):
                self.refuse(run, str(refusal))
            return
        # The keys of runs that ended during the call were appended after those of the request.
        del self._ended[: len(request.ended)]
        for run, update in updates:
            run.confirm(update)
        for run in new:
            # The worker read the checkpoint from memory before it replied.
            run.release_copy()
        self._apply_reply(reply)

    async def _call(self, request: Request) -> Reply | None:
        """Call the worker until it answers. One failed call does not prove a loss.

        Each attempt waits twice as long as the one before, at most until the worker counts as lost.
        With equal deadlines a worker that always needs a little longer would never be heard, since
        an answer to an earlier attempt is dropped.

        A repeated call has the same number. An earlier copy may reach the worker as well, even
        after a later poll: the worker starts and interrupts no trial for a number that it has seen.

        Returns None if no assigned run is left: between two attempts the last run may end, because
        another worker that it uses was lost.
        """
        silent, deadline = 0.0, CALL_DEADLINE
        while True:
            since = self._loop.time()
            # Any actor of the experiment reaches the worker's endpoint, which has all trials.
            assigned = (run for run in self.runs.values() if run.assigned)
            actor = next(
                (run.reservation.actor for run in assigned if run.reservation.actor is not None), None
            )
            if actor is None:
                return None
            try:
                reply = await self.unless_lost(actor.poll(request, deadline))
                self.answered_at = self._loop.time()
                return reply
            except ActorCallFailed as failure:
                # A call cannot wait longer than its deadline. If more time has passed, this process
                # was suspended, which says nothing about the worker.
                silent += min(self._loop.time() - since, deadline) + self._retry_interval
                logger.info("%s (%.1f s)", failure, silent)
                if silent > self._heartbeat_timeout:
                    raise WorkerLost(str(failure), charged=True) from failure
                await self.unless_lost(asyncio.sleep(self._retry_interval))
                deadline = max(CALL_DEADLINE, min(2 * deadline, self._heartbeat_timeout - silent))

    def _end_cancelled(self) -> None:
        """End the runs whose actors Dask has released, though their worker may be healthy."""
        for run in tuple(self.runs.values()):
            if run.assigned and run.has_cancelled_actor:
                self.refuse(run, _CANCELLED, charged=False)

    def _escalate_stops(self) -> None:
        """Interrupt user code that ignores a stop order, and later abandon its thread.

        `stop_grace` seconds pass before each of the two. A trial that is stopped at once is
        interrupted in the request that has the order.
        """
        now = self._loop.time()
        for run in tuple(self._stopping.values()):
            if now < run.escalate_at:
                continue
            run.escalate_at = now + run.escalate_every
            if not run.assigned:
                # The worker gets the assignment and the order together, and does not start the run.
                continue
            run.interrupt = True
            if run.interrupted:
                self._abandon_thread(run)
            run.interrupted = run.not_reusable = True

    def _abandon_thread(self, run: TrialRun) -> None:
        """Report the end of a trial whose thread does not stop; its resources stay reserved.

        The run stays in `runs`. When its thread ends after all, its last message frees the
        resources, and no second event is emitted.
        """
        logger.warning(
            "trial %s did not stop when requested; its resources on %s stay reserved until its thread ends",
            run.trial_id,
            run.address,
        )
        run.end_reported = True
        del self._stopping[run.key]
        if run.withdrawn and not isinstance(run.order, StopAnswer):
            reason = "it did not stop when the experiment was interrupted"
            self._callbacks.emit([self._event(run, TrialLost, reason=reason, charged=False)])
            return
        kind = TrialStopped if isinstance(run.order, StopAnswer) else TrialPaused
        self._callbacks.emit([self._event(run, kind)])

    def _report_end_while_occupied(self, run: TrialRun, end: TrialEvent) -> None:
        """Report the end of a trial whose cleanup hangs and still occupies its actor."""
        self._stopping.pop(run.key, None)
        if run.end_reported:
            return
        logger.warning(
            "user code on %s does not return; the resources of trial %s stay reserved until it does",
            run.address,
            run.trial_id,
        )
        run.end_reported = run.not_reusable = True
        self._callbacks.emit([end])

    # Replies

    def _apply_reply(self, reply: Reply) -> None:
        for key, reason in reply.refused:
            if key in self.runs:
                self.refuse(self.runs[key], reason)
        if reply.more:
            self.wake()
        returned = []
        for report in reply.reports:
            run = self.runs.get(report.incarnation)
            if run is None:
                # It ended during the call. The next request tells the worker to forget it.
                continue
            run.seconds = report.seconds
            for number in report.transfers:
                # The worker lists a transfer until it has ended.
                if number > run.last_transfer:
                    run.last_transfer = number
                    self._callbacks.on_transfer(self, run, number)
            # A cleanup may still occupy the actor when the last message arrives, so the end is
            # kept. A later report without messages shows that the actor is free.
            run.end = end = self._apply_messages(run, report.messages) or run.end
            if isinstance(end, TrialReturned):
                returned.append((run, end))
            elif end is not None and report.occupied:
                self._report_end_while_occupied(run, end)
            elif end is not None:
                self._finish(run, end)
        # Each returned trial goes to the front of the runner's queue, so end the first one last.
        for run, end in reversed(returned):
            self._finish(run, end)

    def _apply_messages(self, run: TrialRun, messages: Packed) -> TrialEvent | None:
        """Emit the events of new messages; return the event of the last message of the run."""
        events: list[TrialEvent] = []
        end: TrialEvent | None = None
        now = self._now()
        for seq, content in unpack(messages):
            if seq <= run.received_seq:
                # The worker sends a message again until it knows that the driver has it.
                continue
            run.received_seq = seq
            if isinstance(content, dict):
                events.append(streamed_result(run, seq, content, now))
                continue
            try:
                message = decode(seq, content)
            except Exception as error:
                end = self._unreadable(run, seq, error)
                break
            if is_about_memory(message) and not run.end_reported:
                self._callbacks.on_memory(run, message)
            if isinstance(message, Unrestored) and not run.end_reported:
                # The event of the end depends on what the driver finds in the storage.
                self._callbacks.on_unrestored(self, run, message)
                break
            event = event_from_message(message, run, now)
            if isinstance(message, TERMINAL):
                end = event
                break
            events.append(event)
        self._note_times(run, events)
        if events and not run.end_reported:
            self._callbacks.emit(events)
        return end

    def _note_times(self, run: TrialRun, events: Sequence[TrialEvent]) -> None:
        """Note when a run has started and when it has reported its first result."""
        if run.first_result_at is not None or not run.received_seq:
            return
        now = self._loop.time()
        if run.started_at is None:
            run.started_at = now
            self._callbacks.on_start(run)
        if any(isinstance(event, ResultReported) for event in events):
            run.first_result_at = now

    def _unreadable(self, run: TrialRun, seq: int, error: Exception) -> TrialEvent:
        run.not_reusable = True
        info = ErrorInfo(
            message=f"the driver cannot unpickle the trial's report: {error!r}. "
            "Report numbers, strings, lists and dicts."
        )
        return self._event(run, TrialFailed, seq=seq, error=info)

    def _end_all(self, loss: WorkerLost) -> None:
        shared = loss.shared or self.suspects > 1
        for run in tuple(self.runs.values()):
            # The end of a run also ends the runs queued behind it.
            if run.key in self.runs:
                # A trial that was not assigned cannot have killed the worker, so it is not charged.
                # If several trials share the reservation none is charged: it is unknown which of
                # them the worker had started.
                charged = loss.charged and run.assigned and len(run.reservation.runs) == 1
                charged = charged and not run.has_cancelled_actor
                facts = {"reason": loss.reason, "charged": charged, "shared": shared}
                self._finish(run, self._event(run, TrialLost, **facts))

    def _finish(self, run: TrialRun, end: TrialEvent) -> None:
        """End a run. Only the first end of a run counts."""
        if self.runs.pop(run.key, None) is None:
            return
        self._stopping.pop(run.key, None)
        run.release_copy()
        self._ended.append(run.key)
        self._callbacks.on_end(self, run, None if run.end_reported else end)

    def _event(self, run: TrialRun, kind: Callable[..., TrialEvent], **facts: Any) -> TrialEvent:
        return kind(trial_id=run.trial_id, incarnation=run.incarnation, time=self._now(), **facts)
