"""Models and data for searches of scikit-learn's kind; dask-ml's interpreter imports them, too."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

__all__ = ["CALLS_PER_S", "PARAMETERS", "Constant", "Sleeper", "rings", "sleeping_data"]

#: Samples that `Constant` trains on in one second.
CALLS_PER_S = 50e3

#: The search space of `Constant`: 400 values to draw from.
PARAMETERS = {"value": np.random.RandomState(0).uniform(size=400)}


class Sleeper(BaseEstimator):  # type: ignore[misc]
    """Sleeps while it is fitted, so it uses no processor."""

    def __init__(self, seconds: float = 0.0, number: int = 0) -> None:
        self.seconds = seconds
        self.number = number

    def fit(self, X: Any, y: Any = None) -> Sleeper:
        time.sleep(self.seconds)
        return self

    def score(self, X: Any, y: Any = None) -> float:
        return float(self.number)


class Constant(BaseEstimator):  # type: ignore[misc]
    """Has its parameter as its score, and sleeps longer for more samples."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def fit(self, X: Any, y: Any = None) -> Constant:
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any = None, **more: Any) -> Constant:
        time.sleep(len(X) / CALLS_PER_S)
        return self

    def score(self, X: Any, y: Any = None) -> float:
        time.sleep(len(X) / 1.5 / CALLS_PER_S)
        return self.value


def sleeping_data(samples: int) -> tuple[Any, Any]:
    """Return samples as large as those of MNIST, and targets."""
    return np.zeros((samples, 784), dtype=np.uint8), np.arange(samples) % 2


def rings(samples: int, seed: int) -> tuple[Any, Any]:
    """Return two pairs of rings beside each other, and four features of noise.

    The second pair is moved to the right, so that the rings cross; there are four classes.
    """
    from sklearn.datasets import make_circles
    from sklearn.preprocessing import StandardScaler

    rng = np.random.RandomState(seed)
    parts = [make_circles(samples // 2, noise=0.04, random_state=rng) for _ in range(2)]
    (X1, y1), (X2, y2) = parts
    X = np.vstack([X1, X2 + np.array([0.6, 0.0])])
    y = np.concatenate([y1, y2 + 2])
    X = np.hstack([X, rng.uniform(-1, 1, size=(len(X), 4))])
    order = rng.permutation(len(X))
    return StandardScaler().fit_transform(X[order]), y[order]
