"""Predictions of a fitted search: block by block, and lazy, for collections of Dask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dasktune.sklearn.compat import search_estimator_has

__all__ = ["BlockwisePredictions", "is_collection"]


def is_collection(value: Any) -> bool:
    """Whether a value is a collection of Dask that has blocks.

    Parameters
    ----------
    value : object
        Anything.

    Examples
    --------
    >>> is_collection([1, 2])
    False
    """
    if "dask" not in sys.modules:
        return False
    from dasktune.cluster.collections import is_collection

    return is_collection(value)


class BlockwisePredictions:
    """What a search predicts with its best model.

    For a Dask array or data frame that is a collection of the same blocks, of which nothing has
    been computed yet. For anything else it is what the model returns.
    """

    best_estimator_: Any
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    @available_if(search_estimator_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predict the targets of samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("predict", X, self.predict_meta)

    @available_if(search_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("predict_proba", X, self.predict_proba_meta)

    @available_if(search_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("predict_log_proba", X, self.predict_proba_meta)

    @available_if(search_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return how sure the model is.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("decision_function", X)

    @available_if(search_estimator_has("score_samples"))  # type: ignore[untyped-decorator]
    def score_samples(self, X: Any) -> Any:
        """Return the score of each sample.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("score_samples", X)

    @available_if(search_estimator_has("transform"))  # type: ignore[untyped-decorator]
    def transform(self, X: Any) -> Any:
        """Transform samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._of_blocks("transform", X, self.transform_meta)

    @available_if(search_estimator_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any) -> Any:
        """Take a transformation back.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_components)
            Transformed samples.
        """
        return self._of_blocks("inverse_transform", X)

    def _of_blocks(self, method: str, X: Any, meta: Any = None) -> Any:
        check_is_fitted(self, "best_estimator_")
        function: Callable[[Any], Any] = partial(_called, self.best_estimator_, method)
        if not is_collection(X):
            return function(X)
        from dasktune.cluster.collections import by_block

        return by_block(function, X, meta)


def _called(estimator: Any, method: str, X: Any) -> Any:
    return getattr(estimator, method)(X)
