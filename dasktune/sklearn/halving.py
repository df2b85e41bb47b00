"""Successive halving, as scikit-learn has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasktune.sklearn import compat
from dasktune.sklearn.base import ClusterSearchCV

__all__ = ["HalvingGridSearchCV", "HalvingRandomSearchCV"]


class HalvingGridSearchCV(compat.HalvingGridSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """docs later"""

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


class HalvingRandomSearchCV(compat.HalvingRandomSearchCV, ClusterSearchCV):  # type: ignore[misc]
    """docs later"""

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
