"""Which parameters matter, worked out beside the loop that serves the pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread
from typing import Final

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.importance import Ranked, ranking_task

__all__ = ["Ranking"]

logger = logging.getLogger(__name__)

#: Of the time, the share for which a forest is grown.
_SHARE: Final = 0.05


class Ranking:
    """The importance of parameters as it was known last.

    A forest of thousands of trials takes seconds to grow. Meanwhile the last one does.

    Parameters
    ----------
    clock : callable, default=time.monotonic
        Gives seconds.

    Attributes
    ----------
    number : int
        Counts the results.
    latest : Ranked or None
        The last result; None before there is one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.number = 0
        self.latest: Ranked | None = None
        self._thread: Thread | None = None
        self._version, self._next = -1, -1.0

    def ask(self, chronicle: Chronicle) -> Ranked | None:
        """Return the last result, and have another one be worked out if it is time.

        Parameters
        ----------
        chronicle : Chronicle
            Always the same. It is looked at before this returns, and not later.
        """
        idle = self._thread is None or not self._thread.is_alive()
        if idle and chronicle.version != self._version and self._clock() >= self._next:
            self._version = chronicle.version
            task = ranking_task(chronicle)
            self._thread = Thread(target=self._work, args=(task,), daemon=True)
            self._thread.start()
        return self.latest

    def _work(self, task: Callable[[], Ranked]) -> None:
        began = self._clock()
        try:
            self.latest = task()
        except Exception:
            logger.exception("the importance of parameters could not be worked out")
        now = self._clock()
        self._next = now + (now - began) / _SHARE
        self.number += 1
