"""A search with any searcher and any trial scheduler."""

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
from dasktune.results import ResultGrid
from dasktune.schedulers import TrialScheduler, create_scheduler
from dasktune.search import SearchAlgorithm, Searcher
from dasktune.sklearn.base import AwaitableFit, ClusterSearchCV, Task
from dasktune.sklearn.candidate_trial import SCORE, CandidateTrial
from dasktune.sklearn.candidates import (
    CandidateQueue,
    CandidateSpace,
    check_candidates,
    drawn,
    examples,
    variants,
)
from dasktune.sklearn.compat import (
    BaseSearchCV,
    Interval,
    MultimetricScorer,
    StrOptions,
    insert_error_scores,
    warn_or_raise_about_fit_failures,
)
from dasktune.sklearn.engine import Site
from dasktune.sklearn.evaluation import NOTHING_FITTED, Data, Split
from dasktune.sklearn.plan import Plan, carried_out
from dasktune.sklearn.plots import plain_params
from dasktune.sklearn.read import Read
from dasktune.sklearn.routes import BUDGETS, Part, find_route, refuse_collisions, trained_part
from dasktune.sklearn.site import site_of
from dasktune.sklearn.targets import classes_of, labels_of
from dasktune.sklearn.training import Course
from dasktune.trainable import with_parameters, with_resources

__all__ = ["TuneSearchCV"]

#: Seconds of training that may be put off to the next decision.
_LONGEST_BACKLOG: Final = 5.0


