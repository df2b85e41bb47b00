"""Grid search and random search."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection

from dasktune.sklearn.base import AwaitableFit, ClusterSearchCV

__all__ = ["GridSearchCV", "RandomizedSearchCV"]


class GridSearchCV(AwaitableFit, model_selection.GridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Try every combination of given values, with cross-validation, on a Dask cluster.

    A drop-in for scikit-learn's class of this name: the same arguments, attributes, results,
    warnings and errors. Each fit of a candidate on a split is a trial, which is run again if its
    worker is lost.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_grid : dict or list of dict
        Values to try for each parameter, in all combinations; of each dict of a list.
    scoring : str, callable, list, tuple or dict, optional
        What is scored; the estimator's own ``score`` by default. Several metrics as a list, a dict,
        or a function that returns a dict.
    n_jobs : int, optional
        Most fits that run at a time on a cluster. None and -1 are no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, in this process, or on a worker if X stays on the
        cluster, so that the search can predict. With several metrics the name of the one that
        decides; or a function of `cv_results_` that returns the index of the best.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        What is printed: from 1 how much there is to do, from 2 each fit, where it runs.
    pre_dispatch : int or str, default="2*n_jobs"
        Taken for compatibility; it has no effect.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or whose worker dies four times; "raise" raises what it raised.
    return_train_score : bool, default=False
        Score the samples that each candidate was fitted on, too.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.GridSearchCV : Its attributes and methods are the same.

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


class RandomizedSearchCV(AwaitableFit, model_selection.RandomizedSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """Try configurations drawn at random, with cross-validation, on a Dask cluster.

    A drop-in for scikit-learn's class of this name; the same `random_state` draws the same
    candidates.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each fit.
    param_distributions : dict or list of dict
        Lists to choose from, and distributions with a method ``rvs``, for each parameter; or
        several such dicts to choose from.
    n_iter : int, default=10
        How many candidates are drawn.
    scoring : str, callable, list, tuple or dict, optional
        What is scored; the estimator's own ``score`` by default. Several metrics as a list, a dict,
        or a function that returns a dict.
    n_jobs : int, optional
        Most fits that run at a time on a cluster. None and -1 are no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, in this process, or on a worker if X stays on the
        cluster, so that the search can predict. With several metrics the name of the one that
        decides; or a function of `cv_results_` that returns the index of the best.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        What is printed: from 1 how much there is to do, from 2 each fit, where it runs.
    pre_dispatch : int or str, default="2*n_jobs"
        Taken for compatibility; it has no effect.
    random_state : int or RandomState, optional
        Where randomness comes from.
    error_score : "raise" or float, default=np.nan
        Score of a fit that fails, or whose worker dies four times; "raise" raises what it raised.
    return_train_score : bool, default=False
        Score the samples that each candidate was fitted on, too.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, fits run in
        this process, one after the other.

    See Also
    --------
    sklearn.model_selection.RandomizedSearchCV : Its attributes and methods are the same.

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
