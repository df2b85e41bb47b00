"""The base class of all searches: scikit-learn's search, whose fits run as trials."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Final

from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv

from dasktune.runner.secret_values import with_secrets
from dasktune.sklearn import compat
from dasktune.sklearn.fits.backend import choose_backend, is_on_client_loop, picklable_client
from dasktune.sklearn.fits.cluster_data import ClusterData, fit_on_worker, prepared_data
from dasktune.sklearn.fits.engine import Backend, Engine
from dasktune.sklearn.fits.fit_and_score import NOTHING_FITTED, Data, Fit, Job, Outcome, Split
from dasktune.sklearn.searches.plots import Plots

#: Attributes that not every `fit` sets.
_OPTIONAL_ATTRIBUTES: Final = (
    "best_estimator_",
    "best_index_",
    "best_iteration_",
    "best_params_",
    "best_score_",
    "feature_names_in_",
    "refit_time_",
    "searcher_",
)


class AsyncFitMixin:
    """Makes `fit` awaitable on the event loop of an asynchronous client.

    A blocking `fit` on that loop would deadlock: it waits for results that the loop must receive.
    The mixin must be the first base class.
    """

    #: The client, the cluster object or the address of the cluster.
    client: Any

    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run fit with all sets of parameters.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            Training vectors. A Dask collection stays on the cluster, if the fits run there.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_output), optional
            Target; None for unsupervised learning.
        **params
            Metadata for the estimator, the scorer and the splitter.

        Returns
        -------
        self : object
            The fitted search. On the event loop of an asynchronous Dask client: an awaitable that
            returns it, as from `fit_async`.
        """
        if is_on_client_loop(self.client):
            return self.fit_async(X, y, **params)  # type: ignore[attr-defined]
        with self._prepared_data(X, y, params) as (X, y, params):
            return super().fit(X, y, **params)  # type: ignore[misc]

    @contextmanager
    def _prepared_data(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Yield the data for ``super().fit``, and keep it until the ``with`` block ends."""
        backend = choose_backend(self.client, None)
        # scikit-learn passes the samples to callbacks, in this process.
        stays = not (backend.in_process or compat.has_callbacks(self))
        with prepared_data(self.client, X, y, params, stays=stays) as data:
            yield data


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """The validated arguments of one call of `fit`."""

    X: Any
    y: Any
    #: The metadata, routed to the estimator, the scorer and the splitter.
    routed: Any
    estimator: Any
    scorer: Any
    #: Name of the metric to choose the best candidate by.
    refit_metric: Any
    #: The arguments of scikit-learn's callbacks for the whole search.
    callback_data: Mapping[str, Any]
    #: The context that notifies the callbacks.
    callbacks: Any


class ClusterSearchCV(Plots, compat.BaseSearchCV):  # type: ignore[misc]
    """Runs the fits of a scikit-learn search as trials, on a cluster or in this process.

    All methods except :meth:`fit` are scikit-learn's. Some of scikit-learn's searches have a `fit`
    that calls ``super().fit``; by the method resolution order that call reaches this class.
    """

    #: The client, the cluster object or the address of the cluster; set by the constructors.
    client: Any

    #: Attributes that `_fit_best` reads, and that it therefore needs on a worker.
    _refit_attributes: ClassVar[tuple[str, ...]] = ()

    @compat.fit_context(prefer_skip_nested_validation=False)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run fit with all sets of parameters.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            Training vectors; for precomputed kernels of shape (n_samples, n_samples).
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_output), optional
            Target; None for unsupervised learning.
        **params
            Metadata for the estimator's ``fit``, the scorer and the splitter. A parameter with one
            value for each sample is split like `X`; `groups` is for the splitter.

        Returns
        -------
        self : object
            The fitted search.
        """
        scorer, refit_metric = self._get_scorers()
        X, y = compat.indexable(X, y)
        params = compat.check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        callback_data = {"X": X, "y": y, "metadata": _metadata(params)}
        task = FitTask(
            X=X,
            y=y,
            routed=routed,
            estimator=clone(self.estimator),
            scorer=scorer,
            refit_metric=refit_metric,
            callback_data=callback_data,
            callbacks=compat.begin_callbacks(self, **callback_data),
        )
        self._reset_attributes()
        self._checked_cv_orig = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        self._check_input_parameters(X=X, y=y, split_params=routed.splitter.split)
        self.n_splits_ = self._checked_cv_orig.get_n_splits(X, y, **routed.splitter.split)
        results, refit_metric = self._search(task)
        self._set_best(results, refit_metric)
        if self.refit:
            self._refit(task)
        self.scorer_ = scorer._scorers if isinstance(scorer, compat.MultimetricScorer) else scorer
        self.cv_results_ = results
        task.callbacks.call_on_fit_task_end(estimator=self, **callback_data)
        return self

    def _reset_attributes(self) -> None:
        """Delete the attributes of an earlier `fit` that this one may not set."""
        for name in _OPTIONAL_ATTRIBUTES:
            if name in vars(self):
                delattr(self, name)

    async def fit_async(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run :meth:`fit` in a thread, without blocking the event loop.

        Parameters
        ----------
        X, y : object
            As for :meth:`fit`.
        **params
            As for :meth:`fit`.

        Returns
        -------
        self : object
            The fitted search. Cancelling this coroutine ends the wait, but not the fits.
        """
        # scikit-learn's configuration is thread-local, so the other thread must restore it.
        sklearn_context = compat.SklearnContext.current()
        return await asyncio.to_thread(sklearn_context.call, self.fit, X, y, **params)

    def _search(self, task: FitTask) -> tuple[dict[str, Any], Any]:
        """Run the search; return `cv_results_`, and the metric to choose the best candidate by."""
        backend = choose_backend(self.client, self.n_jobs)
        notify_callbacks = backend.in_process or compat.has_callbacks(self)
        job = Job(**self._job(task, backend, notify_callbacks=notify_callbacks))
        metadata = (task.routed.estimator.fit, task.routed.scorer.score)
        with Engine(job, Data(X=task.X, y=task.y, metadata=metadata), backend) as engine:
            evaluation = _CandidateEvaluator(self, task, engine, notify_callbacks=notify_callbacks)
            compat.run_search(self, evaluation, task.callbacks)
        return evaluation.results, self._deciding_metric(task, evaluation.first_scores)

    def _splits(self, task: FitTask, cv: Any) -> list[Split]:
        """Return the sample indices of all splits. Call it once: a splitter may shuffle each time.

        The indices are shared by all candidates, so that all of them are scored on the same splits.
        """
        splits = list(cv.split(task.X, task.y, **task.routed.splitter.split))
        if len(splits) != self.n_splits_:
            raise ValueError(
                "cv.split and cv.get_n_splits return inconsistent results. "
                f"Expected {self.n_splits_} splits, got {len(splits)}"
            )
        return splits

    def _job(self, task: FitTask, backend: Backend, *, notify_callbacks: bool) -> dict[str, Any]:
        """Return the settings that all fits share, as the arguments of a `Job`."""
        return {
            "estimator": task.estimator,
            "scorer": task.scorer,
            "return_train_score": self.return_train_score,
            "error_score": self.error_score,
            "verbose": self.verbose,
            "n_splits": self.n_splits_,
            "sklearn_context": None if backend.in_process else compat.SklearnContext.current(),
            # Only callbacks need the search; without them it is not pickled with the job.
            "caller": self if notify_callbacks else None,
        }

    def _deciding_metric(self, task: FitTask, first: Any) -> Any:
        """Return the metric to choose the best candidate by, given the scores of one fit."""
        # Only the first result shows whether a scoring function returns several metrics.
        self.multimetric_ = isinstance(first, dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(first)
            return self.refit
        return task.refit_metric

    def _set_best(self, results: Mapping[str, Any], metric: Any) -> None:
        if not self.refit and self.multimetric_:
            return
        self.best_index_ = self._select_best_index(self.refit, metric, results)
        if not callable(self.refit):
            self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _refit(self, task: FitTask) -> None:
        # Parameters may be estimators themselves, so they are cloned, too.
        parameters = clone(with_secrets(self.best_params_), safe=False)
        best = self.best_estimator_ = clone(task.estimator).set_params(**parameters)
        context = task.callbacks.subcontext(task_name="refit-with-best-params")
        with context.propagate_callback_context(best):
            context.call_on_fit_task_begin(estimator=self, **task.callback_data)
            params = task.routed.estimator.fit
            if isinstance(task.X, ClusterData):
                best, self.refit_time_ = self._refit_on_worker(best, task.X, task.y, params)
                self.best_estimator_ = best
            else:
                started = time.time()
                self._fit_best(best, Data(X=task.X, y=task.y), params)
                self.refit_time_ = time.time() - started
        if hasattr(best, "feature_names_in_"):
            self.feature_names_in_ = best.feature_names_in_
        context.call_on_fit_task_end(estimator=self, **task.callback_data)

    def _fit_best(self, best: Any, data: Data, params: Mapping[str, Any]) -> None:
        """Fit the best candidate on all data."""
        targets = () if data.y is None else (data.y,)
        best.fit(data.X, *targets, **params)

    def _refit_on_worker(
        self, best: Any, X: ClusterData, y: Any, params: Mapping[str, Any]
    ) -> tuple[Any, float]:
        """Fit the best candidate on a worker; return it and the seconds that the fit took."""
        # Pickle a bare copy: an attribute of the search, such as a generator of splits, may not be
        # picklable.
        bare = object.__new__(type(self))
        known = vars(self)
        bare.__dict__.update({one: known[one] for one in self._refit_attributes if one in known})
        fitted: tuple[Any, float] = X.call(
            fit_on_worker, compat.SklearnContext.current(), bare._fit_best, best, y, params
        )
        return fitted

    # A search must support clone, copy and pickle, but a Dask client supports none of them. A clone
    # shares the client; a pickle has the scheduler's address instead.

    def __sklearn_clone__(self) -> Any:
        bare = object.__new__(type(self))
        bare.__dict__.update(vars(self), client=None)
        twin = super(ClusterSearchCV, bare).__sklearn_clone__()
        twin.client = self.client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "client": picklable_client(state.get("client"))}


class _CandidateEvaluator:
    """The function ``evaluate_candidates`` that ``_run_search`` calls, once or several times.

    Parameters
    ----------
    search : ClusterSearchCV
        The search.
    task : FitTask
        The arguments of `fit`.
    engine : Engine
        Runs the fits.
    notify_callbacks : bool
        Whether scikit-learn's callbacks are notified of each fit.
    """

    def __init__(
        self, search: ClusterSearchCV, task: FitTask, engine: Engine, *, notify_callbacks: bool
    ) -> None:
        self._search = search
        self._task = task
        self._engine = engine
        self._listening = notify_callbacks
        self._candidates: list[Any] = []
        self._outcomes: list[Outcome] = []
        self._more: defaultdict[str, list[Any]] = defaultdict(list)
        #: `cv_results_` of all candidates so far.
        self.results: dict[str, Any] = {}

    @property
    def first_scores(self) -> Any:
        """The scores of the first fit: a number, or a dict of several metrics."""
        return self._outcomes[0]["test_scores"]

    def __call__(
        self,
        candidate_params: Iterable[Any],
        cv: Any = None,
        more_results: Mapping[str, Iterable[Any]] | None = None,
        callback_ctx: Any = None,
    ) -> dict[str, Any]:
        """Evaluate candidates, and return the results of all candidates so far."""
        search, task = self._search, self._task
        candidates = list(candidate_params)
        cv = cv or search._checked_cv_orig
        splits, n_splits = search._splits(task, cv), search.n_splits_
        if search.verbose > 0:
            print(  # noqa: T201 - scikit-learn prints this line with verbose, too
                f"Fitting {n_splits} folds for each of {len(candidates)} candidates,"
                f" totalling {len(candidates) * n_splits} fits"
            )
        fits = self._fits(candidates, callback_ctx if self._listening else None)
        if not fits:
            raise ValueError(NOTHING_FITTED)
        outcomes = self._engine.run(fits, splits)
        compat.warn_or_raise_about_fit_failures(outcomes, search.error_score)
        if callable(search.scoring):
            compat.insert_error_scores(outcomes, search.error_score)
        self._candidates += candidates
        self._outcomes += outcomes
        for key, value in (more_results or {}).items():
            self._more[key].extend(value)
        self.results = search._format_results(self._candidates, n_splits, self._outcomes, self._more)
        return self.results

    def _fits(self, candidates: list[Any], callbacks: Any) -> list[Fit]:
        pairs = product(enumerate(candidates), range(self._search.n_splits_))
        return [
            Fit(
                params=params,
                candidate=number,
                n_candidates=len(candidates),
                split=split,
                context=callbacks
                and callbacks.subcontext(task_name="candidate-split-evaluation", task_id=task_id),
            )
            for task_id, ((number, params), split) in enumerate(pairs)
        ]


def _metadata(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata for scikit-learn's callbacks."""
    weights = params.get("sample_weight")
    return None if weights is None else {"sample_weight": weights}
