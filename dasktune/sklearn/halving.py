"""Successive halving, as scikit-learn has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasktune.sklearn import compat
from dasktune.sklearn.base import AwaitableFit, ClusterSearchCV

__all__ = ["HalvingGridSearchCV", "HalvingRandomSearchCV"]


class HalvingGridSearchCV(AwaitableFit, compat.HalvingGridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Try every combination of given values, and give more of a resource to the best only.

    A drop-in for scikit-learn's class of this name. The fits of an iteration run side by side on
    a Dask cluster.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_grid : dict or list of dict
        Values to try for each parameter, in all combinations; of each dict of a list.
    factor : float, default=3
        One in so many candidates goes on to the next iteration, with so many times the resource.
    resource : str, default="n_samples"
        What grows from iteration to iteration: the number of samples, or a parameter of the
        estimator with positive integers.
    max_resources : int or "auto", default="auto"
        Most of the resource for a candidate; all samples by default.
    min_resources : int, "exhaust" or "smallest", default="exhaust"
        What each candidate gets in the first iteration; "exhaust" is so much that the last one uses
        as much as it may.
    aggressive_elimination : bool, default=False
        Repeat the first iteration until so few candidates are left that the last one is left with
        at most `factor` of them.
    cv : int, splitter or iterable, default=5
        How the data is split; an int is the number of folds.
    scoring : str or callable, optional
        What is scored; the estimator's own ``score`` by default.
    refit : bool or callable, default=True
        Fit the best candidate of the last iteration on all data, in this process, or on a worker if
        X stays on the cluster.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or whose worker dies four times; "raise" raises what it raised.
    return_train_score : bool, default=True
        Score the samples that each candidate was fitted on, too.
    random_state : int or RandomState, optional
        Where randomness comes from.
    n_jobs : int, optional
        Most fits that run at a time on a cluster. None and -1 are no limit.
    verbose : int, default=0
        What is printed: from 1 how much there is to do, from 2 each fit, where it runs.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.HalvingGridSearchCV : Its attributes and methods are the same.

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


class HalvingRandomSearchCV(AwaitableFit, compat.HalvingRandomSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Draw configurations at random, and give more of a resource to the best only.

    A drop-in for scikit-learn's class of this name. The fits of an iteration run side by side on
    a Dask cluster.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_distributions : dict or list of dict
        Lists to choose from, and distributions with a method ``rvs``, for each parameter; or
        several such dicts to choose from.
    n_candidates : int or "exhaust", default="exhaust"
        How many candidates are drawn; "exhaust" is so many that the last iteration uses as much of
        the resource as it may.
    factor : float, default=3
        One in so many candidates goes on to the next iteration, with so many times the resource.
    resource : str, default="n_samples"
        What grows from iteration to iteration: the number of samples, or a parameter of the
        estimator with positive integers.
    max_resources : int or "auto", default="auto"
        Most of the resource for a candidate; all samples by default.
    min_resources : int, "exhaust" or "smallest", default="smallest"
        What each candidate gets in the first iteration; "exhaust" is so much that the last one uses
        as much as it may.
    aggressive_elimination : bool, default=False
        Repeat the first iteration until so few candidates are left that the last one is left with
        at most `factor` of them.
    cv : int, splitter or iterable, default=5
        How the data is split; an int is the number of folds.
    scoring : str or callable, optional
        What is scored; the estimator's own ``score`` by default.
    refit : bool or callable, default=True
        Fit the best candidate of the last iteration on all data, in this process, or on a worker if
        X stays on the cluster.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or whose worker dies four times; "raise" raises what it raised.
    return_train_score : bool, default=True
        Score the samples that each candidate was fitted on, too.
    random_state : int or RandomState, optional
        Where randomness comes from.
    n_jobs : int, optional
        Most fits that run at a time on a cluster. None and -1 are no limit.
    verbose : int, default=0
        What is printed: from 1 how much there is to do, from 2 each fit, where it runs.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.HalvingRandomSearchCV : Its attributes and methods are the same.

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
