"""The base class of the searches that stop candidates early: each candidate is a trial."""

from __future__ import annotations

import numbers
import uuid
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from scipy.stats import rankdata
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError, check
from dasktune.schedulers import TrialScheduler, create_scheduler
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
from dasktune.sklearn.fits.search_experiment import SearchExperiment, SearchOutcome, run_experiment
from dasktune.sklearn.searches.base import AsyncFitMixin, ClusterSearchCV, FitTask
from dasktune.sklearn.searches.plots import plain_params
from dasktune.sklearn.searches.predictions import BlockwisePredictions
from dasktune.sklearn.searches.tune_sklearn_names import logger_callbacks, own_argument
from dasktune.sklearn.steps.candidate import CandidateJob
from dasktune.sklearn.steps.candidate_space import (
    CandidateQueue,
    CandidateSpace,
    estimator_variants,
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
from dasktune.trial.trial import Trial
from dasktune.tuner.result_grid import ResultGrid

#: Seconds of training that may be deferred to the next decision of the scheduler.
_MAX_DEFERRED_SECONDS: Final = 5.0


class BaseTuneSearchCV(AsyncFitMixin, BlockwisePredictions, ClusterSearchCV):
    """Trains each candidate as a trial, which a scheduler may stop.

    Subclasses choose the candidates by the methods and properties below.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseSearchCV._parameter_constraints,
        "scheduler": [TrialScheduler, str, "boolean", None],
        "metric": [str, None],
        "mode": [StrOptions({"min", "max"}), None],
        "max_iters": [Interval(numbers.Integral, 1, None, closed="left")],
        "budget": [StrOptions(set(BUDGETS))],
        "iters_per_step": [Interval(numbers.Integral, 1, None, closed="left")],
        "resume": ["boolean"],
        "max_failures": [Interval(numbers.Integral, 0, None, closed="left")],
        "checkpoint_frequency": [Interval(numbers.Integral, 0, None, closed="left"), None],
        "early_stopping": [TrialScheduler, str, "boolean", None],
        "use_gpu": ["boolean"],
        "loggers": [list, tuple, None],
        "pipeline_auto_early_stop": ["boolean"],
    }

    scheduler: Any
    metric: str | None
    mode: Literal["min", "max"] | None
    max_iters: int
    budget: str
    iters_per_step: int
    resources_per_trial: Any
    stop: Any
    time_budget_s: Any
    storage_path: Any
    name: str | None
    resume: bool
    callbacks: Any
    max_failures: int
    checkpoint_frequency: int | None
    use_gpu: bool
    loggers: Any
    pipeline_auto_early_stop: bool
    #: Only subclasses that draw candidates have a seed and a searcher.
    random_state: Any = None
    search_alg: Any = None

    def __init__(
        self,
        estimator: Any,
        *,
        scoring: Any,
        n_jobs: int | None,
        refit: Any,
        cv: Any,
        verbose: int,
        error_score: Any,
        return_train_score: bool,
        **more: Any,
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
        for name, value in more.items():
            setattr(self, name, value)

    # What subclasses choose

    @property
    def _distributions(self) -> Any:
        """The values or distributions of each parameter: a dict, or a list of dicts."""
        raise NotImplementedError

    @property
    def _n_samples(self) -> int:
        """The number of candidates; -1 for no limit."""
        raise NotImplementedError

    def _choosing_arguments(self) -> dict[str, Any]:
        """Return the arguments that determine the candidates; a resumed search must repeat them."""
        raise NotImplementedError

    def _candidate_space(self) -> CandidateSpace | None:
        """Return what converts configurations to parameters; None if they are the same."""
        return None

    def _searcher(self, task: FitTask) -> Any:
        """Return the searcher, after a check that the estimator has the searched parameters."""
        raise NotImplementedError

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
        return ResultGrid(found, self.results_.experiment_path, metric=SCORE, mode=self.mode or "max")

    # Methods that fit() of the parent calls

    def _search(self, task: FitTask) -> tuple[dict[str, Any], Any]:
        self._check_parts(task)
        backend = choose_backend(self.client, self.n_jobs)
        job = self._candidate_job(task, backend)
        plan = self._search_experiment(task, job)
        self.budget_ = job.budget
        with run_experiment(plan, backend) as search_outcome:
            is_endless = self._n_samples == -1
            rows = CvResults(job, search_outcome, is_lean=self._is_plain(job), is_endless=is_endless)
            self.results_ = self._results_of(rows.trials, search_outcome.results)
            self._keep(search_outcome)
        queue = plan.tune_config.search_alg
        n_candidates = queue.total_samples if isinstance(queue, CandidateQueue) else self._n_samples
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
        metric = self._deciding_metric(task, rows.first)
        if self.mode == "min":
            judged = self._judged_metric if self.multimetric_ else "score"
            results[f"rank_test_{judged}"] = _rank_ascending(results[f"mean_test_{judged}"])
        return results, metric

    def _results_of(self, trials: Sequence[Trial], results: ResultGrid) -> ResultGrid:
        """Return the results of some trials only, in the order of the trials."""
        if len(trials) == len(results):
            return results
        known = {result.trial_id: result for result in results}
        kept = [known[trial.trial_id] for trial in trials]
        return ResultGrid(kept, results.experiment_path, metric=SCORE, mode=self.mode or "max")

    def _keep(self, search_outcome: SearchOutcome) -> None:
        """Set further attributes from the finished experiment."""

    def _check_scored(self, rows: CvResults, n_candidates: int) -> None:
        """Raise if the search ended before a candidate was scored, and warn if only some were."""
        is_endless = self._n_samples == -1
        if self.time_budget_s is None or not rows.n_unfinished or (is_endless and rows.n_scored):
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
        whole = TrainingData(take=lambda: (data.X, data.y, params))
        mode.fit_steps(best, whole, self.best_iteration_)

    # The experiment

    def _is_plain(self, job: CandidateJob) -> bool:
        """Whether `cv_results_` has scikit-learn's columns only."""
        return job.by_folds and not self._scheduler

    def _may_defer_steps(self, scheduler: TrialScheduler | None) -> bool:
        """Whether no component uses the scores between the scheduler's milestones."""
        others = self._search_alg, self._stop, self._callbacks() or None
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
        if several and (self._judges or self.metric is not None or self.mode == "min"):
            check_metric(list(task.scorer._scorers), self._judged_metric)
        check(
            several or callable(self.scoring) or self.metric is None,
            "metric",
            "None, unless scoring gives several metrics",
            self.metric,
        )
        check(
            not self.resume or (self._storage_path is not None and self.name is not None),
            "storage_path and name",
            "given with resume=True",
            (self._storage_path, self.name),
        )
        check(
            not self.loggers or self._storage_path is not None,
            "storage_path",
            "given with loggers, because they write into it",
            self._storage_path,
        )

    @property
    def _judged_metric(self) -> str | None:
        """The name of the metric that a scheduler or searcher optimises, with several metrics."""
        return self.refit if self.metric is None and isinstance(self.refit, str) else self.metric

    @property
    def _judges(self) -> bool:
        """Whether a scheduler or searcher compares candidates while they are trained."""
        return bool(self._scheduler) or self._search_alg is not None

    # Arguments that may be given by tune-sklearn's names

    @property
    def _scheduler(self) -> Any:
        return own_argument(self, "scheduler")

    @property
    def _search_alg(self) -> Any:
        return None

    @property
    def _stop(self) -> Any:
        return own_argument(self, "stop")

    @property
    def _storage_path(self) -> Any:
        return own_argument(self, "storage_path")

    def _resources(self) -> Any:
        if not self.use_gpu:
            return self.resources_per_trial
        check(
            self.resources_per_trial is None,
            "use_gpu and resources_per_trial",
            "two ways to request a GPU, of which only one is given",
            (self.use_gpu, self.resources_per_trial),
        )
        return {"cpu": 1, "gpu": 1}

    def _callbacks(self) -> list[Any]:
        return [*(self.callbacks or ()), *logger_callbacks(self.loggers or ())]

    def _candidate_job(self, task: FitTask, backend: Backend) -> CandidateJob:
        classes = _classes(task.estimator, task.y)
        budget = self.budget
        # Without early stopping of pipelines, a pipeline is fitted as a whole.
        is_whole = isinstance(task.estimator, Pipeline) and not self.pipeline_auto_early_stop
        if budget == "auto" and (self.max_iters == 1 or is_whole):
            budget = "folds"
        mode = choose_mode(
            task.estimator,
            budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            variants=estimator_variants(task.estimator, self._distributions),
        )
        if mode is None and budget not in ("auto", "folds"):
            raise ConfigError(
                f"estimator must support budget={budget!r} with all searched values, "
                f"got {task.estimator!r}. Use budget='folds' or budget='n_samples', which work "
                "with any estimator."
            )
        if mode is not None:
            check_no_collisions(mode, task.estimator, _names(self._distributions))
        own = self.scoring is None or not callable(self.scoring)
        return CandidateJob(
            **self._job(task, backend, notify_callbacks=False),
            space=self._candidate_space(),
            budget="folds" if mode is None else mode.budget,
            amount=self.iters_per_step,
            max_steps=self.max_iters,
            classes=classes,
            metric=self._judged_metric,
            judges=self._judges or self.metric is not None or self.mode == "min",
            retries=self.max_failures,
            checkpoint_every=self.checkpoint_frequency,
            token=uuid.uuid4().hex,
            score_last_step_only=own and not isinstance(self.scoring, Mapping),
            has_secrets=any(True for _ in secrets_in(self._distributions)),
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
        resources = self._resources()
        if resources is not None:
            trainable = with_resources(trainable, resources)
        return SearchExperiment(
            trainable=trainable,
            param_space={} if job.space is None else job.space.space,
            tune_config=TuneConfig(
                metric=SCORE,
                mode=self.mode or "max",
                num_samples=self._n_samples,
                search_alg=self._searcher(task),
                scheduler=scheduler,
                time_budget_s=self.time_budget_s,
                seed=_seed(self.random_state),
                # The results of deferred steps have no scores.
                strict_metrics=not job.defer_steps,
            ),
            run_config=self._run_config(),
            resume=self.resume,
            arguments={} if self._storage_path is None else self._arguments(task, splits),
        )

    def _arguments(self, task: FitTask, splits: Sequence[Split]) -> dict[str, Any]:
        """Return the arguments that determine the scores; a resumed search must repeat them."""
        names = ("max_iters", "iters_per_step", "budget", "scoring", "refit", "return_train_score")
        metadata = (task.routed.estimator.fit, task.routed.scorer.score)
        # Searches that were stored before these arguments existed do not have them.
        newer = {"metric": self.metric, "mode": None if self.mode == "max" else self.mode}
        return {
            "estimator": self.estimator,
            **self._choosing_arguments(),
            **{name: getattr(self, name) for name in names},
            **{name: value for name, value in newer.items() if value is not None},
            "scheduler": self._scheduler,
            "X": task.X,
            "y": task.y,
            "params": metadata,
            "cv": splits,
        }

    def _run_config(self) -> RunConfig:
        return RunConfig(
            name=self.name,
            storage_path=self._storage_path,
            stop=deepcopy(self._stop),
            callbacks=self._callbacks() or None,
            verbose=min(int(self.verbose), 1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=1, checkpoint_frequency=self.checkpoint_frequency or 0, checkpoint_at_end=False
            ),
            failure_config=FailureConfig(fail_fast="raise" if self.error_score == "raise" else False),
        )

    def _trial_scheduler(self, job: CandidateJob) -> TrialScheduler | None:
        given = "asha" if self._scheduler is True else self._scheduler
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


def _rank_ascending(means: Any) -> Any:
    """Return the rank of each mean, 1 for the smallest; NaN is the worst."""
    known = np.asarray(means, dtype=float)
    if np.isnan(known).all():
        return np.ones(len(known), dtype=np.int32)
    return rankdata(np.where(np.isnan(known), np.inf, known), method="min").astype(np.int32)
