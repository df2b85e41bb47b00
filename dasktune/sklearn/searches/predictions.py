"""Predictions and scores of a fitted search for Dask collections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, Final

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dasktune.sklearn.compat import SklearnContext, search_estimator_has
from dasktune.sklearn.fits.backend import is_lazy, is_on_client_loop

#: Attributes that may be large, and that no score depends on.
_NOT_FOR_SCORES: Final = ("cv_results_", "history_", "model_history_", "results_", "searcher_")


class BlockwisePredictions:
    """The methods of a search that apply its best model.

    For a Dask array or data frame, predictions are a lazy collection with the same blocks, for a
    delayed object they are a delayed object, and :meth:`score` computes on a worker. For any other
    input they return the model's own result. The class must be before those of scikit-learn in the
    list of base classes.
    """

    #: The client, the cluster object or the address of the cluster.
    client: Any
    best_estimator_: Any

    @available_if(search_estimator_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predict the targets of samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("predict", X, "predict_meta")

    @available_if(search_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("predict_proba", X, "predict_proba_meta")

    @available_if(search_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            The samples.
        """
        return self._apply_blockwise("predict_log_proba", X, "predict_proba_meta")

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
        return self._apply_blockwise("transform", X, "transform_meta")

    @available_if(search_estimator_has("inverse_transform"))  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any) -> Any:
        """Invert the transformation of samples.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_components)
            Transformed samples.
        """
        return self._apply_blockwise("inverse_transform", X)

    def score(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Score the best model with the search's own scorer.

        Parameters
        ----------
        X, y : array-like or Dask collection
            Samples and their targets. Dask collections and delayed objects are computed, and
            concatenated on one worker.
        **params
            Metadata for the scorer, such as ``sample_weight``; with metadata routing, only metadata
            that the scorer has requested.

        Returns
        -------
        float
            The score. For Dask collections, on the event loop of an asynchronous Dask client: an
            awaitable that returns it.
        """
        if not any(is_lazy(one) for one in (X, y, *params.values())):
            return self._score(X, y, **params)
        check_is_fitted(self)
        # scikit-learn's configuration is thread-local, so other threads and workers restore it.
        call = SklearnContext.current().call
        if is_on_client_loop(self.client):
            # This thread must run the loop, which receives the score.
            return asyncio.to_thread(call, self._score_on_worker, X, y, **params)
        return self._score_on_worker(X, y, **params)

    def _score(self, X: Any, y: Any = None, **params: Any) -> Any:
        return super().score(X, y, **params)  # type: ignore[misc]

    def _score_on_worker(self, X: Any, y: Any, **params: Any) -> Any:
        from dasktune.cluster.data.collections import call_with_computed

        light = copy(self)
        light.client = None
        for name in _NOT_FOR_SCORES:
            vars(light).pop(name, None)
        call = SklearnContext.current().call
        return call_with_computed(self.client, call, light._score, X, y, **params)

    def _apply_blockwise(self, method: str, X: Any, parameter: str = "") -> Any:
        # Only some searches have parameters for empty examples of the results.
        meta = getattr(self, parameter, None) if parameter else None
        check_is_fitted(self, "best_estimator_")
        function: Callable[[Any], Any] = partial(_call_method, self.best_estimator_, method)
        if not is_lazy(X):
            return function(X)
        from dasktune.cluster.data.collections import map_blocks

        return map_blocks(function, X, meta)


def _call_method(estimator: Any, method: str, X: Any) -> Any:
    return getattr(estimator, method)(X)
