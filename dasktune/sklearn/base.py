"""The search that all others derive from: scikit-learn's own, with another way to run its fits."""

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

from dasktune.sklearn.compat import (
    BaseSearchCV,
    MultimetricScorer,
    Surroundings,
    begin_callbacks,
    check_method_params,
    fit_context,
    has_callbacks,
    indexable,
    insert_error_scores,
    run_search,
    warn_or_raise_about_fit_failures,
)
from dasktune.sklearn.engine import Engine, Site
from dasktune.sklearn.evaluation import NOTHING_FITTED, Data, Fit, Job, Outcome, Split
from dasktune.sklearn.placed import PlacedSamples, fitted_there, placed
from dasktune.sklearn.plots import Plots
from dasktune.sklearn.site import is_on_its_loop, portable, site_of

__all__ = ["AwaitableFit", "ClusterSearchCV", "Task"]


#: Attributes that only some searches have after their `fit`.
_NOT_ALWAYS: Final = (
    "best_estimator_",
    "best_index_",
    "best_iteration_",
    "best_params_",
    "best_score_",
    "feature_names_in_",
    "refit_time_",
)


class AwaitableFit:
    """Lets `fit` be awaited on the event loop of an asynchronous client; comes before all others.

    To wait there would keep the client from everything that it is waited for.
    """

    #: What names the cluster.
    client: Any

    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run fit with all sets of parameters.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            Training vectors. A collection stays on the cluster, where there is one.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_output), optional
            Target; None for unsupervised learning.
        **params
            Whatever goes along with them.

        Returns
        -------
        self : object
            Fitted. On the event loop of an asynchronous Dask client something to be awaited for it,
            as of `fit_async`.
        """
        if is_on_its_loop(self.client):
            return self.fit_async(X, y, **params)  # type: ignore[attr-defined]
        with self._data(X, y, params) as (X, y, params):
            return super().fit(X, y, **params)  # type: ignore[misc]

    @contextmanager
    def _data(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Yield data as `fit` of the next class is to get it, for as long as that takes."""
        site = site_of(self.client, None)
        # Callbacks are told of the samples themselves.
        stays = not (site.in_process or has_callbacks(self))
        with placed(self.client, X, y, params, stays=stays) as data:
            yield data


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What `fit` was called for."""

    X: Any
    y: Any
    #: What goes along with the data, by who gets it.
    routed: Any
    estimator: Any
    scorer: Any
    #: Name of the metric that decides.
    refit_metric: Any
    #: Of callbacks: what the whole search is told of, and its context.
    told: Mapping[str, Any]
    callbacks: Any


class ClusterSearchCV(Plots, BaseSearchCV):  # type: ignore[misc]
    """Runs the fits of a scikit-learn search as trials, on a cluster or in this process.

    Everything but :meth:`fit` is scikit-learn's. Where a class of scikit-learn's has a `fit` of its
    own that ends in its parent's, this one comes in between by Python's order of base classes.
    """

    #: What names the cluster; set by the constructors.
    client: Any

    #: Attributes that `_fit_best` uses.
    _refit_needs: ClassVar[tuple[str, ...]] = ()

    @fit_context(prefer_skip_nested_validation=False)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run fit with all sets of parameters.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features)
            Training vectors; for precomputed kernels of shape (n_samples, n_samples).
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_output), optional
            Target; None for unsupervised learning.
        **params
            For the estimator's ``fit``, the scorer and the splitter. What has one value for each
            sample is split as `X` is, but `groups` goes to the splitter.

        Returns
        -------
        self : object
            Fitted.
        """
        scorer, refit_metric = self._get_scorers()
        X, y = indexable(X, y)
        params = check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        told = {"X": X, "y": y, "metadata": _metadata(params)}
        task = Task(
            X=X,
            y=y,
            routed=routed,
            estimator=clone(self.estimator),
            scorer=scorer,
            refit_metric=refit_metric,
            told=told,
            callbacks=begin_callbacks(self, **told),
        )
        self._forget()
        self._checked_cv_orig = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        self._check_input_parameters(X=X, y=y, split_params=routed.splitter.split)
        self.n_splits_ = self._checked_cv_orig.get_n_splits(X, y, **routed.splitter.split)
        results, refit_metric = self._search(task)
        self._choose(results, refit_metric)
        if self.refit:
            self._refit(task)
        self.scorer_ = scorer._scorers if isinstance(scorer, MultimetricScorer) else scorer
        self.cv_results_ = results
        task.callbacks.call_on_fit_task_end(estimator=self, **told)
        return self

    def _forget(self) -> None:
        """Drop what a `fit` before may have left and this one may not come to."""
        for name in _NOT_ALWAYS:
            if name in vars(self):
                delattr(self, name)

    async def fit_async(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Run :meth:`fit` in a thread, for callers that live on an event loop.

        Parameters
        ----------
        X, y : object
            As for :meth:`fit`.
        **params
            Likewise.

        Returns
        -------
        self : object
            Fitted. Who cancels this no longer waits for the fits, but does not end them.
        """
        # scikit-learn's configuration is each thread's own.
        surroundings = Surroundings.current()
        return await asyncio.to_thread(surroundings.call, self.fit, X, y, **params)

    def _search(self, task: Task) -> tuple[dict[str, Any], Any]:
        """Return the results, and the name of the metric that decides."""
        site = site_of(self.client, self.n_jobs)
        listening = site.in_process or has_callbacks(self)
        job = Job(**self._job(task, site, listening=listening))
        metadata = (task.routed.estimator.fit, task.routed.scorer.score)
        with Engine(job, Data(X=task.X, y=task.y, metadata=metadata), site) as engine:
            evaluation = _Evaluation(self, task, engine, listening=listening)
            run_search(self, evaluation, task.callbacks)
        return evaluation.results, self._metric_of(task, evaluation.first_scores)

    def _splits(self, task: Task, cv: Any) -> list[Split]:
        """Return the samples of all splits; once, as a splitter that shuffles gives others then."""
        splits = list(cv.split(task.X, task.y, **task.routed.splitter.split))
        if len(splits) != self.n_splits_:
            raise ValueError(
                "cv.split and cv.get_n_splits return inconsistent results. "
                f"Expected {self.n_splits_} splits, got {len(splits)}"
            )
        return splits

    def _job(self, task: Task, site: Site, *, listening: bool) -> dict[str, Any]:
        """Return what all fits have in common, as the arguments of a `Job`."""
        return {
            "estimator": task.estimator,
            "scorer": task.scorer,
            "return_train_score": self.return_train_score,
            "error_score": self.error_score,
            "verbose": self.verbose,
            "n_splits": self.n_splits_,
            "surroundings": None if site.in_process else Surroundings.current(),
            # It would take the whole search along, which nobody but callbacks asks for.
            "caller": self if listening else None,
        }

    def _metric_of(self, task: Task, first: Any) -> Any:
        """Return the name of the metric that decides, where the scores of one fit are known."""
        # Of a function that scores it is known only now whether it gives several metrics.
        self.multimetric_ = isinstance(first, dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(first)
            return self.refit
        return task.refit_metric

    def _choose(self, results: Mapping[str, Any], metric: Any) -> None:
        if not self.refit and self.multimetric_:
            return
        self.best_index_ = self._select_best_index(self.refit, metric, results)
        if not callable(self.refit):
            self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _refit(self, task: Task) -> None:
        # Parameters may be estimators themselves, so they are cloned, too.
        parameters = clone(self.best_params_, safe=False)
        best = self.best_estimator_ = clone(task.estimator).set_params(**parameters)
        context = task.callbacks.subcontext(task_name="refit-with-best-params")
        with context.propagate_callback_context(best):
            context.call_on_fit_task_begin(estimator=self, **task.told)
            params = task.routed.estimator.fit
            if isinstance(task.X, PlacedSamples):
                best, self.refit_time_ = self._fit_there(best, task.X, task.y, params)
                self.best_estimator_ = best
            else:
                started = time.time()
                self._fit_best(best, Data(X=task.X, y=task.y), params)
                self.refit_time_ = time.time() - started
        if hasattr(best, "feature_names_in_"):
            self.feature_names_in_ = best.feature_names_in_
        context.call_on_fit_task_end(estimator=self, **task.told)

    def _fit_best(self, best: Any, data: Data, params: Mapping[str, Any]) -> None:
        """Fit the best candidate on all data."""
        targets = () if data.y is None else (data.y,)
        best.fit(data.X, *targets, **params)

    def _fit_there(
        self, best: Any, X: PlacedSamples, y: Any, params: Mapping[str, Any]
    ) -> tuple[Any, float]:
        """Fit the best candidate where the data is; return it and the seconds that it took."""
        # Not the whole search: it may hold what cannot travel, such as a generator of splits.
        bare = object.__new__(type(self))
        known = vars(self)
        bare.__dict__.update({one: known[one] for one in self._refit_needs if one in known})
        fitted: tuple[Any, float] = X.call(
            fitted_there, Surroundings.current(), bare._fit_best, best, y, params
        )
        return fitted

    # A search is cloned, copied and pickled; a client can be none of these.

    def __sklearn_clone__(self) -> Any:
        bare = object.__new__(type(self))
        bare.__dict__.update(vars(self), client=None)
        twin = super(ClusterSearchCV, bare).__sklearn_clone__()
        twin.client = self.client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "client": portable(state.get("client"))}


class _Evaluation:
    """What a search calls with its candidates, once or several times.

    Parameters
    ----------
    search : ClusterSearchCV
        The search.
    task : Task
        What it was called for.
    engine : Engine
        Runs the fits.
    listening : bool
        Whether callbacks are to hear of each fit.
    """

    def __init__(
        self, search: ClusterSearchCV, task: Task, engine: Engine, *, listening: bool
    ) -> None:
        self._search = search
        self._task = task
        self._engine = engine
        self._listening = listening
        self._candidates: list[Any] = []
        self._outcomes: list[Outcome] = []
        self._more: defaultdict[str, list[Any]] = defaultdict(list)
        #: As `cv_results_`, of all candidates so far.
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
        """Evaluate candidates, and return the results of all so far."""
        search, task = self._search, self._task
        candidates = list(candidate_params)
        cv = cv or search._checked_cv_orig
        splits, n_splits = search._splits(task, cv), search.n_splits_
        if search.verbose > 0:
            print(  # noqa: T201 - what verbose asks for
                f"Fitting {n_splits} folds for each of {len(candidates)} candidates,"
                f" totalling {len(candidates) * n_splits} fits"
            )
        fits = self._fits(candidates, callback_ctx if self._listening else None)
        if not fits:
            raise ValueError(NOTHING_FITTED)
        outcomes = self._engine.run(fits, splits)
        warn_or_raise_about_fit_failures(outcomes, search.error_score)
        if callable(search.scoring):
            insert_error_scores(outcomes, search.error_score)
        self._candidates += candidates
        self._outcomes += outcomes
        for key, value in (more_results or {}).items():
            self._more[key].extend(value)
        self.results = search._format_results(
            self._candidates, n_splits, self._outcomes, self._more
        )
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
    """Return what callbacks are told of the parameters of `fit`."""
    weights = params.get("sample_weight")
    return None if weights is None else {"sample_weight": weights}
