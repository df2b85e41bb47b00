"""Passes dasktune's log records to the user's handlers from a thread.

A handler of the user may block: on a terminal that does not read, a network disk, or a log server.
dasktune logs in the driver's loop, which must not wait: after ``driver_ttl`` seconds the workers
would end its trials.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO, cast

#: The logger above all loggers of the package.
_PACKAGE: Final = "dasktune"

#: Records that may wait for the handlers. Further ones are dropped.
_MAX_RECORDS: Final = 10_000

#: Seconds that `move_handlers` waits for a handler that writes.
_HANDLER_SECONDS: Final = 0.1

#: The value of `propagate` while the relay takes the place of the handlers. It counts as False, and
#: differs from the False of a user, which stays.
_OFF: Final = cast(bool, 0)


class _LogRelay(logging.Handler):
    """Takes the place of the handlers of dasktune's logger while experiments run.

    A thread passes the records to those handlers, and to the handlers of the loggers above. Records
    of a logger with handlers of its own, below dasktune's, reach these handlers at once.
    """

    # Experiments in several threads share one relay. It is removed when the last of them has ended
    # and no record waits: by that experiment, or later by the relay's thread, if a handler blocks
    # then. So the end of an experiment does not wait for that handler either. The thread ends when
    # the relay has been removed. It may be left in a handler, as a daemon. `changed` is free while
    # a handler is called.

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[logging.Handler] = []
        self._propagates = True
        self._process = os.getpid()
        self._records: deque[logging.LogRecord] = deque()
        self._num_dropped = 0
        self._num_users = 0
        self.is_installed = self._is_busy = False
        # An RLock: a signal handler may log while its thread does.
        self.changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Let the thread handle a record; returns at once."""
        if os.getpid() != self._process:
            self._pass_on(record)  # a fork without an experiment of its own, which lacks the thread
            return
        with self.changed:
            if len(self._records) >= _MAX_RECORDS:
                self._num_dropped += 1
                return
            self._records.append(record)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dasktune-log-relay", daemon=True)
                self._thread.start()
            self.changed.notify_all()

    def start(self) -> None:
        """Take the place of the handlers, unless another experiment has done that."""
        with self.changed:
            self._process = os.getpid()
            self._num_users += 1
            if not self.is_installed:
                package = logging.getLogger(_PACKAGE)
                self.targets, self._propagates = package.handlers, package.propagate
                package.handlers, package.propagate = [self], _OFF
                self.is_installed = True

    def reset_in_fork(self) -> None:
        """Forget the experiments, the thread and the lock of the parent process.

        A thread of the parent may have held the lock. The parent handles the records that wait.
        """
        self.changed = threading.Condition(threading.RLock())
        self._records, self._num_dropped, self._num_users = deque(), 0, 0
        self._is_busy, self._thread = False, None

    def finish(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the handlers, and put them back if nothing waits."""
        with self.changed:
            try:
                self.changed.wait_for(lambda: not self._has_work, timeout)
            finally:  # also after Ctrl-C
                self._num_users -= 1
                self._remove_if_unused()

    @property
    def _has_work(self) -> bool:
        return bool(self._records) or self._is_busy

    def _remove_if_unused(self) -> None:
        if self._num_users or self._has_work or not self.is_installed:
            return
        package = logging.getLogger(_PACKAGE)
        if self in package.handlers:  # or else the user has configured logging since
            # Handlers that the user has added meanwhile stay.
            added = [one for one in package.handlers if one is not self and one not in self.targets]
            package.handlers = [*self.targets, *added]
        if package.propagate is _OFF:
            package.propagate = self._propagates
        self.targets, self.is_installed = [], False
        self.changed.notify_all()  # the thread ends

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._records or not self.is_installed)
                if not self._records:
                    # The lock is held, so the next record finds that it needs a new thread.
                    self._thread = None
                    return
                record, self._is_busy = self._records.popleft(), True
                dropped, self._num_dropped = self._num_dropped, 0
            try:
                self._pass_on(record)
                if dropped:
                    self._pass_on(_note_of(dropped))
            except SystemExit:  # a handler of the user cannot end the process from this thread
                self.handleError(record)
            with self.changed:
                self._is_busy = False
                self._remove_if_unused()
                self.changed.notify_all()

    def _pass_on(self, record: logging.LogRecord) -> None:
        package = logging.getLogger(_PACKAGE)
        targets, above = tuple(self.targets), package.parent
        # If something has set `propagate` meanwhile, the package's logger itself obeys it.
        propagates = self._propagates and package.propagate is _OFF
        try:
            for handler in targets:
                if record.levelno >= handler.level:
                    handler.handle(record)
            if propagates and above is not None and (above.hasHandlers() or not targets):
                # Without any handler, this writes warnings to `sys.stderr`, as logging does.
                above.callHandlers(record)
        except Exception:  # a handler of the user may raise anything
            self.handleError(record)


def _note_of(count: int) -> logging.LogRecord:
    text = "%s log records were dropped: a handler of logging did not keep up"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)


_RELAY: Final = _LogRelay()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RELAY.reset_in_fork)


@contextmanager
def relayed_logs(timeout: float) -> Iterator[None]:
    """Let a thread call the handlers of dasktune's log records inside the ``with`` block.

    Parameters
    ----------
    timeout : float
        Seconds that the end of the block waits for the handlers. If they take longer, the thread
        continues to call them.

    Examples
    --------
    >>> logger = logging.getLogger("dasktune.example")
    >>> with relayed_logs(10.0):
    ...     logger.info("handled in a thread")
    """
    _RELAY.start()
    try:
        yield
    finally:
        _RELAY.finish(timeout)


def move_handlers(old: TextIO, new: TextIO) -> list[tuple[logging.StreamHandler[TextIO], TextIO]]:
    """Let the plain stream handlers of all loggers write to another stream.

    A handler that waits for its old stream keeps it.

    Parameters
    ----------
    old, new : text stream
        The stream that the handlers have, and the one that they get.

    Returns
    -------
    list of (handler, text stream)
        The handlers that have got it, each with its old stream.
    """
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    found = {
        id(handler): handler
        for one in loggers
        if isinstance(one, logging.Logger)
        for handler in [*one.handlers, *(_RELAY.targets if one is logging.root else [])]
        if type(handler) is logging.StreamHandler and handler.stream is old
    }
    return [(handler, old) for handler in found.values() if _set_stream(handler, new)]


def _set_stream(handler: logging.StreamHandler[TextIO], stream: TextIO) -> bool:
    """Give a handler another stream, unless it waits for its old one; return whether it did."""
    lock = handler.lock
    if lock is None or not lock.acquire(timeout=_HANDLER_SECONDS):
        return False
    try:
        handler.setStream(stream)
    finally:
        lock.release()
    return True


def has_handlers() -> bool:
    """Whether a handler of the user, or of another experiment, gets dasktune's log records."""
    if not _RELAY.is_installed:
        return logging.getLogger(_PACKAGE).hasHandlers()
    return bool(_RELAY.targets) or logging.root.hasHandlers()


@contextmanager
def added_handler(handler: logging.Handler) -> Iterator[None]:
    """Let a handler get dasktune's log records inside the ``with`` block.

    Parameters
    ----------
    handler : logging.Handler
        The handler.
    """
    package = logging.getLogger(_PACKAGE)
    with _RELAY.changed:
        (_RELAY.targets if _RELAY.is_installed else package.handlers).append(handler)
    try:
        yield
    finally:
        with _RELAY.changed:
            for handlers in (_RELAY.targets, package.handlers):
                if handler in handlers:
                    handlers.remove(handler)
