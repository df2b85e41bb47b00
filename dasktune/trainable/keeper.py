"""The object of a class trainable that outlives its trial, for the next trial in the same place.

Who holds it is always clear: a trial's thread, the keeper, or a :class:`Farewell`. It passes from
one to the other under a lock, so `cleanup` is called exactly once.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger

from dasktune.trainable.interrupt import Interrupter
from dasktune.trainable.trainable import Trainable

__all__ = ["Farewell", "Keeper", "Kept"]

logger = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A trainable whose trial has come to a good end."""

    trainable: Trainable
    #: Of that trial: its cleanup still belongs to it.
    context: contextvars.Context


class Farewell:
    """Cleans up a trainable that nobody needs any more, in a thread of its own.

    No trial is there to fail, so an exception of the user's code is logged.

    Parameters
    ----------
    kept : Kept
        The trainable.
    grace : float
        Seconds until it is interrupted.
    timer : callable, default=time.monotonic
        Seconds since any fixed moment.
    """

    def __init__(
        self, kept: Kept, grace: float, *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace = grace
        self._timer = timer
        self._deadline = timer() + grace
        self._interrupter = Interrupter()
        #: Whether somebody has waited for it in vain.
        self.left_behind = False
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

    def urge(self) -> None:
        """Interrupt it if its time is over; to be called now and then."""
        if not self.finished and self._timer() >= self._deadline:
            self._deadline += self._grace
            self._interrupter.interrupt()

    def wait(self) -> bool:
        """Wait for its end, twice as long as the grace at most, and say whether it has come."""
        for _ in range(2):
            if self.join(max(0.0, self._deadline - self._timer())):
                return True
            self.urge()
        self.left_behind = not self.finished
        return self.finished

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end, and say whether it has come."""
        self._thread.join(timeout)
        return self.finished

    def _run(self, trainable: Trainable) -> None:
        try:
            self._interrupter.call(trainable.stop)
        except BaseException:
            logger.warning(
                "cleanup() failed; its trial %s had ended before", trainable.trial_id, exc_info=True
            )


class Keeper:
    """Keeps at most one trainable between two trials; thread-safe.

    It keeps nothing before :meth:`open` and after :meth:`close`.

    Parameters
    ----------
    grace : float, default=10.0
        Seconds that a cleanup may take before it is interrupted.
    """

    def __init__(self, grace: float = 10.0) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._is_open = False
        self._kept: Kept | None = None
        self._farewells: list[Farewell] = []

    @property
    def is_cleaning(self) -> bool:
        """Whether user code runs here, in a cleanup."""
        return bool(self.farewells)

    @property
    def is_occupied(self) -> bool:
        """Whether a cleanup was left behind and has not ended: no trial should begin beside it."""
        return any(farewell.left_behind for farewell in self.farewells)

    @property
    def farewells(self) -> list[Farewell]:
        """The cleanups that have not ended."""
        with self._lock:
            self._farewells = [one for one in self._farewells if not one.finished]
            return list(self._farewells)

    def open(self) -> None:
        """Keep what the trial that begins now will leave behind."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Keep nothing any more, and begin the cleanup of what is kept. Returns at once."""
        with self._lock:
            self._is_open = False
        kept = self.take()
        if kept is not None:
            self.dismiss(kept)

    def keep(self, trainable: Trainable) -> bool:
        """Take over a trainable from the thread that has run its trial.

        Returns
        -------
        bool
            False if it stays with the caller, who has to clean it up.
        """
        with self._lock:
            if not (self._is_open and trainable.can_reset and self._kept is None):
                return False
            self._kept = Kept(trainable, contextvars.copy_context())
            return True

    def take(self) -> Kept | None:
        """Hand over what is kept; it belongs to the caller from then on."""
        with self._lock:
            kept, self._kept = self._kept, None
            return kept

    def dismiss(self, kept: Kept) -> None:
        """Begin the cleanup of what was kept. Returns at once."""
        farewell = Farewell(kept, self._grace)
        with self._lock:
            self._farewells.append(farewell)

    def urge(self) -> None:
        """Interrupt cleanups that take too long; to be called now and then."""
        for farewell in self.farewells:
            farewell.urge()

    def settle(self) -> None:
        """Wait for the cleanups; leave one behind that does not even end when interrupted."""
        for farewell in self.farewells:
            if not farewell.wait():
                logger.warning("a cleanup() does not end; the next trial begins beside it")
