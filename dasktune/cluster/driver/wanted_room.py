"""The room that an experiment lacks: what it shows to other experiments and to an adaptive cluster.

The runner's thread replaces `waiting` and `growing`. The client's event loop reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dasktune.cluster.driver.reservations import Reservations
from dasktune.cluster.driver.trial_run import TrialRun
from dasktune.cluster.resources.adaptive_demand import (
    DemandSignal,
    Growth,
    demand_signal,
    signal_for,
    workers_for_bundles,
)
from dasktune.cluster.sharing.share_reporter import WaitingTrials
from dasktune.placement import Ledger
from dasktune.trial.resources import ElasticPlacement, PlacementGroupFactory


class WantedRoom:
    """The requests of trials that wait, and of trials that run and would start again with more.

    Parameters
    ----------
    reservations : Reservations
        The workers and the reservations on them.
    running : mapping
        The runs by the names of their trials. The owner changes it; it is read at each call.
    growth : Growth
        How the cluster grows.
    """

    def __init__(self, reservations: Reservations, running: Mapping[str, TrialRun], growth: Growth) -> None:
        self._reservations = reservations
        self._running = running
        self._growth = growth
        self._closed = False
        #: The request of the trials that wait for room, and their number. Replaced as a whole by
        #: the runner's thread, so the loop reads a consistent pair.
        self.waiting: tuple[PlacementGroupFactory | None, int] = (None, 0)
        #: The requests of the trials that would start again with more. Replaced as a whole, too.
        self.growing: Mapping[str, ElasticPlacement] = {}

    def close(self) -> None:
        """Tell other experiments of no trial any more; none starts while the experiment ends."""
        self._closed = True

    def waiting_trials(self) -> WaitingTrials:
        """Return the trials that would start now if they had room, for the fair share."""
        return self._reservations.with_ledger(self._waiting_trials)

    def missing(self, demands: tuple[int, int, int] | None) -> DemandSignal | None:
        """Return the demand to show an adaptive cluster.

        None if the cluster is not adaptive, no trial waits or would grow, or more workers would not
        help.

        Parameters
        ----------
        demands : tuple of int, optional
            The leases of all experiments, the number of experiments that wait, and the place of
            this one among them; None if the scheduler has not told them.
        """
        if self._growth.is_adaptive is False:
            return None
        # Room for a trial that waits comes first.
        request, count = self.waiting
        if request is not None:
            work = partial(self._missing_for_waiting, request, count, demands or (0, 1, 0))
        elif self.growing:
            work = partial(self._missing_for_growing, self.growing, demands or (0, 1, 0))
        else:
            return None
        return self._reservations.with_ledger(work)

    def _waiting_trials(self, ledger: Ledger, _: int) -> WaitingTrials:
        # None starts any more while the experiment ends, which may take as long as user code.
        request, count = (None, 0) if self._closed else self.waiting
        if isinstance(request, ElasticPlacement):
            # A plan for more ranks than all workers can hold would keep no room for the trial.
            sizes = map(request.resized, request.sizes)
            request = next(filter(ledger.fits_when_idle, sizes), request)
        kinds = {"memory", *(kind for worker in ledger.workers.values() for kind in worker.resources)}
        return WaitingTrials(request=request, number=count, kinds=kinds, closed=ledger.closed_for(request))

    def _missing_for_waiting(
        self,
        request: PlacementGroupFactory,
        count: int,
        demands: tuple[int, int, int],
        ledger: Ledger,
        reservations: int,
    ) -> DemandSignal | None:
        new = self._growth.expected(ledger)
        leases, sharers, place = demands
        # A reservation may be newer than the last reading of the leases.
        busy = max(leases, reservations)
        return demand_signal(request, count, ledger, busy=busy, place=place, sharers=sharers, new_worker=new)

    def _missing_for_growing(
        self,
        requests: Mapping[str, ElasticPlacement],
        demands: tuple[int, int, int],
        ledger: Ledger,
        reservations: int,
    ) -> DemandSignal | None:
        """Return the demand of trials that run, and would start again with these requests.

        It also keeps the workers on which they will start, from the moment when these are there
        until each trial has left with a checkpoint.
        """
        runs = [(self._running.get(trial_id), request) for trial_id, request in requests.items()]
        known = [(run.reservation.placement, request) for run, request in runs if run is not None]
        wanted = [request for _, request in known]
        placements = [placement for placement, _ in known]
        missing, unused = ledger.missing_bundles(placements, wanted, now=self._reservations.clock())
        new = self._growth.expected(ledger)
        more = workers_for_bundles(zip(wanted, missing, strict=True), new)
        if any(missing) and not more:
            return None
        leases, sharers, place = demands
        busy = max(leases, reservations)
        # Another experiment may need the workers that this one does not.
        spare = unused if sharers == 1 and not more else 0
        return signal_for(more - spare, ledger, busy=busy, place=place, sharers=sharers)
