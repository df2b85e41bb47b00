"""The importance of parameters: their shares of the variance of the trials' values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]

#: Minimum number of trials for an estimate.
FEWEST: Final = 10
#: Maximum number of trials for an estimate. From more trials, a sample of this size is used.
_MOST: Final = 2_000
_TREES: Final = 48
_BINS: Final = 8

#: Names of the methods, for titles.
FANOVA: Final = "fANOVA of a random forest"
VARIANCE_RATIO: Final = "variance between bins"


def importances(units: Sequence[_Floats], scores: _Floats) -> tuple[_Floats, str]:
    """Return the share of the variance of the trials' ranks that is due to each parameter alone.

    Parameters
    ----------
    units : sequence of ndarray of shape (n_trials,)
        The values of each parameter from 0 to 1; NaN for trials without it.
    scores : ndarray of shape (n_trials,)
        The finite values of the trials.

    Returns
    -------
    ndarray of shape (n_parameters,), str
        The shares, from 0 to 1; their sum is at most 1, up to the error of the estimate. And the
        method: fANOVA if scikit-learn is installed, otherwise the variance between bins.
    """
    features = np.column_stack([_without_gaps(one) for one in units])
    if len(scores) > _MOST:
        chosen = np.random.default_rng(0).choice(len(scores), _MOST, replace=False)
        features, scores = features[chosen], scores[chosen]
    # Ranks, because a single diverged trial would cause nearly all of the variance.
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable") / max(1, len(scores) - 1)
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError:
        return binned_importances(features, ranks), VARIANCE_RATIO
    # Single trees instead of scikit-learn's forest. The forest replaces the process-wide warning
    # filters while it fits. This runs in a thread: if another thread changes the filters meanwhile,
    # the forest would restore the old ones, and filters would be lost.
    draw = np.random.default_rng(0)
    trees = []
    for number in range(_TREES):
        rows = draw.integers(0, len(ranks), len(ranks))
        tree = DecisionTreeRegressor(min_samples_leaf=2, random_state=number)
        trees.append(tree.fit(features[rows], ranks[rows]).tree_)
    return forest_importances(trees, features.shape[1]), FANOVA


def _without_gaps(units: _Floats) -> _Floats:
    """Give trials without a parameter one value outside of 0 to 1."""
    return np.where(np.isnan(units), -0.25, units)


def forest_importances(trees: Sequence[Any], num_features: int) -> _Floats:
    """Return the share of a forest's variance that is due to each feature alone.

    Parameters
    ----------
    trees : sequence of sklearn.tree._tree.Tree
        Trees fitted to features from 0 to 1.
    num_features : int
        The number of features.

    Notes
    -----
    The main effects of Hutter et al., "An Efficient Approach for Assessing Hyperparameter
    Importance", ICML 2014: a tree is constant on boxes, so the mean over all other parameters, and
    its variance, are exact sums over its leaves. Trees without variance are ignored.
    """
    shares = [share for tree in trees if (share := _tree_shares(tree)) is not None]
    return np.mean(shares, axis=0) if shares else np.zeros(num_features)


def _tree_shares(tree: Any) -> _Floats | None:
    lows, highs, values = _boxes(tree)
    sides = highs - lows
    volumes = sides.prod(axis=1)
    mean = volumes @ values
    variance = volumes @ (values - mean) ** 2
    if variance <= 1e-12:
        return None
    effects = [
        _main_effect(lows[:, one], highs[:, one], volumes / sides[:, one], values, mean)
        for one in range(lows.shape[1])
    ]
    shares: _Floats = np.array(effects) / variance
    return shares


def _boxes(tree: Any) -> tuple[_Floats, _Floats, _Floats]:
    """Return the borders of a tree's leaves within the unit cube, and their values."""
    lows, highs, values = [], [], []
    count = tree.n_features
    todo = [(0, np.zeros(count), np.ones(count))]
    while todo:
        node, low, high = todo.pop()
        left, right = tree.children_left[node], tree.children_right[node]
        if left == right:
            lows.append(low)
            highs.append(high)
            values.append(float(tree.value[node].ravel()[0]))
            continue
        feature, border = tree.feature[node], float(tree.threshold[node])
        border = min(max(border, 0.0), 1.0)
        below, above = high.copy(), low.copy()
        below[feature], above[feature] = min(border, high[feature]), max(border, low[feature])
        todo += [(left, low, below), (right, above, high)]
    keep = (np.array(highs) > np.array(lows)).all(axis=1)
    return np.array(lows)[keep], np.array(highs)[keep], np.array(values)[keep]


def _main_effect(lows: _Floats, highs: _Floats, weights: _Floats, values: _Floats, mean: float) -> float:
    """Return the variance of the mean over all other features, as a function of this one."""
    borders = np.unique(np.concatenate((lows, highs)))
    middles, lengths = (borders[1:] + borders[:-1]) / 2, np.diff(borders)
    first, last = np.searchsorted(middles, lows), np.searchsorted(middles, highs)
    # Each leaf adds a step function between its borders.
    steps = np.zeros(len(middles) + 1)
    np.add.at(steps, first, weights * values)
    np.add.at(steps, last, -weights * values)
    return float(lengths @ (steps.cumsum()[:-1] - mean) ** 2)


def binned_importances(features: _Floats, ranks: _Floats) -> _Floats:
    """Return the share of the variance that lies between eight bins of each feature.

    Parameters
    ----------
    features : ndarray of shape (n_trials, n_parameters)
        Any strictly monotonic transformation of the values gives the same result.
    ranks : ndarray of shape (n_trials,)
        The ranks to explain.

    Notes
    -----
    Epsilon squared: the ratio of variances, minus its expected value for a random parameter.
    """
    return np.array([_epsilon_squared(column, ranks) for column in features.T])


def _epsilon_squared(column: _Floats, ranks: _Floats) -> float:
    distinct, codes = np.unique(column, return_inverse=True)
    if len(distinct) > _BINS:
        borders = np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1])
        codes = np.searchsorted(borders, column, side="right")
    counts = np.bincount(codes)
    means = np.bincount(codes, ranks)[counts > 0] / counts[counts > 0]
    counts = counts[counts > 0]
    total = float(((ranks - ranks.mean()) ** 2).sum())
    between = float(counts @ (means - ranks.mean()) ** 2)
    free = len(ranks) - len(counts)
    if free <= 0 or total <= 0:
        return 0.0
    within = (total - between) / free
    return max(0.0, (between - (len(counts) - 1) * within) / total)
