"""Reuses the object of a class trainable for the next trial on the same actor.

The object has one owner at any time: a trial's thread, :class:`ReusableTrainable`, or a
:class:`Cleanup`. Ownership changes under a lock, so ``cleanup`` is called exactly once.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger

from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.async_exception import AsyncRaise

logger = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A trainable whose trial ended without a failure."""

    trainable: Trainable
    #: The context of that trial, in which its cleanup runs.
    context: contextvars.Context


class Cleanup:
    """Cleans up a trainable that is no longer needed, in a thread.

    Its trial has ended, so an exception of the user's code is logged.

    Parameters
    ----------
    kept : Kept
        The trainable.
    grace : float
        Seconds until the cleanup is interrupted.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    """

    def __init__(self, kept: Kept, grace: float, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._grace = grace
        self._timer = timer
        self._deadline = timer() + grace
        self._interrupter = AsyncRaise()
        #: Whether :meth:`wait` has returned before the end of the cleanup.
        self.abandoned = False
        trainable = kept.trainable
        self._thread = threading.Thread(
            target=kept.context.run,
            args=(self._run, trainable),
            name=f"dasktune-{trainable.trial_id}-cleanup",
            daemon=True,
        )
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def interrupt_if_late(self) -> None:
        """Interrupt the cleanup if its grace period is over. Called periodically."""
        if not self.finished and self._timer() >= self._deadline:
            self._deadline += self._grace
            self._interrupter.interrupt()

    def wait(self) -> bool:
        """Wait at most two grace periods for the cleanup, and return whether it has ended."""
        for _ in range(2):
            if self.join(max(0.0, self._deadline - self._timer())):
                return True
            self.interrupt_if_late()
        self.abandoned = not self.finished
        return self.finished

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the cleanup, and return whether it has ended."""
        self._thread.join(timeout)
        return self.finished

    def _run(self, trainable: Trainable) -> None:
        try:
            self._interrupter.call(trainable.stop)
        except BaseException:
            logger.warning("cleanup() failed after the end of trial %s", trainable.trial_id, exc_info=True)


class ReusableTrainable:
    """Keeps at most one trainable between two trials; thread-safe.

    It keeps nothing before :meth:`open` and after :meth:`close`.

    Parameters
    ----------
    grace : float, default=10.0
        Seconds that a cleanup may take before it is interrupted.
    """

    # The trial's thread calls `take`, `keep` and `wait_for_cleanups`; the worker's event loop, or a
    # child's main thread, calls `open`, `close` and `interrupt_if_late`. A trial that ends while
    # `close` runs: if `keep` is first, `close` takes the object and cleans it up; if `close` is
    # first, `keep` returns False and the trial's thread cleans up.

    def __init__(self, grace: float = 10.0) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._is_open = False
        self._kept: Kept | None = None
        self._cleanups: list[Cleanup] = []

    @property
    def is_cleaning(self) -> bool:
        """Whether a cleanup is running."""
        return bool(self.cleanups)

    @property
    def has_abandoned_cleanup(self) -> bool:
        """Whether an abandoned cleanup still runs: no trial should start beside it."""
        return any(cleanup.abandoned for cleanup in self.cleanups)

    @property
    def cleanups(self) -> list[Cleanup]:
        """The cleanups that have not ended."""
        with self._lock:
            self._cleanups = [one for one in self._cleanups if not one.finished]
            return list(self._cleanups)

    def open(self) -> None:
        """Let :meth:`keep` accept the trainable of the trial that starts now."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Keep nothing from now on, and start the cleanup of a kept trainable. Returns at once."""
        with self._lock:
            self._is_open = False
        kept = self.take()
        if kept is not None:
            self.clean_up(kept)

    def keep(self, trainable: Trainable) -> bool:
        """Take the ownership of a trainable from the thread of its trial.

        Returns
        -------
        bool
            False if the caller stays the owner and has to clean it up.
        """
        with self._lock:
            if not (self._is_open and trainable.can_reset and self._kept is None):
                return False
            self._kept = Kept(trainable, contextvars.copy_context())
            return True

    def take(self) -> Kept | None:
        """Return the kept trainable, if there is one; the caller owns it from then on."""
        with self._lock:
            kept, self._kept = self._kept, None
            return kept

    def clean_up(self, kept: Kept) -> None:
        """Start the cleanup of a trainable. Returns at once."""
        cleanup = Cleanup(kept, self._grace)
        with self._lock:
            self._cleanups.append(cleanup)

    def interrupt_if_late(self) -> None:
        """Interrupt cleanups that take too long. Called periodically."""
        for cleanup in self.cleanups:
            cleanup.interrupt_if_late()

    def wait_for_cleanups(self) -> None:
        """Wait for the cleanups; abandon one that does not end after an interrupt."""
        for cleanup in self.cleanups:
            if not cleanup.wait():
                logger.warning("a cleanup() does not end; the next trial starts beside it")
