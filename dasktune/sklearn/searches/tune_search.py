"""``TuneSearchCV``: a search with cross-validation, with any searcher and any trial scheduler."""

from __future__ import annotations

import numbers
import uuid
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, check
from dasktune.schedulers import TrialScheduler, create_scheduler
from dasktune.search import SearchAlgorithm, Searcher
from dasktune.sklearn.compat import (
    BaseSearchCV,
    Interval,
    MultimetricScorer,
    StrOptions,
    insert_error_scores,
    warn_or_raise_about_fit_failures,
)
from dasktune.sklearn.fits.backend import choose_backend
from dasktune.sklearn.fits.class_labels import classes_of, labels_of
from dasktune.sklearn.fits.engine import Backend
from dasktune.sklearn.fits.fit_and_score import NOTHING_FITTED, Data, Split
from dasktune.sklearn.fits.search_experiment import SearchExperiment, run_experiment
from dasktune.sklearn.searches.base import AsyncFitMixin, ClusterSearchCV, FitTask
from dasktune.sklearn.searches.plots import plain_params
from dasktune.sklearn.searches.predictions import BlockwisePredictions
from dasktune.sklearn.steps.candidate import CandidateJob
from dasktune.sklearn.steps.candidate_space import (
    CandidateQueue,
    CandidateSpace,
    check_candidates,
    estimator_variants,
    example_candidates,
    sample_candidates,
)
from dasktune.sklearn.steps.candidate_trial import SCORE, CandidateTrial, check_metric
from dasktune.sklearn.steps.cv_results import CvResults
from dasktune.sklearn.steps.training_modes import (
    BUDGETS,
    TrainingData,
    check_no_collisions,
    choose_mode,
    final_estimator,
)
from dasktune.space.secret import secrets_in
from dasktune.trainable import with_parameters, with_resources
from dasktune.tuner.result_grid import ResultGrid

__all__ = ["TuneSearchCV"]

#: Seconds of training that may be deferred to the next decision of the scheduler.
_MAX_DEFERRED_SECONDS: Final = 5.0


