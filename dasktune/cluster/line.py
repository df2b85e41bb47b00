"""The driver's line to one worker: a conversation about all trials that run there.

One call at a time carries everything there is to say, and brings back everything that is new. What
else is known (a bell, an answer, a loss) only wakes it. Everything here runs on the client's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from math import inf
from typing import Any, TypeGuard, TypeVar

from dasktune.cluster.envelope import Assignment, Note, Refused, Reply, Request
from dasktune.cluster.listener import Listener
from dasktune.cluster.run import TERMINAL, Run, event_of, streamed
from dasktune.cluster.slot_handle import CALL_DEADLINE, SlotFailed
from dasktune.trainable.contents import Packed, message_of, unpack
from dasktune.trainable.messages import (
    Answer,
    Committed,
    Message,
    PauseNow,
    Returned,
    StopNow,
)
from dasktune.trial.events import (
    AnyTrialEvent,
    ErrorInfo,
    StartFailed,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStopped,
)

__all__ = ["Line", "WorkerLost"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts to reach a worker that did not answer.
_RETRY_PAUSE = 0.2

#: What is said of a trial whose slot is gone.
_CANCELLED = "another client has cancelled it, or restarted all workers"

#: Numbers all calls of this process: they rise even if a line is given up and another one opened.
_numbers = count(1)


class WorkerLost(Exception):
    """The worker at the other end is lost."""

    def __init__(self, reason: str, charged: bool, shared: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.charged = charged
        #: Whether trials elsewhere needed it, too, and may be to blame.
        self.shared = shared


class Line:
    """Talks with a worker for as long as it is there.

    Parameters
    ----------
    address : str
        The worker's address.
    heartbeat_timeout : float
        Seconds without an answer after which the worker is given up.
    stop_grace : float
        Seconds from an order to leave to the interrupt, and from there to giving the thread up.
    now : callable
        Seconds on the runner's clock, for the events.
    interval : callable
        Seconds between two calls without a bell, and for which the worker may collect results.
    listener : Listener
        Hears what comes of the trials.
    """

    def __init__(
        self,
        address: str,
        *,
        heartbeat_timeout: float,
        stop_grace: float,
        now: Callable[[], float],
        interval: Callable[[], tuple[float, float]],
        listener: Listener,
    ) -> None:
        self.address = address
        #: Those that are served here, by key, whether assigned already or not.
        self.runs: dict[str, Run] = {}
        #: When the worker last answered, on the loop's clock.
        self.answered = -inf
        self._heartbeat_timeout = heartbeat_timeout
        self._stop_grace = stop_grace
        self._now = now
        self._interval = interval
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._new: list[Run] = []
        #: Runs with an order to leave.
        self._leaving: dict[str, Run] = {}
        self._done: list[str] = []
        #: Whether there is a reason to call.
        self._news = False
        #: Done when there is one; what the conversation waits for.
        self._sleep: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[tuple[str, bool, bool]] = self._loop.create_future()

    # What the service calls

    def wake(self) -> None:
        """Look at once: there is news, or something to say."""
        self._news = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def assign(self, run: Run) -> None:
        """Let the worker run a trial on its seat, whose slot is ready."""
        run.assigned = True
        self._new.append(run)
        self.wake()

    def answer(self, run: Run, answer: Answer) -> None:
        """Pass an answer on."""
        run.answers.append(answer)
        if isinstance(answer, PauseNow | StopNow):
            run.order = answer
            run.patience = self._loop.time() + self._stop_grace
            self._leaving[run.key] = run
        self.wake()

    def withdraw(self, run: Run) -> None:
        """Have a run save what it can and end, as if its worker retired."""
        if not run.assigned:
            self.give_back(run)
        elif run.order is None:
            run.withdrawn = True
            self.answer(run, PauseNow(save=True, reason="the experiment was interrupted"))

    def lose(self, reason: str, *, charged: bool = True, shared: bool = False) -> None:
        """Give the worker up; only the first reason counts."""
        if not self._lost.done():
            self._lost.set_result((reason, charged, shared))
            self.wake()

    def fail(self, run: Run, reason: str, *, charged: bool = True) -> None:
        """End a run that cannot be assigned."""
        self._refuse(run, reason, charged=charged)

    def abandon(self, run: Run, reason: str, *, charged: bool, shared: bool) -> None:
        """End a run that has lost another worker, which it needs besides this one."""
        run.tainted = True
        charged = charged and run.assigned and len(run.seat.runs) == 1
        facts = {"reason": reason, "charged": charged, "shared": shared}
        self._finish(run, self._event(run, TrialLost, **facts))

    def give_back(self, run: Run) -> None:
        """End a run that has not begun, through no fault of its own."""
        self._finish(run, self._event(run, TrialReturned))

    @property
    def suspects(self) -> int:
        """How many trials may be to blame if the worker dies."""
        # What was left behind has been told of; of those on one seat one is running.
        return len({run.seat for run in self.runs.values() if run.assigned and not run.told})

    @property
    def is_lost(self) -> bool:
        """Whether the worker was given up."""
        return self._lost.done()

    async def unless_lost(self, work: Awaitable[T]) -> T:
        """Await something, but no longer than the worker is there.

        Raises
        ------
        WorkerLost
            If it is not any more.
        """
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        # What it raises after the loss is of no interest, but asyncio complains if nobody asks.
        task.add_done_callback(_look_at)
        try:
            first: set[asyncio.Future[Any]] = {task, self._lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise WorkerLost(*self._lost.result())
            return task.result()
        finally:
            task.cancel()

    async def talk(self) -> None:
        """Talk until the worker is lost, and end what ran there."""
        try:
            while True:
                await self._wait()
                if request := self._request():
                    await self._exchange(*request)
        except WorkerLost as loss:
            self.lose(loss.reason, charged=loss.charged, shared=loss.shared)
            self._end_all(loss)

    # One call after the other

    async def _wait(self) -> None:
        """Wait until there is something to fetch or to tell, or it is time to look anyway."""
        if not self._news:
            sleep = self._sleep = self._loop.create_future()
            timer = self._loop.call_later(self._timeout(), self.wake) if self.runs else None
            await sleep
            if timer is not None:
                timer.cancel()
        if self.is_lost:
            raise WorkerLost(*self._lost.result())
        # Cleared before the call: a bell during the call must lead to another one.
        self._news = False

    def _timeout(self) -> float:
        timeout = self._interval()[0]
        if self._leaving:
            soonest = min(run.patience for run in self._leaving.values())
            timeout = min(timeout, max(0.0, soonest - self._loop.time()))
        return timeout

    def _request(self) -> tuple[Request, list[Run], list[tuple[Run, Note]]] | None:
        """Return what is to be said now, and to whom; None if nobody is there to talk about."""
        if not any(run.assigned for run in self.runs.values()):
            return None
        self._lose_patience()
        self._drop_cancelled()
        new = [run for run in self._new if run.key in self.runs]
        noted = [(run, note) for run in self.runs.values() if (note := _note(run))]
        self._new.clear()
        request = Request(
            number=next(_numbers),
            window=self._interval()[1],
            assignments=tuple(map(_assignment, new)),
            notes=tuple(note for _, note in noted),
            done=tuple(self._done),
        )
        return request, new, noted

    async def _exchange(
        self, request: Request, new: list[Run], noted: list[tuple[Run, Note]]
    ) -> None:
        try:
            reply = await self._call(request)
            if reply is None:
                return
        except Refused as refusal:
            for run in new or tuple(self.runs.values()):
                self._refuse(run, str(refusal))
            return
        del self._done[: len(request.done)]
        for run, note in noted:
            del run.answers[: len(note.answers)]
            run.told_ack, run.told_have = note.ack, note.have
            run.interrupt = run.interrupt and not note.interrupt
        for run in new:
            run.let_go()
        self._absorb(reply)

    async def _call(self, request: Request) -> Reply | None:
        """Call the worker until it answers; a failed call alone proves nothing.

        Returns None if there is nobody left to talk about: a run may end between two attempts,
        with another worker that it needs.
        """
        silent = 0.0
        while True:
            since = self._loop.time()
            # Any slot there is a way to all of them.
            assigned = (run for run in self.runs.values() if run.assigned)
            slot = next((run.seat.slot for run in assigned if run.seat.slot is not None), None)
            if slot is None:
                return None
            try:
                reply = await self.unless_lost(slot.exchange(request))
                self.answered = self._loop.time()
                return reply
            except SlotFailed as failure:
                # A call that took longer has not waited for the worker: this process stood still.
                silent += min(self._loop.time() - since, CALL_DEADLINE) + _RETRY_PAUSE
                logger.info("%s (%.1f s)", failure, silent)
                if silent > self._heartbeat_timeout:
                    raise WorkerLost(str(failure), charged=True) from failure
                await self.unless_lost(asyncio.sleep(_RETRY_PAUSE))

    def _drop_cancelled(self) -> None:
        """End the runs whose slots are not there any more, though their worker may be."""
        for run in tuple(self.runs.values()):
            if run.assigned and _is_cancelled(run):
                self._refuse(run, _CANCELLED, charged=False)

    def _lose_patience(self) -> None:
        """Have user code that does not leave interrupted, then give it up."""
        now = self._loop.time()
        for run in tuple(self._leaving.values()):
            if now < run.patience:
                continue
            run.patience = now + self._stop_grace
            if not run.assigned:
                # It has not heard of it, and will not be begun when it does.
                continue
            run.interrupt = True
            if run.tainted:
                self._give_up(run)
            run.tainted = True

    def _give_up(self, run: Run) -> None:
        logger.warning(
            "trial %s does not obey its stop; its resources on %s stay taken until its thread ends",
            run.trial_id,
            run.address,
        )
        run.told = True
        del self._leaving[run.key]
        if run.withdrawn and not isinstance(run.order, StopNow):
            reason = "it did not leave when the experiment was interrupted"
            self._listener.emit([self._event(run, TrialLost, reason=reason, charged=False)])
            return
        kind = TrialStopped if isinstance(run.order, StopNow) else TrialPaused
        self._listener.emit([self._event(run, kind)])

    def _leave_behind(self, run: Run, end: AnyTrialEvent) -> None:
        """Tell how a trial ended although its slot, in which user code hangs, is not free."""
        self._leaving.pop(run.key, None)
        if run.told:
            return
        logger.warning(
            "user code on %s does not end; the resources of trial %s stay taken until it does",
            run.address,
            run.trial_id,
        )
        run.told = run.tainted = True
        self._listener.emit([end])

    # What comes of it

    def _absorb(self, reply: Reply) -> None:
        for key, why in reply.refused:
            if key in self.runs:
                self._refuse(self.runs[key], why)
        if reply.more:
            self.wake()
        returned = []
        for news in reply.news:
            run = self.runs.get(news.incarnation)
            if run is None:
                continue
            run.seconds = news.seconds
            for number in news.hauls:
                # It is said again until it has ended.
                if number > run.hauled:
                    run.hauled = number
                    self._listener.on_haul(self, run, number)
            run.end = end = self._hear(run, news.messages) or run.end
            if isinstance(end, TrialReturned):
                returned.append((run, end))
            elif end is not None and news.occupied:
                self._leave_behind(run, end)
            elif end is not None:
                self._finish(run, end)
        # Each goes before all that wait, so the first of them comes last.
        for run, end in reversed(returned):
            self._finish(run, end)

    def _hear(self, run: Run, messages: Packed) -> AnyTrialEvent | None:
        """Pass new messages on, all but the last word of the run, which is returned."""
        events: list[AnyTrialEvent] = []
        end: AnyTrialEvent | None = None
        now = self._now()
        for seq, content in unpack(messages):
            if seq <= run.have:
                continue
            run.have = seq
            if isinstance(content, dict):
                events.append(streamed(run, seq, content, now))
                continue
            try:
                message = message_of(seq, content)
            except Exception as error:
                end = self._unreadable(run, seq, error)
                break
            if _is_about_memory(message) and not run.told:
                self._listener.on_memory(run, message)
            event = event_of(message, run, now)
            if isinstance(message, TERMINAL):
                end = event
                break
            events.append(event)
        if events and not run.told:
            self._listener.emit(events)
        return end

    def _unreadable(self, run: Run, seq: int, error: Exception) -> AnyTrialEvent:
        run.tainted = True
        info = ErrorInfo(
            message=f"what the trial reported cannot be read by the driver: {error!r}. "
            "Report numbers, strings, lists and dicts."
        )
        return self._event(run, TrialFailed, seq=seq, error=info)

    def _refuse(self, run: Run, why: str, *, charged: bool = True) -> None:
        run.tainted = True
        kind = TrialLost if run.have else StartFailed
        self._finish(run, self._event(run, kind, reason=why, charged=charged))

    def _end_all(self, loss: WorkerLost) -> None:
        shared = loss.shared or self.suspects > 1
        for run in tuple(self.runs.values()):
            # Those that follow another one end with it.
            if run.key in self.runs:
                # A worker that died before it was asked to run the trial did not die of it, and of
                # several on a seat nobody knows which one did it.
                charged = loss.charged and run.assigned and len(run.seat.runs) == 1
                charged = charged and not _is_cancelled(run)
                facts = {"reason": loss.reason, "charged": charged, "shared": shared}
                self._finish(run, self._event(run, TrialLost, **facts))

    def _finish(self, run: Run, end: AnyTrialEvent) -> None:
        if self.runs.pop(run.key, None) is None:
            return
        self._leaving.pop(run.key, None)
        run.let_go()
        self._done.append(run.key)
        self._listener.on_end(self, run, None if run.told else end)

    def _event(self, run: Run, kind: Callable[..., AnyTrialEvent], **facts: Any) -> AnyTrialEvent:
        return kind(trial_id=run.trial_id, incarnation=run.incarnation, time=self._now(), **facts)


def _is_cancelled(run: Run) -> bool:
    return run.seat.slot is not None and run.seat.slot.is_cancelled


def _assignment(run: Run) -> Assignment:
    seat = run.seat
    assert seat.slot is not None
    spec = seat.equip(run.spec)
    return Assignment(
        incarnation=run.key,
        slot=seat.slot.key,
        spec=spec,
        config=run.config,
        memory=run.memory,
    )


def _note(run: Run) -> Note | None:
    """Return what the worker does not know yet of a run; None if there is nothing."""
    if not run.assigned or not (
        run.answers or run.interrupt or run.have > run.told_have or run.ack > run.told_ack
    ):
        return None
    return Note(
        incarnation=run.key,
        ack=run.ack,
        have=run.have,
        answers=tuple(run.answers),
        interrupt=run.interrupt,
    )


def _is_about_memory(message: Message) -> TypeGuard[Committed | Returned]:
    match message:
        case Committed(size=size):
            return size > 0
        case Returned(lacks_checkpoint=lacks):
            return lacks
        case _:
            return False


def _look_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
