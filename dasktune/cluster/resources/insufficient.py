"""Warns while workers or resources are missing, and raises if no trial will ever run."""

from __future__ import annotations

import logging
from typing import Any, Final

from dasktune.cluster.resources.adaptive_demand import Growth
from dasktune.errors import PreflightError
from dasktune.placement import Ledger
from dasktune.trial.resources import PlacementGroupFactory

logger = logging.getLogger(__name__)

_NO_WORKERS: Final = (
    "the cluster has no workers (if none are on their way: cluster.scale({number}), or 'dask worker "
    "<address of the scheduler>')"
)

#: Seconds for which workers must be missing. A cluster that is being scaled lacks the new ones
#: while they start.
_CONFIRM_SECONDS: Final = 10.0


class InsufficientResources:
    """Tracks how long no trial has been able to run.

    Parameters
    ----------
    growth : Growth
        How the cluster grows.
    queue_trials : bool or None
        Whether trials may wait for workers that do not exist yet. By default they wait while there
        is no worker at all, or the cluster is known to be adaptive.
    advice : str, default=""
        The trainable's advice, which is added to warnings and errors.
    impossible_timeout : float, default=10.0
        Seconds for which no worker may be able to meet a request before the experiment fails.
    warning_interval : float, default=60.0
        Seconds between two warnings while no trial can run.
    """

    def __init__(
        self,
        growth: Growth,
        queue_trials: bool | None,
        advice: str = "",
        *,
        impossible_timeout: float = 10.0,
        warning_interval: float = 60.0,
    ) -> None:
        self._impossible_timeout = impossible_timeout
        self._warning_interval = warning_interval
        self._growth = growth
        self._queue_trials = queue_trials
        self._advice = f"\n{advice}" if advice else ""
        #: When the request was first found to be impossible, and when the user was last warned.
        self._impossible_since: float | None = None
        self._warned_at: float | None = None
        #: Whether the last warning was that there are no workers.
        self._warned_of_no_workers = False

    def reset(self) -> None:
        """Note that a trial runs or can run."""
        self._warned_at = self._impossible_since = None

    def check(self, request: PlacementGroupFactory, ledger: Ledger, now: float, *, share: str = "") -> None:
        """Note that a request finds no room although no trial runs; warn or fail if it lasts.

        Parameters
        ----------
        request : PlacementGroupFactory
            The request of the next trial.
        ledger : Ledger
            The workers.
        now : float
            Seconds on any monotonic clock.
        share : str, default=""
            Which other experiments hold what, if the request waits for them.

        Raises
        ------
        PreflightError
            If no worker has been able to meet the request for `impossible_timeout` seconds, and the
            experiment does not wait for new workers.
        """
        if self._warned_at is None:
            self._warned_at = now
        if ledger.fits_when_idle(request) or self._may_wait(request, empty=not ledger.workers):
            self._impossible_since = None
        elif self._impossible_since is None:
            # The workers so far may be the first of several that are just starting.
            self._impossible_since = now
        elif now - self._impossible_since > self._impossible_timeout:
            raise PreflightError(
                "resources must be what some worker has, got a request that none can meet:\n"
                f"{ledger.table(request)}\n{self._growth.limit_reason(request)}Ask for less, "
                "start larger workers, or set RunConfig(queue_trials=True) to wait for them."
                f"{self._advice}"
            )
        is_known = bool(ledger.workers) or self._warned_of_no_workers
        if now - self._warned_at > (self._warning_interval if is_known else self._impossible_timeout):
            self._warned_at = now
            self._warned_of_no_workers = not ledger.workers
            what = "no worker has room for the next trial" if ledger.workers else self._no_workers()
            if share and ledger.workers:
                what = f"{what}. The experiment {share}"
            logger.warning("%s; waiting:\n%s%s", what, ledger.table(request), self._advice)

    def _no_workers(self) -> str:
        _, wanted = self._growth.dropped_workers
        return _NO_WORKERS.format(number=wanted or "n")

    def _may_wait(self, request: PlacementGroupFactory, *, empty: bool) -> bool:
        if self._queue_trials is not None:
            return self._queue_trials
        return self._growth.may_wait(request, empty=empty)


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
