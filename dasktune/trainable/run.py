"""A trial on its worker: a thread for user code, and messages in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.trainable.checkpoint_port import CheckpointPort
from dasktune.trainable.class_run import ClassRun
from dasktune.trainable.failure import error_info, hang_info
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
from dasktune.trainable.outbox import Urgency
from dasktune.trainable.output import streams_redirected
from dasktune.trainable.recorder import Done, Ending, Recorder
from dasktune.trainable.relay import Dock, RelayedStore
from dasktune.trainable.session import ClassSession, Session
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.trainable import Trainable
from dasktune.trainable.trial_thread import TrialThread
from dasktune.trainable.watchdog import Watchdog
from dasktune.trial.events import ErrorInfo

__all__ = ["TrialRun", "TrialSpec"]


class TrialRun(TrialThread):
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
    port : CheckpointPort, optional
        What the worker does for the trial's checkpoints.
    keeper : Keeper, optional
        Where a class trainable may come from and go to; by default it is built and cleaned up.
    on_end : callable, optional
        Called in the trial's thread, as the last thing that it does.
    timer : callable, default=time.monotonic
        Seconds, for the time that user code takes.
    dock : Dock, optional
        Where what the driver is to carry waits for it; by default it rings with `ring`.
    """

    def __init__(
        self,
        spec: TrialSpec,
        opener: Callable[[], tuple[type[Trainable] | Callable[[Any], Any], dict[str, Any]]],
        ring: Callable[[Urgency], None],
        port: CheckpointPort | None = None,
        *,
        keeper: Keeper | None = None,
        on_end: Callable[[], None] | None = None,
        timer: Callable[[], float] = time.monotonic,
        dock: Dock | None = None,
    ) -> None:
        super().__init__(spec, ring, Gate(spec.milestones), on_end, dock)
        self._opener = opener
        self._keeper = keeper or Keeper()
        self._timer = timer
        self._interrupter = Interrupter()
        #: Notices user code that hangs.
        self.watchdog = Watchdog(spec.report_timeout_s, self._take_for_hung)
        #: Called in the watchdog's thread when user code hangs, with what is to be told.
        self.on_hang: Callable[[ErrorInfo], None] = self._end_hung
        self._hang: ErrorInfo | None = None
        self._recorder = Recorder(
            spec,
            outbox=self._outbox,
            gate=self._gate,
            store=self._make_store(),
            port=port or CheckpointPort(),
            watchdog=self.watchdog,
        )

    @property
    def occupied(self) -> bool:
        """Whether it has ended, but not all user code: it hangs, or a cleanup from before does."""
        return self.finished and (self.in_use or self._keeper.is_occupied)

    def answer(self, answer: Answer) -> None:
        """Take the driver's answer; one that is old, repeated or overruled is ignored."""
        self._gate.answer(answer)
        if self._gate.order is not None:
            # Nothing may hold up a trial that is to end.
            self._outbox.lift_bound()

    def interrupt(self) -> None:
        """End user code now, as far as Python allows: for a trial that does not come to a result.

        It stops the trial unless it was told to pause. It may be called again for user code that
        catches the exception. What blocks outside Python is not cut short.
        """
        if self._gate.order is None:
            self.stop("interrupted")
        self._interrupter.interrupt()

    def _take_for_hung(self, ident: int) -> None:
        # Who was told to leave has his time for that.
        if self._gate.order is None and self.spec.report_timeout_s is not None:
            self._hang = hang_info(self.spec.report_timeout_s, ident)
            self.stop(self._hang.message)
            self.on_hang(self._hang)

    def _end_hung(self, hang: ErrorInfo) -> None:
        """Interrupt user code that hangs, and end the trial without it if that does not help."""
        for _ in range(2):
            self._interrupter.interrupt()
            if self._finished.wait(self.spec.stop_grace):
                return
        self._give_up(partial(Failed, error=hang))

    def _make_store(self) -> CheckpointStore | RelayedStore:
        if self.spec.relayed:
            return RelayedStore(self.dock.begin)
        storage = self.spec.storage
        return CheckpointStore(storage.patient(storage.patience, self._is_wanted))

    def _is_wanted(self) -> bool:
        """Whether it is worth waiting for a storage that fails."""
        return not isinstance(self._gate.order, StopNow)

    def _outcome(self) -> Callable[..., Terminal]:
        """Run the trial and return what makes its terminal message."""
        self._outbox.put(lambda seq: Started(seq=seq), urgent=False)
        failure: ErrorInfo | None = None
        interruption: ErrorInfo | None = None
        for part in (self._perform, self._recorder.finish):
            # No exception is kept: with its traceback it would keep what user code held.
            try:
                part()
            except TrialInterrupted as error:
                interruption = error_info(error)
            except BaseException as error:
                # Whatever user code raises, SystemExit included, is its own end and not the
                # worker's. The first failure is the one to be told.
                failure = failure or error_info(error)
        failure = self._hang or failure
        if failure is not None:
            return partial(Failed, error=failure)
        if interruption is None:
            return _terminal_type(self._recorder.ending or Done())
        ending = self._recorder.ending or self._gate.order
        if ending is None:
            return partial(Failed, error=interruption)
        return _terminal_type(ending)

    def _perform(self) -> None:
        trainable, config = self._interrupter.call(self._opener)
        # Only now: the user's modules may be what teaches fsspec to reach the storage.
        if self.spec.incarnation > 1:
            self._recorder.sweep()
        with streams_redirected(self.spec, self.dock):
            self._train(trainable, config)

    def _train(self, trainable: Any, config: dict[str, Any]) -> None:
        make_session = ClassSession if isinstance(trainable, type) else Session
        session = make_session(self.spec, self._recorder, self._interrupter, self._timer)
        session.enter()
        if config.get("log_sys_usage"):
            self._recorder.measure_usage()
        self.watchdog.start()
        try:
            if isinstance(trainable, type):
                run = ClassRun(self.spec, self._recorder, self._interrupter, self._keeper)
                run.run(trainable, dict(config))
            else:
                self._interrupter.call(run_function, trainable, dict(config), session.report)
        finally:
            self.watchdog.close()
            session.close()


def _terminal_type(ending: Ending) -> type[Ended] | type[Paused] | type[Stopped]:
    match ending:
        case Done():
            return Ended
        case PauseNow():
            return Paused
        case StopNow():
            return Stopped
