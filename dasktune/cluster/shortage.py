"""What to do while nothing can run: say what is missing, and give up where waiting is in vain."""

from __future__ import annotations

import logging
from typing import Final

from dasktune.cluster.demand import Growth
from dasktune.errors import PreflightError
from dasktune.placement import Ledger
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Shortage"]

logger = logging.getLogger(__name__)

#: Seconds between two tables of what is asked and what is there, while nothing can run.
_COMPLAIN_EVERY: Final = 60.0

#: Seconds that a request may find no place on a cluster that cannot grow.
_HOPELESS_AFTER: Final = 10.0

_NO_WORKERS: Final = (
    "the cluster has no workers (if none are on their way: cluster.scale(n), or 'dask worker "
    "<address of the scheduler>')"
)


class Shortage:
    """A time in which nothing can run.

    Parameters
    ----------
    growth : Growth
        What is known of how the cluster grows.
    queue_trials : bool or None
        Whether trials may wait for workers that are not there. None waits while there is no worker
        at all, or the cluster is known to be adaptive.
    advice : str, default=""
        What the trainable has to say to it.
    """

    def __init__(self, growth: Growth, queue_trials: bool | None, advice: str = "") -> None:
        self._growth = growth
        self._queue_trials = queue_trials
        self._advice = f"\n{advice}" if advice else ""
        #: When a place was found first to be missing for good, and when the user heard of it.
        self._hopeless_since: float | None = None
        self._complained_at: float | None = None
        #: Whether the last that the user heard was that there are no workers.
        self._told_of_none = False

    def end(self) -> None:
        """Take note that something can run, or does."""
        self._complained_at = self._hopeless_since = None

    def note(self, request: PlacementGroupFactory, ledger: Ledger, now: float) -> None:
        """Take note that a request finds no place although nothing runs.

        Parameters
        ----------
        request : PlacementGroupFactory
            What the next trial asks for.
        ledger : Ledger
            The workers.
        now : float
            Seconds since any fixed moment.

        Raises
        ------
        PreflightError
            If it has been in vain to wait for long enough.
        """
        if self._complained_at is None:
            self._complained_at = now
        if ledger.ever_fits(request) or self._may_wait(request, empty=not ledger.workers):
            self._hopeless_since = None
        elif self._hopeless_since is None:
            # Perhaps the first of several workers that are just starting.
            self._hopeless_since = now
        elif now - self._hopeless_since > _HOPELESS_AFTER:
            raise PreflightError(
                "resources must be what some worker has, got a request that none can meet:\n"
                f"{ledger.table(request)}\n{self._growth.limit(request)}Ask for less, start larger "
                f"workers, or set RunConfig(queue_trials=True) to wait for them.{self._advice}"
            )
        patience = _COMPLAIN_EVERY if ledger.workers or self._told_of_none else _HOPELESS_AFTER
        if now - self._complained_at > patience:
            self._complained_at = now
            self._told_of_none = not ledger.workers
            what = "no worker has room for the next trial" if ledger.workers else _NO_WORKERS
            logger.warning("%s; waiting:\n%s%s", what, ledger.table(request), self._advice)

    def _may_wait(self, request: PlacementGroupFactory, *, empty: bool) -> bool:
        if self._queue_trials is not None:
            return self._queue_trials
        return self._growth.may_wait(request, empty=empty)
