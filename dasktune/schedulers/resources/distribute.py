"""Allocation functions of `ResourceChangingScheduler`: distribute a cluster among its trials."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf, isfinite
from typing import TYPE_CHECKING, Any

from dasktune.errors import ConfigError, check
from dasktune.placement.devices import EPSILON, PLACES
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.metric_scheduler import check_flag, check_mode, check_name
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Mode, score
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory, with_bundles
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    from dasktune.schedulers.resources.resource_changing import ResourceChangingScheduler

_Amounts = Mapping[str, float]


class DistributeResources:
    """Distribute free resources evenly among the trials.

    Each trial keeps its initial request, the base. All other resources are divided into increments,
    and each running or startable trial gets the same number. If they cannot be divided evenly,
    trials that already hold one more keep it. A trial that holds more than its share, because
    trials were added or the cluster has shrunk, releases the difference at its next result.

    Parameters
    ----------
    add_bundles : bool, default=False
        Whether an increment is a new bundle of the request. If False, the first non-empty bundle
        grows.
    increase_by : mapping of str to float, optional
        The increment, by resource name. By default one GPU if the trial's first bundle has whole
        GPUs, else one CPU; with `add_bundles`, the last bundle of the trial's base.
    increase_by_times : int, default=-1
        Maximum number of increments of a trial; unlimited if it is less than 1.
    reserve_resources : mapping of str to float, optional
        Resources that are not distributed, by resource name. Trials keep their base in any case.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    All ranks of a trial of :func:`~dasktune.with_ranks` have equal resources, so each of them gets
    the increment. With `add_bundles` an increment is one more rank, or a further host with its
    `per_host` ranks.

    A trial never gets more than its workers can hold: resources of different workers are not added
    up. With n trials on w workers, a result costs O(n + w), or O(n w) if the request changes.

    To distribute resources differently, derive a class and override `increments`.

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
        self, view: ClusterView, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> PlacementGroupFactory | None:
        """Return the request that a trial should have from now on; None to change nothing.

        Parameters
        ----------
        view : ClusterView
            The cluster and all unfinished trials.
        trial : Trial
            The trial that reported the result.
        result : mapping
            The result.
        scheduler : ResourceChangingScheduler
            The scheduler that calls the function.
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
        self, view: ClusterView, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> int:
        """Return how many increments a trial should have on top of its base.

        If the cluster has not enough free resources, the trial gets fewer.

        Parameters
        ----------
        view, trial, result, scheduler
            As for `__call__`.
        """
        share = self._shares(view, trial)[trial.trial_id]
        has = self._times(trial)
        more = max(0, _count_multiples(self._free(view), self._increment(trial)))
        return min(share, has + more)

    def check_goal(self, metric: str | None, mode: Mode | None) -> None:
        """Raise :class:`ConfigError` if the function needs a metric or mode that is not set.

        Parameters
        ----------
        metric, mode : str or None
            Metric and mode of the scheduler.
        """

    @property
    def _limit(self) -> float:
        return self.increase_by_times if self.increase_by_times > 0 else inf

    def _available(self, view: ClusterView) -> dict[str, float]:
        """Return the resources to distribute; unlimited ones are left out."""
        return {
            kind: amount - self.reserve_resources.get(kind, 0)
            for kind, amount in view.total_resources.items()
            if isfinite(amount)
        }

    def _free(self, view: ClusterView) -> dict[str, float]:
        """Return the amounts that no trial holds or requests; negative if too much is requested."""
        claimed = view.claimed_by(view.contenders)
        return {kind: amount - claimed.get(kind, 0) for kind, amount in self._available(view).items()}

    def _increment(self, trial: Trial) -> _Amounts:
        """Return all that one increment adds to a trial."""
        base = trial.base_resources
        times = 1
        if isinstance(base, HostPlacement):
            times = _ranks_at_once(base) if self.add_bundles else len(base.bundles)
        return {kind: times * amount for kind, amount in self._increment_of_bundle(base).items()}

    def _increment_of_bundle(self, base: PlacementGroupFactory) -> _Amounts:
        """Return what one increment adds to a bundle, or a new bundle of one increment."""
        bundles = base.bundles
        if isinstance(base, HostPlacement) and self.add_bundles:
            hint = "All ranks of a trial have equal resources. Leave out increase_by."
            equal = self.increase_by in ({}, bundles[0])
            check(equal, "increase_by", f"those of a rank, {bundles[0]}", self.increase_by, hint)
            return bundles[0] or {"CPU": 1}
        if self.increase_by:
            return self.increase_by
        if self.add_bundles and bundles[-1]:
            return bundles[-1]
        return {"GPU": 1} if bundles[0].get("GPU", 0) >= 1 else {"CPU": 1}

    def _times(self, trial: Trial) -> int:
        """Return the number of increments that a trial has."""
        base = trial.base_resources.required_resources
        now = trial.resources.required_resources
        more = {kind: amount - base.get(kind, 0) for kind, amount in now.items()}
        return max(0, _count_multiples(more, self._increment(trial)))

    def _grown(self, trial: Trial, times: int) -> PlacementGroupFactory | None:
        """Return a trial's base with `times` increments; None if this is not a valid request."""
        base, more = trial.base_resources, self._increment_of_bundle(trial.base_resources)
        bundles = base.bundles
        if self.add_bundles:
            if isinstance(base, HostPlacement):
                # The ranks of one host are all that a strict trial may have.
                is_full = base.strategy == "STRICT_PACK" and base.per_host is not None
                if times and (is_full or not bundles[0]):
                    return None
                times *= _ranks_at_once(base)
            return with_bundles(base, [*bundles, *[dict(more)] * times])
        first = next((number for number, bundle in enumerate(bundles) if bundle), 0)
        growing = range(len(bundles)) if isinstance(base, HostPlacement) else (first,)
        for which in growing:
            for kind, amount in more.items():
                bundles[which][kind] = round(bundles[which].get(kind, 0) + times * amount, PLACES)
        gpus = bundles[first].get("GPU", 0)
        # A fraction is a share of a single GPU, so 1.5 GPUs cannot be requested.
        return None if gpus > 1 and gpus % 1 else with_bundles(base, bundles)

    def _shares(self, view: ClusterView, asking: Trial) -> dict[str, int]:
        """Distribute all increments from scratch, in rounds; return the number for each trial."""
        trials = view.contenders
        left = self._available(view)
        for trial in trials:
            _subtract(left, trial.base_resources.required_resources, 1)
        # Trials with more increments come first, so that resources do not move without need; then
        # the trial that has reported, because it can be resized at once.
        trials.sort(key=lambda trial: (self._times(trial), trial is asking), reverse=True)
        takers = {trial.trial_id: self._increment(trial) for trial in trials}
        shares = dict.fromkeys(takers, 0)
        while takers:
            turn = _sum_of(takers.values())
            rounds = min(_count_multiples(left, turn), self._limit - max(shares[key] for key in takers))
            if rounds > 0:
                _subtract(left, turn, rounds)
                shares.update((key, shares[key] + int(rounds)) for key in takers)
                continue
            for key, more in tuple(takers.items()):
                if shares[key] < self._limit and _count_multiples(left, more) > 0:
                    _subtract(left, more, 1)
                    shares[key] += 1
                else:
                    del takers[key]
        return shares

    def __repr__(self) -> str:
        set_arguments = {k: value for k, value in vars(self).items() if value and value != -1}
        given = ", ".join(f"{name}={value!r}" for name, value in set_arguments.items())
        return f"{type(self).__name__}({given})"


