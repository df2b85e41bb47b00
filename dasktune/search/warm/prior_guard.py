"""How much the earlier experiments count, and a model of the new one's own results."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.search.warm.own_trials import Point

__all__ = ["LEAST_OWN_TRIALS", "OwnModel", "prior_weight"]

#: The number of ended trials from which their results count.
LEAST_OWN_TRIALS: Final = 4

#: The largest number of trials that the process is fitted to; its time grows with the third power.
_MOST_TRIALS: Final = 150

#: Two different options of a choice are as far apart as the ends of a range: sqrt(2) times this.
_OPTION: Final = 0.5**0.5


class OwnModel:
    """A Gaussian process of the new experiment's scores, around the weighted prior.

    Parameters
    ----------
    points : sequence
        The n configurations of ended trials in the unit cube.
    residuals : ndarray of shape (n,)
        Their normal scores minus what the prior expects.
    options : ndarray of shape (d,)
        Number of options of each choice; 0 for ranges.

    Notes
    -----
    The kernel is a Matern kernel with smoothness 5/2 and one length scale, plus noise; its
    parameters maximise the marginal likelihood. A parameter that a configuration does not have is
    in the middle of its range; the choice that it depends on tells such configurations apart.
    """

    def __init__(
        self, points: Sequence[Point], residuals: NDArray[np.float64], options: NDArray[np.int64]
    ) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._options = options
        # Of many trials a part that is even in rank, with the best and the worst one.
        order = np.argsort(residuals, kind="stable")
        rows = order[np.unique(np.linspace(0, len(order) - 1, _MOST_TRIALS).round().astype(int))]
        signal = ConstantKernel(1.0, (0.05, 4.0)) * Matern(0.6, (0.1, 10.0), nu=2.5)
        self._process = GaussianProcessRegressor(signal + WhiteKernel(0.1, (1e-3, 1.0)))
        with warnings.catch_warnings():
            # With few trials the most likely parameters are often at their bounds.
            warnings.simplefilter("ignore")
            self._process.fit(self._vectors(points)[rows], residuals[rows])

    def draw(self, points: Sequence[Point], rng: Generator) -> NDArray[np.float64]:
        """Draw the residuals of configurations from their joint distribution, without noise.

        Parameters
        ----------
        points : sequence
            The m configurations in the unit cube.
        rng : Generator
            The random numbers.

        Returns
        -------
        ndarray of shape (m,)
        """
        means, covariance = self._process.predict(self._vectors(points), return_cov=True)
        diagonal = np.arange(len(means))
        # The covariance of predictions has the noise, which is no property of a configuration.
        covariance[diagonal, diagonal] += 1e-6 - self._process.kernel_.k2.noise_level
        root = np.linalg.cholesky(covariance)
        drawn: NDArray[np.float64] = means + root @ rng.standard_normal(len(means))
        return drawn

    def _vectors(self, points: Sequence[Point]) -> NDArray[np.float64]:
        table = np.array(points, dtype=float)
        columns = []
        for column, count in zip(table.T, self._options, strict=True):
            if count:
                columns += [_OPTION * (column == option) for option in range(count)]
            else:
                columns.append(np.where(np.isnan(column), 0.5, column))
        return np.column_stack(columns)


def prior_weight(expected: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """Return the weight of the prior, from how often it orders two ended trials correctly.

    Parameters
    ----------
    expected : ndarray of shape (n,)
        The scores that the prior expects.
    scores : ndarray of shape (n,)
        The trials' own scores.

    Returns
    -------
    float
        From 0 to 1.

    Notes
    -----
    With C pairs in the right and D pairs in the wrong order among all P, the weight is
    ``max(0, min(1, ((C - D) / P' ...``
    """
    a, b = np.triu_indices(len(scores), 1)
    agreement = np.sign(expected[a] - expected[b]) * np.sign(scores[a] - scores[b])
    skill = (agreement.sum() + 6 * 0.4) / (len(a) + 6)
    return float(np.clip(skill / 0.4, 0, 1))
