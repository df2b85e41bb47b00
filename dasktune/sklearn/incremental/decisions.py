"""The decisions of incremental searches, as pure functions of the models' records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any

import numpy as np

#: {number of a model: its records, oldest first}
Info = Mapping[int, Sequence[Mapping[str, Any]]]


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def best_models(info: Info, count: int) -> list[int]:
    """Return the models with the highest last scores, best first; NaN is the lowest.

    Parameters
    ----------
    info : mapping
        Records of each model.
    count : int
        Number of models to return; fewer if there are fewer.

    Examples
    --------
    >>> best_models({0: [{"score": 0.1}], 1: [{"score": float("nan")}], 2: [{"score": 0.3}]}, 2)
    [2, 0]
    """
    return nlargest(count, info, key=lambda number: _rank(info[number][-1]["score"]))


def check_patience(patience: Any) -> None:
    """Check the argument `patience` of a search.

    Raises
    ------
    ValueError
        If it is not an integer, or so small that every score would be a plateau.
    """
    if not isinstance(patience, int):
        raise ValueError(
            "patience must be an integer (or a subclass like boolean), "
            f"not patience={patience} of type {type(patience)}"
        )
    if patience and patience <= 1:
        raise ValueError(
            f"patience={patience}<=1 will always detect a plateau. "
            "To resolve this,\n\n    * set patience >= 2"
        )


def stopped_on_plateau(
    calls: Mapping[int, int], info: Info, *, max_iter: int | None, patience: int, tol: float | None
) -> dict[int, int]:
    """Return the calls to make, with 0 for models at `max_iter` or on a plateau.

    Parameters
    ----------
    calls : mapping of int to int
        The requested calls of each model.
    info : mapping
        Records of each model.
    max_iter : int, optional
        Maximum number of calls for a model.
    patience : int
        Number of calls within which the score must rise; 0 disables the check.
    tol : float, optional
        The score must rise by more than this; None disables the check.

    Examples
    --------
    >>> records = [{"partial_fit_calls": n, "score": 0.5} for n in (1, 2, 3)]
    >>> stopped_on_plateau({0: 1}, {0: records}, max_iter=None, patience=2, tol=0.0)
    {0: 0}
    """
    out = dict(calls)
    for number in calls:
        records = info[number]
        now = records[-1]["partial_fit_calls"]
        if max_iter and now >= max_iter:
            out[number] = 0
        elif patience and now >= patience and tol is not None:
            recent = [one["score"] for one in records if now - one["partial_fit_calls"] <= patience]
            gains = np.array(recent[1:]) - recent[0]
            if len(gains) and gains.max() <= tol:
                out[number] = 0
    return out


def inverse_decay(
    info: Info, *, start: int, decay_rate: float, patience: int, fits_per_score: int
) -> dict[int, int]:
    """Return the calls to make; the number of models decays with the number of calls.

    Parameters
    ----------
    info : mapping
        Records of each model.
    start : int
        Initial number of models.
    decay_rate : float
        After ``k`` calls, ``start / (1 + k) ** decay_rate`` models are left.
    patience : int
        As for :func:`stopped_on_plateau`.
    fits_per_score : int
        Maximum number of calls between two scores. Without `patience` it applies only if
        `decay_rate` is 0.
    """

    def target(time: int) -> int:
        return int(start / (1 + time) ** decay_rate)

    now = next(iter(info.values()))[-1]["partial_fit_calls"] + 1
    if target(now) == 0:
        # The target stays below one model from now on.
        return {best_models(info, 1)[0]: 0}
    then = now
    while target(now) == target(then) and ((decay_rate and not patience) or then - now < fits_per_score):
        then += 1
    best = best_models(info, max(1, target(then)))
    if len(best) == 1:
        return {best[0]: 0}
    return dict.fromkeys(best, then - now)


def bracket_sizes(max_iter: int, aggressiveness: float) -> dict[int, tuple[int, int]]:
    """Return Hyperband's brackets: {s: (number of models, calls of each in the first round)}.

    Parameters
    ----------
    max_iter : int
        Maximum number of calls for a model. The paper's R.
    aggressiveness : float
        One in `aggressiveness` models continues to the next round. The paper's eta.

    Examples
    --------
    >>> bracket_sizes(81, 3)
    {4: (81, 1), 3: (34, 3), 2: (15, 9), 1: (8, 27), 0: (5, 81)}
    """
    s_max = math.floor(math.log(max_iter, aggressiveness))
    budget = (s_max + 1) * max_iter
    return {
        s: (
            math.ceil(budget / max_iter * aggressiveness**s / (s + 1)),
            int(max_iter * aggressiveness**-s),
        )
        for s in range(s_max, -1, -1)
    }


def simulated_brackets(max_iter: int, aggressiveness: float) -> list[dict[str, Any]]:
    """Return the models, calls and decisions of each bracket, bracket 0 first.

    Parameters
    ----------
    max_iter, aggressiveness
        As for :func:`bracket_sizes`.
    """
    brackets = []
    for s, (n, r) in reversed(bracket_sizes(max_iter, aggressiveness).items()):
        calls = dict.fromkeys(range(n), 0)
        decisions = []
        left = n
        for step in range(s + 1):
            budget = int(np.round(r * aggressiveness**step))
            calls.update(dict.fromkeys(range(left), budget))
            decisions.append(budget)
            left = min(left, math.floor(math.floor(n * aggressiveness**-step) / aggressiveness))
        brackets.append(
            {
                "bracket": s,
                "n_models": n,
                "partial_fit_calls": sum(calls.values()),
                "decisions": sorted(set(decisions)),
            }
        )
    return brackets


def simulated_halving(n: int, r: int, aggressiveness: float, max_iter: int | None = None) -> dict[str, int]:
    """Return the total number of calls of successive halving, and the maximum for one model.

    Parameters
    ----------
    n : int
        Initial number of models.
    r : int
        Calls of each model in the first round.
    aggressiveness : float
        One in `aggressiveness` models continues to the next round, which ends at `aggressiveness`
        times as many calls.
    max_iter : int, optional
        Maximum number of calls for a model.

    Examples
    --------
    >>> simulated_halving(9, 1, 3)
    {'total_calls': 21, 'max_iter': 9}
    """
    calls = dict.fromkeys(range(n), 0)
    step = 0
    while True:
        left = math.floor(n * aggressiveness**-step)
        budget = int(np.round(r * aggressiveness**step))
        calls.update(dict.fromkeys(range(left), budget))
        if left <= 1 or (max_iter and budget >= max_iter):
            return {"total_calls": sum(calls.values()), "max_iter": max(calls.values())}
        step += 1


def default_patience(max_iter: int, aggressiveness: float) -> int:
    """Return the smallest patience that does not interfere with Hyperband's own decisions.

    Parameters
    ----------
    max_iter, aggressiveness
        As for :func:`bracket_sizes`.
    """
    return int(max(max_iter // aggressiveness, 1))