class TuneSearchCV(AwaitableFit, ClusterSearchCV):
    """Search by any searcher, and stop candidates early by any trial scheduler, on a Dask cluster.

    Each candidate is a trial. With ``max_iters > 1`` a step of it trains an estimator on each split
    of the data a little further and reports the mean test score, by which `scheduler` stops,
    pauses or clones it; what it does not decide about may be put off, see the notes. With
    ``max_iters=1`` a step is a whole fit on the next split.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each candidate and split.
    param_distributions : dict or list of dict
        For each parameter a list to choose from, a distribution of scipy.stats or Optuna, or a
        domain such as ``dasktune.loguniform(1e-4, 1)``; or several such dicts to choose from.
    n_iter : int, default=10
        How many candidates are tried.
    search_alg : Searcher, SearchAlgorithm or str, optional
        Who proposes candidates, such as "optuna". By default they are drawn at random: the same
        `random_state` draws what scikit-learn's `RandomizedSearchCV` draws.
    scheduler : TrialScheduler, str or bool, optional
        Who stops candidates early. True is "asha"; a name is given ``max_t=max_iters``; an object
        is copied. None and False try each candidate to its end. What tune-sklearn calls
        ``early_stopping``.
    max_iters : int, default=1
        Most steps of a candidate, by "training_iteration".
    budget : str, default="auto"
        What a step adds to. "partial_fit": calls of ``partial_fit``; "max_iter" or "n_estimators":
        that parameter, by ``warm_start``; "boosting": rounds of XGBoost, LightGBM or CatBoost;
        "n_samples": samples, so that the last step fits with all of them; "folds": a step is a
        whole fit on the next split. "auto" takes the first of these that the estimator, or the last
        step of a pipeline, allows with all values that are searched, but never "n_samples"; else,
        and with ``max_iters=1``, "folds".
    iters_per_step : int, default=1
        How many calls, iterations, trees or rounds a step adds.
    scoring : str, callable, list, tuple or dict, optional
        What is scored; the estimator's own ``score`` by default.
    n_jobs : int, optional
        Most candidates that are trained at a time on a cluster. None and -1 are no limit.
    refit : bool, str or callable, default=True
        Fit the best candidate on all data, in this process, or on a worker if X stays on the
        cluster, with as many steps as its row of
        `cv_results_` has. With several metrics the name of the one that decides.
    cv : int, splitter or iterable, default=None
        How the data is split; an int is the number of folds.
    verbose : int, default=0
        From 1 a line of progress, from 2 each whole fit, where it runs.
    random_state : int or RandomState, optional
        Where randomness comes from.
    error_score : "raise" or float, default=np.nan
        Score of a split on which a candidate fails, and of all splits of one whose worker dies four
        times; "raise" raises what it raised.
    return_train_score : bool, default=False
        Score the samples that each candidate was fitted on, too.
    resources_per_trial : dict, Resources, PlacementGroupFactory or callable, optional
        What a candidate needs, such as ``{"cpu": 1, "gpu": 1}``; one CPU by default.
    stop : mapping, callable, Stopper or list of Stopper, optional
        When else a candidate ends: ``{"mean_test_score": 0.99}``.
    time_budget_s : float or timedelta, optional
        Seconds after which no more is tried.
    storage_path : str or path, optional
        Where the experiment is kept: a folder or any fsspec URL. By default nothing is kept.
    name : str, optional
        Name of the experiment there.
    resume : bool, default=False
        Go on with the experiment of that name if there is one; needs both.
    callbacks : list of Callback, optional
        Hear of what happens to the trials.
    max_failures : int, default=0
        How often a step that raises is tried again.
    checkpoint_frequency : int, optional
        Save the estimators of a candidate after so many steps: what a lost worker costs at most. 0
        saves only what is paused. By default they are saved after each ten seconds of training.
    client : optional
        The Dask cluster: a `distributed.Client`, a cluster object, a scheduler's address, or a
        scheduler file. By default the current client; without one, and inside a trial, candidates
        are trained in this process, one after the other.

    Attributes
    ----------
    cv_results_ : dict of str to array
        A row for each candidate, with scikit-learn's keys. When candidates are trained step by
        step or stopped early also "training_iteration", "trial_id", "status" and "time_total_s".
    results_ : ResultGrid
        The trials as `Tuner.fit` returns them, with all their steps.
    n_trials_ : int
        How many there were.
    stopped_early_ : ndarray of bool
        Whether the scheduler has ended a candidate though it had further to go.
    budget_ : str
        What a step has added to.
    best_iteration_ : int
        Steps of the best candidate; only where steps are no splits.

    Notes
    -----
    All other attributes and methods are those of scikit-learn's `RandomizedSearchCV`.

    With ASHA, HyperBand or successive halving a step that is not compared with others is put off as
    long as what was put off takes less than five seconds, and than a tenth of `time_budget_s`; the
    next one trains for all of them at once, and is scored. So there is less to fit and to score,
    and the decisions are the same. Each step is trained and scored by itself where `search_alg`,
    `stop` or `callbacks` may look at it, with other schedulers or none, and with
    ``checkpoint_frequency=1``.

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
        # `pre_dispatch` is the parent's parameter and not one of this class.
        del self.pre_dispatch
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.search_alg = search_alg
        self.scheduler = scheduler
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
        # With every step of each, in the words of the user's parameters.
        found = []
        for params, result in zip(self.cv_results_["params"], self.results_, strict=True):
            rows = [{k: v for k, v in row.items() if k != "outcomes"} for row in result.history]
            found.append(replace(result, config=plain_params(params), history=rows))
        return ResultGrid(found, self.results_.experiment_path, metric=SCORE, mode="max")

    # What fit() of the parent asks for

    def _search(self, task: Task) -> tuple[dict[str, Any], Any]:
        self._check_parts(task)
        site = site_of(self.client, self.n_jobs)
        course = self._course(task, site)
        plan = self._plan(task, course)
        self.budget_ = course.budget
        with carried_out(plan, site) as carried:
            read = Read(course, carried, is_lean=self._is_plain(course))
            self.results_ = carried.results
        self.n_trials_ = len(read.trials)
        self.stopped_early_ = np.array([trial.stopped_early for trial in read.trials], dtype=bool)
        warn_or_raise_about_fit_failures(read.outcomes, self.error_score)
        if callable(self.scoring):
            insert_error_scores(read.outcomes, self.error_score)
        with warnings.catch_warnings():
            if read.is_partial:
                # Of those that were ended before their last split there is no mean, on purpose.
                warnings.filterwarnings(
                    "ignore", message="One or more of the t", category=UserWarning
                )
            results = self._format_results(
                read.candidates, self.n_splits_, read.outcomes, read.columns
            )
        return results, self._metric_of(task, read.first)

    def _choose(self, results: Mapping[str, Any], metric: Any) -> None:
        super()._choose(results, metric)
        if self.budget_ != "folds" and hasattr(self, "best_index_"):
            self.best_iteration_ = int(results["training_iteration"][self.best_index_])

    _refit_needs = ("budget", "budget_", "iters_per_step", "max_iters", "best_iteration_")

    def _fit_best(self, best: Any, data: Data, params: Mapping[str, Any]) -> None:
        if self.budget_ == "folds":
            super()._fit_best(best, data, params)
            return
        route = find_route(
            best,
            self.budget_,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=_classes(best, data.y),
        )
        assert route is not None, "it was trained by one"
        route.fit_all(best, Part(X=data.X, y=data.y, params=params), self.best_iteration_)

    # What is run

    def _is_plain(self, course: Course) -> bool:
        """Whether the results are those of scikit-learn and nothing more."""
        return course.by_folds and not self.scheduler

    def _is_lazy(self, scheduler: TrialScheduler | None) -> bool:
        """Whether nobody looks at the scores between the milestones of the scheduler."""
        others = self.search_alg, self.stop, self.callbacks or None
        looks = scheduler is None or scheduler.looks_between
        return not looks and others == (None, None, None)

    def _longest_backlog(self) -> float:
        """Return for how many seconds of training steps may be put off."""
        budget = TuneConfig(time_budget_s=self.time_budget_s).time_budget
        # What was put off is trained at once, and nobody can end it on the way.
        return _LONGEST_BACKLOG if budget is None else min(_LONGEST_BACKLOG, budget / 10)

    def _check_parts(self, task: Task) -> None:
        """Refuse what cannot work together."""
        several = isinstance(task.scorer, MultimetricScorer)
        check(
            not (several and (self.scheduler or self.search_alg)) or isinstance(self.refit, str),
            "refit",
            "the name of the metric by which candidates are judged, with several of them",
            self.refit,
        )
        check(
            not self.resume or (self.storage_path is not None and self.name is not None),
            "storage_path and name",
            "given with resume=True",
            (self.storage_path, self.name),
        )

    def _course(self, task: Task, site: Site) -> Course:
        classes = _classes(task.estimator, task.y)
        budget = self.budget
        if budget == "auto" and self.max_iters == 1:
            budget = "folds"
        route = find_route(
            task.estimator,
            budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            variants=variants(task.estimator, self.param_distributions),
        )
        if route is None and budget not in ("auto", "folds"):
            raise ConfigError(
                f"estimator must be one that can be trained by {budget!r}, with all values that "
                f"are searched, got {task.estimator!r}. Use budget='folds' or budget='n_samples', "
                "which work with any."
            )
        if route is not None:
            refuse_collisions(route, task.estimator, _names(self.param_distributions))
        own = self.scoring is None or not callable(self.scoring)
        return Course(
            **self._job(task, site, listening=False),
            space=None if self.search_alg is None else CandidateSpace(self.param_distributions),
            budget="folds" if route is None else route.budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            metric=self.refit if isinstance(self.refit, str) else None,
            retries=self.max_failures,
            save_every=self.checkpoint_frequency,
            token=uuid.uuid4().hex,
            lean=own and not isinstance(self.scoring, Mapping),
        )

    def _plan(self, task: Task, course: Course) -> Plan:
        splits = self._splits(task, self._checked_cv_orig)
        if not splits:
            raise ValueError(NOTHING_FITTED)
        scheduler = self._trial_scheduler(course)
        course = replace(
            course, lazy=self._is_lazy(scheduler), longest_backlog=self._longest_backlog()
        )
        trainable = with_parameters(
            CandidateTrial,
            course=course,
            X=task.X,
            y=task.y,
            metadata=(task.routed.estimator.fit, task.routed.scorer.score),
            splits=splits,
        )
        if self.resources_per_trial is not None:
            trainable = with_resources(trainable, self.resources_per_trial)
        if course.space is None:
            candidates = drawn(self.param_distributions, self.n_iter, self.random_state)
            check_candidates(task.estimator, candidates)
            search: Any = CandidateQueue(candidates)
        else:
            check_candidates(task.estimator, examples(self.param_distributions))
            search = deepcopy(self.search_alg)
        return Plan(
            trainable=trainable,
            param_space={} if course.space is None else course.space.space,
            tune_config=TuneConfig(
                metric=SCORE,
                mode="max",
                num_samples=self.n_iter,
                search_alg=search,
                scheduler=scheduler,
                time_budget_s=self.time_budget_s,
                seed=_seed(self.random_state),
                # Steps that are put off have no scores.
                strict_metrics=not course.lazy,
            ),
            run_config=self._run_config(),
            resume=self.resume,
            arguments={} if self.storage_path is None else self._arguments(task, splits),
        )

    def _arguments(self, task: Task, splits: Sequence[Split]) -> dict[str, Any]:
        """Return what makes the scores what they are: a search goes on with the same only."""
        own = ("param_distributions", "n_iter", "max_iters", "iters_per_step", "budget")
        more = ("random_state", "scoring", "refit", "return_train_score", "search_alg", "scheduler")
        metadata = (task.routed.estimator.fit, task.routed.scorer.score)
        return {
            "estimator": self.estimator,
            **{name: getattr(self, name) for name in (*own, *more)},
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
                num_to_keep=1,
                checkpoint_frequency=self.checkpoint_frequency or 0,
                checkpoint_at_end=False,
            ),
            failure_config=FailureConfig(
                fail_fast="raise" if self.error_score == "raise" else False
            ),
        )

    def _trial_scheduler(self, course: Course) -> TrialScheduler | None:
        given = "asha" if self.scheduler is True else self.scheduler
        if not isinstance(given, str):
            return given or None
        steps = self.n_splits_ if course.by_folds else self.max_iters
        try:
            return create_scheduler(given, max_t=steps)
        except ConfigError:
            # Not all have an end, and what else is wrong it will say again.
            return create_scheduler(given)


def _classes(estimator: Any, y: Any) -> Any:
    """Return all classes, for those that see only a part of them at first."""
    if y is None or not is_classifier(estimator):
        return None
    return classes_of(trained_part(estimator), labels_of(y))


def _names(distributions: Any) -> set[str]:
    several = [distributions] if isinstance(distributions, Mapping) else distributions
    return {name for one in several for name in one}


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, numbers.Integral):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
