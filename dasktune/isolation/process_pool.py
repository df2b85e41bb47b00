"""Keeps the child process of an actor between two trials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dasktune.isolation.process import ChildProcess

logger = logging.getLogger(__name__)


class WarmProcess:
    """Keeps at most one child process, which runs one trial at a time; thread-safe."""

    # A trial's thread calls `acquire`; the worker's event loop calls `release_idle` and `close`.
    # The idle child changes hands under `_lock`: a trial takes it, or `release_idle` does, never
    # both. A trial that ends while `close` runs: if it returns its child first, `close` stops the
    # child; if `close` is first, the trial finds `_closed` and stops the child itself.

    def __init__(self) -> None:
        #: Held while a trial has the child, or while the child is being replaced.
        self._in_use = threading.Lock()
        self._lock = threading.Lock()
        self._idle: ChildProcess | None = None
        self._exiting: list[ChildProcess] = []
        self._closed = False

    @contextmanager
    def acquire(self, environment: Mapping[str, str]) -> Iterator[ChildProcess]:
        """Lend a child to a trial; after the block it is kept for the next trial, or has ended.

        Parameters
        ----------
        environment : mapping
            Variables with which the child must have been started.

        Raises
        ------
        OSError
            If no child can be started.
        """
        with self._in_use:
            child = self._idle_or_new(environment)
            child.is_reusable = False
            try:
                yield child
            finally:
                if not self._keep(child):
                    child.stop()

    @property
    def exiting(self) -> list[ChildProcess]:
        """The released children that have not ended yet."""
        with self._lock:
            self._exiting = [child for child in self._exiting if not child.finished]
            return list(self._exiting)

    def release_idle(self) -> None:
        """Stop the idle child, if there is one; return at once."""
        with self._lock:
            idle, self._idle = self._idle, None
            if idle is None:
                return
            self._exiting.append(idle)
        # In a thread: stopping takes a moment, and the caller is an event loop.
        threading.Thread(target=idle.stop, name="dasktune-stop-child", daemon=True).start()

    def close(self) -> None:
        """Stop the child, now or when its trial has ended; return at once."""
        with self._lock:
            self._closed = True
        self.release_idle()

    def _idle_or_new(self, environment: Mapping[str, str]) -> ChildProcess:
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            if idle.environment == environment and idle.is_alive:
                return idle
            idle.stop()
        child = ChildProcess(environment)
        logger.debug("started process %d for trials", child.pid)
        return child

    def _keep(self, child: ChildProcess) -> bool:
        with self._lock:
            if self._closed or not child.is_reusable:
                return False
            self._idle = child
            return True
