"""Grid search and random search."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection

from dasktune.sklearn.base import ClusterSearchCV

__all__ = ["GridSearchCV", "RandomizedSearchCV"]


class GridSearchCV(model_selection.GridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """docs later"""

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


class RandomizedSearchCV(model_selection.RandomizedSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """docs later"""

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
