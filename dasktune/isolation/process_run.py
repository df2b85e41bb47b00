"""A trial in a process of its own, as its slot sees it."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from dasktune.errors import TuneError
from dasktune.isolation.environment import environment_of
from dasktune.isolation.nursery import Nursery
from dasktune.isolation.process import ChildDied, ChildProcess
from dasktune.isolation.wire import (
    Acknowledge,
    Begin,
    Carried,
    Carry,
    Hung,
    Interrupt,
    Keep,
    MayCommit,
    Over,
    Said,
    Tell,
    ToChild,
    Verdict,
)
from dasktune.trainable.checkpoint_port import CheckpointPort
from dasktune.trainable.contents import Content
from dasktune.trainable.failure import error_info
from dasktune.trainable.gate import Gate
from dasktune.trainable.messages import (
    Answer,
    Failed,
    Paused,
    PauseNow,
    Stopped,
    Terminal,
)
from dasktune.trainable.outbox import Urgency
from dasktune.trainable.parcel import Parcel
from dasktune.trainable.spec import TrialSpec
from dasktune.trainable.trial_thread import TrialThread
from dasktune.trial.events import ErrorInfo

__all__ = ["ProcessRun"]

logger = logging.getLogger(__name__)

#: What `faulthandler` writes before the tracebacks of a process that was too long without Python.
_TIMEOUT: Final = "Timeout ("


class ProcessRun(TrialThread):
    """Runs one incarnation of a trial in a child process; to be used like a `TrialRun`.

    What the child has said is kept here, so its death costs nothing that was reported. A terminal
    message is there to be collected when the child is ready for another trial, or gone and with it
    all that it held.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    opener : callable
        Returns what the child opens. It is called in a thread of the run and may block until user
        code may begin.
    nursery : Nursery
        Where the child comes from.
    ring : callable
        Called with an `Urgency` when there are messages to collect; see
        :class:`~dasktune.trainable.outbox.Outbox`.
    port : CheckpointPort, optional
        What the worker does for the trial's checkpoints.
    on_end : callable, optional
        Called as the last thing, in a thread of the run.
    reuse : bool, default=False
        Whether the object of a class trainable is kept for the next trial, if it can be reset.
    chance : float, default=1.0
        Seconds from an interrupt to the kill.
    """

    def __init__(
        self,
        spec: TrialSpec,
        opener: Callable[[], Parcel],
        nursery: Nursery,
        ring: Callable[[Urgency], None],
        port: CheckpointPort | None = None,
        *,
        on_end: Callable[[], None] | None = None,
        reuse: bool = False,
        chance: float = 1.0,
    ) -> None:
        # Nobody waits at this gate, user code waits in the child.
        super().__init__(spec, ring, Gate(()), on_end)
        self._opener = opener
        self._nursery = nursery
        self._port = port or CheckpointPort()
        self._reuse = reuse
        self._chance = chance
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        #: Whether the child has said something.
        self._begun = False
        #: What came for the child until then.
        self._early: list[ToChild] = []
        self._acked = 0
        #: What is to kill the child: after an interrupt, after a hang.
        self._timers: dict[str, threading.Timer] = {}
        self._killed = False
        #: That user code comes to no result.
        self._hang: ErrorInfo | None = None

    @property
    def occupied(self) -> bool:
        """Whether a cleanup is left when the trial has ended: never, it ends with the process."""
        return False

    def collect(self, ack: int, have: int) -> list[tuple[int, Content]]:
        """Return number and content of what comes after `have`; forget what `ack` covers."""
        if ack > self._acked:
            self._acked = ack
            self._post(Acknowledge(ack=ack))
        return super().collect(ack, have)

    def answer(self, answer: Answer) -> None:
        """Take the driver's answer; one that is old, repeated or overruled is ignored."""
        self._gate.answer(answer)
        self._post(Tell(answer=answer))

    def interrupt(self) -> None:
        """End user code now: by an exception if it listens in time, else by killing its process.

        It stops the trial unless it was told to pause.
        """
        if self._gate.order is None:
            self.stop("interrupted")
        self._post(Interrupt())
        self._kill_after(self._chance, "interrupt")

    def _kill_after(self, seconds: float, why: str) -> None:
        with self._lock:
            if why not in self._timers and not self.finished:
                self._timers[why] = threading.Timer(seconds, self._kill)
                self._timers[why].daemon = True
                self._timers[why].start()

    def _outcome(self) -> Callable[..., Terminal]:
        """Run the trial and return what makes its terminal message."""
        try:
            parcel = self._opener()
            while True:
                with self._nursery.lend(environment_of(self.spec)) as child:
                    terminal = self._perform(child, parcel)
                if terminal is not None:
                    return terminal
        except Exception as error:
            return partial(Failed, error=error_info(error))
        finally:
            with self._lock:
                for timer in self._timers.values():
                    timer.cancel()

    def _perform(self, child: ChildProcess, parcel: Parcel) -> Callable[..., Terminal] | None:
        """Run the trial in a child; None if it was dying before the trial came."""
        warm = child.has_payload
        try:
            self._board(child, parcel)
            return self._attend(child)
        except ChildDied as death:
            if warm and not (self._begun or self._killed):
                return None
            return self._fate(death)
        finally:
            with self._lock:
                self._child = None

    def _board(self, child: ChildProcess, parcel: Parcel) -> None:
        fresh, child.has_payload = not child.has_payload, True
        begin = Begin(
            spec=self.spec,
            parcel=parcel if fresh else replace(parcel, payload=None),
            reuse=self._reuse,
            packed=self._port.packed,
        )
        with self._lock:
            self._child = child
            for message in (begin, *self._early):
                child.post(message)
            if self._killed:
                child.kill()

    def _attend(self, child: ChildProcess) -> Callable[..., Terminal]:
        """Take what the child says until the trial is over."""
        while True:
            match child.receive():
                case Said(messages=messages, urgent=urgent):
                    self._begun = True
                    self._outbox.extend(messages, urgent=urgent)
                case Keep(path=path, packed=packed):
                    self._port.keep(path, packed)
                case MayCommit():
                    child.post(Verdict(refusal=self._refusal()))
                case Carry(number=number, haul=haul):
                    self.dock.begin(haul, partial(self._carried, number))
                case Hung(error=error):
                    self._hang = error
                    self._kill_after(self.spec.stop_grace, "hang")
                case Over(terminal=terminal, traces=traces):
                    if traces:
                        logger.info("%s left %s: a new process", self.spec.trial_id, traces)
                    child.is_reusable = not traces
                    return partial(_again, pickle.loads(terminal))

    def _carried(self, number: int, error: TuneError | None) -> None:
        self._post(Carried(number=number, error=error))

    def _refusal(self) -> str | None:
        try:
            self._port.fence()
        except BaseException as error:
            return str(error) or type(error).__name__
        return None

    def _fate(self, death: ChildDied) -> Callable[..., Terminal]:
        if self._hang is not None or not self._killed:
            return partial(Failed, error=self._hang or self._told_of(death))
        return Paused if isinstance(self._gate.order, PauseNow) else Stopped

    def _told_of(self, death: ChildDied) -> ErrorInfo:
        limit, error = self.spec.report_timeout_s, death.error
        if limit is not None and error.traceback.startswith(_TIMEOUT):
            return replace(error, message=f"no result for {limit:g} s (report_timeout_s)")
        return error

    def _kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()

    def _post(self, message: ToChild) -> None:
        with self._lock:
            if not self._begun:
                self._early.append(message)
            if self._child is not None:
                self._child.post(message)


def _again(message: Terminal, *, seq: int) -> Terminal:
    """Return the child's own last word, which has the number that comes next anyway."""
    return message