class DistributeResourcesToTopJob(DistributeResources):
    """Give all free resources to the trial that is currently the best.

    A trial keeps the increments that it got while it was the best. If trials request more than the
    cluster has, because trials were added or the cluster has shrunk, each trial releases the
    missing amount at its next result, down to its base.

    Parameters
    ----------
    add_bundles : bool, default=False
        Whether an increment is a new bundle of the request. If False, the first non-empty bundle
        grows.
    increase_by : mapping of str to float, optional
        The increment, as for :class:`DistributeResources`.
    increase_by_times : int, default=-1
        Maximum number of increments of a trial; unlimited if it is less than 1. When the best trial
        has the maximum, the next best gets the rest.
    reserve_resources : mapping of str to float, optional
        Resources that are not distributed, by resource name.
    metric : str, optional
        The metric to compare trials by; by default that of the scheduler.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of the scheduler.

    Raises
    ------
    ConfigError
        If an argument is invalid; later, if metric or mode is set nowhere.

    Notes
    -----
    A trial without a number for the metric is never the best.

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
        """Raise :class:`ConfigError` if metric or mode is set neither here nor in the scheduler."""
        self._goal(metric, mode)

    def increments(
        self, view: ClusterView, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> int:
        """Return the increments that the trial has, plus all free ones if it is the best."""
        has = self._times(trial)
        more = _count_multiples(self._free(view), self._increment(trial))
        if more <= 0:
            return max(0, has + more)
        best = self._best(view, trial, result, scheduler)
        return int(min(has + more, self._limit)) if trial is best else has

    def _best(
        self, view: ClusterView, trial: Trial, result: Mapping[str, Any], scheduler: ResourceChangingScheduler
    ) -> Trial | None:
        """Return the best trial that has less than the maximum number of increments."""
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


def _ranks_at_once(base: HostPlacement) -> int:
    """Return the number of ranks by which the ranks of a trial can become more."""
    return base.per_host or 1


def _amounts(name: str, given: _Amounts | None) -> dict[str, float]:
    if given is None:
        return {}
    check(isinstance(given, Mapping), name, "None or a dict of resource amounts", given)
    try:
        return PlacementGroupFactory([given]).head_resources
    except ConfigError as error:
        rule = "must be a dict of resource amounts"
        raise ConfigError(f"{name} {rule}, got {given!r}: {error}") from error


def _count_multiples(amounts: _Amounts, more: _Amounts) -> int:
    """Return how many times `more` fits into `amounts`; negative if amounts are negative."""
    return min(floor(amounts.get(kind, 0) / each + EPSILON) for kind, each in more.items())


def _subtract(left: dict[str, float], amounts: _Amounts, times: float) -> None:
    for kind, amount in amounts.items():
        left[kind] = left.get(kind, 0) - times * amount


def _sum_of(increments: Any) -> dict[str, float]:
    """Return the sum of one increment for each trial."""
    turn: dict[str, float] = {}
    for more in increments:
        _subtract(turn, more, -1)
    return turn
