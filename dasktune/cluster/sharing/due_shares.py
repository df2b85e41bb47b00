"""What is due to each experiment of a cluster: its fair share now, and its lag from the past.

This module travels by value to schedulers without dasktune, together with
:mod:`dasktune.cluster.sharing.amounts`.

A *share* is the largest fraction of any resource of the cluster, the dominant share of Ghodsi et
al. (Dominant Resource Fairness, NSDI 2011). The due shares of a class grow together by weight.

Shares of whole trials are seldom exact: three equal experiments cannot each have a third of two
CPUs. Each experiment has a *lag*, the share-seconds that it had too little (positive) or too much
(negative). The plan counts the lag against its share, so experiments alternate, and their shares
are fair over some seconds.

Experiments may form groups. Groups then share as experiments do, and each group's share is divided
between its experiments by their weights. An experiment without a group is a group by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dasktune.cluster.sharing.amounts import EPSILON, Amounts, dominant_share, sum_of

#: Bound of the lag in share-seconds, in both directions. The lag of an experiment that waits and
#: holds nothing has no upper bound: with long trials all lags would reach it, and then the order of
#: the experiments would decide, always in favour of the same ones.
MOST_LAG = 3.0

#: Seconds after which it does not matter any more that an experiment had too much, if it holds no
#: more than is due to it. Otherwise others that hold too much now would keep it.
_FORGIVEN = 20.0

#: The lag, in share-seconds, of an experiment that makes its first request.
CREDIT = 0.25


class ShareRequest(NamedTuple):
    """Trials that an experiment would start now if it had room.

    Parameters
    ----------
    bundles : tuple of mapping
        The resources of each bundle of one trial.
    strategy : str
        One of Ray's placement strategies ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` and
        ``"STRICT_SPREAD"``.
    trials : int
        Number of trials.
    by_host : bool
        Whether the strategy counts hosts and not workers. The bundles are equal then.
    per_host : int or None
        The exact number of bundles on each host.
    """

    bundles: tuple[Amounts, ...]
    strategy: str
    trials: int
    by_host: bool = False
    per_host: int | None = None


class Contender(NamedTuple):
    """An experiment that shares the cluster.

    Parameters
    ----------
    name : str
        Unique name of the experiment.
    weight : float
        Its share relative to the other experiments of its class; positive.
    priority : float
        Its class. A higher class gets all it requests before a lower class gets anything.
    lag : float
        Share-seconds that it had too little, see :func:`next_lag`.
    holdings : sequence
        For each of its trials: pairs of a worker's address and the resources held there, with their
        GPUs as in :func:`gpu_amounts` if they are known.
    requests : sequence of ShareRequest
        What it waits for.
    closed : frozenset of str
        Addresses of the workers that it cannot use now.
    group : str
        The group whose share it divides with others of its class; empty for none.
    group_weight : float
        The weight of the group; positive.
    """

    name: str
    weight: float = 1.0
    priority: float = 0.0
    lag: float = 0.0
    holdings: Sequence[Sequence[tuple[str, Amounts]]] = ()
    requests: Sequence[ShareRequest] = ()
    closed: frozenset[str] = frozenset()
    group: str = ""
    group_weight: float = 1.0


def due_shares(totals: Amounts, contenders: Sequence[Contender]) -> dict[str, float]:
    """Return each experiment's fair share if resources could be divided without limit.

    The shares of a class grow together, in proportion to the weights, until a resource is used up
    or an experiment has all that it requests.

    Parameters
    ----------
    totals : mapping
        The amounts of the whole cluster.
    contenders : sequence of Contender
        The experiments.

    Examples
    --------
    >>> many = [ShareRequest(({"CPU": 1},), "PACK", 9)]
    >>> heavy, light = Contender("a", weight=3, requests=many), Contender("b", requests=many)
    >>> due_shares({"CPU": 4}, [heavy, light])
    {'a': 0.75, 'b': 0.25}
    """
    due = {one.name: 0.0 for one in contenders}
    rest = {kind: 1.0 for kind, amount in totals.items() if amount > 0}
    profiles = {one.name: profile for one in contenders if (profile := _profile(one, totals)) is not None}
    for priority in sorted({one.priority for one in contenders}, reverse=True):
        growing = [one for one in contenders if one.priority == priority and one.name in profiles]
        while growing:
            weights = _total_weights(growing)
            step = _largest_step(growing, weights, profiles, due, rest)
            for one in growing:
                due[one.name] += step * weights[one.name]
                for kind, rate in profiles[one.name].rates.items():
                    rest[kind] -= step * weights[one.name] * rate
            growing = [
                one
                for one in growing
                if profiles[one.name].most - due[one.name] > EPSILON
                and all(rest[kind] > EPSILON for kind in profiles[one.name].rates)
            ]
    return due


def next_lag(lag: float, due: float, held: float, seconds: float, *, waits: bool) -> float:
    """Return the lag of an experiment after some seconds, in share-seconds.

    Parameters
    ----------
    lag : float
        The lag so far.
    due, held : float
        The share that was due, and the share that the experiment held.
    seconds : float
        How long it held it.
    waits : bool
        Whether it waits for resources. Otherwise it lacks none, so the lag is at most 0.

    Examples
    --------
    >>> next_lag(0.0, 0.5, 1.0, 2.0, waits=True), next_lag(2.5, 1.0, 0.25, 9.0, waits=True)
    (-1.0, 3.0)
    >>> next_lag(2.5, 1.0, 0.0, 9.0, waits=True)
    11.5
    """
    lag = max(-MOST_LAG, lag + (due - held) * seconds)
    if lag < 0 and held <= due + EPSILON:
        lag *= max(0.0, 1 - seconds / _FORGIVEN)
    if held > EPSILON:
        lag = min(MOST_LAG, lag)
    return lag if waits else min(lag, 0.0)


def held_shares(one: Contender, totals: Amounts) -> list[float]:
    """Return the share of each trial of an experiment that holds resources.

    Parameters
    ----------
    one : Contender
        The experiment.
    totals : mapping
        The amounts of the whole cluster.
    """
    return [dominant_share(needs, totals) for needs in _held(one)]


class _Profile(NamedTuple):
    """How an experiment's use of each resource grows with its share, and its largest share."""

    rates: dict[str, float]
    most: float


