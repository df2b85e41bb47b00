"""What a scheduler may see of the cluster and of the trials that share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import fsum
from operator import attrgetter
from typing import Final

from dasktune.placement import Outlook
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["ClusterView"]

#: Trials of which it is known where they are, and which stay there for now.
_SEATED: Final = frozenset(
    {
        TrialStatus.RUNNING,
        TrialStatus.SAVING,
        TrialStatus.PAUSING,
        TrialStatus.SHELVING,
        TrialStatus.STOPPING,
        TrialStatus.FAILING,
    }
)


class ClusterView:
    """What the cluster has and who shares it, always up to date; nothing can be changed through it.

    Parameters
    ----------
    trials : mapping of str to Trial
        All trials that were ever added, in order; kept by the experiment.
    pending, paused, active : mapping of str to Trial
        Those that have not ended, by what they are doing; likewise.
    workers : mapping
        What each worker has, by address and then by name of the resource; likewise. Empty where
        nobody knows, as in a simulation with nothing but slots.
    limit : int, default=0
        How many trials may be on workers at a time; 0 for any number.

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
        #: All there were ever, by id.
        self.trials: Mapping[str, Trial] = trials
        self._pending = pending
        self._paused = paused
        self._active = active
        self._workers = workers
        self._limit = limit

    @property
    def is_known(self) -> bool:
        """Whether it is known what the cluster has."""
        return bool(self._workers)

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers have together and others have not taken, by name of the resource."""
        return _sum(self._workers.values())

    @property
    def contenders(self) -> list[Trial]:
        """The trials that hold a place, by id, and then those that may take one when it is free.

        Trials that are paused are none, whatever they wait for; nor are those that wait for
        ``max_concurrent_trials``.
        """
        room = max(0, self._limit - len(self._active)) if self._limit else None
        # The order in which they took their places is not kept when a driver dies.
        active = sorted(self._active.values(), key=_id_of)
        return [*active, *islice(self._pending.values(), room)]

    @property
    def is_idle(self) -> bool:
        """Whether no trial holds a place."""
        return not self._active

    def get_live_trials(self) -> list[Trial]:
        """Return all trials that have not ended, neither well nor in error, by id."""
        return sorted(chain(self._active.values(), self.waiting()), key=_id_of)

    def waiting(self) -> Iterator[Trial]:
        """Give the trials that are on no worker."""
        return chain(self._pending.values(), self._paused.values())

    def claimed_by(self, trials: Iterable[Trial]) -> dict[str, float]:
        """Return what trials hold, or will when they have a place, by name of the resource.

        Parameters
        ----------
        trials : iterable of Trial
            Any.
        """
        return _sum(trial.resources.required_resources for trial in trials)

    def fits(self, trial: Trial, request: PlacementGroupFactory) -> bool:
        """Whether a trial would find a place for a request if it gave up what it has.

        Trials that wait find theirs first; if it waits itself, those that wait before it.

        Parameters
        ----------
        trial : Trial
            Whose request it would be.
        request : PlacementGroupFactory
            What it would ask for.
        """
        return self.first_fitting(trial, [request]) is not None

    def first_fitting(
        self, trial: Trial, requests: Iterable[PlacementGroupFactory]
    ) -> PlacementGroupFactory | None:
        """Return the first of several requests that :meth:`fits`, or None.

        Where the first bundle of a trial runs is known; further ones are taken to be where they
        would be put now.

        Parameters
        ----------
        trial : Trial
            Whose request it would be.
        requests : iterable of PlacementGroupFactory
            The most welcome one first.
        """
        outlook = self._without(trial)
        return next((request for request in requests if outlook.has_room(request)), None)

    def _without(self, trial: Trial) -> Outlook:
        outlook = Outlook(self._workers)
        waiting: list[PlacementGroupFactory] = []
        for one in self.contenders:
            if one is trial:
                if one.trial_id in self._pending:
                    break
                continue
            bundles = one.resources.bundles
            if one.status in _SEATED and (bundles[0] or len(bundles) == 1):
                outlook.take(one.worker, bundles.pop(0))
            if bundles:
                waiting.append(PlacementGroupFactory(bundles, one.resources.strategy))
        for request in waiting:
            outlook.place(request)
        return outlook


_id_of: Final = attrgetter("trial_id")


def _sum(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    held = list(amounts)
    kinds = dict.fromkeys(kind for one in held for kind in one)
    return {kind: fsum(one.get(kind, 0) for one in held) for kind in kinds}
