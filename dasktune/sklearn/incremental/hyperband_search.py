"""``HyperbandSearchCV``: dask-ml's Hyperband for models with ``partial_fit``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from warnings import warn

import numpy as np
from sklearn.utils import check_random_state

from dasktune.sklearn.fits.backend import choose_backend
from dasktune.sklearn.incremental import decisions
from dasktune.sklearn.incremental.base import BaseIncrementalSearchCV, format_results
from dasktune.sklearn.incremental.bracket_run import (
    BracketOutcome,
    BracketRun,
    BracketTask,
    run_brackets,
)
from dasktune.sklearn.incremental.successive_halving_search import SuccessiveHalvingSearchCV

#: The parameters that dask-ml's `SuccessiveHalvingSearchCV` has, too; `metadata` shows them.
_BRACKET_PARAMS = (
    "aggressiveness",
    "max_iter",
    "n_initial_iter",
    "n_initial_parameters",
    "patience",
    "prefix",
    "random_state",
    "scoring",
    "test_size",
    "tol",
    "verbose",
)


class HyperbandSearchCV(BaseIncrementalSearchCV):
    """Find the best model for a given amount of training by Hyperband.

    It has the parameters and attributes of dask-ml's class of this name. Its brackets run in
    parallel. Each bracket is a `SuccessiveHalvingSearchCV`. The brackets differ in how early they
    drop models.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each model. It must have ``partial_fit``, and ``score`` unless `scoring` is
        given. It may be a Dask future.
    parameters : dict or list of dict
        For each parameter a list of values or a distribution with ``rvs``.
    max_iter : int, default=81
        Maximum number of calls of ``partial_fit`` for a model. The paper's R.
    aggressiveness : float, default=3
        One in `aggressiveness` models continues to the next round. The paper's eta.
    patience : int or bool, default=False
        The training of a model ends when its score has not risen by more than `tol` within
        `patience` calls of ``partial_fit``. True means ``max_iter // aggressiveness``. A smaller
        value is seldom useful, because Hyperband stops bad models itself.
    tol : float, optional, default=0.001
        Minimum rise of the score, see `patience`. None or NaN disables the check.
    test_size : float, optional
        Fraction of each block that is held out to score all models, between 0 and 1. The
        default is 1 divided by the number of blocks, and at most 0.2. All held-out samples must fit
        into the memory of a worker.
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
        The number of models, ``n_models``, and of calls, ``partial_fit_calls``: `metadata` has the
        maximum of a search, `metadata_` has the counts of the fitted search. ``brackets`` is a list
        with a dict for each bracket: both counts, its number ``bracket``, ``decisions`` (the
        numbers of calls at which the bracket compares models) and ``SuccessiveHalvingSearchCV
        params``.

    Notes
    -----
    A call of ``partial_fit`` trains on one block of the data. If a model needs ``n_examples``
    samples, repetitions included, and you want to try about ``n_params`` parameters, set
    ``max_iter=n_params`` and use blocks of ``n_examples / n_params`` samples.

    The `model_id` of model i in bracket s is ``"bracket=s-i"``. The records in `history_` have
    ``bracket``, too.

    References
    ----------
    .. [1] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
       JMLR 18 (2018), arXiv:1603.06560.
    .. [2] Sievert, Augspurger and Rocklin, "Better and faster hyperparameter optimization with
       Dask", SciPy 2019, doi:10.25080/Majora-7ddc1dd1-011.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> parameters = {"alpha": np.logspace(-5, 1, 50)}
    >>> search = HyperbandSearchCV(SGDClassifier(), parameters, max_iter=9, random_state=0)
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (17, 69)
    >>> len(search.fit(*load_iris(return_X_y=True)).cv_results_["params"])
    17
    """

    def __init__(  # noqa: PLR0917 - dask-ml has these arguments
        self,
        estimator: Any,
        parameters: Any,
        max_iter: int = 81,
        aggressiveness: float = 3,
        patience: int = False,
        tol: float | None = 1e-3,
        test_size: float | None = None,
        random_state: Any = None,
        scoring: Any = None,
        verbose: float = False,
        prefix: str = "",
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
        self.max_iter = max_iter
        self.aggressiveness = aggressiveness
        self.patience = patience
        self.tol = tol
        self.test_size = test_size
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

    @property
    def metadata(self) -> dict[str, Any]:
        """The maximum number of models and of ``partial_fit`` calls, in total and by bracket."""
        brackets = decisions.simulated_brackets(self.max_iter, self.aggressiveness)
        searches = self._bracket_searches()
        for bracket in brackets:
            bracket["SuccessiveHalvingSearchCV params"] = _bracket_params(searches[bracket["bracket"]])
        return _total_metadata(brackets)

    @property
    def _plateau_calls(self) -> int:
        """The number of calls without progress after which a model stops; 0 disables this."""
        if isinstance(self.patience, bool):
            return self.patience and decisions.default_patience(self.max_iter, self.aggressiveness)
        return int(self.patience)

    def _bracket_searches(self) -> dict[int, SuccessiveHalvingSearchCV]:
        """Return the search of each bracket by its number, the highest number first."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        sizes = decisions.bracket_sizes(self.max_iter, self.aggressiveness)
        return {
            bracket: SuccessiveHalvingSearchCV(
                self.estimator,
                self.parameters,
                n_initial_parameters=n_models,
                n_initial_iter=n_calls,
                max_iter=self.max_iter,
                aggressiveness=self.aggressiveness,
                test_size=self.test_size,
                patience=self._plateau_calls,
                tol=self.tol,
                random_state=seed + bracket if bracket else self.random_state,
                scoring=self.scoring,
                verbose=self.verbose,
                prefix=f"{self.prefix}, bracket={bracket}",
                error_score=self.error_score,
            )
            for bracket, (n_models, n_calls) in sizes.items()
        }

    def _warn_of_small_patience(self) -> None:
        least = decisions.default_patience(self.max_iter, self.aggressiveness)
        looks = self.tol is not None and not np.isnan(self.tol)
        if isinstance(self.patience, bool) or self.patience >= least or not looks:
            return
        warn(
            "The goal of `patience` is to stop training estimators that have already converged "
            "*when few estimators remain*. Hyperband is already an (almost optimal) adaptive "
            "scheme, and patience should be large to be a minimal layer on top of Hyperband. \n\n"
            "To clear this warning, set \n\n"
            "    * patience=True\n"
            f"    * patience >= {least}\n"
            "    * tol=None or tol=np.nan\n\n"
            f"instead of patience={self.patience} ",
            UserWarning,
            stacklevel=5,
        )

    def _run(self, task: BracketTask) -> None:
        self._warn_of_small_patience()
        searches = self._SuccessiveHalvings_ = self._bracket_searches()
        for search in searches.values():
            search._check_arguments()
        runs = [
            BracketRun(search=search, max_calls=search.metadata["max_iter"]) for search in searches.values()
        ]
        outcomes = run_brackets(
            task, runs, choose_backend(self.client, self.n_jobs), self._storage_options(task)
        )
        for bracket, outcome in zip(searches, outcomes, strict=True):
            _set_bracket_results(searches[bracket], bracket, outcome, task)
        self._merge_results(searches)

    def _merge_results(self, searches: Mapping[int, SuccessiveHalvingSearchCV]) -> None:
        """Set the attributes of the search from the results of its brackets."""
        history = [record for search in searches.values() for record in search.history_]
        self.history_ = sorted(history, key=lambda record: record["elapsed_wall_time"])
        self.model_history_ = {
            name: records for search in searches.values() for name, records in search.model_history_.items()
        }
        self.cv_results_ = format_results(self.model_history_)
        self.cv_results_["bracket"] = np.array(
            [records[0]["bracket"] for records in self.model_history_.values()]
        )
        self.metadata_ = _total_metadata(
            [_bracket_metadata(number, searches[number]) for number in sorted(searches)]
        )
        best = max(searches.values(), key=_best_score)
        name = best.cv_results_["model_id"][best.best_index_]
        self.best_index_ = list(self.model_history_).index(name)
        self.best_estimator_ = best.best_estimator_
        self.best_score_ = best.best_score_
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        self.multimetric_ = False
        self._copy_from_best()


