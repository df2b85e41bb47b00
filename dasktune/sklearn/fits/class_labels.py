"""Class labels of y, for estimators whose ``partial_fit`` must get all classes in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.multioutput import MultiOutputClassifier


def labels_of(y: Any) -> list[Any]:
    """Return the different labels of each column of y; a vector is one column.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Targets, dense or sparse.

    Examples
    --------
    >>> labels_of([[0, 5], [1, 5]])
    [array([0, 1]), array([5])]
    """
    targets = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if targets.ndim == 1:
        return [np.unique(targets)]
    return [np.unique(column) for column in targets.T]


def merge_labels(parts: Sequence[list[Any]]) -> list[Any]:
    """Return the labels of each column of y, merged from several blocks.

    Parameters
    ----------
    parts : sequence of list of array
        The labels of each block, as `labels_of` returns them.

    Examples
    --------
    >>> merge_labels([[np.array([0, 2])], [np.array([1, 2])]])
    [array([0, 1, 2])]
    """
    return [np.unique(np.concatenate(columns)) for columns in zip(*parts, strict=True)]


def classes_of(model: Any, labels: Sequence[Any]) -> Any:
    """Return the argument `classes` of a model's ``partial_fit``.

    Parameters
    ----------
    model : estimator
        The model.
    labels : sequence of array
        The labels of each column of y.

    Returns
    -------
    array or list of array
        The labels of a single column; the column numbers of a multilabel indicator matrix, because
        scikit-learn uses these as labels; else the labels of each column.

    Examples
    --------
    >>> from sklearn.neural_network import MLPClassifier
    >>> yes_or_no = np.array([0, 1])
    >>> classes_of(MLPClassifier(), [yes_or_no, yes_or_no, yes_or_no])
    array([0, 1, 2])
    """
    if isinstance(model, MultiOutputClassifier):
        return list(labels)
    if len(labels) == 1:
        return labels[0]
    values = np.unique(np.concatenate(list(labels)))
    if values.dtype.kind in "biuf" and len(values) <= 2:
        return np.arange(len(labels))
    return list(labels)
