"""The read-only view that a scheduler has of the cluster and its trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import fsum
from operator import attrgetter
from typing import Final

from dasktune.placement import CapacityEstimate
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

#: Statuses of trials whose worker is known and that still hold its resources.
_PLACED: Final = frozenset(
    {
        TrialStatus.RUNNING,
        TrialStatus.SAVING,
        TrialStatus.PAUSING,
        TrialStatus.SHELVING,
        TrialStatus.STOPPING,
        TrialStatus.FAILING,
    }
)


class ResourceUpdater:
    """The total resources of the workers, with the methods of Ray Tune's class of this name.

    Parameters
    ----------
    total : mapping of str to float
        The amounts by name.
    """

    def __init__(self, total: Mapping[str, float]) -> None:
        self._total = total

    def get_num_cpus(self) -> int:
        """Return the number of whole CPUs."""
        return int(self._total.get("CPU", 0))

    def get_num_gpus(self) -> int:
        """Return the number of whole GPUs."""
        return int(self._total.get("GPU", 0))


class ClusterView:
    """A read-only, always current view of the cluster's resources and the trials that share them.

    Parameters
    ----------
    trials : mapping of str to Trial
        All trials that were ever added, in order. The experiment keeps this mapping up to date.
    pending, paused, active : mapping of str to Trial
        The unfinished trials by status. The experiment keeps these up to date too.
    workers : mapping
        Resources of each worker, by address and then by resource name. Empty if they are unknown,
        as in a simulation that has slots only.
    limit : int, default=0
        Maximum number of trials on workers at a time; 0 means no limit.

    Examples
    --------
    >>> view = ClusterView(
    ...     trials={}, pending={}, paused={}, active={}, workers={"tcp://a": {"CPU": 4.0}}
    ... )
    >>> view.total_resources
    {'CPU': 4.0}
    """

    def __init__(
        self,
        *,
        trials: Mapping[str, Trial],
        pending: Mapping[str, Trial],
        paused: Mapping[str, Trial],
        active: Mapping[str, Trial],
        workers: Mapping[str, Mapping[str, float]],
        limit: int = 0,
    ) -> None:
        #: All trials that were ever added, by id.
        self.trials: Mapping[str, Trial] = trials
        self._pending = pending
        self._paused = paused
        self._active = active
        self._workers = workers
        self._limit = limit

    @property
    def is_known(self) -> bool:
        """Whether the resources of the workers are known."""
        return bool(self._workers)

    @property
    def total_resources(self) -> dict[str, float]:
        """The sum of the workers' resources that other experiments do not use, by resource name."""
        return _sum(self._workers.values())

    @property
    def _resource_updater(self) -> ResourceUpdater:
        """The totals, under the name that Ray Tune's examples of allocation functions read."""
        return ResourceUpdater(self.total_resources)

    @property
    def contenders(self) -> list[Trial]:
        """The trials that hold resources, sorted by id, and the pending trials that may start next.

        Paused trials are left out, and so are pending trials beyond ``max_concurrent_trials``.
        """
        room = max(0, self._limit - len(self._active)) if self._limit else None
        # Sorted by id, because the order of their starts is lost when a driver restarts.
        active = sorted(self._active.values(), key=_id_of)
        return [*active, *islice(self._pending.values(), room)]

    @property
    def is_idle(self) -> bool:
        """Whether no trial holds resources."""
        return not self._active

    def get_live_trials(self) -> list[Trial]:
        """Return all unfinished trials, sorted by id."""
        return sorted(chain(self._active.values(), self.waiting()), key=_id_of)

    def waiting(self) -> Iterator[Trial]:
        """Iterate over the pending and paused trials."""
        return chain(self._pending.values(), self._paused.values())

    def claimed_by(self, trials: Iterable[Trial]) -> dict[str, float]:
        """Return the sum of the resources that trials request, by resource name.

        Parameters
        ----------
        trials : iterable of Trial
            The trials, running or not.
        """
        return _sum(trial.resources.required_resources for trial in trials)

    def fits(self, trial: Trial, request: PlacementGroupFactory) -> bool:
        """Whether a request of a trial could be placed if the trial released its resources.

        Pending trials are placed first; if the trial itself is pending, only the ones before it.

        Parameters
        ----------
        trial : Trial
            The trial that would make the request.
        request : PlacementGroupFactory
            The resources that it would request.
        """
        return self.first_fitting(trial, [request]) is not None

    def first_fitting(
        self, trial: Trial, requests: Iterable[PlacementGroupFactory]
    ) -> PlacementGroupFactory | None:
        """Return the first of several requests that :meth:`fits`, or None.

        Only the worker of a trial's first bundle is known. The estimate places its further bundles
        where they would fit now.

        Parameters
        ----------
        trial : Trial
            The trial that would make the request.
        requests : iterable of PlacementGroupFactory
            The requests in order of preference.
        """
        outlook = self._estimate_without(trial)
        return next((request for request in requests if outlook.fits(request)), None)

    def _estimate_without(self, trial: Trial) -> CapacityEstimate:
        outlook = CapacityEstimate(self._workers)
        waiting: list[PlacementGroupFactory] = []
        for one in self.contenders:
            if one is trial:
                if one.trial_id in self._pending:
                    break
                continue
            bundles = one.resources.bundles
            if one.status in _PLACED and (bundles[0] or len(bundles) == 1):
                outlook.allocate(one.worker, bundles.pop(0))
                if bundles:
                    by_host = isinstance(one.resources, HostPlacement)
                    kind = HostPlacement if by_host else PlacementGroupFactory
                    waiting.append(kind(bundles, one.resources.strategy))
            else:
                waiting.append(one.resources)  # which may count hosts and not workers
        for request in waiting:
            outlook.place(request)
        return outlook


_id_of: Final = attrgetter("trial_id")


def _sum(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    held = list(amounts)
    kinds = dict.fromkeys(kind for one in held for kind in one)
    return {kind: fsum(one.get(kind, 0) for one in held) for kind in kinds}
