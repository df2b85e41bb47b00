"""Bounds the time that user code takes to clean up after its trial has ended by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from logging import getLogger

from dasktune.trainable.async_exception import TrialInterrupted

logger = getLogger(__name__)


class GracePeriod:
    """Interrupts user code after a time, and abandons it after twice that time.

    A driver orders a trial to stop, and so knows how long the trial takes to obey. Of a trial that
    has ended by itself the driver hears when its user code has returned. So the worker bounds that
    time itself.

    Parameters
    ----------
    seconds : float
        The time until the interrupt, and again from the interrupt until the trial is abandoned.
    trial_id : str
        The trial, for the log.
    interrupt : callable
        Interrupts user code.
    abandon : callable
        Ends the trial, although its thread still runs.
    wait : callable, optional
        Called with seconds. Waits for them, and returns whether :meth:`close` was called meanwhile.
        By default it waits in real time.
    """

    # The thread of the grace period meets the trial's thread, which calls `close`. The orders:
    #
    # - `close` during a wait: the thread ends.
    # - `close` between the end of the first wait and the interrupt: the interrupt finds no user
    #   code, so it stays pending. Nothing raises it, since no user code follows in this trial.
    # - `close` at the end of the second wait: the lock decides. If `close` is first, the trial
    #   ends as if it was in time. If the thread is first, `close` waits until the trial has its
    #   last message, and raises TrialInterrupted: the trial's thread must not end it once more.

    def __init__(
        self,
        seconds: float,
        *,
        trial_id: str,
        interrupt: Callable[[], None],
        abandon: Callable[[], None],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._seconds = seconds
        self._trial_id = trial_id
        self._interrupt = interrupt
        self._abandon = abandon
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wait = self._closed.wait if wait is None else wait
        self._abandoned = False

    def start(self) -> None:
        """Start counting."""
        threading.Thread(target=self._watch, name=f"dasktune-{self._trial_id}-grace", daemon=True).start()

    def close(self) -> None:
        """Stop counting: user code has returned.

        Raises
        ------
        TrialInterrupted
            If the trial was abandoned before.
        """
        with self._lock:
            self._closed.set()
            if self._abandoned:
                raise TrialInterrupted

    def _watch(self) -> None:
        if self._wait(self._seconds):
            return
        text = "trial %s has ended, but its clean-up takes more than %g s (stop_grace): it is interrupted"
        logger.warning(text, self._trial_id, self._seconds)
        self._interrupt()
        if self._wait(self._seconds):
            return
        with self._lock:
            if not self._closed.is_set():
                self._abandoned = True
                self._abandon()
