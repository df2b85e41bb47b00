"""A cache of fitted pipeline transformers, shared by all candidates with equal transformers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any
from weakref import WeakValueDictionary

import joblib
import sklearn
from sklearn.base import clone
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import process_routing

#: The named steps of a pipeline, without the last.
Steps = Sequence[tuple[str, Any]]


@dataclass(slots=True)
class FittedTransformers:
    """Fitted transformers, with the transformed samples of a split and their targets.

    Candidates share the samples. An estimator or scorer, which may change them, gets a copy.
    """

    steps: Steps
    train: tuple[Any, Any]
    test: tuple[Any, Any]


@dataclass(slots=True)
class _CacheEntry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    transformers: FittedTransformers | None = None


class TransformerCache:
    """Keeps the fitted transformers that trials of a search used last in this process.

    Thread-safe: trials run in several threads of a worker.

    Parameters
    ----------
    max_entries : int
        Maximum number of entries; the least recently used one is dropped.

    Examples
    --------
    >>> cache = TransformerCache(1)
    >>> first = cache.get("a", lambda: FittedTransformers([], (1, 2), (3, 4)))
    >>> first is cache.get("a", lambda: FittedTransformers([], (5, 6), (7, 8)))
    True
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], FittedTransformers]) -> FittedTransformers:
        """Return the transformers for a key; the first thread that requests them fits them.

        Parameters
        ----------
        key : hashable
            The key.
        make : callable
            Fits the transformers.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _CacheEntry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        # Two threads may request one key: the second waits here until the first has fitted, then
        # uses its result. Another key is not blocked, because the cache's own lock is released.
        # If `make` raises, the entry stays empty and the next thread fits. A thread may hold an
        # entry that was dropped meanwhile: it still gets correct transformers, only not shared.
        with entry.lock:
            if entry.transformers is None:
                entry.transformers = make()
            return entry.transformers


#: The caches of this process by search. A cache is freed with the last trial that holds it.
_caches: WeakValueDictionary[str, TransformerCache] = WeakValueDictionary()
_lock = threading.Lock()


def shared_cache(token: str, n_splits: int) -> TransformerCache:
    """Return the cache that all trials of a search share in this process.

    Parameters
    ----------
    token : str
        Identifies the search.
    n_splits : int
        Number of splits. The cache has room for two candidates with different transformers.
    """
    with _lock:
        cache = _caches.get(token)
        if cache is None:
            cache = _caches[token] = TransformerCache(2 * n_splits)
        return cache


def transformers_key(steps: Steps) -> str | None:
    """Return a key that equal unfitted transformers share; None if they cannot be hashed."""
    try:
        return str(joblib.hash([(name, step) for name, step in steps]))
    except Exception:  # transformers may hold objects that cannot be pickled
        return None


def fit_transformers(
    steps: Steps, X: Any, y: Any, params: Mapping[str, Any]
) -> tuple[Any, list[tuple[str, Any]]]:
    """Fit transformers in place, one after the other; return the transformed X and the steps.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X, y : object
        The samples and their targets.
    params : mapping
        Parameters of each step, as `route_fit_params` returns them.
    """
    for name, step in steps:
        if step in (None, "passthrough"):
            continue
        routed = params[name]
        if hasattr(step, "fit_transform"):
            X = step.fit_transform(X, y, **routed.get("fit_transform", {}))
        else:
            X = step.fit(X, y, **routed.get("fit", {})).transform(X, **routed.get("transform", {}))
    return X, list(steps)


def apply_transformers(steps: Steps, X: Any, params: Mapping[str, Any]) -> Any:
    """Return X, transformed by fitted transformers.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X : object
        The samples.
    params : mapping
        Parameters of each step, as `route_fit_params` returns them; a missing step has none.
    """
    for name, step in steps:
        if step not in (None, "passthrough"):
            X = step.transform(X, **params.get(name, {}).get("transform", {}))
    return X


def refit_transform(steps: Steps, X: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """Return the training samples, transformed by transformers that were fitted on them.

    Encoders of the targets and stacking transformers encode their own training samples by
    cross-fitting, so that the targets do not leak into them. Only ``fit_transform`` does that, so
    this function fits a clone of such a transformer again.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X, y : object
        The samples and their targets.
    params : mapping
        Parameters of each step, as `route_fit_params` returns them.
    """
    for step in steps:
        if _may_cross_fit(step[1]):
            again = [(step[0], clone(step[1]))]
            made, _ = fit_transformers(again, deepcopy(X), y, params)
            # Without a fixed seed the clone may differ from the fitted transformer, which the model
            # was trained with. So its output is used only if `transform` cannot give the same.
            if joblib.hash(made) != joblib.hash(apply_transformers(again, deepcopy(X), params)):
                X = made
                continue
        X = apply_transformers([step], X, params)
    return X


def _may_cross_fit(step: Any) -> bool:
    """Whether ``fit_transform`` may return something else than ``fit`` and ``transform``."""
    within = step.get_params().values() if hasattr(step, "get_params") else ()
    return any(_has_own_fit_transform(one) for one in (step, *within))


def _has_own_fit_transform(step: Any) -> bool:
    """Whether ``fit_transform`` is not scikit-learn's, or requires targets.

    scikit-learn's own, such as those of `TransformerMixin` and `PCA`, are shortcuts for ``fit`` and
    ``transform``, unless they require y, as `TargetEncoder`'s does. Fitting them again would take
    longer, and `NMF` with ``random_state=None`` would find its components in another order.
    """
    method = getattr(step, "fit_transform", None)
    if method is None or not getattr(method, "__module__", "").startswith("sklearn."):
        return method is not None
    y = signature(method).parameters.get("y")
    return y is not None and y.default is Parameter.empty


def route_fit_params(pipeline: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a pipeline's ``fit``, routed to its steps.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    params : mapping
        Parameters of its ``fit``.

    Raises
    ------
    ValueError
        If a parameter does not name a step.
    """
    if sklearn.get_config()["enable_metadata_routing"]:
        routed: Mapping[str, Any] = process_routing(pipeline, "fit", **params)
        return routed
    params_by_step: dict[str, dict[str, Any]] = {name: {} for name, _ in pipeline.steps}
    for name, value in params.items():
        step, found, parameter = name.partition("__")
        if not found or step not in params_by_step:
            raise ValueError(
                f"Pipeline.fit does not accept the {name} parameter. You can pass parameters to "
                "specific steps of your pipeline using the stepname__parameter format, e.g. "
                "`Pipeline.fit(X, y, logisticregression__sample_weight=sample_weight)`."
            )
        params_by_step[step][parameter] = value
    return {
        name: Bunch(fit=values, fit_transform=values, transform={}) for name, values in params_by_step.items()
    }
