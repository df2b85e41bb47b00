"""Handlers of Ctrl-C, SIGTERM and SIGUSR1 from the beginning of `Tuner.fit` to its end.

Python runs signal handlers in the main thread, between two bytecodes of whatever runs there. So a
signal can arrive at any point, and an exception that its handler raises can be swallowed there: by
a weak reference's callback, by a destructor, by an ``except`` that catches everything. Importing
modules runs many such callbacks. `EndSignals` therefore records each signal before it raises:

1. While the experiment starts, a signal raises KeyboardInterrupt (Ctrl-C) or SystemExit. If Python
   reports that a callback or destructor has swallowed the exception, a thread sends the signal
   again. If other code has swallowed it, `raise_again` raises it between two steps of the start.
2. From `obey` on, the first signal only calls `TrialRunner.interrupt`, so no event is applied by
   halves. `obey` stores the runner before it looks for a recorded signal, and the handler records
   before it looks for the runner. So a signal at any moment in between ends the experiment, too.
   The second signal raises at once.
3. After the run a signal raises as in 1. When `fit` ends, the previous handlers are restored, and
   SIGTERM raises SystemExit(143), the exit status of a process that SIGTERM has ended.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from dasktune.control.issuer import this_user

if TYPE_CHECKING:
    from dasktune.runner import TrialRunner

logger = logging.getLogger(__name__)

#: Signals besides SIGINT that ask a process to end. Batch systems send SIGUSR1 some time before
#: they kill a job; some platforms do not have it.
_END_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))

#: Seconds from the second signal to the one that ends waiting for trials.
_FORCE_SECONDS: Final = 0.5

#: Seconds from a swallowed exception to the next signal: the callback that has swallowed it ends.
_RESEND_SECONDS: Final = 0.01

#: What shells add to the number of a signal for the exit status of the process that it has ended.
_STATUS_OFFSET: Final = 128


class EndSignals:
    """Records and obeys the signals that ask this process to end.

    A handler must neither start a thread nor log: the main thread may hold any lock, and the
    terminal may have stopped reading. So the handler puts what is to be done into a queue, which is
    reentrant, and a thread does it.

    Parameters
    ----------
    force_s : float, default=0.5
        Seconds from the second signal to the one that ends waiting for trials.
    """

    def __init__(self, *, force_s: float = _FORCE_SECONDS) -> None:
        self._force_s = force_s
        #: The last signal; None if there was none.
        self._received: int | None = None
        self._runner: TrialRunner | None = None
        #: Whose process this is, for the journal. A handler must not look it up.
        self._user = ""
        #: Whether an exception was raised for a signal. It ends `fit`, unless it is swallowed.
        self._has_raised = False
        #: The signal that came while the handlers were being restored; None if there was none.
        self._late: int | None = None
        self._is_closing = False
        self._main = threading.get_ident()
        #: Work of the thread: calls, and None at the end.
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._run_is_over, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dasktune-signals", daemon=True)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a signal, and interrupt the runner or raise.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C, unless it is the first signal that the runner gets.
        SystemExit
            In the same way after another signal, with the exit status that stands for it.
        """
        if self._is_closing:
            self._late = number
            return
        # The record comes first: the exception may be swallowed as soon as it is raised.
        is_first, self._received = self._received is None, number
        if self._runner is not None and is_first:
            # This only sets a flag and wakes the loop, so it is safe whichever statement of the
            # runner this handler has interrupted.
            self._runner.interrupt(by=f"{self._user} ({signal.Signals(number).name})")
            text = "interrupted: finishing; press Ctrl-C again to leave at once"
            self._calls.put(partial(logger.warning, text))
            return
        if self._runner is not None and not self._has_raised:
            # If the exception hits the runner in its loop, the runner waits for its trials while it
            # closes, and another signal after a while interrupts that wait. If the runner waits
            # already, the exception itself ends the wait. If the other signal is quicker than the
            # end of `obey`, there is one more exception, which also ends the program.
            self._calls.put(partial(self._resend, number, self._force_s, self._run_is_over))
        self._has_raised = True
        raise _exception(number)

    def raise_again(self) -> None:
        """Raise the exception of a recorded signal, which somebody has swallowed."""
        if self._received is not None:
            raise _exception(self._received)

    @contextmanager
    def instead_of_errors(self) -> Iterator[None]:
        """Raise the exception of a signal again that other code has turned into an error.

        NumPy's C code, for example, raises ImportError if a KeyboardInterrupt hits its imports.
        """
        try:
            yield
        except Exception:
            if self._has_raised:
                self.raise_again()
            raise

    @contextmanager
    def obey(self, runner: TrialRunner) -> Iterator[None]:
        """Let the first signal inside the ``with`` block end the run with all trials saved.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            If a signal was recorded before, or by the second signal inside the block.
        """
        self._user = this_user()
        self._runner = runner
        self.raise_again()
        try:
            yield
        finally:
            self._run_is_over.set()
            self._runner = None

    def end(self) -> None:
        """Raise SystemExit if SIGTERM has interrupted the run, or a swallowed exception again.

        The parent of this process may start what depends on complete results: a batch system, or a
        script. Ctrl-C and SIGUSR1 let the program continue with the results so far.
        """
        if self._has_raised or self._received == getattr(signal, "SIGTERM", None):
            self.raise_again()

    def note_unraisable(self, error: BaseException | None) -> bool:
        """Send a signal again whose exception was swallowed; False if it is another exception."""
        number = self._received
        if number is None or not isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        self._calls.put(partial(self._resend, number, _RESEND_SECONDS, self._closed))
        return True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, which sends no signal any more, and let the handler only record."""
        self._is_closing = True
        self._closed.set()
        self._calls.put(None)

    def raise_late(self) -> None:
        """Raise the exception of a signal that came after :meth:`close`."""
        if self._late is not None:
            raise _exception(self._late)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _resend(self, number: int, seconds: float, unless: threading.Event) -> None:
        if not unless.wait(seconds):
            signal.pthread_kill(self._main, number)


@contextmanager
def obey_signals(*, force_s: float = _FORCE_SECONDS) -> Iterator[EndSignals]:
    """Obey Ctrl-C, SIGTERM and SIGUSR1 inside the ``with`` block, as this module describes.

    Signals that the program handles itself are left alone, and outside the main thread all are.

    Parameters
    ----------
    force_s : float, default=0.5
        As for :class:`EndSignals`.

    Yields
    ------
    EndSignals
        The recorder of the signals.
    """
    signals = EndSignals(force_s=force_s)
    numbers = [number for number in (signal.SIGINT, *_END_SIGNALS) if _is_unhandled(number)]
    with _installed(signals, numbers), signals.instead_of_errors():
        yield signals


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Obey a Ctrl-C inside the ``with`` block even if its KeyboardInterrupt is swallowed.

    Inside `obey_signals`, outside the main thread, and with a handler of the user it does nothing.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signals = EndSignals()
    with _installed(signals, [signal.SIGINT]):
        with signals.instead_of_errors():
            yield
        signals.raise_again()


@contextmanager
def _installed(signals: EndSignals, numbers: list[signal.Signals]) -> Iterator[None]:
    """Let `signals` handle these signals, if this is the main thread."""
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    report = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not signals.note_unraisable(unraisable.exc_value):
            report(unraisable)

    signals.start()
    before: dict[signal.Signals, Any] = {}
    try:
        sys.unraisablehook = hook
        for number in numbers:
            before[number] = signal.getsignal(number)
            signal.signal(number, signals.handle)
        yield
    finally:
        # An exception in the midst of this block would leave handlers behind.
        signals.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        if sys.unraisablehook is hook:
            sys.unraisablehook = report
        signals.raise_late()


def _is_unhandled(number: signal.Signals) -> bool:
    """Whether the program leaves a signal to Python, to the system or to an event loop.

    A shell without job control lets its background processes ignore SIGINT. A user who sends it to
    such a process by hand wants it to end. `asyncio` only cancels the coroutine that `fit` blocks.
    """
    handler = signal.getsignal(number)
    if number != signal.SIGINT:
        return handler is signal.SIG_DFL
    known = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)
    function = getattr(handler, "func", handler)
    return handler in known or getattr(function, "__module__", "") == "asyncio.runners"


def _exception(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(_STATUS_OFFSET + number)
