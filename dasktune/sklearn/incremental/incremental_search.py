"""``IncrementalSearchCV`` and ``InverseDecaySearchCV``: partial_fit on blocks, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from warnings import warn

import numpy as np
from sklearn.model_selection import ParameterGrid, ParameterSampler

from dasktune.sklearn.incremental import decisions
from dasktune.sklearn.incremental.base import BaseIncrementalSearchCV


class IncrementalSearchCV(BaseIncrementalSearchCV):
    """Train all models by ``partial_fit`` on blocks, until each reaches a plateau or `max_iter`.

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
    decay_rate : None
        Accepted for compatibility; it has no effect, see `InverseDecaySearchCV`.
    test_size : float, optional
        Fraction of each block that is held out to score all models, between 0 and 1. The
        default is 1 divided by the number of blocks, and at most 0.2. All held-out samples must fit
        into the memory of a worker.
    patience : int, default=False
        The training of a model ends when its score has not risen by more than `tol` within
        `patience` calls of ``partial_fit``; at least 2. False disables this check.
    tol : float, optional, default=0.001
        Minimum rise of the score, see `patience`. None or NaN disables the check.
    fits_per_score : int, default=1
        Calls of ``partial_fit`` between two scores.
    max_iter : int, default=100
        Maximum number of calls of ``partial_fit`` for a model. It is exceeded only to complete
        `fits_per_score` calls.
    random_state : int or RandomState, optional
        Seed or source of random numbers, for parameters, held-out samples and the order of blocks.
    scoring : str or callable, optional
        The metric, which must be a single number; the estimator's own ``score`` by default.
    verbose : bool or float, default=False
        Print the messages of the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        that fraction of the scores.
    prefix : str, default=""
        Text after ``[CV`` in each line of the log.
    scores_per_fit : int, optional
        Deprecated name of `fits_per_score`.
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

    See Also
    --------
    HyperbandSearchCV : Needs only the number of calls for the best model.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> parameters = {"alpha": np.logspace(-5, 1, 50)}
    >>> model = SGDClassifier(random_state=0)
    >>> search = IncrementalSearchCV(
    ...     model, parameters, n_initial_parameters=3, max_iter=4, random_state=0
    ... )
    >>> search.fit(*load_iris(return_X_y=True)).cv_results_["partial_fit_calls"]
    array([4, 4, 4])
    """

    def __init__(  # noqa: PLR0917 - dask-ml has these arguments
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int | str = 10,
        decay_rate: Any = None,
        test_size: float | None = None,
        patience: int = False,
        tol: float | None = 0.001,
        fits_per_score: int = 1,
        max_iter: int | None = 100,
        random_state: Any = None,
        scoring: Any = None,
        verbose: float = False,
        prefix: str = "",
        scores_per_fit: int | None = None,
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        *,
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
        self.decay_rate = decay_rate
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.scores_per_fit = scores_per_fit
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.error_score = error_score
        self.n_jobs = n_jobs
        self.storage_path = storage_path
        self.name = name
        self.resume = resume
        self.client = client

    def _check_arguments(self) -> None:
        super()._check_arguments()
        decisions.check_patience(self.patience)
        self._check_old_names()

    def _check_old_names(self) -> None:
        if self.decay_rate is not None:
            warn(
                "decay_rate is deprecated in IncrementalSearchCV. "
                f"Use InverseDecaySearchCV to use decay_rate={self.decay_rate}",
                FutureWarning,
                stacklevel=5,
            )
        if self.scores_per_fit is None:
            return
        if self.fits_per_score != 1:
            raise ValueError("Specify fits_per_score, not scores_per_fit")
        warn(
            "scores_per_fit has been deprecated since Dask-ML v1.4.0. "
            f"Specify fits_per_score={self.scores_per_fit} instead",
            UserWarning,
            stacklevel=5,
        )

    @property
    def _calls_between(self) -> int:
        return getattr(self, "scores_per_fit", None) or self.fits_per_score

    def _get_params(self) -> Iterable[Mapping[str, Any]]:
        if self.n_initial_parameters == "grid":
            return super()._get_params()
        drawn: Iterable[Mapping[str, Any]] = ParameterSampler(
            self.parameters, self.n_initial_parameters, random_state=self.random_state
        )
        return drawn

    @property
    def _n_models(self) -> int:
        if self.n_initial_parameters == "grid":
            return len(ParameterGrid(self.parameters))
        return int(self.n_initial_parameters)

    def _additional_calls(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        """Return the calls that :meth:`_adapt` requests, in parts of at most `patience` calls.

        A model is scored after each part, so that a plateau is seen early. Without `patience`, the
        calls are not split.
        """
        patience = int(self.patience)
        made = {number: records[-1]["partial_fit_calls"] for number, records in info.items()}
        if patience and max(made.values()) > 1:
            left = {number: _target_calls(info[number]) - made[number] for number in info}
            if sum(left.values()) > 0:
                return self._capped(left, info)
        wanted = self._adapt(info)
        if patience:
            for number, calls in wanted.items():
                info[number][-1]["_adapt"] = calls
        return self._capped(wanted, info)

    def _adapt(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        """Return how often to call ``partial_fit`` for each model, regardless of plateaus."""
        return dict.fromkeys(info, self._calls_between)

    def _capped(self, calls: Mapping[int, int], info: dict[int, list[dict[str, Any]]]) -> dict[int, int]:
        patience = int(self.patience)
        left = decisions.stopped_on_plateau(
            calls, info, max_iter=self.max_iter, patience=patience, tol=self.tol
        )
        return {n: min(one, patience) for n, one in left.items()} if patience else left


def _target_calls(records: list[dict[str, Any]]) -> int:
    """Return the total number of calls that the last :meth:`_adapt` requested for a model."""
    last = [one["partial_fit_calls"] + one["_adapt"] for one in records if "_adapt" in one]
    return int(last[-1])


class InverseDecaySearchCV(IncrementalSearchCV):
    """Train models by ``partial_fit`` on blocks, and keep fewer the longer they are trained.

    It has the parameters and attributes of dask-ml's class of this name. After ``k`` calls of
    ``partial_fit``, one in ``(1 + k) ** decay_rate`` models remains.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each model. It must have ``partial_fit``, and ``score`` unless `scoring` is
        given. It may be a Dask future.
    parameters : dict or list of dict
        For each parameter a list of values or a distribution with ``rvs``.
    n_initial_parameters : int or "grid", default=10
        Number of models; "grid" is one for each combination of values.
    test_size : float, optional
        Fraction of each block that is held out to score all models, between 0 and 1. The
        default is 1 divided by the number of blocks, and at most 0.2. All held-out samples must fit
        into the memory of a worker.
    patience : int, default=False
        The training of a model ends when its score has not risen by more than `tol` within
        `patience` calls of ``partial_fit``; at least 2. False disables this check.
    tol : float, optional, default=0.001
        Minimum rise of the score, see `patience`. None or NaN disables the check.
    fits_per_score : int, default=1
        Calls of ``partial_fit`` between two scores.
    max_iter : int, default=100
        Maximum number of calls of ``partial_fit`` for a model. It is exceeded only to complete
        `fits_per_score` calls.
    random_state : int or RandomState, optional
        Seed or source of random numbers, for parameters, held-out samples and the order of blocks.
    scoring : str or callable, optional
        The metric, which must be a single number; the estimator's own ``score`` by default.
    verbose : bool or float, default=False
        Print the messages of the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        that fraction of the scores.
    prefix : str, default=""
        Text after ``[CV`` in each line of the log.
    decay_rate : float, default=1.0
        A higher rate drops models earlier.
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

    See Also
    --------
    SuccessiveHalvingSearchCV : Drops models in fewer steps.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> parameters = {"alpha": np.logspace(-5, 1, 50)}
    >>> model = SGDClassifier(random_state=0)
    >>> search = InverseDecaySearchCV(model, parameters, random_state=0)
    >>> search.fit(*load_iris(return_X_y=True)).cv_results_["partial_fit_calls"].tolist()
    [1, 1, 1, 2, 1, 2, 1, 1, 1, 1]
    """

    def __init__(  # noqa: PLR0917 - dask-ml has these arguments
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int | str = 10,
        test_size: float | None = None,
        patience: int = False,
        tol: float | None = 0.001,
        fits_per_score: int = 1,
        max_iter: int | None = 100,
        random_state: Any = None,
        scoring: Any = None,
        verbose: float = False,
        prefix: str = "",
        decay_rate: float = 1.0,
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
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.decay_rate = decay_rate
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.error_score = error_score
        self.n_jobs = n_jobs
        self.storage_path = storage_path
        self.name = name
        self.resume = resume
        self.client = client

    def _check_old_names(self) -> None:
        """Do nothing: this class has no deprecated names."""

    def _adapt(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        return decisions.inverse_decay(
            info,
            start=self._n_models,
            decay_rate=self.decay_rate,
            patience=self.patience,
            fits_per_score=self.fits_per_score,
        )
