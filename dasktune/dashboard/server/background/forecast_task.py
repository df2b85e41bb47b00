"""`ForecastTask`: compute what other trial schedulers would have cost, when a viewer asks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread
from typing import Final, Protocol

from dasktune.dashboard.server.cpu_budget import CpuBudget
from dasktune.errors import TuneError
from dasktune.forecast.what_if import WhatIf

logger = logging.getLogger(__name__)

#: Maximum number of results of an experiment that is replayed in a server, which may be the
#: driver: each result takes about a kibibyte of memory during the replays.
MOST_RESULTS: Final = 100_000

#: How often the progress changes until the end.
_STEPS: Final = 10


class _StoppedError(Exception):
    """The forecast is of no use any more."""


class Replay(Protocol):
    """Replays an experiment, as `dasktune.results.trial_forecast.forecast_experiment` does."""

    def __call__(self, *, progress: Callable[[int, int], object]) -> WhatIf:
        """Return the forecast; ``progress(done, total)`` is called after each replay."""


class ForecastTask:
    """A forecast of an experiment, for all its viewers.

    The server's loop starts it; at most one thread computes. That thread needs no lock: it reads
    the journal by itself, and the loop reads only the attributes below. Each of them is replaced,
    never changed in place, and `generation` is set last. So the loop may see a new value with the
    old generation, and draws it once more afterwards; it never sees an old one with a new
    generation.

    Parameters
    ----------
    replay : callable
        Reads the journal, and replays the trials.
    budget : CpuBudget
        The processor time of the dashboard.
    sleep : callable, default=time.sleep
        Waits some seconds.
    own : callable, default=time.thread_time
        Returns the processor seconds of the calling thread.

    Attributes
    ----------
    found : WhatIf or None
        The last forecast; None before the first one.
    error : str
        Why the last attempt has failed; empty if it has not.
    share : float or None
        The share of the replays that are done; None while none is computed.
    generation : int
        Changes with each of them.
    """

    def __init__(
        self,
        replay: Replay,
        budget: CpuBudget,
        sleep: Callable[[float], object] = time.sleep,
        own: Callable[[], float] = time.thread_time,
    ) -> None:
        self._replay, self._budget, self._sleep, self._own = replay, budget, sleep, own
        self.found: WhatIf | None = None
        self.error = ""
        self.share: float | None = None
        self.generation = 0
        self._counted = 0.0
        self._is_stopped = False

    def start(self) -> None:
        """Start to compute in a thread, unless a thread computes already or `stop` was called."""
        if self.share is not None or self._is_stopped:
            return
        self.share, self.error = 0.0, ""
        self.generation += 1
        Thread(target=self._work, daemon=True, name="dasktune-dashboard-forecast").start()

    def stop(self) -> None:
        """Let the thread end after the replay that it computes: the server ends.

        The driver's process may continue, and no page can show what the thread would find.
        """
        self._is_stopped = True

    def _work(self) -> None:
        self._counted = self._own()
        found, error = self.found, ""
        try:
            found = self._replay(progress=self._report)
        except _StoppedError:
            # Pages show that it was not computed, from `share`.
            return
        except TuneError as why:
            error = str(why)
        except Exception as why:
            logger.exception("the costs of other schedulers could not be computed")
            error = f"the computation failed: {type(why).__name__}. The log of this server has more."
        self._pause()
        self.found, self.error, self.share = found, error, None
        self.generation += 1

    def _report(self, done: int, total: int) -> None:
        if self._is_stopped:
            raise _StoppedError
        self._pause()
        share = done * _STEPS // total / _STEPS
        if share != self.share:
            self.share = share
            self.generation += 1

    def _pause(self) -> None:
        """Count the work since the last call, and rest while the driver of this process is busy."""
        now = self._own()
        worked, self._counted = now - self._counted, now
        self._budget.count(worked)
        rest = worked * (1 / self._budget.figure_share - 1)
        if rest > 0:
            self._sleep(rest)
