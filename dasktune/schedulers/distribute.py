"""Who gets how much of a cluster while trials run."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf, isfinite
from typing import TYPE_CHECKING, Any

from dasktune.errors import ConfigError, check
from dasktune.placement.devices import EPSILON
from dasktune.schedulers.by_metric import check_flag, check_mode, check_name
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Mode, score
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    from dasktune.schedulers.resource_changing import ResourceChangingScheduler

__all__ = ["DistributeResources", "DistributeResourcesToTopJob"]

#: Decimal places that amounts are rounded to, so that equal requests look equal.
_PLACES = 12

_Amounts = Mapping[str, float]


class DistributeResources:
    """Share what is free evenly between the trials that run, or would if they had a place.

    Each trial has what it first asked for, its base, and gets so many increments on top of it as
    there are for everybody. Where they cannot be shared out evenly, those keep one more that have
    it. Whoever has more than its share gives it up at its next result: when further trials have
    come, or the cluster has shrunk.

    Parameters
    ----------
    add_bundles : bool, default=False
        Whether an increment is a further bundle of the request; else the first bundle that is not
        empty grows.
    increase_by : mapping of str to float, optional
        What an increment is, by name of the resource. By default a GPU if the trial's first bundle
        has whole GPUs, else a CPU; with `add_bundles`, the last bundle of the trial's base.
    increase_by_times : int, default=-1
        How many increments a trial may have at most; any number if it is less than 1.
    reserve_resources : mapping of str to float, optional
        What is left alone, by name of the resource. A trial never gets less than its base for it.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Notes
    -----
    The function gives no trial what no worker could hold: workers are not one large machine. It
    costs O(n + w) for each result of n trials on w workers, and O(n w) where something changes.

    Derive from it to share out otherwise: `increments` is all that there is to decide.

    Examples
    --------
    >>> DistributeResources(increase_by={"CPU": 2}, reserve_resources={"CPU": 1})
    DistributeResources(increase_by={'CPU': 2}, reserve_resources={'CPU': 1})
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: _Amounts | None = None,
        increase_by_times: int = -1,
        reserve_resources: _Amounts | None = None,
    ) -> None:
        check_flag("add_bundles", add_bundles)
        self.add_bundles = add_bundles
        self.increase_by = _amounts("increase_by", increase_by)
        self.increase_by_times = as_int("increase_by_times", increase_by_times)
        self.reserve_resources = _amounts("reserve_resources", reserve_resources)
        some = increase_by is None or not increase_by or bool(self.increase_by)
        check(some, "increase_by", "None or amounts of which one is above 0", increase_by)

    def __call__(
        self,
        view: ClusterView,
        trial: Trial,
        result: Mapping[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> PlacementGroupFactory | None:
        """Return what a trial should hold from now on; None if nothing is to change.

        Parameters
        ----------
        view : ClusterView
            The cluster, and all trials that have not ended.
        trial : Trial
            Who has reported a result.
        result : mapping
            That result.
        scheduler : ResourceChangingScheduler
            Who asks.
        """
        if not view.is_known:
            return None
        has = self._times(trial)
        gets = self.increments(view, trial, result, scheduler)
        if gets < has:
            smaller = (self._grown(trial, times) for times in range(gets, -1, -1))
            return next(filter(None, smaller))
        larger = (self._grown(trial, times) for times in range(gets, has, -1))
        return view.first_fitting(trial, filter(None, larger))

    def increments(
        self,
        view: ClusterView,
        trial: Trial,
        result: Mapping[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> int:
        """Return how many increments a trial should have on top of its base.

        If no worker has room for so many, it gets as many as there is room for.

        Parameters
        ----------
        view, trial, result, scheduler
            As for calling it.
        """
        share = self._shares(view, trial)[trial.trial_id]
        has = self._times(trial)
        more = max(0, _how_often(self._free(view), self._increment(trial)))
        return min(share, has + more)

    def check_goal(self, metric: str | None, mode: Mode | None) -> None:
        """Raise :class:`ConfigError` if it needs a metric and a mode and neither names them.

        Parameters
        ----------
        metric, mode : str or None
            Those of the scheduler.
        """

    @property
    def _limit(self) -> float:
        return self.increase_by_times if self.increase_by_times > 0 else inf

    def _available(self, view: ClusterView) -> dict[str, float]:
        """Return what may be shared out at all. What has no limit cannot be."""
        return {
            kind: amount - self.reserve_resources.get(kind, 0)
            for kind, amount in view.total_resources.items()
            if isfinite(amount)
        }

    def _free(self, view: ClusterView) -> dict[str, float]:
        """Return what nobody holds or waits for; less than nothing if too much is promised."""
        claimed = view.claimed_by(view.contenders)
        return {
            kind: amount - claimed.get(kind, 0) for kind, amount in self._available(view).items()
        }

    def _increment(self, trial: Trial) -> _Amounts:
        if self.increase_by:
            return self.increase_by
        bundles = trial.base_resources.bundles
        if self.add_bundles and bundles[-1]:
            return bundles[-1]
        return {"GPU": 1} if bundles[0].get("GPU", 0) >= 1 else {"CPU": 1}

    def _times(self, trial: Trial) -> int:
        """Return how many increments a trial has."""
        base = trial.base_resources.required_resources
        now = trial.resources.required_resources
        more = {kind: amount - base.get(kind, 0) for kind, amount in now.items()}
        return max(0, _how_often(more, self._increment(trial)))

    def _grown(self, trial: Trial, times: int) -> PlacementGroupFactory | None:
        """Return a trial's base with so many increments; None if one cannot ask for that."""
        base, more = trial.base_resources, self._increment(trial)
        bundles = base.bundles
        if self.add_bundles:
            return PlacementGroupFactory([*bundles, *[dict(more)] * times], base.strategy)
        which = next((number for number, bundle in enumerate(bundles) if bundle), 0)
        for kind, amount in more.items():
            bundles[which][kind] = round(bundles[which].get(kind, 0) + times * amount, _PLACES)
        gpus = bundles[which].get("GPU", 0)
        # A part of a GPU is a part of one.
        return None if gpus > 1 and gpus % 1 else PlacementGroupFactory(bundles, base.strategy)

    def _shares(self, view: ClusterView, asking: Trial) -> dict[str, int]:
        """Return how many increments each trial would have if all was shared out anew, by turns."""
        trials = view.contenders
        left = self._available(view)
        for trial in trials:
            _take(left, trial.base_resources.required_resources, 1)
        # Who has more than others goes first, so that nothing changes hands for its own sake; then
        # who asks, as it can have it at once.
        trials.sort(key=lambda trial: (self._times(trial), trial is asking), reverse=True)
        takers = {trial.trial_id: self._increment(trial) for trial in trials}
        shares = dict.fromkeys(takers, 0)
        while takers:
            turn = _turn(takers.values())
            rounds = min(_how_often(left, turn), self._limit - max(shares[key] for key in takers))
            if rounds > 0:
                _take(left, turn, rounds)
                shares.update((key, shares[key] + int(rounds)) for key in takers)
                continue
            for key, more in tuple(takers.items()):
                if shares[key] < self._limit and _how_often(left, more) > 0:
                    _take(left, more, 1)
                    shares[key] += 1
                else:
                    del takers[key]
        return shares

    def __repr__(self) -> str:
        told = {name: value for name, value in vars(self).items() if value and value != -1}
        given = ", ".join(f"{name}={value!r}" for name, value in told.items())
        return f"{type(self).__name__}({given})"


class DistributeResourcesToTopJob(DistributeResources):
    """Give all that is free to the trial that is best now.

    What a trial got when it was the best it keeps. If more is promised than there is, because
    further trials have come or the cluster has shrunk, each trial gives up at its next result what
    is missing then, down to its base.

    Parameters
    ----------
    add_bundles : bool, default=False
        Whether an increment is a further bundle of the request; else the first bundle that is not
        empty grows.
    increase_by : mapping of str to float, optional
        What an increment is, as for :class:`DistributeResources`.
    increase_by_times : int, default=-1
        How many increments a trial may have at most; any number if it is less than 1. Who has so
        many leaves the rest to the next best.
    reserve_resources : mapping of str to float, optional
        What is left alone, by name of the resource.
    metric : str, optional
        What to judge by; that of the scheduler if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.

    Raises
    ------
    ConfigError
        If an argument breaks its rule; later, if metric or mode is given nowhere.

    Notes
    -----
    A trial that has reported no number for the metric is never the best.

    Examples
    --------
    >>> DistributeResourcesToTopJob(metric="loss", mode="min")
    DistributeResourcesToTopJob(metric='loss', mode='min')
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: _Amounts | None = None,
        increase_by_times: int = -1,
        reserve_resources: _Amounts | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        if metric is not None:
            check_name("metric", metric)
        check_mode(mode)
        self.metric = metric
        self.mode = mode

    def check_goal(self, metric: str | None, mode: Mode | None) -> None:
        """Raise :class:`ConfigError` if metric or mode is given neither here nor there."""
        self._goal(metric, mode)

    def increments(
        self,
        view: ClusterView,
        trial: Trial,
        result: Mapping[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> int:
        """Return what the trial has, and all that is free if it is the best."""
        has = self._times(trial)
        more = _how_often(self._free(view), self._increment(trial))
        if more <= 0:
            return max(0, has + more)
        best = self._best(view, trial, result, scheduler)
        return int(min(has + more, self._limit)) if trial is best else has

    def _best(
        self,
        view: ClusterView,
        trial: Trial,
        result: Mapping[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> Trial | None:
        """Return the best trial of those that may still grow."""
        metric, mode = self._goal(scheduler.metric, scheduler.mode)
        best, highest = None, -inf
        for one in view.contenders:
            if self._times(one) < self._limit:
                value = score(result if one is trial else one.last_result, metric, mode)
                if value is not None and (best is None or value > highest):
                    best, highest = one, value
        return best

    def _goal(self, metric: str | None, mode: Mode | None) -> tuple[str, Mode]:
        metric, mode = self.metric or metric, self.mode or mode
        if metric is None or mode is None:
            raise ConfigError(
                f"metric and mode must be set, got metric={metric!r} and mode={mode!r}. "
                f"Set them in TuneConfig or in {type(self).__name__}."
            )
        return metric, mode


def _amounts(name: str, given: _Amounts | None) -> dict[str, float]:
    if given is None:
        return {}
    check(isinstance(given, Mapping), name, "None or a dict of resource amounts", given)
    try:
        return PlacementGroupFactory([given]).head_resources
    except ConfigError as error:
        rule = "must be a dict of resource amounts"
        raise ConfigError(f"{name} {rule}, got {given!r}: {error}") from error


def _how_often(amounts: _Amounts, more: _Amounts) -> int:
    """Return how often `more` goes into `amounts`; less than 0 if there is less than nothing."""
    return min(floor(amounts.get(kind, 0) / each + EPSILON) for kind, each in more.items())


def _take(left: dict[str, float], amounts: _Amounts, times: float) -> None:
    for kind, amount in amounts.items():
        left[kind] = left.get(kind, 0) - times * amount


def _turn(increments: Any) -> dict[str, float]:
    """Return what one increment for everybody takes."""
    turn: dict[str, float] = {}
    for more in increments:
        _take(turn, more, -1)
    return turn
