"""``SuccessiveHalvingSearchCV``: dask-ml's successive halving for models with ``partial_fit``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dasktune.sklearn.incremental import decisions
from dasktune.sklearn.incremental.incremental_search import IncrementalSearchCV


class SuccessiveHalvingSearchCV(IncrementalSearchCV):
    """Train all models for a few calls of ``partial_fit``, and in each round the best for more.

    It has the parameters and attributes of dask-ml's class of this name.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each model. It must have ``partial_fit``, and ``score`` unless `scoring` is
        given. It may be a Dask future.
    parameters : dict or list of dict
        For each parameter a list of values or a distribution with ``rvs``.
    n_initial_parameters : int or "grid", default=10
        Number of models; "grid" is one for each combination of values.
    n_initial_iter : int
        Number of calls of ``partial_fit`` before models are dropped for the first time.
    max_iter : int, optional
        Maximum number of calls of ``partial_fit`` for a model; no limit by default.
    aggressiveness : float, default=3
        One in `aggressiveness` models continues to the next round, which ends at `aggressiveness`
        times as many calls.
    test_size : float, optional
        Fraction of each block that is held out to score all models, between 0 and 1. The
        default is 1 divided by the number of blocks, and at most 0.2. All held-out samples must fit
        into the memory of a worker.
    patience : int, default=False
        The training of a model ends when its score has not risen by more than `tol` within
        `patience` calls of ``partial_fit``; at least 2. False disables this check.
    tol : float, optional, default=0.001
        Minimum rise of the score, see `patience`. None or NaN disables the check.
    random_state : int or RandomState, optional
        Seed or source of random numbers, for parameters, held-out samples and the order of blocks.
    scoring : str or callable, optional
        The metric, which must be a single number; the estimator's own ``score`` by default.
    verbose : bool or float, default=False
        Print the messages of the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        that fraction of the scores.
    prefix : str, default=""
        Text after ``[CV`` in each line of the log.
    predict_meta, predict_proba_meta, transform_meta : array or data frame, optional
        An empty example of what each of these methods returns, for Dask input; by default it is
        inferred from a row of zeros.
    error_score : "raise" or float, default=np.nan
        Score of a model that fails, or loses its worker four times without progress; its training
        ends. "raise" raises the exception.
    n_jobs : int, optional
        Maximum number of models that are trained at a time on a cluster. None and -1 mean no limit.
    storage_path : str or path, optional
        The storage of the experiment: a folder or any fsspec URL. By default nothing is stored.
    name : str, optional
        Name of the experiment in `storage_path`.
    resume : bool, default=False
        Resume the experiment of that name if there is one; needs `storage_path`, `name` and an
        integer `random_state`.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, models are
        trained in this process, one after the other.

    Attributes
    ----------
    cv_results_ : dict of str to array
        A row for each model: ``model_id``, ``params``, ``param_*``, ``partial_fit_calls``,
        ``test_score`` (the last one), ``rank_test_score``, and mean and standard deviation of
        ``partial_fit_time`` and ``score_time`` in seconds.
    history_ : list of dict
        A record for each score, in the order of ``elapsed_wall_time``: the seconds from the start
        of the search to the last score of its batch.
    model_history_ : dict
        The records of each model, by its ``model_id``.
    best_estimator_ : estimator
        The trained model with the highest last score among the models that were not dropped.
    best_score_ : float
        The last score of the best model.
    best_index_ : int
        The row of the best model in `cv_results_`.
    best_params_ : dict
        The parameters of the best model.
    n_iter_ : int
        Number of ``partial_fit`` calls of the best model.
    scorer_ : callable
        ``scorer_(estimator, X, y)`` returns a score.
    metadata, metadata_ : dict
        ``n_models``, ``partial_fit_calls`` in total, and ``max_iter``, the calls of the model that
        is trained longest. `metadata` has the maximum of a search, `metadata_` has the counts of
        the fitted search.

    See Also
    --------
    HyperbandSearchCV : Needs no `n_initial_parameters` and no `n_initial_iter`.

    References
    ----------
    .. [1] Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
       Optimization", AISTATS 2016, arXiv:1502.07943.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> parameters = {"alpha": np.logspace(-5, 1, 50)}
    >>> model = SGDClassifier(random_state=0)
    >>> search = SuccessiveHalvingSearchCV(
    ...     model, parameters, n_initial_parameters=9, n_initial_iter=2, random_state=0
    ... )
    >>> search.metadata
    {'partial_fit_calls': 42, 'n_models': 9, 'max_iter': 18}
    >>> search.fit(*load_iris(return_X_y=True)).metadata_ == search.metadata
    True
    """

    def __init__(  # noqa: PLR0917 - dask-ml has these arguments
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int | str = 10,
        n_initial_iter: int | None = None,
        max_iter: int | None = None,
        aggressiveness: float = 3,
        test_size: float | None = None,
        patience: int = False,
        tol: float | None = 1e-3,
        random_state: Any = None,
        scoring: Any = None,
        verbose: float = False,
        prefix: str = "",
        *,
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        error_score: Any = np.nan,
        n_jobs: int | None = None,
        storage_path: Any = None,
        name: str | None = None,
        resume: bool = False,
        client: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.n_initial_parameters = n_initial_parameters
        self.n_initial_iter = n_initial_iter
        self.max_iter = max_iter
        self.aggressiveness = aggressiveness
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.error_score = error_score
        self.n_jobs = n_jobs
        self.storage_path = storage_path
        self.name = name
        self.resume = resume
        self.client = client

    #: The number of the next round of halving.
    _steps = 0

    def _check_old_names(self) -> None:
        if self.n_initial_iter is None or self.n_initial_iter < 1:
            raise ValueError(f"n_initial_iter must be at least 1, got {self.n_initial_iter}")
        self._steps = 0

    def _adapt(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        if all(records[-1]["partial_fit_calls"] == 1 for records in info.values()):
            # Each model is scored after its first call. If the first round has a single call, that
            # score completes the round.
            self._steps = int(self._budget(0) == 1)
        budget = self._budget(self._steps)
        left = math.floor(self._n_models * self.aggressiveness**-self._steps)
        best = decisions.best_models(info, left)
        self._steps += 1
        if not best:
            return dict.fromkeys(info, 0)
        return {number: budget - info[number][-1]["partial_fit_calls"] for number in best}

    def _save_policy(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def _load_policy(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]

    def _budget(self, step: int) -> int:
        assert self.n_initial_iter is not None, "checked"
        return int(np.round(self.n_initial_iter * self.aggressiveness**step))

    @property
    def metadata(self) -> dict[str, Any]:
        """The number of models, and the maximum of their calls in total and for one model."""
        if self.n_initial_iter is None:
            raise ValueError("n_initial_iter must be at least 1, got None")
        meta = decisions.simulated_halving(
            self._n_models, self.n_initial_iter, self.aggressiveness, self.max_iter
        )
        return {
            "partial_fit_calls": meta["total_calls"],
            "n_models": self._n_models,
            "max_iter": meta["max_iter"],
        }

    @property
    def metadata_(self) -> dict[str, Any]:
        """The number of models, and their calls in the fitted search in total and for one model."""
        check_is_fitted(self, "model_history_")
        calls = [records[-1]["partial_fit_calls"] for records in self.model_history_.values()]
        return {
            "partial_fit_calls": sum(calls),
            "n_models": self._n_models,
            "max_iter": max(calls),
        }
