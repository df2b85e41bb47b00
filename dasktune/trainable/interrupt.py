"""Raising an exception in another thread, but only while that thread runs user code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["Interrupter", "TrialInterrupted"]

P = ParamSpec("P")
T = TypeVar("T")


#: Jumps back at which the interpreter looks for asynchronous exceptions; the first one would do.
_CHECKS = 100


class TrialInterrupted(BaseException):
    """Raised in user code to end it: the trial is paused, stopped or done.

    It derives from BaseException, so ``except Exception`` lets it pass. Clean up in ``finally``.
    """


def _raise_in_thread(ident: int, exception: type[BaseException]) -> None:
    """Let the thread `ident` raise `exception` at its next bytecode that looks for such things."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class Interrupter:
    """Runs user code and can interrupt it from another thread.

    An asynchronous exception that strikes while a lock is taken or a message is sent would leave
    both broken. So it is set only while user code runs (`armed`). One that has been set and has not
    struck yet when user code is left is caught on the threshold.

    It is not taken back by ``PyThreadState_SetAsyncExc(ident, NULL)``: CPython 3.11 then believes
    for ever that one is pending, which hangs threads that are traced (a debugger, coverage).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ident = 0
        self._armed = False
        #: An exception has been set since user code was entered.
        self._set = False
        #: Somebody wanted to interrupt while no user code ran: raise when it is entered again.
        self._pending = False

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run user code; raise TrialInterrupted if an interrupt came while none was running."""
        self._ident = threading.get_ident()
        try:
            self._enter()
            return function(*args, **kwargs)
        finally:
            # The exception may strike before the first line of _leave, too.
            while self._armed:
                try:
                    self._leave()
                except TrialInterrupted:
                    self._pending = True

    def shield(self) -> None:
        """User code has called us: do not interrupt before :meth:`unshield`."""
        if threading.get_ident() == self._ident:
            self._leave()

    def unshield(self) -> None:
        """User code goes on; raise TrialInterrupted if an interrupt came meanwhile."""
        if threading.get_ident() == self._ident:
            self._enter()

    def interrupt(self) -> None:
        """Raise TrialInterrupted in user code, at once or as soon as it runs again.

        A call that blocks outside Python (a long sleep, a socket) is not cut short: the exception
        comes when it returns.
        """
        with self._lock:
            if self._armed:
                self._set = True
                _raise_in_thread(self._ident, TrialInterrupted)
            else:
                self._pending = True

    def settle(self) -> None:
        """Forget an interrupt that has not struck: user code is being ended in another way."""
        with self._lock:
            self._pending = False

    def _enter(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, False
            self._armed = True
        if pending:
            raise TrialInterrupted

    def _leave(self) -> None:
        try:
            with self._lock:
                self._armed, was_set, self._set = False, self._set, False
            if was_set:
                # Either it has struck in user code, or it strikes in the first rounds of this loop.
                for _ in range(_CHECKS):
                    pass
        except TrialInterrupted:
            self._pending = True