class TuneSearchCV(AsyncFitMixin, BlockwisePredictions, ClusterSearchCV):
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
        Number of candidates.
    search_alg : Searcher, SearchAlgorithm or str, optional
        The searcher that suggests candidates, such as "optuna". By default they are sampled at
        random: the same `random_state` gives the candidates of scikit-learn's `RandomizedSearchCV`.
    scheduler : TrialScheduler, str or bool, optional
        The scheduler that stops candidates early. True means "asha". A scheduler given by name gets
        ``max_t=max_iters``; an object is copied. With None or False no candidate is stopped.
        tune-sklearn calls this ``early_stopping``.
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
        **BaseSearchCV._parameter_constraints,
        "param_distributions": [dict, list],
        "n_iter": [Interval(numbers.Integral, 1, None, closed="left")],
        "search_alg": [Searcher, SearchAlgorithm, str, None],
        "scheduler": [TrialScheduler, str, "boolean", None],
        "metric": [str, None],
        "max_iters": [Interval(numbers.Integral, 1, None, closed="left")],
        "budget": [StrOptions(set(BUDGETS))],
        "iters_per_step": [Interval(numbers.Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "resume": ["boolean"],
        "max_failures": [Interval(numbers.Integral, 0, None, closed="left")],
        "checkpoint_frequency": [Interval(numbers.Integral, 0, None, closed="left"), None],
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
        client: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        # The parent sets `pre_dispatch`, which is not a parameter of this class.
        del self.pre_dispatch
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.search_alg = search_alg
        self.scheduler = scheduler
        self.metric = metric
        self.max_iters = max_iters
        self.budget = budget
        self.iters_per_step = iters_per_step
        self.random_state = random_state
        self.resources_per_trial = resources_per_trial
        self.stop = stop
        self.time_budget_s = time_budget_s
        self.storage_path = storage_path
        self.name = name
        self.resume = resume
        self.callbacks = callbacks
        self.max_failures = max_failures
        self.checkpoint_frequency = checkpoint_frequency
        self.client = client

    @property
    def trials_(self) -> Any:
        """A table with a row for each trial. Needs pandas."""
        return self.results_.get_dataframe()

    def _to_plot(self) -> ResultGrid:
        # Figures show all steps of each trial, and the user's parameters instead of the values that
        # the searcher suggested.
        found = []
        for params, result in zip(self.cv_results_["params"], self.results_, strict=True):
            rows = [{k: v for k, v in row.items() if k != "outcomes"} for row in result.history]
            found.append(replace(result, config=plain_params(params), history=rows))
        return ResultGrid(found, self.results_.experiment_path, metric=SCORE, mode="max")

    # Methods that fit() of the parent calls

    def _search(self, task: FitTask) -> tuple[dict[str, Any], Any]:
        self._check_parts(task)
        backend = choose_backend(self.client, self.n_jobs)
        job = self._candidate_job(task, backend)
        plan = self._search_experiment(task, job)
        self.budget_ = job.budget
        with run_experiment(plan, backend) as search_outcome:
            rows = CvResults(job, search_outcome, is_lean=self._is_plain(job))
            self.results_ = search_outcome.results
        queue = plan.tune_config.search_alg
        n_candidates = queue.total_samples if isinstance(queue, CandidateQueue) else self.n_iter
        self._check_scored(rows, n_candidates or 0)
        self.n_trials_ = len(rows.trials)
        self.stopped_early_ = np.array([trial.stopped_early for trial in rows.trials], dtype=bool)
        warn_or_raise_about_fit_failures(rows.outcomes, self.error_score)
        if callable(self.scoring):
            insert_error_scores(rows.outcomes, self.error_score)
        with warnings.catch_warnings():
            if rows.is_partial:
                # Candidates that ended before their last split have NaN as mean, on purpose.
                warnings.filterwarnings("ignore", message="One or more of the t", category=UserWarning)
            results = self._format_results(rows.candidates, self.n_splits_, rows.outcomes, rows.columns)
        return results, self._deciding_metric(task, rows.first)

    def _check_scored(self, rows: CvResults, n_candidates: int) -> None:
        """Raise if the search ended before a candidate was scored, and warn if only some were."""
        if self.time_budget_s is None or not rows.n_unfinished:
            return
        n_all = max(n_candidates, len(rows.trials))
        if not rows.n_scored:
            check(
                False,
                "time_budget_s",
                f"long enough to score a candidate on all splits, and it ended before the first of {n_all}",
                self.time_budget_s,
                "Give more time, fewer splits (cv) or fewer samples.",
            )
        warnings.warn(
            f"{rows.n_scored} of {n_all} candidates were scored when time_budget_s={self.time_budget_s!r} "
            "ended. The best one is the best of these.",
            stacklevel=6,
        )

    def _set_best(self, results: Mapping[str, Any], metric: Any) -> None:
        super()._set_best(results, metric)
        if self.budget_ != "folds" and hasattr(self, "best_index_"):
            self.best_iteration_ = int(results["training_iteration"][self.best_index_])

    _refit_attributes = ("budget", "budget_", "iters_per_step", "max_iters", "best_iteration_")

    def _fit_best(self, best: Any, data: Data, params: Mapping[str, Any]) -> None:
        if self.budget_ == "folds":
            super()._fit_best(best, data, params)
            return
        mode = choose_mode(
            best,
            self.budget_,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=_classes(best, data.y),
        )
        assert mode is not None, "the candidates were trained by this mode"
        mode.fit_steps(best, TrainingData(X=data.X, y=data.y, params=params), self.best_iteration_)

    # The experiment

    def _is_plain(self, job: CandidateJob) -> bool:
        """Whether `cv_results_` has scikit-learn's columns only."""
        return job.by_folds and not self.scheduler

    def _may_defer_steps(self, scheduler: TrialScheduler | None) -> bool:
        """Whether no component uses the scores between the scheduler's milestones."""
        others = self.search_alg, self.stop, self.callbacks or None
        looks = scheduler is None or scheduler.looks_between
        return not looks and others == (None, None, None)

    def _max_deferred_seconds(self) -> float:
        """Return the maximum seconds of training that may be deferred."""
        budget = TuneConfig(time_budget_s=self.time_budget_s).time_budget
        # Deferred steps are trained in one go, which the time budget cannot interrupt.
        return _MAX_DEFERRED_SECONDS if budget is None else min(_MAX_DEFERRED_SECONDS, budget / 10)

    def _check_parts(self, task: FitTask) -> None:
        """Check that the arguments are compatible with each other."""
        several = isinstance(task.scorer, MultimetricScorer)
        if several and (self._judges or self.metric is not None):
            check_metric(list(task.scorer._scorers), self._judged_metric)
        check(
            several or callable(self.scoring) or self.metric is None,
            "metric",
            "None, unless scoring gives several metrics",
            self.metric,
        )
        check(
            not self.resume or (self.storage_path is not None and self.name is not None),
            "storage_path and name",
            "given with resume=True",
            (self.storage_path, self.name),
        )

    @property
    def _judged_metric(self) -> str | None:
        """The name of the metric that a scheduler or searcher optimises, with several metrics."""
        return self.refit if self.metric is None and isinstance(self.refit, str) else self.metric

    @property
    def _judges(self) -> bool:
        """Whether a scheduler or searcher compares candidates while they are trained."""
        return bool(self.scheduler) or self.search_alg is not None

    def _candidate_job(self, task: FitTask, backend: Backend) -> CandidateJob:
        classes = _classes(task.estimator, task.y)
        budget = self.budget
        if budget == "auto" and self.max_iters == 1:
            budget = "folds"
        mode = choose_mode(
            task.estimator,
            budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            variants=estimator_variants(task.estimator, self.param_distributions),
        )
        if mode is None and budget not in ("auto", "folds"):
            raise ConfigError(
                f"estimator must support budget={budget!r} with all searched values, "
                f"got {task.estimator!r}. Use budget='folds' or budget='n_samples', which work "
                "with any estimator."
            )
        if mode is not None:
            check_no_collisions(mode, task.estimator, _names(self.param_distributions))
        own = self.scoring is None or not callable(self.scoring)
        return CandidateJob(
            **self._job(task, backend, notify_callbacks=False),
            space=None if self.search_alg is None else CandidateSpace(self.param_distributions),
            budget="folds" if mode is None else mode.budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            metric=self._judged_metric,
            judges=self._judges,
            retries=self.max_failures,
            checkpoint_every=self.checkpoint_frequency,
            token=uuid.uuid4().hex,
            score_last_step_only=own and not isinstance(self.scoring, Mapping),
            has_secrets=any(True for _ in secrets_in(self.param_distributions)),
        )

    def _search_experiment(self, task: FitTask, job: CandidateJob) -> SearchExperiment:
        splits = self._splits(task, self._checked_cv_orig)
        if not splits:
            raise ValueError(NOTHING_FITTED)
        scheduler = self._trial_scheduler(job)
        job = replace(
            job,
            defer_steps=self._may_defer_steps(scheduler),
            max_deferred_seconds=self._max_deferred_seconds(),
        )
        trainable = with_parameters(
            CandidateTrial,
            job=job,
            X=task.X,
            y=task.y,
            metadata=(task.routed.estimator.fit, task.routed.scorer.score),
            splits=splits,
        )
        if self.resources_per_trial is not None:
            trainable = with_resources(trainable, self.resources_per_trial)
        return SearchExperiment(
            trainable=trainable,
            param_space={} if job.space is None else job.space.space,
            tune_config=TuneConfig(
                metric=SCORE,
                mode="max",
                num_samples=self.n_iter,
                search_alg=self._searcher(task),
                scheduler=scheduler,
                time_budget_s=self.time_budget_s,
                seed=_seed(self.random_state),
                # The results of deferred steps have no scores.
                strict_metrics=not job.defer_steps,
            ),
            run_config=self._run_config(),
            resume=self.resume,
            arguments={} if self.storage_path is None else self._arguments(task, splits),
        )

    def _searcher(self, task: FitTask) -> Any:
        """Return the searcher, after a check that the estimator has the searched parameters."""
        if self.search_alg is not None:
            check_candidates(task.estimator, example_candidates(self.param_distributions))
            return deepcopy(self.search_alg)
        candidates = sample_candidates(self.param_distributions, self.n_iter, self.random_state)
        check_candidates(task.estimator, candidates)
        return CandidateQueue(candidates)

    def _arguments(self, task: FitTask, splits: Sequence[Split]) -> dict[str, Any]:
        """Return the arguments that determine the scores; a resumed search must repeat them."""
        own = ("param_distributions", "n_iter", "max_iters", "iters_per_step", "budget")
        more = ("random_state", "scoring", "refit", "return_train_score", "search_alg", "scheduler")
        metadata = (task.routed.estimator.fit, task.routed.scorer.score)
        # Searches that were stored before this argument existed do not have it.
        newer = {} if self.metric is None else {"metric": self.metric}
        return {
            "estimator": self.estimator,
            **{name: getattr(self, name) for name in (*own, *more)},
            **newer,
            "X": task.X,
            "y": task.y,
            "params": metadata,
            "cv": splits,
        }

    def _run_config(self) -> RunConfig:
        return RunConfig(
            name=self.name,
            storage_path=self.storage_path,
            stop=deepcopy(self.stop),
            callbacks=self.callbacks,
            verbose=min(int(self.verbose), 1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=1, checkpoint_frequency=self.checkpoint_frequency or 0, checkpoint_at_end=False
            ),
            failure_config=FailureConfig(fail_fast="raise" if self.error_score == "raise" else False),
        )

    def _trial_scheduler(self, job: CandidateJob) -> TrialScheduler | None:
        given = "asha" if self.scheduler is True else self.scheduler
        if not isinstance(given, str):
            return given or None
        steps = self.n_splits_ if job.by_folds else self.max_iters
        try:
            return create_scheduler(given, max_t=steps)
        except ConfigError:
            # Not every scheduler has max_t. This call raises any other error again.
            return create_scheduler(given)


def _classes(estimator: Any, y: Any) -> Any:
    """Return all classes of y for a classifier, whose first step may see only some; else None."""
    if y is None or not is_classifier(estimator):
        return None
    return classes_of(final_estimator(estimator), labels_of(y))


def _names(distributions: Any) -> set[str]:
    several = [distributions] if isinstance(distributions, Mapping) else distributions
    return {name for one in several for name in one}


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, numbers.Integral):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
