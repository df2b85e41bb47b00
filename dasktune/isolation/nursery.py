"""Keeps the process of a slot warm from one trial to the next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dasktune.isolation.process import ChildProcess

__all__ = ["Nursery"]

logger = logging.getLogger(__name__)


class Nursery:
    """Has at most one child process, which serves one trial at a time; thread-safe."""

    def __init__(self) -> None:
        #: Held as long as a trial has the child, or the child is being replaced.
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._idle: ChildProcess | None = None
        self._leaving: list[ChildProcess] = []
        self._closed = False

    @contextmanager
    def lend(self, environment: Mapping[str, str]) -> Iterator[ChildProcess]:
        """Lend a child for a trial; at the end of the block it is ready for the next, or gone.

        Parameters
        ----------
        environment : mapping
            Variables that it must have been started with.

        Raises
        ------
        OSError
            If none can be started.
        """
        with self._turn:
            child = self._fitting(environment)
            child.is_reusable = False
            try:
                yield child
            finally:
                if not self._keep(child):
                    child.retire()

    @property
    def leaving(self) -> list[ChildProcess]:
        """The children that were let go and are not gone yet."""
        with self._guard:
            self._leaving = [child for child in self._leaving if not child.finished]
            return list(self._leaving)

    def vacate(self) -> None:
        """Let a child go that has nothing to do; return at once."""
        with self._guard:
            idle, self._idle = self._idle, None
            if idle is None:
                return
            self._leaving.append(idle)
        # It takes a moment, for which the caller's event loop must not wait.
        threading.Thread(target=idle.retire, name="dasktune-farewell", daemon=True).start()

    def close(self) -> None:
        """Let the child go, at once or when its trial has ended; return at once."""
        with self._guard:
            self._closed = True
        self.vacate()

    def _fitting(self, environment: Mapping[str, str]) -> ChildProcess:
        with self._guard:
            idle, self._idle = self._idle, None
        if idle is not None:
            if idle.environment == environment and idle.is_alive:
                return idle
            idle.retire()
        child = ChildProcess(environment)
        logger.debug("process %d was started for trials", child.pid)
        return child

    def _keep(self, child: ChildProcess) -> bool:
        with self._guard:
            if self._closed or not child.is_reusable:
                return False
            self._idle = child
            return True
