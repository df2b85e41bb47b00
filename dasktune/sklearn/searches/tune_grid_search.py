"""``TuneGridSearchCV``: a search over a grid that stops candidates early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import ParameterGrid

from dasktune.sklearn.fits.fit_and_score import NOTHING_FITTED
from dasktune.sklearn.searches.base import FitTask
from dasktune.sklearn.searches.tune_base import BaseTuneSearchCV
from dasktune.sklearn.steps.candidate_space import CandidateQueue, check_candidates


class TuneGridSearchCV(BaseTuneSearchCV):
    """Try all combinations of a grid, and stop candidates early with any trial scheduler, on Dask.

    Each candidate is a trial. With ``max_iters > 1`` each step trains an estimator on each split a
    little further and reports the mean test score, by which `scheduler` stops, pauses or clones the
    trial. With ``max_iters=1`` a step is a whole fit on the next split. tune-sklearn has a class of
    this name.

    Parameters
    ----------
    estimator : estimator object
        Cloned for each candidate and split.
    param_grid : dict or list of dict
        For each parameter a list of values, or ``dasktune.grid_search([...])``; or a list of such
        dicts.
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
        With several metrics, the name of the metric by which `scheduler` judges candidates. It is
        only needed if `refit` does not name one, but is False or a function.
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
    early_stopping : TrialScheduler, str or bool, optional
        tune-sklearn's name of `scheduler`; also takes names of classes, such as "ASHAScheduler".
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
    budget_ : str
        The budget that was used.
    best_iteration_ : int
        Number of steps of the best candidate; not set with the budget "folds".

    See Also
    --------
    TuneSearchCV : Draws the candidates by a searcher, and describes the steps in its notes.

    Notes
    -----
    All other attributes and methods are those of scikit-learn's `GridSearchCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = TuneGridSearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2, 1]},
    ...     early_stopping=True, max_iters=8,
    ... )
    >>> search = search.fit(*load_iris(return_X_y=True))
    >>> search.budget_, search.n_trials_
    ('partial_fit', 3)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseTuneSearchCV._parameter_constraints,
        "param_grid": [dict, list],
    }

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
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
        early_stopping: Any = None,
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
        self.param_grid = param_grid

    @property
    def _distributions(self) -> Any:
        several = [self.param_grid] if isinstance(self.param_grid, Mapping) else self.param_grid
        # scikit-learn refuses what is no mapping.
        return [
            {name: _values(value) for name, value in one.items()} if isinstance(one, Mapping) else one
            for one in several
        ]

    @property
    def _n_samples(self) -> int:
        return len(ParameterGrid(self._distributions))

    def _choosing_arguments(self) -> dict[str, Any]:
        return {"param_grid": self.param_grid}

    def _check_parts(self, task: FitTask) -> None:
        super()._check_parts(task)
        if not self._n_samples:
            raise ValueError(NOTHING_FITTED)

    def _searcher(self, task: FitTask) -> Any:
        candidates = list(ParameterGrid(self._distributions))
        check_candidates(task.estimator, candidates)
        return CandidateQueue(candidates)


def _values(value: Any) -> Any:
    """Return the values of ``dasktune.grid_search([...])``, and any other value as it is."""
    is_grid = isinstance(value, Mapping) and list(value) == ["grid_search"]
    return list(value["grid_search"]) if is_grid else value
