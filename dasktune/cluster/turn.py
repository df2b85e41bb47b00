"""One incarnation of a trial on its slot: waiting for its turn, running, or ended."""

from __future__ import annotations

import pickle
import time

from dasktune.cluster.envelope import Assignment, News, Note
from dasktune.trainable.contents import Packed, pack
from dasktune.trainable.messages import PauseNow, Returned, StopNow, Stopped
from dasktune.trainable.trial_thread import TrialThread

__all__ = ["Turn"]


class Turn:
    """What a worker knows of an incarnation from its assignment to its last message.

    Parameters
    ----------
    assignment : Assignment
        The trial.
    packed : bytes or None, default=b""
        Its checkpoint, if that is kept in memory; None if it is not here as it should be, so that
        the trial is given back.
    """

    def __init__(self, assignment: Assignment, packed: bytes | None = b"") -> None:
        self.assignment = assignment
        self.packed = packed or b""
        #: Runs the trial; None until it is begun.
        self.run: TrialThread | None = None
        #: Whether the driver was sent the last message.
        self.delivered = False
        #: The only message of a trial that is never begun.
        self._refusal: Returned | Stopped | None = None
        if packed is None:
            self._refusal = Returned(lacks_checkpoint=True)
        self._begun_at = 0.0
        self._ended_at = 0.0
        self._ack = 0
        self._have = 0
        #: Whether the driver may have been told that its slot is occupied beyond its end.
        self._was_occupied = False

    def begin(self, run: TrialThread) -> None:
        """Start the run of the trial."""
        self.run = run
        self.packed = b""
        self._begun_at = time.monotonic()
        run.start()

    def note_end(self) -> None:
        """Take note that user code has left; called in the trial's own thread."""
        self._ended_at = time.monotonic()

    @property
    def may_begin(self) -> bool:
        """Whether it waits to be begun."""
        return self.run is None and self._refusal is None

    @property
    def is_busy(self) -> bool:
        """Whether user code is running."""
        return self.run is not None and self.run.in_use

    @property
    def has_news(self) -> bool:
        """Whether its run has rung for messages that nobody has collected."""
        return self.run is not None and self.run.has_news

    @property
    def has_ended(self) -> bool:
        """Whether nothing will come of it any more but messages that are there."""
        return self._refusal is not None or (self.run is not None and self.run.finished)

    def give_back(self) -> None:
        """Do not begin it any more."""
        if self.may_begin:
            self._refusal = Returned()

    def leave(self, order: PauseNow | StopNow) -> None:
        """Make it end, whether it was begun or not."""
        if self.run is not None:
            self.run.answer(order)
        elif self.may_begin:
            self._refusal = Stopped(seq=1) if isinstance(order, StopNow) else Returned()

    def heed(self, note: Note) -> None:
        """Take what the driver says about it; the same may be said twice."""
        self._ack = max(self._ack, note.ack)
        self._have = max(self._have, note.have)
        for answer in note.answers:
            if isinstance(answer, PauseNow | StopNow):
                self.leave(answer)
            elif self.run is not None:
                self.run.answer(answer)
        if note.interrupt:
            self.interrupt()

    def interrupt(self) -> None:
        """Interrupt user code, if there is any."""
        if self.run is not None:
            self.run.interrupt()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the end of its thread. For any thread."""
        if self.run is not None:
            self.run.join(timeout)

    def news(self) -> News | None:
        """Return what the driver does not have; None if there is nothing."""
        messages = self._messages()
        occupied = self.run is not None and self.run.occupied
        # Said until the driver is done with it: an answer may get lost on its way.
        self._was_occupied = self._was_occupied or occupied
        hauls = () if self.run is None else self.run.dock.waiting
        if not (messages or hauls or self._was_occupied):
            return None
        return News(
            incarnation=self.assignment.incarnation,
            messages=messages,
            seconds=self._seconds(),
            occupied=occupied,
            hauls=hauls,
        )

    def _messages(self) -> Packed:
        if self.run is None:
            if self._refusal is None or self._have >= self._refusal.seq:
                return ()
            self.delivered = True
            return ((self._refusal.seq, pickle.dumps(self._refusal)),)
        finished = self.run.finished
        messages = pack(self.run.collect(self._ack, self._have))
        self.delivered = finished
        return messages

    def _seconds(self) -> float:
        if self.run is None:
            return 0.0
        return (self._ended_at or time.monotonic()) - self._begun_at