def _profile(one: Contender, totals: Amounts) -> _Profile | None:
    """Return the profile of the average trial; None for an experiment that requests nothing."""
    sizes = [(needs, 1) for needs in _held(one)]
    sizes += [(sum_of(request.bundles), request.trials) for request in one.requests]
    most = 0.0
    fractions: dict[str, float] = {}
    for needs, count in sizes:
        most += dominant_share(needs, totals) * count
        for kind, amount in needs.items():
            total = totals.get(kind)
            if amount and total:
                fractions[kind] = fractions.get(kind, 0.0) + count * amount / total
    largest = max(fractions.values(), default=0.0)
    if largest <= 0:
        return None
    return _Profile({kind: fraction / largest for kind, fraction in fractions.items()}, most)


def _held(one: Contender) -> list[Amounts]:
    """Return what each trial of an experiment holds on all workers together."""
    # Most trials use one worker.
    return [trial[0][1] if len(trial) == 1 else sum_of(held for _, held in trial) for trial in one.holdings]


def _total_weights(contenders: Sequence[Contender]) -> dict[str, float]:
    """Return each experiment's weight among all: its part of the weight of its group."""
    sums: dict[str, float] = {}
    for one in contenders:
        sums[one.group] = sums.get(one.group, 0.0) + one.weight
    return {
        one.name: one.group_weight * one.weight / sums[one.group] if one.group else one.weight
        for one in contenders
    }


def _largest_step(
    growing: Sequence[Contender],
    weights: Mapping[str, float],
    profiles: Mapping[str, _Profile],
    due: Amounts,
    rest: Amounts,
) -> float:
    """Return how far shares by weight can grow until a demand is met or a resource is used up."""
    step = min((profiles[one.name].most - due[one.name]) / weights[one.name] for one in growing)
    for kind, left in rest.items():
        speed = sum(weights[one.name] * profiles[one.name].rates.get(kind, 0.0) for one in growing)
        if speed > 0:
            step = min(step, left / speed)
    return max(0.0, step)
