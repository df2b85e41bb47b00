"""Compute the importance of parameters in a thread, while the last result is shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread
from typing import Final

from dasktune.dashboard.figures.importance import Ranked, ranking_task
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.repeated_errors import RepeatedErrors

logger = logging.getLogger(__name__)

#: The share of the time in which forests are fitted.
_SHARE: Final = 0.05
_FAILED: Final = "the importance of parameters could not be computed"


class ImportanceRanking:
    """The last known importance of parameters.

    A forest of thousands of trials takes seconds to fit; meanwhile the last result is used. Figures
    request it while they are drawn, and it is computed once they are shown: a viewer looks at them
    meanwhile.

    Both methods are called while the lock of the experiment is held, so at most one thread
    computes. That thread needs no lock: it works on copies, and stores its result before the next
    thread can start.

    Parameters
    ----------
    clock : callable, default=time.monotonic
        Returns seconds.

    Attributes
    ----------
    generation : int
        The number of computations so far.
    latest : Ranked or None
        The last result; None before the first one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._errors = RepeatedErrors(logger)
        self.generation = 0
        self.latest: Ranked | None = None
        self._thread: Thread | None = None
        self._version, self._next = -1, -1.0
        self._is_requested = False

    def request(self) -> Ranked | None:
        """Return the last result; the next call of `start_requested` may compute a new one."""
        self._is_requested = True
        return self.latest

    def start_requested(self, projection: ExperimentProjection) -> None:
        """Start computing in a thread if a figure has requested it and it is time.

        Parameters
        ----------
        projection : ExperimentProjection
            The experiment; the same at each call. It is read only during the call.
        """
        idle = self._thread is None or not self._thread.is_alive()
        is_due = projection.version != self._version and self._clock() >= self._next
        if self._is_requested and idle and is_due:
            self._is_requested, self._version = False, projection.version
            task = ranking_task(projection)
            self._thread = Thread(target=self._work, args=(task,), daemon=True)
            self._thread.start()

    def _work(self, task: Callable[[], Ranked]) -> None:
        began = self._clock()
        try:
            self.latest = task()
        except Exception as error:
            self._errors.failed(_FAILED, error)
        else:
            self._errors.succeeded(_FAILED)
        now = self._clock()
        self._next = now + (now - began) / _SHARE
        self.generation += 1
