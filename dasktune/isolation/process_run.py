"""Runs a trial in a child process, seen from the worker."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from dasktune.errors import TuneError
from dasktune.isolation import process_messages
from dasktune.isolation.environment import environment_of
from dasktune.isolation.process import ChildDied, ChildProcess
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.reporting.encoding import Content
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Urgency
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import (
    Answer,
    Failed,
    Order,
    PauseAnswer,
    Paused,
    StopAnswer,
    Stopped,
    Terminal,
)
from dasktune.trainable.running.error_info import error_info
from dasktune.trainable.running.run_base import RunBase
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.user_error import ErrorInfo

logger = logging.getLogger(__name__)

#: The beginning of `faulthandler`'s text for a process in which no Python code ran for too long.
_TIMEOUT: Final = "Timeout ("


class WarmProcess:
    """Keeps at most one child process, which runs one trial at a time; thread-safe."""

    # A trial's thread calls `acquire`; the worker's event loop calls `release_idle` and `close`.
    # The idle child changes hands under `_lock`: a trial takes it, or `release_idle` does, never
    # both. A trial that ends while `close` runs: if it returns its child first, `close` stops the
    # child; if `close` is first, the trial finds `_closed` and stops the child itself.

    def __init__(self) -> None:
        #: Held while a trial has the child, or while the child is being replaced.
        self._in_use = threading.Lock()
        self._lock = threading.Lock()
        self._idle: ChildProcess | None = None
        self._exiting: list[ChildProcess] = []
        self._closed = False

    @contextmanager
    def acquire(self, environment: Mapping[str, str]) -> Iterator[ChildProcess]:
        """Lend a child to a trial; after the block it is kept for the next trial, or has ended.

        Parameters
        ----------
        environment : mapping
            Variables with which the child must have been started.

        Raises
        ------
        OSError
            If no child can be started.
        """
        with self._in_use:
            child = self._idle_or_new(environment)
            child.is_reusable = False
            try:
                yield child
            finally:
                if not self._keep(child):
                    child.stop()

    @property
    def exiting(self) -> list[ChildProcess]:
        """The released children that have not ended yet."""
        with self._lock:
            self._exiting = [child for child in self._exiting if not child.finished]
            return list(self._exiting)

    def release_idle(self) -> None:
        """Stop the idle child, if there is one; return at once."""
        with self._lock:
            idle, self._idle = self._idle, None
            if idle is None:
                return
            self._exiting.append(idle)
        # In a thread: stopping takes a moment, and the caller is an event loop.
        threading.Thread(target=idle.stop, name="dasktune-stop-child", daemon=True).start()

    def close(self) -> None:
        """Stop the child, now or when its trial has ended; return at once."""
        with self._lock:
            self._closed = True
        self.release_idle()

    def _idle_or_new(self, environment: Mapping[str, str]) -> ChildProcess:
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            if idle.environment == environment and idle.is_alive:
                return idle
            idle.stop()
        child = ChildProcess(environment)
        logger.debug("started process %d for trials", child.pid)
        return child

    def _keep(self, child: ChildProcess) -> bool:
        with self._lock:
            if self._closed or not child.is_reusable:
                return False
            self._idle = child
            return True


class ProcessRun(RunBase):
    """Runs one start of a trial in a child process; used like a `ThreadRun`.

    The worker keeps the child's messages, so no result is lost when the child dies. The terminal
    message can be collected when the child is ready for another trial, or has ended and released
    its resources.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    opener : callable
        Returns the payload for the child. It is called in the run's thread and may block until user
        code may start.
    process : WarmProcess
        Lends the child.
    notify : callable
        Called with an `Urgency` when there are messages to collect; see
        :class:`~dasktune.trainable.reporting.outbox.Outbox`.
    hooks : CheckpointHooks, optional
        The worker's fence and memory for checkpoints.
    on_end : callable, optional
        Called in the run's thread, as its last action.
    reuse : bool, default=False
        Whether the object of a class trainable is kept for the next trial, if it can be reset.
    kill_delay : float, default=1.0
        Seconds from an interrupt to the kill.
    """

    # The run's thread sends the trial to the child and receives its messages. The worker's event
    # loop calls `answer`, `interrupt` and `collect`; timers call `_kill`. `_lock` guards `_child`:
    #
    # - A message before there is a child goes to `_early_messages`, which follow `RunTrial`. Later
    #   messages are posted directly. No message is sent twice to one child.
    # - A warm child may die before its first message. Then user code has not started, since the
    #   child sends `Started` before. The trial is sent to another child, with all early messages.
    # - A kill before there is a child sets `_killed`, and `_send_trial` kills the child at once. A
    #   kill after the child was returned finds `_child` None and does nothing.
    # - A timer that starts between the end of `_outcome` and the last message is not cancelled. It
    #   finds `_child` None, too.
    # - A kill in the moment between `ChildFinished` and the return of the child kills a child that
    #   is then kept. The next trial finds it dead, at `acquire` or before its first message.

    def __init__(
        self,
        spec: TrialSpec,
        opener: Callable[[], ChildPayload],
        process: WarmProcess,
        notify: Callable[[Urgency], None],
        hooks: CheckpointHooks | None = None,
        *,
        on_end: Callable[[], None] | None = None,
        reuse: bool = False,
        kill_delay: float = 1.0,
    ) -> None:
        # This gate only keeps the order to end: user code waits at the child's own gate.
        super().__init__(spec, notify, MilestoneGate(()), on_end)
        self._opener = opener
        self._process = process
        self._hooks = hooks or CheckpointHooks()
        self._reuse = reuse
        self._kill_delay = kill_delay
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        #: Whether the child has sent a message of the trial.
        self._child_began = False
        #: Messages to the child until then; another child gets them if this one dies.
        self._early_messages: list[process_messages.ToChild] = []
        self._acked = 0
        #: Timers that kill the child, by reason: after an interrupt, after a report timeout.
        self._timers: dict[str, threading.Timer] = {}
        self._killed = False
        #: The error if user code reported nothing for too long.
        self._timeout_error: ErrorInfo | None = None

    @property
    def occupied(self) -> bool:
        """Always False: user code and cleanups end with the process."""
        return False

    def collect(self, ack: int, received: int) -> list[tuple[int, Content]]:
        """Return the messages after `received`, and drop those up to `ack`."""
        if ack > self._acked:
            self._acked = ack
            self._post(process_messages.Acknowledge(ack=ack))
        return super().collect(ack, received)

    def answer(self, answer: Answer) -> None:
        """Apply an answer of the driver; ignore one that is old, repeated or overruled."""
        self._gate.answer(answer)
        self._post(process_messages.AnswerTrial(answer=answer))

    def interrupt(self, order: Order | None = None) -> None:
        """Interrupt user code, and kill its process if the trial does not end in time.

        A trial without an order to pause is stopped.

        Parameters
        ----------
        order : Order, optional
            An order that comes with the interrupt.
        """
        if order is not None or self._gate.order is None:
            self._gate.answer(order or StopAnswer(reason="interrupted"))
        self._post(process_messages.Interrupt(order=self._gate.order))
        self._kill_after(self._kill_delay, "interrupt")

    def _kill_after(self, seconds: float, why: str) -> None:
        with self._lock:
            if why not in self._timers and not self.finished:
                self._timers[why] = threading.Timer(seconds, self._kill)
                self._timers[why].daemon = True
                self._timers[why].start()

    def _outcome(self) -> Callable[..., Terminal]:
        """Run the trial, and return a function that builds its last message from a number."""
        try:
            payload = self._opener()
            while True:
                with self._process.acquire(environment_of(self.spec)) as child:
                    terminal = self._perform(child, payload)
                if terminal is not None:
                    return terminal
        except Exception as error:
            return partial(Failed, error=error_info(error))
        finally:
            with self._lock:
                for timer in self._timers.values():
                    timer.cancel()

    def _perform(self, child: ChildProcess, payload: ChildPayload) -> Callable[..., Terminal] | None:
        """Run the trial in a child; None if a warm child died before it started the trial."""
        warm = child.has_code
        try:
            self._send_trial(child, payload)
            return self._receive_until_finished(child)
        except ChildDied as death:
            if warm and not (self._child_began or self._killed):
                return None
            return self._terminal_of_death(death)
        finally:
            with self._lock:
                self._child = None

    def _send_trial(self, child: ChildProcess, payload: ChildPayload) -> None:
        fresh, child.has_code = not child.has_code, True
        begin = process_messages.RunTrial(
            spec=self.spec,
            payload=payload if fresh else replace(payload, code=None),
            reuse=self._reuse,
            packed=self._hooks.packed,
        )
        with self._lock:
            self._child = child
            for message in (begin, *self._early_messages):
                child.post(message)
            if self._killed:
                child.kill()

    def _receive_until_finished(self, child: ChildProcess) -> Callable[..., Terminal]:
        """Handle the child's messages until the trial has ended."""
        while True:
            received: process_messages.FromChild = child.receive()
            match received:
                case process_messages.ChildMessages(messages=messages, urgent=urgent):
                    self._child_began = True
                    self._outbox.extend(messages, urgent=urgent)
                case process_messages.StoreCheckpoint(path=path, packed=packed):
                    self._hooks.keep_in_memory(path, packed)
                case process_messages.AskCommit():
                    child.post(process_messages.CommitAllowed(refusal=self._refusal()))
                case process_messages.RequestTransfer(number=number, transfer=transfer):
                    self.transfers.submit(transfer, partial(self._on_transfer_ended, number))
                case process_messages.ReportTimedOut(error=error):
                    self._timeout_error = error
                    self._kill_after(self.spec.stop_grace, "hang")
                case process_messages.ChildFinished(terminal=pickled, changes=changes):
                    terminal: Terminal = pickle.loads(pickled)
                    if changes:
                        message = "trial %s has changed its process (%s): the next one gets a new one"
                        logger.info(message, self.spec.trial_id, changes)
                    # A failure may have damaged what no comparison shows: after a device-side
                    # assert each further call of CUDA fails in this process.
                    child.is_reusable = not (changes or isinstance(terminal, Failed))
                    return partial(_child_terminal, terminal)

    def _on_transfer_ended(self, number: int, error: TuneError | None) -> None:
        self._post(process_messages.TransferDone(number=number, error=error))

    def _refusal(self) -> str | None:
        try:
            self._hooks.fence()
        except BaseException as error:
            return str(error) or type(error).__name__
        return None

    def _terminal_of_death(self, death: ChildDied) -> Callable[..., Terminal]:
        if self._timeout_error is not None or not self._killed:
            return partial(Failed, error=self._timeout_error or self._death_error(death))
        return Paused if isinstance(self._gate.order, PauseAnswer) else Stopped

    def _death_error(self, death: ChildDied) -> ErrorInfo:
        limit, error = self.spec.report_timeout_s, death.error
        if limit is not None and error.traceback.startswith(_TIMEOUT):
            return replace(error, message=f"no result for {limit:g} s (report_timeout_s)")
        return error

    def _kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()

    def _post(self, message: process_messages.ToChild) -> None:
        with self._lock:
            if not self._child_began:
                self._early_messages.append(message)
            if self._child is not None:
                self._child.post(message)


def _child_terminal(message: Terminal, *, seq: int) -> Terminal:
    """Return the child's last message; `seq` is the number that it already has."""
    return message
