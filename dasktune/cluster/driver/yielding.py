"""Chooses the trials that yield, while an experiment holds more than its share for too long.

The runs of a worker yield one after another: the next one is chosen when the last one has left, and
after two seconds at the earliest. Then the plan knows what that one has freed.

A trial that has resumed may have spent minutes in ``setup`` and ``load_checkpoint``. Experiments
that take turns would do little else, if each of their trials left again with its first result. So
such a trial trains for at least as long as its start took, and for `yields_after` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from dasktune.cluster.driver.trial_run import TrialRun

#: Least seconds between two trials that yield on the same worker.
_PAUSE: Final = 2.0


class YieldChooser:
    """Chooses the trial that has begun last on each worker where the experiment holds too much.

    Parameters
    ----------
    yields_after : float
        See :class:`~dasktune.RunConfig`.
    can_save : bool
        Whether trials can save a checkpoint at any result. Otherwise none yields, because it would
        lose what it has computed since its last checkpoint.
    """

    def __init__(self, yields_after: float, *, can_save: bool) -> None:
        self.yields_after = yields_after
        self._can_save = can_save
        #: When a trial was last chosen on each worker.
        self._chosen_at: dict[str, float] = {}

    def choose(
        self, over: Sequence[str], seconds: float, runs: Iterable[TrialRun], now: float
    ) -> list[TrialRun]:
        """Return the runs that yield now.

        Parameters
        ----------
        over : sequence of str
            The workers where the experiment holds what is due to others.
        seconds : float
            For how long it has held too much.
        runs : iterable of TrialRun
            The runs of the experiment, the one that was started last comes last.
        now : float
            Seconds on any monotonic clock.
        """
        if not over or not self._can_save or seconds < self.yields_after:
            return []
        chosen: list[TrialRun] = []
        # An abandoned run has ended for the experiment, and keeps its order.
        candidates = [run for run in runs if not run.end_reported]
        for address in over:
            there = [run for run in candidates if address in run.reservation.placement.addresses]
            waits = now - self._chosen_at.get(address, -inf) < _PAUSE
            # A run with an order is leaving already.
            if waits or any(run.order is not None for run in there) or any(run in chosen for run in there):
                continue
            ready = [run for run in there if self._has_trained(run, now)]
            if ready:
                self._chosen_at[address] = now
                chosen.append(ready[-1])
        return chosen

    def _has_trained(self, run: TrialRun, now: float) -> bool:
        """Whether a run has begun and, if the trial was resumed, has trained for long enough."""
        if not run.received_seq:
            # It is queued, or is still to be started.
            return False
        if run.spec.checkpoint is None:
            return True
        if run.started_at is None or run.first_result_at is None:
            return False
        start_seconds = run.first_result_at - run.started_at
        return now - run.first_result_at >= max(self.yields_after, start_seconds)
