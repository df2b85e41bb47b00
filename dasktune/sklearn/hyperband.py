"""Hyperband on models that are trained block by block, as dask-ml has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from warnings import warn

import numpy as np
from sklearn.utils import check_random_state

from dasktune.sklearn import policies
from dasktune.sklearn.incremental_base import BaseIncrementalSearchCV, results_of
from dasktune.sklearn.incremental_run import Contest, Outcome, Task, run_contests
from dasktune.sklearn.site import site_of
from dasktune.sklearn.successive_halving import SuccessiveHalvingSearchCV

__all__ = ["HyperbandSearchCV"]

#: Those parameters of a bracket that a `SuccessiveHalvingSearchCV` of dask-ml's takes, too.
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
    """Find the best model for a given amount of training, without a guess when to give up others.

    Takes what dask-ml's class of this name takes, and gives what it gives. Its brackets, each a
    `SuccessiveHalvingSearchCV` that gives up models sooner or later, run side by side.

    Parameters
    ----------
    estimator : estimator object
        Each model is a clone of it. It has ``partial_fit``, and ``score`` unless there is
        `scoring`. It may be a future of Dask.
    parameters : dict or list of dict
        Values to draw from, or distributions with ``rvs``, for each parameter.
    max_iter : int, default=81
        Most calls of ``partial_fit`` for a model. The paper's R.
    aggressiveness : float, default=3
        One in so many models goes on. The paper's eta.
    patience : int or bool, default=False
        A model is trained no further when its score has not risen by more than `tol` within so
        many calls of ``partial_fit``. True is ``max_iter // aggressiveness``, and less is seldom
        wise: Hyperband gives up models by itself.
    tol : float, optional, default=0.001
        See `patience`. None or NaN looks for no plateau.
    test_size : float, optional
        Share of each block that is held out to score all models on, between 0 and 1. By default
        as much as one block, and at most a fifth. It must fit into the memory of a worker.
    random_state : int or RandomState, optional
        Where randomness comes from: what is drawn, what is held out, and the order of the blocks.
    scoring : str or callable, optional
        What is scored; the estimator's own ``score`` by default. One number.
    verbose : bool or float, default=False
        Print what is logged by the logger ``dasktune.sklearn``; a number between 0 and 1 logs about
        such a share of the scores.
    prefix : str, default=""
        What each line of the log has after ``[CV``.
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
    metadata, metadata_ : dict
        ``n_models`` and ``partial_fit_calls``: what will be done at most, and what was done; and
        ``brackets``, a list of dicts with these and ``bracket``, ``decisions`` (after how many
        calls it decides) and ``SuccessiveHalvingSearchCV params``.

    Notes
    -----
    A call of ``partial_fit`` sees one block of the data. If a model needs ``n_examples`` samples,
    some of them several times, and about ``n_params`` parameters are to be tried, let ``max_iter``
    be ``n_params``, and blocks have ``n_examples / n_params`` samples.

    `model_id` is ``"bracket=s-i"`` for model i of bracket s, and records have ``bracket``, too.

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

    def __init__(
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
        """What will be done at most."""
        brackets = policies.simulated_brackets(self.max_iter, self.aggressiveness)
        searches = self._searches()
        for bracket in brackets:
            bracket["SuccessiveHalvingSearchCV params"] = _params_of(searches[bracket["bracket"]])
        return _total(brackets)

    @property
    def _patience(self) -> int:
        """How long a model may show no progress."""
        if isinstance(self.patience, bool):
            return self.patience and policies.default_patience(self.max_iter, self.aggressiveness)
        return int(self.patience)

    def _searches(self) -> dict[int, SuccessiveHalvingSearchCV]:
        """Return the search of each bracket, the most adaptive one first."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        sizes = policies.bracket_sizes(self.max_iter, self.aggressiveness)
        return {
            bracket: SuccessiveHalvingSearchCV(
                self.estimator,
                self.parameters,
                n_initial_parameters=n_models,
                n_initial_iter=n_calls,
                max_iter=self.max_iter,
                aggressiveness=self.aggressiveness,
                test_size=self.test_size,
                patience=self._patience,
                tol=self.tol,
                random_state=seed + bracket if bracket else self.random_state,
                scoring=self.scoring,
                verbose=self.verbose,
                prefix=f"{self.prefix}, bracket={bracket}",
                error_score=self.error_score,
            )
            for bracket, (n_models, n_calls) in sizes.items()
        }

    def _warn_of_patience(self) -> None:
        least = policies.default_patience(self.max_iter, self.aggressiveness)
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

    def _run(self, task: Task) -> None:
        self._warn_of_patience()
        searches = self._SuccessiveHalvings_ = self._searches()
        for search in searches.values():
            search._check_arguments()
        contests = [
            Contest(search=search, most_calls=search.metadata["max_iter"])
            for search in searches.values()
        ]
        outcomes = run_contests(task, contests, site_of(self.client, self.n_jobs), self._keep(task))
        for bracket, outcome in zip(searches, outcomes, strict=True):
            _take(searches[bracket], bracket, outcome, task)
        self._join(searches)

    def _join(self, searches: Mapping[int, SuccessiveHalvingSearchCV]) -> None:
        """Set the attributes of what has been fitted bracket by bracket."""
        history = [record for search in searches.values() for record in search.history_]
        self.history_ = sorted(history, key=lambda record: record["elapsed_wall_time"])
        self.model_history_ = {
            name: records
            for search in searches.values()
            for name, records in search.model_history_.items()
        }
        self.cv_results_ = results_of(self.model_history_)
        self.cv_results_["bracket"] = np.array(
            [records[0]["bracket"] for records in self.model_history_.values()]
        )
        done = [_done(bracket, searches[bracket]) for bracket in sorted(searches)]
        done[:-1] = [
            {**one, "decisions": [calls for calls in one["decisions"] if calls != 1]}
            for one in done[:-1]
        ]
        self.metadata_ = _total(done)
        best = max(searches.values(), key=_best_score)
        name = best.cv_results_["model_id"][best.best_index_]
        self.best_index_ = list(self.model_history_).index(name)
        self.best_estimator_ = best.best_estimator_
        self.best_score_ = best.best_score_
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        self.multimetric_ = False
        self._take_from_best()


def _take(search: Any, bracket: int, outcome: Outcome, task: Task) -> None:
    """Set the attributes of a bracket, whose models get names that no others have."""
    search._take(outcome)
    search.scorer_ = task.scorer
    for record in search.history_:
        record["model_id"] = f"bracket={bracket}-{record['model_id']}"
        record["bracket"] = bracket
    search.model_history_ = {
        records[0]["model_id"]: records for records in search.model_history_.values()
    }
    search.cv_results_["model_id"] = np.array(list(search.model_history_))


def _best_score(search: Any) -> float:
    if search.best_estimator_ is None:
        return -math.inf
    return float(np.nan_to_num(search.best_score_, nan=-math.inf))


def _done(bracket: int, search: SuccessiveHalvingSearchCV) -> dict[str, Any]:
    """Return what was done in a bracket."""
    histories = search.model_history_.values()
    return {
        "bracket": bracket,
        "n_models": len(histories),
        "partial_fit_calls": sum(records[-1]["partial_fit_calls"] for records in histories),
        "decisions": sorted({one["partial_fit_calls"] for one in search.history_}),
        "SuccessiveHalvingSearchCV params": _params_of(search),
    }


def _total(brackets: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n_models": sum(bracket["n_models"] for bracket in brackets),
        "partial_fit_calls": sum(bracket["partial_fit_calls"] for bracket in brackets),
        "brackets": brackets,
    }


def _params_of(search: SuccessiveHalvingSearchCV) -> dict[str, Any]:
    params = search.get_params(deep=False)
    return {name: params[name] for name in _BRACKET_PARAMS}
