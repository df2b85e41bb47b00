"""Interrupts user code by an exception that another thread raises in it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dasktune.trainable.fork_guard import call_and_end_forks

P = ParamSpec("P")
T = TypeVar("T")


#: Rounds of the loop in `AsyncRaise._leave`. The interpreter checks for asynchronous exceptions at
#: each backward jump, so one round would suffice.
_CHECKS = 100


class TrialInterrupted(BaseException):
    """Raised in user code to end it: the trial is paused, stopped or done.

    It derives from BaseException, so ``except Exception`` lets it pass. Clean up in ``finally``.
    """


def _raise_in_thread(ident: int, exception: type[BaseException]) -> None:
    """Raise `exception` in the thread `ident` at its next check for asynchronous exceptions."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class AsyncRaise:
    """Runs user code, and can interrupt it from another thread.

    An asynchronous exception in the middle of taking a lock or sending a message would leave both
    broken. So it is set only while user code runs (`armed`). If it was set but not raised yet when
    user code calls dasktune or returns, it is caught there and raised when user code continues.

    A set exception is not revoked by ``PyThreadState_SetAsyncExc(ident, NULL)``: CPython 3.11 then
    assumes for ever that an exception is pending, which hangs traced threads (debugger, coverage).
    """

    # `interrupt` runs in other threads and sets the exception only while `_armed`, under the lock.
    # `_enter` and `_leave` change `_armed` under the same lock. CPython raises a set exception at
    # the start of a function, after a call and at a backward jump. The orders:
    #
    # 1. interrupt, then `_enter`: the interrupt is noted as pending, and `_enter` raises it.
    # 2. `_enter`, then interrupt: the exception is raised in user code, or in the last lines of
    #    `_enter`, which user code or `call` has called. Both are correct places.
    # 3. interrupt, then `_leave`, before the exception was raised: `_leave` finds `_set` and loops
    #    until it is raised there. It is caught and noted as pending, as in order 1.
    # 4. The exception is raised at the start of `mask` or `_leave`, before the lock is taken: from
    #    `mask` it goes to user code, as if raised just before the call. `call` catches it and calls
    #    `_leave` again, since `_armed` is still set.
    # 5. `_leave`, then interrupt: `_armed` is not set, so the interrupt is only noted as pending.
    # 6. Two interrupts: the first one is raised as in order 4, and the second one is set before
    #    `_leave` was called again. It may then be raised anywhere in `call`, also between two
    #    lines of a handler, so a loop that calls `_leave` until it succeeds has no safe place to
    #    jump back. So `call` sets `_leaving` first, by a single store, before which CPython raises
    #    nothing. From then on `interrupt` sets no exception. At most two are left: one that was set
    #    before and not raised, and one of an interrupt that had read `_leaving` before the store
    #    (the lock admits one). Each of the two handlers in `call` catches one of them, and the last
    #    `_leave` cannot be interrupted.
    # 7. Two interrupts around `mask`: both go to user code, or the second one is noted as pending.
    #    Two that come before the first is raised are one, since CPython keeps one for each thread.
    # 8. An order that comes with an interrupt ends a call of dasktune by TrialInterrupted, too. It
    #    is given under the lock, so `_enter`, which such a call ends with, waits for the interrupt
    #    and raises both as one. Else the interrupt would strike the clean-up after the order.
    #
    # So code of dasktune between `_leave` and `_enter` is never interrupted. `mask` and `unmask` do
    # nothing in other threads that user code has started: these are never interrupted.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ident = 0
        self._armed = False
        #: `call` ends: an interrupt is only noted as pending.
        self._leaving = False
        #: An exception has been set since user code was entered.
        self._set = False
        #: An interrupt came while no user code ran: raise it when user code continues.
        self._pending = False

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run user code; raise TrialInterrupted at once if an interrupt is pending.

        A process that user code forks does not return from this call: it ends.
        """
        self._ident = threading.get_ident()
        try:
            self._enter()
            return call_and_end_forks(function, *args, **kwargs)
        finally:
            self._leaving = True
            try:
                try:
                    self._leave()
                except TrialInterrupted:
                    # Order 4: it was raised before the first line of `_leave`.
                    self._pending = True
                    self._leave()
            except TrialInterrupted:
                # Order 6: a second one was raised in the handler, or before the second `_leave`.
                self._pending = True
                self._leave()

    def mask(self) -> None:
        """Defer interrupts until :meth:`unmask`: user code has called dasktune."""
        if threading.get_ident() == self._ident:
            self._leave()

    def unmask(self) -> None:
        """Allow interrupts again; raise TrialInterrupted if one came meanwhile."""
        if threading.get_ident() == self._ident:
            self._enter()

    def interrupt(self, give_order: Callable[[], None] | None = None) -> None:
        """Raise TrialInterrupted in user code, at once or as soon as it runs again.

        A call that blocks outside Python (a long sleep, a socket) is not interrupted: the exception
        is raised when it returns.

        Parameters
        ----------
        give_order : callable, optional
            Called first. It gives an order that user code may find in a call of dasktune.
        """
        with self._lock:
            if give_order is not None:
                give_order()
            if self._armed and not self._leaving:
                self._set = True
                _raise_in_thread(self._ident, TrialInterrupted)
            else:
                self._pending = True

    def discard_pending(self) -> None:
        """Drop a pending interrupt: user code is being ended in another way."""
        with self._lock:
            self._pending = False

    def _enter(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, False
            self._armed, self._leaving = True, False
        if pending:
            raise TrialInterrupted

    def _leave(self) -> None:
        try:
            with self._lock:
                self._armed, was_set, self._set = False, self._set, False
            if was_set:
                # The exception was raised in user code, or is raised in the first rounds.
                for _ in range(_CHECKS):
                    pass
        except TrialInterrupted:
            self._pending = True
