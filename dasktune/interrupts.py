"""Ctrl-C, SIGTERM and SIGUSR1: the first ends an experiment in good order, the second at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dasktune.runner import TrialRunner

__all__ = ["Interrupts", "interruptible", "interrupts_remembered"]

logger = logging.getLogger(__name__)

#: What a process is told to end by, other than Ctrl-C. Batch systems send SIGUSR1 some time before
#: they kill a job; some systems do not have it.
_TOLD = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))

#: Seconds from the second Ctrl-C until nothing is waited for any more.
_AGAIN = 0.5


class Interrupts:
    """Remembers Ctrl-C while an experiment gets ready.

    The exception may come up where Python or a library swallows it, a destructor for one. The
    experiment would then run on as if nobody had pressed anything.
    """

    def __init__(self) -> None:
        self._heard = False

    def hear(self, number: int, frame: object) -> None:
        """Handle the signal."""
        self._heard = True
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise the interrupt if there was one: whoever had it has lost it."""
        if self._heard:
            raise KeyboardInterrupt


@contextmanager
def interrupts_remembered() -> Iterator[Interrupts]:
    """Give what remembers every Ctrl-C inside the ``with`` block."""
    interrupts = Interrupts()
    is_main = threading.current_thread() is threading.main_thread()
    # Whoever has a handler of his own means it.
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.hear)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible(runner: TrialRunner) -> Iterator[None]:
    """Let the first such signal end the run in good order, and the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    main = threading.get_ident()
    again = threading.Timer(_AGAIN, lambda: signal.pthread_kill(main, signal.SIGINT))
    again.daemon = True
    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    for number in _TOLD:
        # Whoever has a handler of his own means it.
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.SIG_DFL

    def interrupt(number: int, frame: object) -> None:
        for one in before:
            signal.signal(one, leave)
        runner.interrupt()
        logger.warning("interrupted: finishing; press Ctrl-C again to leave at once")

    def leave(number: int, frame: object) -> None:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        # On its way out the runner waits for its trials, unless it did so already.
        again.start()
        raise KeyboardInterrupt

    for one in before:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        again.cancel()
        for one, handler in before.items():
            signal.signal(one, handler)
