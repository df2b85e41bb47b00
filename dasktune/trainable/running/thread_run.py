"""Runs a trial's user code in a thread, of the worker or of a child process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.trainable.api.session import ClassSession, Session
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.async_exception import AsyncRaise, TrialInterrupted
from dasktune.trainable.checkpoints.relay import RelayedStore, TransferQueue
from dasktune.trainable.reporting import trial_messages
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox, Urgency
from dasktune.trainable.reporting.recorder import CheckpointHooks, Done, Ending, Recorder, Unusable
from dasktune.trainable.reporting.report_timeout import ReportTimeout
from dasktune.trainable.running.class_run import ClassRun
from dasktune.trainable.running.error_info import error_info, timeout_info
from dasktune.trainable.running.function_run import run_function
from dasktune.trainable.running.grace_period import GracePeriod
from dasktune.trainable.running.output_capture import streams_redirected
from dasktune.trainable.running.reuse import ReusableTrainable
from dasktune.trainable.running.run_base import RunBase
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo


class ThreadRun(RunBase):
    """Runs one start of a trial, from :class:`Started` to exactly one terminal message.

    All methods are thread-safe, return at once and may be called again with the same arguments.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    opener : callable
        Returns the trainable (a subclass of :class:`Trainable` or a function of the configuration)
        and the configuration. Called in the trial's thread: unpickling them may run user code.
    notify : callable
        Called with an `Urgency` when there are messages to collect, in the thread that puts them;
        see :class:`~dasktune.trainable.reporting.outbox.Outbox`.
    hooks : CheckpointHooks, optional
        The worker's fence and memory for checkpoints.
    reusable : ReusableTrainable, optional
        Keeps a class trainable between two trials; by default each trial builds and cleans up one.
    on_end : callable, optional
        Called in the trial's thread, as its last action.
    timer : callable, default=time.monotonic
        Returns seconds; measures how long user code runs.
    transfers : TransferQueue, optional
        The transfers that wait for the driver; by default a queue that calls `notify`.
    outbox : Outbox, optional
        Keeps the messages for the driver; by default one that calls `notify`.
    gate : MilestoneGate, optional
        Where the trial waits at the milestones of `spec`.
    """

    # The report timeout has its own thread. It may expire at the moment when user code
    # returns. If `_timeout_error` is set before `_outcome` reads it, the trial has failed. If not,
    # the trial ends as if there were no timeout: the interrupt stays pending and is never raised,
    # since no user code runs any more, and `_finished` ends the wait of `_end_timed_out`.
    #
    # When the trial has ended by itself, user code still cleans up: `cleanup` of a class, and a
    # function after its result with ``done``. A `GracePeriod` bounds that, since no order of the
    # driver does. It ends the trial with the message that it would have had.

    def __init__(
        self,
        spec: TrialSpec,
        opener: Callable[[], tuple[type[Trainable] | Callable[[Any], Any], dict[str, Any]]],
        notify: Callable[[Urgency], None],
        hooks: CheckpointHooks | None = None,
        *,
        reusable: ReusableTrainable | None = None,
        on_end: Callable[[], None] | None = None,
        timer: Callable[[], float] = time.monotonic,
        transfers: TransferQueue | None = None,
        outbox: Outbox | None = None,
        gate: MilestoneGate | None = None,
    ) -> None:
        super().__init__(spec, notify, gate or MilestoneGate(spec.milestones), on_end, transfers, outbox)
        self._opener = opener
        self._reusable = reusable or ReusableTrainable()
        self._timer = timer
        self._interrupter = AsyncRaise()
        #: Detects user code that hangs.
        self.report_timeout = ReportTimeout(spec.report_timeout_s, self._on_report_timeout)
        #: Called with the error when user code hangs, in the thread of the report timeout. It
        #: stops the trial.
        self.on_timeout: Callable[[ErrorInfo], None] = self._end_timed_out
        self._timeout_error: ErrorInfo | None = None
        self._grace_period: GracePeriod | None = None
        #: Whether a grace period has ended the trial; set in the trial's thread.
        self._has_concluded = False
        self._recorder = Recorder(
            spec,
            outbox=self._outbox,
            gate=self._gate,
            store=self._make_store(),
            hooks=hooks or CheckpointHooks(),
            report_timeout=self.report_timeout,
        )

    @property
    def occupied(self) -> bool:
        """Whether the trial has ended, but hanging user code or an abandoned cleanup still runs."""
        return self.finished and (self.in_use or self._reusable.has_abandoned_cleanup)

    def answer(self, answer: trial_messages.Answer) -> None:
        """Apply an answer of the driver; ignore one that is old, repeated or overruled."""
        self._gate.answer(answer)
        if self._gate.order is not None:
            # A full outbox must not delay a trial that was ordered to end.
            self._outbox.lift_bound()

    def interrupt(self, order: trial_messages.Order | None = None) -> None:
        """Interrupt user code, for a trial that does not reach its next result.

        A trial without an order to pause is stopped. It may be called again for user code that
        catches the exception. A call that blocks outside Python is not interrupted.

        Parameters
        ----------
        order : Order, optional
            An order that comes with the interrupt. The two raise one exception.
        """

        def give_order() -> None:
            if order is not None:
                self.answer(order)
            elif self._gate.order is None:
                self.stop("interrupted")

        self._interrupter.interrupt(give_order)

    def _on_report_timeout(self, ident: int) -> None:
        # A trial with an order to end has its own grace period.
        if self._gate.order is None and self.spec.report_timeout_s is not None:
            self._timeout_error = timeout_info(self.spec.report_timeout_s, ident)
            self.on_timeout(self._timeout_error)

    def _end_timed_out(self, hang: ErrorInfo) -> None:
        """Interrupt hanging user code up to twice, then end the trial and abandon its thread."""
        order = trial_messages.StopAnswer(reason=hang.message)
        for _ in range(2):
            self.interrupt(order)
            if self._finished.wait(self.spec.stop_grace):
                return
        self._abandon(partial(trial_messages.Failed, error=hang))

    def _start_grace_period(self, error: BaseException | None = None) -> None:
        """Bound the time that user code has from now on: the trial has ended.

        Parameters
        ----------
        error : BaseException, optional
            Why it has ended, if user code has raised.
        """
        # The clean-up reports nothing.
        self.report_timeout.close()
        if self._gate.order is not None:
            # The driver bounds the time of a trial that it has ordered to end, and the code that
            # has stopped the trial here interrupts it. Two interrupts would strike one clean-up.
            return
        failure = None if error is None or isinstance(error, TrialInterrupted) else error_info(error)
        interruption = error_info(error) if isinstance(error, TrialInterrupted) else None
        self._grace_period = GracePeriod(
            self.spec.stop_grace,
            trial_id=self.spec.trial_id,
            interrupt=self._interrupter.interrupt,
            abandon=lambda: self._abandon(self._conclude(failure, interruption)),
        )
        self._grace_period.start()

    def _end_grace_period(self) -> None:
        """Note that user code has returned; raise TrialInterrupted if the trial was abandoned."""
        period, self._grace_period = self._grace_period, None
        if period is not None:
            try:
                period.close()
            except TrialInterrupted:
                self._has_concluded = True
                raise

    def _make_store(self) -> CheckpointStore | RelayedStore:
        if self.spec.relayed:
            return RelayedStore(self.transfers.submit)
        storage = self.spec.storage
        return CheckpointStore(storage.with_retry(storage.retry_seconds, self._is_still_needed))

    def _is_still_needed(self) -> bool:
        """Whether a failing storage is worth retrying: not for a trial that was stopped."""
        return not isinstance(self._gate.order, trial_messages.StopAnswer)

    def _outcome(self) -> Callable[..., trial_messages.Terminal]:
        """Run the trial, and return a function that builds its last message from a number."""
        self._outbox.put(lambda seq: trial_messages.Started(seq=seq), urgent=False)
        failure: ErrorInfo | None = None
        interruption: ErrorInfo | None = None
        # No exception object is kept: its traceback would keep the objects of user code.
        try:
            self._perform()
        except TrialInterrupted as error:
            interruption = error_info(error)
        except BaseException as error:
            # Any exception of user code, SystemExit included, ends the trial and not the worker.
            failure = error_info(error)
        if self._has_concluded:
            raise TrialInterrupted
        return self._conclude(failure, interruption)

    def _conclude(
        self, failure: ErrorInfo | None, interruption: ErrorInfo | None
    ) -> Callable[..., trial_messages.Terminal]:
        """Wait for the uploads, and return a function that builds the last message.

        Called once: by the trial's thread, or by that of a grace period, which abandons the first.
        """
        try:
            self._recorder.finish()
        except TrialInterrupted as error:
            interruption = error_info(error)
        except BaseException as error:
            # The first failure is reported.
            failure = failure or error_info(error)
        failure = self._timeout_error or failure
        if failure is not None:
            return partial(trial_messages.Failed, error=failure)
        if interruption is None:
            return _terminal_maker(self._recorder.ending or Done())
        ending = self._recorder.ending or self._gate.order
        if ending is None:
            return partial(trial_messages.Failed, error=interruption)
        return _terminal_maker(ending)

    def _perform(self) -> None:
        trainable, config = self._interrupter.call(self._opener)
        # After the opener: the user's modules may register the storage's fsspec implementation.
        if self.spec.incarnation > 1:
            self._recorder.remove_stale_checkpoints()
        with streams_redirected(self.spec, self.transfers):
            self._train(trainable, config)

    def _train(self, trainable: Any, config: dict[str, Any]) -> None:
        make_session = ClassSession if isinstance(trainable, type) else Session
        session = make_session(
            self.spec, self._recorder, self._interrupter, self._timer, self._start_grace_period
        )
        session.enter()
        if config.get("log_sys_usage"):
            self._recorder.measure_usage()
        self.report_timeout.start()
        try:
            if isinstance(trainable, type):
                run = ClassRun(
                    self.spec, self._recorder, self._interrupter, self._reusable, bounded=self._bounded
                )
                run.run(trainable, dict(config))
            else:
                self._interrupter.call(run_function, trainable, dict(config), session.report)
        finally:
            self.report_timeout.close()
            session.close()
            self._end_grace_period()

    @contextmanager
    def _bounded(self, error: BaseException | None = None) -> Iterator[None]:
        """Bound the time of the ``with`` block, which cleans up a class trainable."""
        self._start_grace_period(error)
        try:
            yield
        finally:
            self._end_grace_period()


def _terminal_maker(ending: Ending) -> Callable[..., trial_messages.Terminal]:
    """Return a function that builds the last message of a run that ended for this reason."""
    match ending:
        case Unusable():
            return partial(trial_messages.Unrestored, checkpoint=ending.checkpoint, reason=ending.reason)
        case Done():
            return trial_messages.Ended
        case trial_messages.PauseAnswer():
            return trial_messages.Paused
        case trial_messages.StopAnswer():
            return trial_messages.Stopped
