"""Handlers of Ctrl-C, SIGTERM and SIGUSR1 while an experiment runs.

Python runs signal handlers in the main thread, between two bytecodes of whatever runs there. A
signal can therefore arrive at any point of `Tuner.fit`:

1. Before the runner exists, `record_sigint` records Ctrl-C and raises KeyboardInterrupt. If the
   exception is swallowed, `Tuner` raises it again before the first trial starts.
2. While the runner runs, the first signal of `interruptible` sets a flag that the runner's loop
   reads, so no event is applied by halves. The second signal raises KeyboardInterrupt at once.
3. After the run the previous handlers are restored.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dasktune.runner import TrialRunner

__all__ = ["SigintRecorder", "interruptible", "record_sigint"]

logger = logging.getLogger(__name__)

#: Signals besides SIGINT that ask a process to end. Batch systems send SIGUSR1 some time before
#: they kill a job; some platforms do not have it.
_END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))

#: Seconds from the second Ctrl-C to the KeyboardInterrupt that ends waiting for trials.
_FORCE_SECONDS = 0.5


class SigintRecorder:
    """Records Ctrl-C while an experiment starts.

    KeyboardInterrupt may be raised where Python or a library swallows it, such as in a destructor.
    Without the record the experiment would then run as if Ctrl-C had not been pressed.
    """

    def __init__(self) -> None:
        self._received = False

    def handle(self, number: int, frame: object) -> None:
        """Record the signal and raise KeyboardInterrupt."""
        # The flag comes first: the exception may be swallowed as soon as it is raised.
        self._received = True
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise KeyboardInterrupt if a recorded one was swallowed."""
        if self._received:
            raise KeyboardInterrupt


@contextmanager
def record_sigint() -> Iterator[SigintRecorder]:
    """Yield a recorder of every Ctrl-C inside the ``with`` block.

    Outside the main thread, and where the user has installed a handler, it records nothing.
    """
    interrupts = SigintRecorder()
    is_main = threading.current_thread() is threading.main_thread()
    # Keep a handler that the user has installed; only the main thread can set one.
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible(runner: TrialRunner) -> Iterator[None]:
    """Make the first signal end the run with all trials saved, and the second one at once.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    main = threading.get_ident()
    force = threading.Timer(_FORCE_SECONDS, lambda: signal.pthread_kill(main, signal.SIGINT))
    force.daemon = True
    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    for number in _END_SIGNALS:
        # Keep a handler that the user has installed.
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.SIG_DFL

    def interrupt(number: int, frame: object) -> None:
        # From here on the next signal calls `leave`. `runner.interrupt` only sets a flag, so it is
        # safe whichever statement of the runner this handler has interrupted.
        for one in before:
            signal.signal(one, leave)
        runner.interrupt()
        logger.warning("interrupted: finishing; press Ctrl-C again to leave at once")

    def leave(number: int, frame: object) -> None:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        # If the exception hits the runner in its loop, the runner waits for its trials while it
        # closes, and the timer interrupts that wait. If the runner waits already, the exception
        # itself ends the wait, and `force.cancel` below mostly runs before the timer. If the timer
        # is quicker, the main thread gets one more KeyboardInterrupt, which also ends the program.
        force.start()
        raise KeyboardInterrupt

    for one in before:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        force.cancel()
        for one, handler in before.items():
            signal.signal(one, handler)
