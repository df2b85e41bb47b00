"""Scikit-learn's successive halving searches."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasktune.sklearn import compat
from dasktune.sklearn.searches.base import AsyncFitMixin, ClusterSearchCV
from dasktune.sklearn.searches.predictions import BlockwisePredictions


class HalvingGridSearchCV(AsyncFitMixin, BlockwisePredictions, compat.HalvingGridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Try every combination of the given values; only the best get more of a resource.

    A drop-in replacement for scikit-learn's class of this name. The fits of an iteration run in
    parallel on a Dask cluster.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_grid : dict or list of dict
        Values of each parameter; all combinations are tried. In a list, each dict is a grid of its
        own.
    factor : float, default=3
        One in `factor` candidates continues to the next iteration, with `factor` times the
        resource.
    resource : str, default="n_samples"
        The resource that grows with each iteration: the number of samples, or a parameter of the
        estimator with positive integers.
    max_resources : int or "auto", default="auto"
        Maximum resource of a candidate; all samples by default.
    min_resources : int, "exhaust" or "smallest", default="exhaust"
        Resource of each candidate in the first iteration; with "exhaust" the last iteration uses as
        much of `max_resources` as possible.
    aggressive_elimination : bool, default=False
        Repeat the first iteration, with fewer candidates each time, until so few remain that the
        last iteration has at most `factor` candidates.
    cv : int, splitter or iterable, default=5
        How the data is split; an int is the number of folds.
    scoring : str or callable, optional
        The metric; the estimator's own ``score`` by default.
    refit : bool or callable, default=True
        Fit the best candidate of the last iteration on all data. The refit runs in this process, or
        on a worker if X stays on the cluster.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or loses its worker four times; "raise" raises the exception.
    return_train_score : bool, default=True
        Score the training samples of each fit, too.
    random_state : int or RandomState, optional
        Seed or source of random numbers.
    n_jobs : int, optional
        Maximum number of fits at a time on a cluster. None and -1 mean no limit.
    verbose : int, default=0
        1 prints the number of fits; 2 also prints each fit, in the process that runs it.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.HalvingGridSearchCV : Has the same attributes and methods.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> search = HalvingGridSearchCV(SVC(), {"C": [0.01, 1.0, 100.0]}, random_state=0)
    >>> search.fit(*load_iris(return_X_y=True)).n_candidates_
    [3, 1]
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "exhaust",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        error_score: Any = np.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            param_grid,
            factor=factor,
            resource=resource,
            max_resources=max_resources,
            min_resources=min_resources,
            aggressive_elimination=aggressive_elimination,
            cv=cv,
            scoring=scoring,
            refit=refit,
            error_score=error_score,
            return_train_score=return_train_score,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.client = client


class HalvingRandomSearchCV(
    AsyncFitMixin,
    BlockwisePredictions,
    compat.HalvingRandomSearchCV,  # type: ignore[misc]
    ClusterSearchCV,
):
    """Try candidates sampled at random; only the best get more of a resource.

    A drop-in replacement for scikit-learn's class of this name. The fits of an iteration run in
    parallel on a Dask cluster.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_distributions : dict or list of dict
        For each parameter a list of values or a distribution with a method ``rvs``; or a list of
        such dicts.
    n_candidates : int or "exhaust", default="exhaust"
        Number of candidates; with "exhaust" the last iteration uses as much of `max_resources` as
        possible.
    factor : float, default=3
        One in `factor` candidates continues to the next iteration, with `factor` times the
        resource.
    resource : str, default="n_samples"
        The resource that grows with each iteration: the number of samples, or a parameter of the
        estimator with positive integers.
    max_resources : int or "auto", default="auto"
        Maximum resource of a candidate; all samples by default.
    min_resources : int, "exhaust" or "smallest", default="smallest"
        Resource of each candidate in the first iteration; with "exhaust" the last iteration uses as
        much of `max_resources` as possible.
    aggressive_elimination : bool, default=False
        Repeat the first iteration, with fewer candidates each time, until so few remain that the
        last iteration has at most `factor` candidates.
    cv : int, splitter or iterable, default=5
        How the data is split; an int is the number of folds.
    scoring : str or callable, optional
        The metric; the estimator's own ``score`` by default.
    refit : bool or callable, default=True
        Fit the best candidate of the last iteration on all data. The refit runs in this process, or
        on a worker if X stays on the cluster.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or loses its worker four times; "raise" raises the exception.
    return_train_score : bool, default=True
        Score the training samples of each fit, too.
    random_state : int or RandomState, optional
        Seed or source of random numbers.
    n_jobs : int, optional
        Maximum number of fits at a time on a cluster. None and -1 mean no limit.
    verbose : int, default=0
        1 prints the number of fits; 2 also prints each fit, in the process that runs it.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.HalvingRandomSearchCV : Has the same attributes and methods.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> space = {"C": loguniform(1e-2, 1e2)}
    >>> search = HalvingRandomSearchCV(SVC(), space, n_candidates=4, random_state=0)
    >>> search.fit(*load_iris(return_X_y=True)).n_candidates_
    [4, 2]
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_candidates: int | str = "exhaust",
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "smallest",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        error_score: Any = np.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            param_distributions,
            n_candidates=n_candidates,
            factor=factor,
            resource=resource,
            max_resources=max_resources,
            min_resources=min_resources,
            aggressive_elimination=aggressive_elimination,
            cv=cv,
            scoring=scoring,
            refit=refit,
            error_score=error_score,
            return_train_score=return_train_score,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.client = client
