"""A trial on its worker: a thread for user code, and messages in and out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.trainable.class_run import ClassRun
from dasktune.trainable.contents import Content
from dasktune.trainable.failure import error_info
from dasktune.trainable.function import run_function
from dasktune.trainable.gate import Gate
from dasktune.trainable.interrupt import Interrupter, TrialInterrupted
from dasktune.trainable.keeper import Keeper
from dasktune.trainable.messages import (
    Answer,
    Ended,
    Failed,
    Paused,
    PauseNow,
    Started,
    StopNow,
    Stopped,
    Terminal,
)
from dasktune.trainable.outbox import Outbox, Urgency
from dasktune.trainable.recorder import Done, Ending, Recorder
from dasktune.trainable.session import ClassSession, Session
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.trainable import Trainable

__all__ = ["TrialRun", "TrialSpec"]


class TrialRun:
    """Runs one incarnation of a trial, from :class:`Started` to exactly one terminal message.

    All methods are thread-safe, return at once and may be called again with the same arguments.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    opener : callable
        Returns the trainable, a subclass of :class:`Trainable` or a function of the configuration,
        and the configuration. Called in the trial's thread: unpickling them may run user code.
    ring : callable
        Called with an `Urgency` when there are messages to collect, in the thread that has the
        news; see :class:`~dasktune.trainable.outbox.Outbox`.
    fence : callable, optional
        Called right before a checkpoint comes into being. It raises, or blocks for a while, if
        this worker may not commit.
    keeper : Keeper, optional
        Where a class trainable may come from and go to; by default it is built and cleaned up.
    on_end : callable, optional
        Called in the trial's thread, as the last thing that it does.
    timer : callable, default=time.monotonic
        Seconds, for the time that user code takes.
    """

    def __init__(
        self,
        spec: TrialSpec,
        opener: Callable[[], tuple[type[Trainable] | Callable[[Any], Any], dict[str, Any]]],
        ring: Callable[[Urgency], None],
        fence: Callable[[], None] | None = None,
        *,
        keeper: Keeper | None = None,
        on_end: Callable[[], None] | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self._opener = opener
        self._keeper = keeper or Keeper()
        self._on_end = on_end
        self._timer = timer
        self._outbox = Outbox(ring)
        self._gate = Gate(spec.milestones)
        self._interrupter = Interrupter()
        self._recorder = Recorder(
            spec,
            outbox=self._outbox,
            gate=self._gate,
            store=CheckpointStore(spec.storage),
            fence=fence or _no_fence,
        )
        self._finished = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"dasktune-{spec.trial_id}", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs: as long as it does, the trial's resources are in use."""
        return self._thread.is_alive()

    @property
    def finished(self) -> bool:
        """Whether the terminal message is there to be collected."""
        return self._finished.is_set()

    @property
    def occupied(self) -> bool:
        """Whether it has ended, but not a cleanup that hung before it began and was left behind."""
        return self.finished and self._keeper.is_occupied

    @property
    def has_news(self) -> bool:
        """Whether the bell has rung and nobody has collected since."""
        return self._outbox.has_news

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the thread's end, and say whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def collect(self, ack: int, have: int) -> list[tuple[int, Content]]:
        """Return number and content of what comes after `have`; forget what `ack` covers."""
        return self._outbox.collect(ack, have)

    def answer(self, answer: Answer) -> None:
        """Take the driver's answer; one that is old, repeated or overruled is ignored."""
        self._gate.answer(answer)
        if self._gate.order is not None:
            # Nothing may hold up a trial that is to end.
            self._outbox.lift_bound()

    def stop(self, reason: str) -> None:
        """End the trial at the result where it waits, or at its next one."""
        self.answer(StopNow(reason=reason))

    def interrupt(self) -> None:
        """End user code now, as far as Python allows: for a trial that does not come to a result.

        It stops the trial unless it was told to pause. It may be called again for user code that
        catches the exception. What blocks outside Python is not cut short.
        """
        if self._gate.order is None:
            self.stop("interrupted")
        self._interrupter.interrupt()

    def _run(self) -> None:
        self._outbox.put(lambda seq: Started(seq=seq), urgent=False)
        self._outbox.put(self._outcome())
        if self._on_end is not None:
            self._on_end()

    def _outcome(self) -> Callable[[int], Terminal]:
        """Run the trial and return what makes its terminal message."""
        try:
            self._perform()
        except TrialInterrupted as interruption:
            ending = self._recorder.ending or self._gate.order
            if ending is None:
                return self._terminal(partial(Failed, error=error_info(interruption)))
        except BaseException as error:
            # Whatever user code raises, SystemExit included, is its own end and not the worker's.
            return self._terminal(partial(Failed, error=error_info(error)))
        else:
            ending = self._recorder.ending or Done()
        return self._terminal(_terminal_type(ending))

    def _perform(self) -> None:
        trainable, config = self._interrupter.call(self._opener)
        make_session = ClassSession if isinstance(trainable, type) else Session
        session = make_session(self.spec, self._recorder, self._interrupter, self._timer)
        session.enter()
        try:
            if isinstance(trainable, type):
                run = ClassRun(self.spec, self._recorder, self._interrupter, self._keeper)
                run.run(trainable, dict(config))
            else:
                self._interrupter.call(run_function, trainable, dict(config), session.report)
        finally:
            session.close()

    def _terminal(self, make: Callable[..., Terminal]) -> Callable[[int], Terminal]:
        def finish(seq: int) -> Terminal:
            # Under the outbox's lock: whoever collects the message finds `finished` set.
            self._finished.set()
            return make(seq=seq)

        return finish


def _terminal_type(ending: Ending) -> type[Ended] | type[Paused] | type[Stopped]:
    match ending:
        case Done():
            return Ended
        case PauseNow():
            return Paused
        case StopNow():
            return Stopped


def _no_fence() -> None:
    """Let every checkpoint pass."""
