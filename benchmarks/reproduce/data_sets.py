"""The data sets on which curves are recorded, split into parts. They are from scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

__all__ = ["GENERATED", "Halves", "load_halves", "split_data"]

#: By name: the function of `sklearn.datasets`, and its arguments. Other names are those of its
#: ``load_...`` functions.
GENERATED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "friedman1": ("make_friedman1", {"n_samples": 600, "noise": 1.0, "random_state": 1}),
    "friedman2": ("make_friedman2", {"n_samples": 600, "noise": 150.0, "random_state": 3}),
    "clf20": (
        "make_classification",
        {
            "n_samples": 900,
            "n_features": 20,
            "n_informative": 8,
            "n_classes": 3,
            "flip_y": 0.05,
            "class_sep": 0.8,
            "random_state": 1,
        },
    ),
    "clf40": (
        "make_classification",
        {
            "n_samples": 1500,
            "n_features": 40,
            "n_informative": 8,
            "n_redundant": 12,
            "flip_y": 0.1,
            "class_sep": 0.6,
            "random_state": 4,
        },
    ),
    "hastie": ("make_hastie_10_2", {"n_samples": 1200, "random_state": 3}),
    "regression40": (
        "make_regression",
        {
            "n_samples": 1200,
            "n_features": 40,
            "n_informative": 20,
            "noise": 5.0,
            "effective_rank": 10,
            "tail_strength": 0.8,
            "random_state": 6,
        },
    ),
}

_REGRESSIONS = ("diabetes", "friedman1", "friedman2", "regression40")


@dataclass(frozen=True)
class Halves:
    """A data set, of which one half is for training and the other one for validation.

    Labels are 0, 1 and so on, as integers; targets of a regression have mean 0 and deviation 1
    in the training half, so that a mean squared error of 1 is that of a constant.
    """

    #: The number of classes; 0 for a regression.
    classes: int
    train_rows: NDArray[np.float64]
    train_labels: NDArray[Any]
    validation_rows: NDArray[np.float64]
    validation_labels: NDArray[Any]

    def standardised(self) -> Halves:
        """Return the halves with features of mean 0 and deviation 1 in training, as float32."""
        mean, deviation = self.train_rows.mean(axis=0), self.train_rows.std(axis=0)
        deviation[deviation == 0] = 1

        def scale(rows: NDArray[np.float64]) -> NDArray[Any]:
            return ((rows - mean) / deviation).astype("f4")

        return Halves(
            self.classes,
            scale(self.train_rows),
            self.train_labels,
            scale(self.validation_rows),
            self.validation_labels,
        )


def load_halves(name: str) -> Halves:
    """Return a data set in random halves, always the same ones."""
    from sklearn import datasets

    if name in GENERATED:
        function, arguments = GENERATED[name]
        rows, labels, *_ = getattr(datasets, function)(**arguments)
    else:
        rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = default_rng(7).permutation(len(rows))
    train, validation = order[: len(rows) // 2], order[len(rows) // 2 :]
    if name in _REGRESSIONS:
        known = labels[train]
        labels, classes = (labels - known.mean()) / known.std(), 0
    else:
        names, labels = np.unique(labels, return_inverse=True)
        classes = len(names)
    return Halves(classes, rows[train], labels[train], rows[validation], labels[validation])


def split_data(name: str, rng: Generator) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return training, validation and test set, a third each."""
    from sklearn import datasets, preprocessing

    rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.array_split(rng.permutation(len(rows)), 3)
    scaler = preprocessing.StandardScaler().fit(rows[order[0]])
    return [(scaler.transform(rows[part]).astype("f4"), labels[part]) for part in order]
