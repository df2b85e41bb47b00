"""The base of a trial's run on its worker, whether user code runs in a thread or in a process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.checkpoints.relay import TransferQueue
from dasktune.trainable.reporting.encoding import Content
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox, Urgency
from dasktune.trainable.reporting.trial_messages import Answer, NoticeAnswer, Order, StopAnswer, Terminal
from dasktune.trainable.spec import TrialSpec


class RunBase(ABC):
    """Runs one start of a trial, in a thread, and ends it with exactly one terminal message.

    All methods are thread-safe, return at once and may be called again with the same arguments.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    notify : callable
        Called with an `Urgency` when there are messages to collect, in the thread that puts them;
        see :class:`~dasktune.trainable.reporting.outbox.Outbox`.
    gate : MilestoneGate
        Holds the order to end, if there is one.
    on_end : callable, optional
        Called in the run's thread, as its last action.
    transfers : TransferQueue, optional
        The transfers that wait for the driver; by default a queue that calls `notify`.
    outbox : Outbox, optional
        Keeps the messages for the driver; by default one that calls `notify`.
    """

    # The last message comes from the run's thread (`_run`) or, if user code does not end, from
    # another one (`_abandon`). Both build it in `_finish`, under the outbox's lock: the first call
    # sets `_finished`, the second call raises TrialInterrupted and changes nothing.

    def __init__(
        self,
        spec: TrialSpec,
        notify: Callable[[Urgency], None],
        gate: MilestoneGate,
        on_end: Callable[[], None] | None,
        transfers: TransferQueue | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.spec = spec
        #: Transfers through the driver, on a worker without access to the storage.
        self.transfers = transfers or TransferQueue(lambda number, transfer: notify(Urgency.NOW))
        self._outbox = outbox or Outbox(notify)
        self._gate = gate
        self._on_end = on_end
        self._finished = threading.Event()
        #: Set when the trial's thread ends, or the trial ends without it.
        self._over = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"dasktune-{spec.trial_id}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs: until it ends, the trial's resources are in use."""
        return self._thread.is_alive()

    @property
    def finished(self) -> bool:
        """Whether the terminal message can be collected."""
        return self._finished.is_set()

    @property
    def in_use(self) -> bool:
        """Whether user code may be running, perhaps abandoned after the end of the trial."""
        return not self.finished or (self._abandoned and self.is_alive)

    @property
    @abstractmethod
    def occupied(self) -> bool:
        """Whether the trial has ended, but hanging user code or an abandoned cleanup still runs."""

    @property
    def is_notified(self) -> bool:
        """Whether a notification is pending, or a transfer has not ended."""
        return self._outbox.is_notified or self.transfers.pending != ()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_abandoned(self) -> bool:
        """Whether the trial was ended although its thread still ran user code."""
        return self._abandoned

    def wait(self) -> None:
        """Wait until the trial has its last message, and its thread has ended or is abandoned."""
        self._over.wait()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the thread, and return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def collect(self, ack: int, received: int) -> list[tuple[int, Content]]:
        """Return the messages after `received`, and drop those up to `ack`."""
        return self._outbox.collect(ack, received)

    @abstractmethod
    def answer(self, answer: Answer) -> None:
        """Apply an answer of the driver; ignore one that is old, repeated or overruled."""

    def stop(self, reason: str) -> None:
        """End the trial at the result where it waits, or at its next one."""
        self.answer(StopAnswer(reason=reason))

    def notice(self, seconds: float, reason: str, *, urgent: bool = False) -> None:
        """Tell the trial that its worker ends soon: it leaves with its next checkpoint.

        Parameters
        ----------
        seconds : float
            Seconds until the end.
        reason : str
            Why it ends, for the user and the journal.
        urgent : bool, default=False
            Whether a trial that does not ask for notices leaves at its next result.
        """
        self.answer(NoticeAnswer(seconds=seconds, reason=reason, urgent=urgent))

    @abstractmethod
    def interrupt(self, order: Order | None = None) -> None:
        """End user code now, as far as possible. A trial without an order to pause is stopped.

        Parameters
        ----------
        order : Order, optional
            An order that comes with the interrupt.
        """

    def on_driver_lost(self) -> None:  # noqa: B027 - most runs do nothing more
        """End user code without a grace period where a trial must not outlive its driver.

        Called once a second as long as the driver is gone, after the order to stop.
        """

    @abstractmethod
    def _outcome(self) -> Callable[..., Terminal]:
        """Run the trial, and return a function that builds its last message from a number."""

    def _abandon(self, make: Callable[..., Terminal]) -> None:
        """End the trial while its thread still runs user code; called in another thread."""
        self._abandoned = True
        with suppress(TrialInterrupted):
            self._outbox.close_with(partial(self._finish, make))
        self._over.set()

    def _run(self) -> None:
        try:
            # TrialInterrupted: the trial was abandoned, and its last message is in the outbox.
            with suppress(TrialInterrupted):
                self._outbox.put(partial(self._finish, self._outcome()))
            if self._on_end is not None:
                self._on_end()
        finally:
            self._over.set()

    def _finish(self, make: Callable[..., Terminal], seq: int) -> Terminal:
        # Under the outbox's lock: `finished` is set before the message can be collected.
        if self._finished.is_set():
            raise TrialInterrupted
        self._finished.set()
        return make(seq=seq)
