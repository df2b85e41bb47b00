"""A trial on its worker as its slot sees it, wherever user code runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dasktune.trainable.contents import Content
from dasktune.trainable.gate import Gate
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.messages import Answer, StopNow, Terminal
from dasktune.trainable.outbox import Outbox, Urgency
from dasktune.trainable.relay import Dock
from dasktune.trainable.spec import TrialSpec

__all__ = ["TrialThread"]


class TrialThread(ABC):
    """Brings one incarnation of a trial to exactly one terminal message, in a thread of its own.

    All methods are thread-safe, return at once and may be called again with the same arguments.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    ring : callable
        Called with an `Urgency` when there are messages to collect, in the thread that has the
        news; see :class:`~dasktune.trainable.outbox.Outbox`.
    gate : Gate
        Knows which order stands.
    on_end : callable, optional
        Called in the thread, as the last thing that it does.
    dock : Dock, optional
        Where what the driver is to carry waits for it; by default it rings with `ring`.
    """

    def __init__(
        self,
        spec: TrialSpec,
        ring: Callable[[Urgency], None],
        gate: Gate,
        on_end: Callable[[], None] | None,
        dock: Dock | None = None,
    ) -> None:
        self.spec = spec
        #: Checkpoints that the driver is to carry, on a worker that does not see the storage.
        self.dock = dock or Dock(lambda number, haul: ring(Urgency.NOW))
        self._outbox = Outbox(ring)
        self._gate = gate
        self._on_end = on_end
        self._finished = threading.Event()
        self._given_up = False
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
    def in_use(self) -> bool:
        """Whether user code is, or may be, running: it may go on although the trial has ended."""
        return not self.finished or (self._given_up and self.is_alive)

    @property
    @abstractmethod
    def occupied(self) -> bool:
        """Whether it has ended, but not all user code: it hangs, or a cleanup from before does."""

    @property
    def has_news(self) -> bool:
        """Whether the bell has rung and nobody has collected since, or something is carried."""
        return self._outbox.has_news or self.dock.waiting != ()

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

    @abstractmethod
    def answer(self, answer: Answer) -> None:
        """Take the driver's answer; one that is old, repeated or overruled is ignored."""

    def stop(self, reason: str) -> None:
        """End the trial at the result where it waits, or at its next one."""
        self.answer(StopNow(reason=reason))

    @abstractmethod
    def interrupt(self) -> None:
        """End user code now, as far as that can be done.

        It stops the trial unless it was told to pause.
        """

    @abstractmethod
    def _outcome(self) -> Callable[..., Terminal]:
        """Run the trial and return what makes its terminal message of a number."""

    def _give_up(self, make: Callable[..., Terminal]) -> None:
        """End the trial without its thread, which does not end; for any other thread."""
        self._given_up = True
        with suppress(TrialInterrupted):
            self._outbox.seal(partial(self._finish, make))

    def _run(self) -> None:
        # Sealed if it was given up.
        with suppress(TrialInterrupted):
            self._outbox.put(partial(self._finish, self._outcome()))
        if self._on_end is not None:
            self._on_end()

    def _finish(self, make: Callable[..., Terminal], seq: int) -> Terminal:
        # Under the outbox's lock: whoever collects the message finds `finished` set.
        if self._finished.is_set():
            raise TrialInterrupted
        self._finished.set()
        return make(seq=seq)
