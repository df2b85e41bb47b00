"""Grid search and random search."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection

from dasktune.sklearn.searches.base import AsyncFitMixin, ClusterSearchCV
from dasktune.sklearn.searches.predictions import BlockwisePredictions


class GridSearchCV(AsyncFitMixin, BlockwisePredictions, model_selection.GridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Try every combination of the given values, with cross-validation, on a Dask cluster.

    A drop-in replacement for scikit-learn's class of this name, with the same arguments,
    attributes, results, warnings and errors. Each fit of a candidate on a split is a trial, which
    runs again if its worker is lost.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_grid : dict or list of dict
        Values of each parameter; all combinations are tried. In a list, each dict is a grid of its
        own.
    scoring : str, callable, list, tuple or dict, optional
        The metric; the estimator's own ``score`` by default. Several metrics are given as a list, a
        dict, or a function that returns a dict.
    n_jobs : int, optional
        Maximum number of fits at a time on a cluster. None and -1 mean no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, so that the search can predict. The refit runs in this
        process, or on a worker if X stays on the cluster. With several metrics, give the name of
        the metric to choose the best candidate by, or a function of `cv_results_` that returns the
        index of the best candidate.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        1 prints the number of fits; 2 also prints each fit, in the process that runs it.
    pre_dispatch : int or str, default="2*n_jobs"
        Accepted for compatibility; it has no effect.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or loses its worker four times; "raise" raises the exception.
    return_train_score : bool, default=False
        Score the training samples of each fit, too.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.GridSearchCV : Has the same attributes and methods.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> search = GridSearchCV(SVC(), {"C": [0.01, 1.0]})
    >>> search.fit(*load_iris(return_X_y=True)).best_params_
    {'C': 1.0}
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            param_grid,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.client = client


class RandomizedSearchCV(
    AsyncFitMixin,
    BlockwisePredictions,
    model_selection.RandomizedSearchCV,  # type: ignore[misc]
    ClusterSearchCV,
):
    """Try candidates sampled at random, with cross-validation, on a Dask cluster.

    A drop-in replacement for scikit-learn's class of this name; the same `random_state` gives the
    same candidates.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_distributions : dict or list of dict
        For each parameter a list of values or a distribution with a method ``rvs``; or a list of
        such dicts.
    n_iter : int, default=10
        Number of candidates.
    scoring : str, callable, list, tuple or dict, optional
        The metric; the estimator's own ``score`` by default. Several metrics are given as a list, a
        dict, or a function that returns a dict.
    n_jobs : int, optional
        Maximum number of fits at a time on a cluster. None and -1 mean no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, so that the search can predict. The refit runs in this
        process, or on a worker if X stays on the cluster. With several metrics, give the name of
        the metric to choose the best candidate by, or a function of `cv_results_` that returns the
        index of the best candidate.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        1 prints the number of fits; 2 also prints each fit, in the process that runs it.
    pre_dispatch : int or str, default="2*n_jobs"
        Accepted for compatibility; it has no effect.
    random_state : int or RandomState, optional
        Seed or source of random numbers.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or loses its worker four times; "raise" raises the exception.
    return_train_score : bool, default=False
        Score the training samples of each fit, too.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.RandomizedSearchCV : Has the same attributes and methods.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> search = RandomizedSearchCV(SVC(), {"C": loguniform(1e-2, 1e2)}, n_iter=3, random_state=0)
    >>> len(search.fit(*load_iris(return_X_y=True)).cv_results_["params"])
    3
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            param_distributions,
            n_iter=n_iter,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            random_state=random_state,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.client = client