def _set_bracket_results(search: Any, bracket: int, outcome: BracketOutcome, task: BracketTask) -> None:
    """Set the attributes of a bracket's search; add the bracket to each `model_id`."""
    search._set_results(outcome)
    search.scorer_ = task.scorer
    for record in search.history_:
        record["model_id"] = f"bracket={bracket}-{record['model_id']}"
        record["bracket"] = bracket
    search.model_history_ = {records[0]["model_id"]: records for records in search.model_history_.values()}
    search.cv_results_["model_id"] = np.array(list(search.model_history_))


def _best_score(search: Any) -> float:
    if search.best_estimator_ is None:
        return -math.inf
    return float(np.nan_to_num(search.best_score_, nan=-math.inf))


def _bracket_metadata(bracket: int, search: SuccessiveHalvingSearchCV) -> dict[str, Any]:
    """Return the metadata of a fitted bracket."""
    histories = search.model_history_.values()
    # All models are scored after their first call. That is a decision only if the first round of
    # halving has a single call.
    scored = {one["partial_fit_calls"] for one in search.history_}
    return {
        "bracket": bracket,
        "n_models": len(histories),
        "partial_fit_calls": sum(records[-1]["partial_fit_calls"] for records in histories),
        "decisions": sorted(scored - ({1} if search.n_initial_iter != 1 else set())),
        "SuccessiveHalvingSearchCV params": _bracket_params(search),
    }


def _total_metadata(brackets: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n_models": sum(bracket["n_models"] for bracket in brackets),
        "partial_fit_calls": sum(bracket["partial_fit_calls"] for bracket in brackets),
        "brackets": brackets,
    }


def _bracket_params(search: SuccessiveHalvingSearchCV) -> dict[str, Any]:
    params = search.get_params(deep=False)
    return {name: params[name] for name in _BRACKET_PARAMS}
