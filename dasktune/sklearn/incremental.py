"""Searches that train models block by block, and decide after each batch who goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from warnings import warn

import numpy as np
from sklearn.model_selection import ParameterGrid, ParameterSampler

from dasktune.sklearn import policies
from dasktune.sklearn.incremental_base import BaseIncrementalSearchCV

__all__ = ["IncrementalSearchCV", "InverseDecaySearchCV"]


class IncrementalSearchCV(BaseIncrementalSearchCV):
    """Train models block by block until each has had enough.

    Takes what dask-ml's class of this name takes, and gives what it gives.

    Parameters
    ----------
    estimator : estimator object
        Each model is a clone of it. It has ``partial_fit``, and ``score`` unless there is
        `scoring`. It may be a future of Dask.
    parameters : dict or list of dict
        Values to draw from, or distributions with ``rvs``, for each parameter.
    n_initial_parameters : int or "grid", default=10
        How many models there are; "grid" is one for each combination of values.
    decay_rate : None
        Taken for compatibility; it has no effect, see `InverseDecaySearchCV`.
    test_size : float, optional
        Share of each block that is held out to score all models on, between 0 and 1. By default
        as much as one block, and at most a fifth. It must fit into the memory of a worker.
    patience : int, default=False
        A model is trained no further when its score has not risen by more than `tol` within so
        many calls of ``partial_fit``; at least 2. False looks for no plateau.
    tol : float, optional, default=0.001
        See `patience`. None or NaN looks for no plateau.
    fits_per_score : int, default=1
        Calls of ``partial_fit`` between two scores.
    max_iter : int, default=100
        Most calls of ``partial_fit`` for a model, but for what is left of `fits_per_score`.
    random_state : int or RandomState, optional
        Where randomness comes from: what is drawn, what is held out, and the order of the blocks.
    scoring : str or callable, optional
        What is scored; the estimator's own ``score`` by default. One number.
    verbose : bool or float, default=False
        Print what is logged by the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        such a share of the scores.
    prefix : str, default=""
        What each line of the log has after ``[CV``.
    scores_per_fit : int, optional
        An old name of `fits_per_score`.
    predict_meta, predict_proba_meta, transform_meta : array or data frame, optional
        An empty example of what these methods give; by default it is found out with a row of
        zeros.
    error_score : "raise" or float, default=np.nan
        Score of a model that fails, or whose worker dies four times without progress, and that is
        trained no further; "raise" raises what it raised.
    n_jobs : int, optional
        Most models that are trained at a time on a cluster. None and -1 are no limit.
    storage_path : str or path, optional
        Where the experiment is kept: a folder or any fsspec URL. By default nothing is kept.
    name : str, optional
        Name of the experiment there.
    resume : bool, default=False
        Go on with the experiment of that name if there is one; needs both, and a `random_state`
        that is an integer.
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
        A record for each score, in the order of ``elapsed_wall_time``, the seconds since the search
        began when the last of its batch was there.
    model_history_ : dict
        The records of each model, by its ``model_id``.
    best_estimator_ : estimator
        The model with the highest last score of those that were left, as it was trained.
    best_score_ : float
        Its score.
    best_index_ : int
        Its row in `cv_results_`.
    best_params_ : dict
        Its parameters.
    n_iter_ : int
        Calls of ``partial_fit`` that it has had.
    scorer_ : callable
        ``scorer_(estimator, X, y)``.

    See Also
    --------
    HyperbandSearchCV : Asks for less: only how long the best model is to be trained.

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

    def __init__(
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
        policies.check_patience(self.patience)
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
        """Return what the policy wants, in steps that are short enough to see a plateau."""
        patience = int(self.patience)
        made = {number: records[-1]["partial_fit_calls"] for number, records in info.items()}
        if patience and max(made.values()) > 1:
            left = {number: _wanted(info[number]) - made[number] for number in info}
            if sum(left.values()) > 0:
                return self._capped(left, info)
        wanted = self._adapt(info)
        if patience:
            for number, calls in wanted.items():
                info[number][-1]["_adapt"] = calls
        return self._capped(wanted, info)

    def _adapt(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        """Return what the policy wants, without a look for plateaus."""
        return dict.fromkeys(info, self._calls_between)

    def _capped(
        self, calls: Mapping[int, int], info: dict[int, list[dict[str, Any]]]
    ) -> dict[int, int]:
        patience = int(self.patience)
        left = policies.stopped_on_plateau(
            calls, info, max_iter=self.max_iter, patience=patience, tol=self.tol
        )
        return {n: min(one, patience) for n, one in left.items()} if patience else left


def _wanted(records: list[dict[str, Any]]) -> int:
    """Return how many calls the policy wanted last for a model, those before included."""
    last = [one["partial_fit_calls"] + one["_adapt"] for one in records if "_adapt" in one]
    return int(last[-1])


class InverseDecaySearchCV(IncrementalSearchCV):
    """Train models block by block, and keep fewer the longer they have been trained.

    Takes what dask-ml's class of this name takes, and gives what it gives. After ``k`` calls of
    ``partial_fit`` one in ``(1 + k) ** decay_rate`` models is left.

    Parameters
    ----------
    estimator : estimator object
        Each model is a clone of it. It has ``partial_fit``, and ``score`` unless there is
        `scoring`. It may be a future of Dask.
    parameters : dict or list of dict
        Values to draw from, or distributions with ``rvs``, for each parameter.
    n_initial_parameters : int or "grid", default=10
        How many models there are; "grid" is one for each combination of values.
    test_size : float, optional
        Share of each block that is held out to score all models on, between 0 and 1. By default
        as much as one block, and at most a fifth. It must fit into the memory of a worker.
    patience : int, default=False
        A model is trained no further when its score has not risen by more than `tol` within so
        many calls of ``partial_fit``; at least 2. False looks for no plateau.
    tol : float, optional, default=0.001
        See `patience`. None or NaN looks for no plateau.
    fits_per_score : int, default=1
        Calls of ``partial_fit`` between two scores.
    max_iter : int, default=100
        Most calls of ``partial_fit`` for a model, but for what is left of `fits_per_score`.
    random_state : int or RandomState, optional
        Where randomness comes from: what is drawn, what is held out, and the order of the blocks.
    scoring : str or callable, optional
        What is scored; the estimator's own ``score`` by default. One number.
    verbose : bool or float, default=False
        Print what is logged by the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        such a share of the scores.
    prefix : str, default=""
        What each line of the log has after ``[CV``.
    decay_rate : float, default=1.0
        The higher it is, the sooner models are given up.
    predict_meta, predict_proba_meta, transform_meta : array or data frame, optional
        An empty example of what these methods give; by default it is found out with a row of
        zeros.
    error_score : "raise" or float, default=np.nan
        Score of a model that fails, or whose worker dies four times without progress, and that is
        trained no further; "raise" raises what it raised.
    n_jobs : int, optional
        Most models that are trained at a time on a cluster. None and -1 are no limit.
    storage_path : str or path, optional
        Where the experiment is kept: a folder or any fsspec URL. By default nothing is kept.
    name : str, optional
        Name of the experiment there.
    resume : bool, default=False
        Go on with the experiment of that name if there is one; needs both, and a `random_state`
        that is an integer.
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
        A record for each score, in the order of ``elapsed_wall_time``, the seconds since the search
        began when the last of its batch was there.
    model_history_ : dict
        The records of each model, by its ``model_id``.
    best_estimator_ : estimator
        The model with the highest last score of those that were left, as it was trained.
    best_score_ : float
        Its score.
    best_index_ : int
        Its row in `cv_results_`.
    best_params_ : dict
        Its parameters.
    n_iter_ : int
        Calls of ``partial_fit`` that it has had.
    scorer_ : callable
        ``scorer_(estimator, X, y)``.

    See Also
    --------
    SuccessiveHalvingSearchCV : Gives up models in fewer steps.

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

    def __init__(
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
        """Nothing is old here."""

    def _adapt(self, info: dict[int, list[dict[str, Any]]]) -> Mapping[int, int]:
        return policies.inverse_decay(
            info,
            start=self._n_models,
            decay_rate=self.decay_rate,
            patience=self.patience,
            fits_per_score=self.fits_per_score,
        )
