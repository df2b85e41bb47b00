"""Private names of scikit-learn that dasktune needs, and the differences between its versions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, Final

import sklearn
from sklearn.base import BaseEstimator, _fit_context
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection._search import BaseSearchCV, _search_estimator_has
from sklearn.model_selection._search_successive_halving import (
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
)
from sklearn.model_selection._validation import (
    _fit_and_score,
    _insert_error_scores,
    _score,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.metadata_routing import _routing_enabled
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import _FuncWrapper
from sklearn.utils.validation import _check_method_params, _num_samples, indexable

__all__ = [
    "BaseSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "Interval",
    "MultimetricScorer",
    "Options",
    "SklearnContext",
    "StrOptions",
    "begin_callbacks",
    "check_method_params",
    "fit_and_score",
    "fit_context",
    "has_callbacks",
    "indexable",
    "insert_error_scores",
    "num_samples",
    "routing_enabled",
    "run_search",
    "safe_indexing",
    "safe_split",
    "score",
    "search_estimator_has",
    "warn_or_raise_about_fit_failures",
]

MultimetricScorer = _MultimetricScorer
check_method_params = _check_method_params
fit_context = _fit_context
insert_error_scores = _insert_error_scores
num_samples = _num_samples
routing_enabled = _routing_enabled
safe_indexing = _safe_indexing
search_estimator_has = _search_estimator_has
safe_split = _safe_split
score = _score
warn_or_raise_about_fit_failures = _warn_or_raise_about_fit_failures

#: Whether the installed scikit-learn has callbacks, which are new in 1.9.
_HAS_CALLBACKS: Final = "callback_ctx" in signature(_fit_and_score).parameters


def fit_and_score(*data: Any, caller: Any = None, callback_ctx: Any = None, **options: Any) -> dict[str, Any]:
    """Fit an estimator on one part of the data and score it on another.

    Parameters
    ----------
    *data
        The estimator, X and y.
    caller : object, optional
        The search, if it has callbacks.
    callback_ctx : object, optional
        The context of the callbacks.
    **options
        Further arguments of scikit-learn's ``_fit_and_score``.
    """
    if _HAS_CALLBACKS:
        options.update(caller=caller, callback_ctx=callback_ctx)
    result: dict[str, Any] = _fit_and_score(*data, **options)
    return result


class SklearnContext:
    """The scikit-learn configuration and the warning filters of the thread that called a search.

    Both belong to a thread or a process, so they must be restored where the fits run.

    Parameters
    ----------
    config : mapping
        The configuration, as ``sklearn.get_config()`` returns it.
    filters : sequence of tuple
        The warning filters.
    """

    def __init__(self, config: Mapping[str, Any], filters: Sequence[tuple[Any, ...]]) -> None:
        self._config = dict(config)
        self._filters = list(filters)

    @classmethod
    def current(cls) -> SklearnContext:
        """Return the context of the calling thread."""
        return cls(sklearn.get_config(), _filters())

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this context.

        Parameters
        ----------
        function : callable
            The function to call.
        *args, **kwargs
            The arguments of the function.
        """
        if not self._filters or self._filters == list(_filters()):
            # All threads of a process share the warning filters, except in free-threaded Python.
            # Two trials that set and reset them at the same time could leave the wrong ones, so
            # equal filters are not set again. If they differ, that race remains, as in
            # scikit-learn's own parallel calls.
            with sklearn.config_context(**self._config):
                return function(*args, **kwargs)
        wrapped = _FuncWrapper(function)
        if hasattr(wrapped, "with_config_and_warning_filters"):
            wrapped.with_config_and_warning_filters(self._config, self._filters)
        else:
            wrapped.with_config(self._config)
        return wrapped(*args, **kwargs)


def _filters() -> Sequence[tuple[Any, ...]]:
    # Free-threaded Python keeps the warning filters in a context variable.
    getter = getattr(warnings, "_get_filters", None)
    return getter() if getter is not None else warnings.filters


class _NoCallbacks:
    """A callback context that does nothing, for versions of scikit-learn without callbacks."""

    def subcontext(self, **about: Any) -> _NoCallbacks:
        return self

    def call_on_fit_task_begin(self, **about: Any) -> _NoCallbacks:
        return self

    def call_on_fit_task_end(self, **about: Any) -> _NoCallbacks:
        return self

    @contextmanager
    def propagate_callback_context(self, estimator: Any) -> Iterator[None]:
        yield


def begin_callbacks(search: Any, **about: Any) -> Any:
    """Notify the callbacks of a search that it begins, and return their context.

    Parameters
    ----------
    search : BaseSearchCV
        The search.
    **about
        The arguments of the callbacks.
    """
    if not _HAS_CALLBACKS:
        return _NoCallbacks()
    # The search and the refit are subtasks; `refit` may be a string or a function.
    context = search._init_callback_context(max_subtasks=1 + (search.refit is not False))
    return context.call_on_fit_task_begin(estimator=search, **about)


def run_search(search: Any, evaluate: Callable[..., Any], context: Any) -> None:
    """Call ``_run_search`` of a search, which chooses the candidates and evaluates them.

    Parameters
    ----------
    search : BaseSearchCV
        The search. A class of the user may have a `_run_search` without `callback_ctx`.
    evaluate : callable
        Evaluates candidates.
    context : object
        The context of the callbacks.
    """
    if "callback_ctx" in signature(search._run_search).parameters:
        search._run_search(evaluate, callback_ctx=context)
    else:
        search._run_search(evaluate)


def has_callbacks(search: BaseEstimator) -> bool:
    """Whether a search, its estimator or a nested estimator has scikit-learn callbacks.

    Parameters
    ----------
    search : BaseSearchCV
        The search.
    """
    parts = [search, search.estimator]
    if hasattr(search.estimator, "get_params"):
        parts += search.estimator.get_params().values()
    return any(getattr(part, "_skl_callbacks", None) for part in parts)
