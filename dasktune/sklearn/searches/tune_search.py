"""``TuneSearchCV``: a search with cross-validation, with any searcher and any trial scheduler."""

from __future__ import annotations

import numbers
import pickle
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import check
from dasktune.search import SearchAlgorithm, Searcher, create_searcher
from dasktune.sklearn.compat import Interval, Options
from dasktune.sklearn.fits.search_experiment import SearchOutcome
from dasktune.sklearn.searches.base import FitTask
from dasktune.sklearn.searches.tune_base import BaseTuneSearchCV
from dasktune.sklearn.searches.tune_sklearn_names import own_argument, ranges_as_domains
from dasktune.sklearn.steps.candidate_space import (
    CandidateQueue,
    CandidateSpace,
    check_candidates,
    example_candidates,
    sample_candidates,
)


class TuneSearchCV(BaseTuneSearchCV):
    """Search with any searcher, and stop candidates early with any trial scheduler, on Dask.

    Each candidate is a trial. With ``max_iters > 1`` each step trains an estimator on each split a
    little further and reports the mean test score, by which `scheduler` stops, pauses or clones the
    trial. Steps without a decision may be deferred, see the notes. With ``max_iters=1`` a step is a
    whole fit on the next split.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each candidate and split.
    param_distributions : dict or list of dict
        For each parameter a list of values, a distribution of scipy.stats or Optuna, or a domain
        such as ``dasktune.loguniform(1e-4, 1)``; or a list of such dicts.
    n_iter : int, default=10
        Number of candidates. -1 is no limit; then `time_budget_s` or `stop` must end the search.
    search_alg : Searcher, SearchAlgorithm or str, optional
        The searcher that suggests candidates, such as "optuna". By default they are sampled at
        random: the same `random_state` gives the candidates of scikit-learn's `RandomizedSearchCV`.
    scheduler : TrialScheduler, str or bool, optional
        The scheduler that stops candidates early. True means "asha". A scheduler given by name gets
        ``max_t=max_iters``; an object is copied. With None or False no candidate is stopped.
    max_iters : int, default=1
        Maximum number of steps of a candidate, counted by "training_iteration".
    budget : str, default="auto"
        The quantity that a step adds to. "partial_fit": calls of ``partial_fit``; "max_iter" or
        "n_estimators": that parameter, by ``warm_start``; "boosting": rounds of XGBoost, LightGBM
        or CatBoost; "n_samples": samples, so that the last step fits with all of them; "folds": a
        step is a whole fit on the next split. "auto" takes the first of these that the estimator,
        or the last step of a pipeline, supports with all searched values, but never "n_samples".
        It takes "folds" if there is none, and with ``max_iters=1``.
    iters_per_step : int, default=1
        Number of calls, iterations, trees or rounds that a step adds.
    scoring : str, callable, list, tuple or dict, optional
        The metric or metrics; the estimator's own ``score`` by default.
    metric : str, optional
        With several metrics, the name of the metric by which `scheduler` and `search_alg` judge
        candidates. It is only needed if `refit` does not name one, but is False or a function.
    mode : {"min", "max"}, default="max"
        "min" if a lower score is better, as with ``make_scorer(mean_squared_error)``. With several
        metrics it applies to the metric that candidates are judged by. None means "max".
    n_jobs : int, optional
        Maximum number of candidates that are trained at a time on a cluster. None and -1 mean
        no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, with as many steps as its row of `cv_results_` says. The
        refit runs in this process, or on a worker if X stays on the cluster. With several metrics,
        give the name of the metric to choose the best candidate by, or a function of `cv_results_`
        that returns the index of the best candidate.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        1 prints a line of progress; 2 also prints each whole fit, in the process that runs it.
    random_state : int or RandomState, optional
        Seed or source of random numbers.
    error_score : "raise" or float, default=np.nan
        Score of a split on which a candidate fails, and of all splits of a candidate that loses
        its worker four times; "raise" raises the exception.
    return_train_score : bool, default=False
        Score the training samples of each split, too.
    resources_per_trial : dict, Resources, PlacementGroupFactory or callable, optional
        The resources of a candidate, such as ``{"cpu": 1, "gpu": 1}``; one CPU by default.
    stop : mapping, callable, Stopper or list of Stopper, optional
        Further criteria that end a candidate, such as ``{"mean_test_score": 0.99}``.
    time_budget_s : float or timedelta, optional
        Seconds after which the search ends. It warns if only some candidates were scored by then,
        and raises ConfigError if none was.
    storage_path : str or path, optional
        The storage of the experiment: a folder or any fsspec URL. By default nothing is stored.
    name : str, optional
        Name of the experiment in `storage_path`.
    resume : bool, default=False
        Resume the experiment of that name if there is one; needs `storage_path` and `name`.
    callbacks : list of Callback, optional
        Callbacks for the events of the trials.
    max_failures : int, default=0
        How often a step that raises is tried again.
    checkpoint_frequency : int, optional
        Number of steps between two checkpoints of a candidate; the loss of a worker costs at most
        this many. 0 saves a checkpoint only when a candidate is paused. By default, one is saved
        after each ten seconds of training.
    search_kwargs : dict, optional
        Arguments of the searcher's constructor, if `search_alg` is a name.
    early_stopping : TrialScheduler, str or bool, optional
        tune-sklearn's name of `scheduler`; also takes names of classes, such as "ASHAScheduler".
    n_trials : int, optional
        tune-sklearn's name of `n_iter`.
    search_optimization : Searcher or str, optional
        tune-sklearn's name of `search_alg`. With it, unless it is "random", a tuple in
        `param_distributions` is a range, as in tune-sklearn: (low, high) or
        (low, high, "log-uniform"). "bayesian" is the searcher "optuna"; "bohb" implies the
        scheduler "hb_bohb".
    stopper : Stopper, optional
        tune-sklearn's name of `stop`.
    local_dir : str or path, optional
        tune-sklearn's name of `storage_path`.
    use_gpu : bool, default=False
        Whether each candidate gets a CPU and a GPU, as with
        ``resources_per_trial={"cpu": 1, "gpu": 1}``.
    loggers : list of str or Callback, optional
        Further callbacks: "csv", "json", "tensorboard" or "mlflow". They need `storage_path`.
    pipeline_auto_early_stop : bool, default=True
        Whether the last step of a pipeline may be trained step by step. If not, and ``budget`` is
        "auto", a step is a whole fit on the next split.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, candidates
        are trained in this process, one after the other.

    Attributes
    ----------
    cv_results_ : dict of str to array
        A row for each candidate, with scikit-learn's keys. When candidates are trained step by
        step or stopped early also "training_iteration", "trial_id", "status" and "time_total_s".
        The status is "TERMINATED" or "ERROR", or "PENDING" if the search ended before the candidate
        began.
    results_ : ResultGrid
        The trials as `Tuner.fit` returns them, with all their steps.
    n_trials_ : int
        Number of trials.
    stopped_early_ : ndarray of bool
        Whether the scheduler ended a candidate before its last step.
    searcher_ : Searcher or SearchAlgorithm
        The searcher that has suggested the candidates; not set without `search_alg`. With "optuna",
        ``searcher_.study`` is the study. A pickle of the search lacks it if it cannot be pickled.
    budget_ : str
        The budget that was used.
    best_iteration_ : int
        Number of steps of the best candidate; not set with the budget "folds".

    Notes
    -----
    All other attributes and methods are those of scikit-learn's `RandomizedSearchCV`.

    ASHA, HyperBand and successive halving compare candidates only at some steps. The training of
    the steps between is deferred, as long as it takes less than five seconds and less than a tenth
    of `time_budget_s`. The next compared step trains for all of them at once and is scored. That
    saves fits and scores, and the decisions are the same. Steps are not deferred if `search_alg`,
    `stop` or `callbacks` is given, because these may use each score. Nor are they deferred with
    other schedulers, without a scheduler, or with ``checkpoint_frequency=1``.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = TuneSearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-4, 1)},
    ...     n_iter=4, scheduler="asha", max_iters=8, random_state=0,
    ... )
    >>> search = search.fit(*load_iris(return_X_y=True))
    >>> search.budget_, search.n_trials_
    ('partial_fit', 4)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseTuneSearchCV._parameter_constraints,
        "param_distributions": [dict, list],
        "n_iter": [Interval(numbers.Integral, 1, None, closed="left"), Options(numbers.Integral, {-1})],
        "search_alg": [Searcher, SearchAlgorithm, str, None],
        "random_state": ["random_state"],
        "n_trials": [Interval(numbers.Integral, 1, None, closed="left"), None],
        "search_optimization": [Searcher, SearchAlgorithm, str, None],
        "search_kwargs": [dict, None],
    }

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        search_alg: Any = None,
        scheduler: Any = None,
        max_iters: int = 1,
        budget: str = "auto",
        iters_per_step: int = 1,
        scoring: Any = None,
        metric: str | None = None,
        mode: str | None = "max",
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        resources_per_trial: Any = None,
        stop: Any = None,
        time_budget_s: Any = None,
        storage_path: Any = None,
        name: str | None = None,
        resume: bool = False,
        callbacks: Any = None,
        max_failures: int = 0,
        checkpoint_frequency: int | None = None,
        search_kwargs: dict[str, Any] | None = None,
        early_stopping: Any = None,
        n_trials: int | None = None,
        search_optimization: Any = None,
        stopper: Any = None,
        local_dir: Any = None,
        use_gpu: bool = False,
        loggers: Any = None,
        pipeline_auto_early_stop: bool = True,
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            scheduler=scheduler,
            max_iters=max_iters,
            budget=budget,
            iters_per_step=iters_per_step,
            scoring=scoring,
            metric=metric,
            mode=mode,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            error_score=error_score,
            return_train_score=return_train_score,
            resources_per_trial=resources_per_trial,
            stop=stop,
            time_budget_s=time_budget_s,
            storage_path=storage_path,
            name=name,
            resume=resume,
            callbacks=callbacks,
            max_failures=max_failures,
            checkpoint_frequency=checkpoint_frequency,
            early_stopping=early_stopping,
            stopper=stopper,
            local_dir=local_dir,
            use_gpu=use_gpu,
            loggers=loggers,
            pipeline_auto_early_stop=pipeline_auto_early_stop,
            client=client,
        )
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.search_alg = search_alg
        self.random_state = random_state
        self.search_kwargs = search_kwargs
        self.n_trials = n_trials
        self.search_optimization = search_optimization

    @property
    def _search_alg(self) -> Any:
        chosen = own_argument(self, "search_alg")
        # scikit-learn's sampler needs to know the number of candidates.
        return "random" if chosen is None and self._n_samples == -1 else chosen

    @property
    def _scheduler(self) -> Any:
        # tune-sklearn always combines this searcher with this scheduler.
        is_bohb = isinstance(self.search_optimization, str) and self.search_optimization.lower() == "bohb"
        chosen = super()._scheduler
        return "hb_bohb" if is_bohb and (chosen is None or chosen is True) else chosen

    @property
    def _distributions(self) -> Any:
        if self.search_optimization is None or own_argument(self, "search_alg") is None:
            return self.param_distributions
        return ranges_as_domains(self.param_distributions)

    @property
    def _n_samples(self) -> int:
        return int(own_argument(self, "n_iter"))

    def _candidate_space(self) -> CandidateSpace | None:
        return None if self._search_alg is None else CandidateSpace(self._distributions)

    def _choosing_arguments(self) -> dict[str, Any]:
        # Searches that were stored before this argument existed do not have it.
        newer = {"search_kwargs": self.search_kwargs} if self.search_kwargs else {}
        return {
            "param_distributions": self.param_distributions,
            "n_iter": self._n_samples,
            "random_state": self.random_state,
            "search_alg": self._search_alg,
            **newer,
        }

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        try:
            pickle.dumps(state.get("searcher_"))
        except Exception:  # a searcher may be any object of the user
            del state["searcher_"]
        return state

    def _keep(self, search_outcome: SearchOutcome) -> None:
        if self._search_alg is not None:
            search = search_outcome.experiment.search
            self.searcher_ = getattr(search, "searcher", search)

    def _searcher(self, task: FitTask) -> Any:
        chosen = self._search_alg
        check(
            self._n_samples != -1 or self.time_budget_s is not None or self._stop is not None,
            "time_budget_s or stop",
            "given with n_iter=-1",
            (self.time_budget_s, self._stop),
        )
        check(
            not self.search_kwargs or isinstance(chosen, str),
            "search_kwargs",
            "empty, unless search_alg is the name of a searcher",
            self.search_kwargs,
        )
        if chosen is not None:
            check_candidates(task.estimator, example_candidates(self._distributions))
            return create_searcher(chosen, **self.search_kwargs) if self.search_kwargs else deepcopy(chosen)
        candidates = sample_candidates(self._distributions, self._n_samples, self.random_state)
        check_candidates(task.estimator, candidates)
        return CandidateQueue(candidates)
