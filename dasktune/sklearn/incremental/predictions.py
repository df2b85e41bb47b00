"""Lazy, blockwise predictions of a fitted search for Dask collections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dasktune.sklearn.compat import search_estimator_has
from dasktune.sklearn.fits.backend import is_collection

__all__ = ["BlockwisePredictions"]


class BlockwisePredictions:
    """The prediction methods of a search, which apply its best model.

    For a Dask array or data frame they return a lazy collection with the same blocks. For any other
    input they return the model's own result.
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
        return self._apply_blockwise("predict", X, self.predict_meta)

    @available_if(search_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("predict_proba", X, self.predict_proba_meta)

    @available_if(search_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("predict_log_proba", X, self.predict_proba_meta)

    @available_if(search_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the decision function of the samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("decision_function", X)

    @available_if(search_estimator_has("score_samples"))  # type: ignore[untyped-decorator]
    def score_samples(self, X: Any) -> Any:
        """Return the score of each sample.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("score_samples", X)

    @available_if(search_estimator_has("transform"))  # type: ignore[untyped-decorator]
    def transform(self, X: Any) -> Any:
        """Transform samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("transform", X, self.transform_meta)

    @available_if(search_estimator_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any) -> Any:
        """Invert the transformation of samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_components)
            Transformed samples.
        """
        return self._apply_blockwise("inverse_transform", X)

    def _apply_blockwise(self, method: str, X: Any, meta: Any = None) -> Any:
        check_is_fitted(self, "best_estimator_")
        function: Callable[[Any], Any] = partial(_call_method, self.best_estimator_, method)
        if not is_collection(X):
            return function(X)
        from dasktune.cluster.data.collections import map_blocks

        return map_blocks(function, X, meta)


def _call_method(estimator: Any, method: str, X: Any) -> Any:
    return getattr(estimator, method)(X)
