"""What earlier experiments say about a configuration: the prior of Salinas, Shen and Perrone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.errors import ConfigError
from dasktune.numeric_threads import single_threaded


def require_sklearn() -> None:
    """Raise ConfigError if scikit-learn is missing; the message says how to install it."""
    if find_spec("sklearn") is None:
        raise ConfigError(
            "WarmStart must have scikit-learn, which is not installed. Run: pip install scikit-learn."
        )


def normal_scores(losses: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles of the normal distribution that belong to the ranks of losses.

    Parameters
    ----------
    losses : sequence of float
        The losses, n of them; lower is better. Infinity is the worst one.

    Returns
    -------
    ndarray of shape (n,)
        ``Phi^-1((rank + 1/2) / n)`` with ranks from 0; equal losses have their mean rank.

    Examples
    --------
    >>> normal_scores([0.3, 0.1, 0.2]).round(2).tolist()
    [0.97, -0.97, 0.0]
    """
    from scipy.special import ndtri
    from scipy.stats import rankdata

    scores: NDArray[np.float64] = ndtri((rankdata(losses) - 0.5) / len(losses))
    return scores


class CopulaPrior:
    """A regression of the normal scores of earlier experiments on configurations.

    Parameters
    ----------
    table : ndarray of shape (n, d)
        The configurations of all experiments; NaN for missing values.
    scores : ndarray of shape (n,)
        Their normal scores, each within its experiment.
    is_category : ndarray of shape (d,)
        Which columns are categories.

    Attributes
    ----------
    deviation : float
        The standard deviation of the scores around the regression's predictions for trials that it
        was not fitted to.

    Notes
    -----
    80 trees of gradient boosting, each with at most 7 leaves of at least 8 trials, and the learning
    rate 0.1.
    """

    @single_threaded("sklearn.ensemble")
    def __init__(
        self, table: NDArray[np.float64], scores: NDArray[np.float64], is_category: NDArray[np.bool_]
    ) -> None:
        from sklearn.model_selection import KFold, cross_val_predict

        folds = KFold(5, shuffle=True, random_state=0)
        held_out = cross_val_predict(_trees(is_category), table, scores, cv=folds)
        self.deviation = float(np.std(scores - held_out))
        self._trees = _trees(is_category).fit(table, scores)

    @single_threaded("sklearn.ensemble")
    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected scores of configurations; lower is better."""
        predicted: NDArray[np.float64] = self._trees.predict(table)
        return predicted


def _trees(is_category: NDArray[np.bool_]) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        max_iter=80,
        max_leaf_nodes=7,
        min_samples_leaf=8,
        learning_rate=0.1,
        categorical_features=is_category,
        early_stopping=False,
        random_state=0,
    )
