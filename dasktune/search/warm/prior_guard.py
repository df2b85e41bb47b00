"""How much the earlier experiments count, and a model of the new one's own results."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.search.gp.resource_gp import ResourceGP, fit_hyperparameters, prior_mean

#: The number of ended trials from which their results count.
LEAST_OWN_TRIALS: Final = 4

#: The largest number of trials that the process is fitted to; its time grows with the third power.
_MOST_TRIALS: Final = 150

#: Kendall's tau between what the regression expects on a new data set and its losses, as measured
#: (`benchmarks.search_quality.warm_starts`); and the number of pairs that speak for it beforehand.
_USUAL_TAU: Final = 0.4
_PAIRS: Final = 6


def fitted_process(
    vectors: NDArray[np.float64], owners: NDArray[np.int64], residuals: NDArray[np.float64]
) -> ResourceGP:
    """Return a Gaussian process of what the weighted prior does not explain.

    Parameters
    ----------
    vectors : ndarray of shape (n, f)
        The configurations of ended trials, as from `KernelFeatures`.
    owners : ndarray of shape (f,)
        The parameter of each column.
    residuals : ndarray of shape (n,)
        The trials' normal scores minus what the weighted prior expects.

    Returns
    -------
    ResourceGP
        The process, all of whose data have the resource 0.
    """
    # Of many trials a part that is even in rank, with the best and the worst one.
    order = np.argsort(residuals, kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, _MOST_TRIALS).round().astype(int))]
    vectors, residuals = vectors[rows], residuals[rows]
    full = np.zeros(len(rows))
    # From a fixed start, so that the fit depends on nothing but the data.
    start = prior_mean(int(owners[-1]) + 1)
    theta = fit_hyperparameters(start, vectors, owners, full, residuals)
    return ResourceGP(theta, owners, vectors, full, residuals)


def prior_weight(expected: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """Return the weight of the prior, from how it orders pairs of ended trials.

    Parameters
    ----------
    expected : ndarray of shape (n,)
        The scores that the prior expects.
    scores : ndarray of shape (n,)
        The trials' own scores.

    Returns
    -------
    float
        From -1 to 1. Negative if the prior orders more pairs wrongly than correctly: then what was
        good earlier is bad now, which is worth as much to know.

    Notes
    -----
    A pair counts the more, the further apart the prior expects its trials. With the mean size d of
    these differences, S is the sum of ``|difference| / d`` over the pairs in the right order, minus
    that over the pairs in the wrong order; P is the number of all pairs. The weight is
    ``(S + 6 t) / (P + 6) / t``, cut to [-1, 1], with t = 0.4. That is Kendall's tau divided by t,
    the tau of a prior that is as good as usual, after 6 pairs in which it was so: as many as 4
    trials have.

    Examples
    --------
    >>> own = np.array([-1.0, 0.0, 1.0, 2.0, 3.0])
    >>> [round(prior_weight(prior, own), 3) for prior in (own, -own, 0 * own)]
    [1.0, -1.0, 0.375]
    """
    one, other = np.triu_indices(len(scores), 1)
    differences = expected[one] - expected[other]
    size = float(np.abs(differences).mean())
    agreement = (differences * np.sign(scores[one] - scores[other])).sum() / size if size else 0.0
    skill = (agreement + _PAIRS * _USUAL_TAU) / (len(one) + _PAIRS)
    return float(np.clip(skill / _USUAL_TAU, -1, 1))
