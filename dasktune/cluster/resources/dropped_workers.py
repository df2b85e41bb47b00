"""Warns of workers that the user's cluster never starts again, with the call that does."""

from __future__ import annotations

import logging
from typing import Any, Final

from dasktune.cluster.resources.adaptive_demand import Growth

logger = logging.getLogger(__name__)

#: Seconds for which workers must be missing. A cluster that is being scaled lacks the new ones
#: while they start.
_CONFIRM_SECONDS: Final = 10.0


class DroppedWorkers:
    """Tracks the workers that a cluster object of Dask has dropped, or has failed to start.

    A trial in a thread that calls ``os._exit`` kills its worker. If the worker is not back when
    Dask looks for it, Dask never starts it again, and the experiment would wait without an end. Nor
    does Dask start a worker again that was not ready in time.

    Parameters
    ----------
    growth : Growth
        Knows the cluster.
    """

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        #: How many are missing, since when, and whether the user was told.
        self._missing = 0
        self._since = 0.0
        self._told = False
        #: The workers that have failed to start of which the user was told.
        self._told_failed: set[Any] = set()

    def check(self, now: float) -> None:
        """Read how many workers are missing, and warn once if the number does not change.

        Parameters
        ----------
        now : float
            Seconds on any monotonic clock.
        """
        self._check_failed()
        missing, wanted = self._growth.dropped_workers
        if missing != self._missing:
            self._missing, self._since, self._told = missing, now, False
        if missing and not self._told and now - self._since >= _CONFIRM_SECONDS:
            self._told = True
            logger.warning(
                "%s has dropped %d of its %d workers and will not start them again: they died, and were "
                "not back in time (distributed.deploy.lost-worker-timeout). Call cluster.scale(%d) to start "
                "them. If a trial kills its workers, run it with RunConfig(isolation='process')",
                self._growth.cluster_type,
                missing,
                wanted,
                wanted,
            )

    def _check_failed(self) -> None:
        failed = self._growth.failed_workers
        if new := [name for name in failed if name not in self._told_failed]:
            logger.warning(
                "%d workers of %s have failed to start (Dask has logged why), and Dask counts "
                "them as started. Call cluster.sync(cluster.scale_down, %r) to have them replaced%s",
                len(new),
                self._growth.cluster_type,
                failed,
                "" if self._growth.is_adaptive else ", and then cluster.scale with their full number",
            )
        self._told_failed = set(failed)
