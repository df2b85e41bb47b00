"""One incarnation of a trial on its worker: queued, running, or ended.

All methods run on the worker's event loop, with three exceptions: the trial's own thread calls
`note_end` and, in its fence, `end_with`, and any thread may call `join`.
"""

from __future__ import annotations

import pickle
import time

from dasktune.cluster.protocol.wire_messages import Assignment, TrialReport, TrialUpdate
from dasktune.trainable.reporting.encoding import Packed, pack
from dasktune.trainable.reporting.trial_messages import (
    NoticeAnswer,
    Order,
    Returned,
    StopAnswer,
    Stopped,
)
from dasktune.trainable.running.run_base import RunBase


class AssignedTrial:
    """The worker's record of an incarnation, from its assignment to its last message.

    Parameters
    ----------
    assignment : Assignment
        The trial.
    checkpoint : bytes or None, default=b""
        The trial's checkpoint, if it is kept in memory. None if it should be in this worker's
        memory but is missing; the trial is then returned to the driver.
    """

    def __init__(self, assignment: Assignment, checkpoint: bytes | None = b"") -> None:
        self.assignment = assignment
        self.checkpoint = checkpoint or b""
        #: Runs the trial; None until the trial starts.
        self.run: RunBase | None = None
        #: Whether a reply has contained the last message. The driver may not have received it.
        self.delivered = False
        #: The one message of a trial that never starts.
        self._only_message: Returned | Stopped | None = None
        if checkpoint is None:
            self._only_message = Returned(lacks_checkpoint=True)
        self._begun_at = 0.0
        self._ended_at = 0.0
        self._durable_seq = 0
        self._received_seq = 0
        #: Whether a cleanup has occupied the actor after the trial's end.
        self._was_occupied = False
        #: Whether a notice has interrupted user code.
        self._is_interrupted = False

    def begin(self, run: RunBase) -> None:
        """Start the trial."""
        self.run = run
        self.checkpoint = b""
        self._begun_at = time.monotonic()
        run.start()

    def note_end(self) -> None:
        """Note that user code has ended; called in the trial's own thread."""
        self._ended_at = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """Whether the trial is queued and may start."""
        return self.run is None and self._only_message is None

    @property
    def is_busy(self) -> bool:
        """Whether user code is running."""
        return self.run is not None and self.run.in_use

    @property
    def has_messages(self) -> bool:
        """Whether the run has announced messages that no poll has collected."""
        return self.run is not None and self.run.is_notified

    @property
    def has_ended(self) -> bool:
        """Whether the trial will produce no further message."""
        return self._only_message is not None or (self.run is not None and self.run.finished)

    def return_unstarted(self) -> None:
        """Return the trial to the driver if it has not started."""
        if self.is_waiting:
            self._only_message = Returned()

    def end_with(self, order: Order) -> None:
        """Stop or pause the trial, or return it if it has not started."""
        if self.run is not None:
            self.run.answer(order)
        elif self.is_waiting:
            self._only_message = Stopped(seq=1) if isinstance(order, StopAnswer) else Returned()

    def notice(self, notice: NoticeAnswer) -> None:
        """Tell the trial of the end of its worker or driver, or return it if it has not started."""
        if self.run is not None:
            self.run.notice(notice.seconds, notice.reason, urgent=notice.urgent)
        else:
            self.return_unstarted()

    def interrupt_if_busy(self) -> None:
        """Interrupt user code of a trial that has not ended; only the first call does so."""
        if self.is_busy and not self.has_ended and not self._is_interrupted:
            self._is_interrupted = True
            self.interrupt()

    def apply(self, update: TrialUpdate, *, repeated: bool = False) -> None:
        """Apply the driver's update. A repeated one has no effect.

        Parameters
        ----------
        update : TrialUpdate
            The update.
        repeated : bool, default=False
            Whether its request may have been applied before. It does not interrupt user code then,
            which may be cleaning up.
        """
        interrupts = update.interrupt and not repeated
        self._durable_seq = max(self._durable_seq, update.durable_seq)
        self._received_seq = max(self._received_seq, update.received_seq)
        order: Order | None = None
        for answer in update.answers:
            if isinstance(answer, Order):
                if interrupts and self.run is not None:
                    # An order to stop overrules one to pause.
                    order = order if isinstance(order, StopAnswer) else answer
                else:
                    self.end_with(answer)
            elif self.run is not None and not isinstance(answer, NoticeAnswer):
                # The endpoint handles a notice, because it has timers.
                self.run.answer(answer)
        if interrupts:
            self.interrupt(order)

    def interrupt(self, order: Order | None = None) -> None:
        """Interrupt user code if it is running, with an order that comes at the same time."""
        if self.run is not None:
            self.run.interrupt(order)

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the trial's thread to end. Thread-safe."""
        if self.run is not None:
            self.run.join(timeout)

    def report(self) -> TrialReport | None:
        """Return the news of this trial that the driver does not have; None if there are none."""
        messages = self._messages()
        occupied = self.run is not None and self.run.occupied
        # Once a cleanup has occupied the actor, each reply contains a report until the driver ends
        # the trial: a single reply with the end of the cleanup may be lost.
        self._was_occupied = self._was_occupied or occupied
        transfers = () if self.run is None else self.run.transfers.pending
        if not (messages or transfers or self._was_occupied):
            return None
        return TrialReport(
            incarnation=self.assignment.incarnation,
            messages=messages,
            seconds=self._seconds(),
            occupied=occupied,
            transfers=transfers,
        )

    def _messages(self) -> Packed:
        if self.run is None:
            if self._only_message is None or self._received_seq >= self._only_message.seq:
                return ()
            self.delivered = True
            return ((self._only_message.seq, pickle.dumps(self._only_message)),)
        # Read before the messages: the run sets it after its last message, so a reply that sets
        # `delivered` contains that message.
        finished = self.run.finished
        messages = pack(self.run.collect(self._durable_seq, self._received_seq))
        self.delivered = finished
        return messages

    def _seconds(self) -> float:
        if self.run is None:
            return 0.0
        return (self._ended_at or time.monotonic()) - self._begun_at
