"""The transformers of a pipeline, fitted once and shared by all candidates that agree on them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import joblib
import sklearn
from sklearn.base import clone
from sklearn.preprocessing import TargetEncoder
from sklearn.utils import Bunch
from sklearn.utils.metadata_routing import process_routing

__all__ = [
    "Head",
    "Heads",
    "fit_head",
    "head_key",
    "heads_of",
    "params_of_steps",
    "remade",
    "transformed",
]

#: Fitted steps by name, without the last.
Steps = Sequence[tuple[str, Any]]


@dataclass(slots=True)
class Head:
    """Fitted transformers, and what they make of a split."""

    steps: Steps
    X_train: Any
    X_test: Any


@dataclass(slots=True)
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    head: Head | None = None


class Heads:
    """Keeps the last heads that the trials of a search have used in this process.

    Parameters
    ----------
    most : int
        How many.

    Examples
    --------
    >>> heads = Heads(1)
    >>> heads.get("a", lambda: Head([], 1, 2)) is heads.get("a", lambda: Head([], 3, 4))
    True
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Head]) -> Head:
        """Return the head of this name; made if it is not there, by one thread only.

        Parameters
        ----------
        key : hashable
            The name.
        make : callable
            Makes it.
        """
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._most:
                self._places.popitem(last=False)
        with place.lock:
            if place.head is None:
                place.head = make()
            return place.head


#: Of this process, by search; they go with the last trial that holds them.
_of_search: WeakValueDictionary[str, Heads] = WeakValueDictionary()
_lock = threading.Lock()


def heads_of(token: str, n_splits: int) -> Heads:
    """Return what all trials of a search share in this process, for as long as somebody holds it.

    Parameters
    ----------
    token : str
        Names the search.
    n_splits : int
        How many splits it has: room is for the candidates of two threads that disagree.
    """
    with _lock:
        heads = _of_search.get(token)
        if heads is None:
            heads = _of_search[token] = Heads(2 * n_splits)
        return heads


def head_key(steps: Steps) -> str | None:
    """Return a name that equal unfitted transformers share; None if they cannot be named."""
    try:
        return str(joblib.hash([(name, step) for name, step in steps]))
    except Exception:  # they may hold anything
        return None


def fit_head(
    steps: Steps, X: Any, y: Any, params: Mapping[str, Any]
) -> tuple[Any, list[tuple[str, Any]]]:
    """Fit transformers in place, one after the other, and return what they make of X, and them.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X, y : object
        The data.
    params : mapping
        Of each step, as `params_of_steps` has them.
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


def transformed(steps: Steps, X: Any, params: Mapping[str, Any]) -> Any:
    """Return what fitted transformers make of X.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X : object
        The data.
    params : mapping
        Of each step, as `params_of_steps` has them; those that it lacks have none.
    """
    for name, step in steps:
        if step not in (None, "passthrough"):
            X = step.transform(X, **params.get(name, {}).get("transform", {}))
    return X


def remade(steps: Steps, X: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """Return what fitted transformers make of the samples that they were fitted on.

    Those that encode targets make another thing of these than of all others, lest what comes after
    them learns the targets from them, and only while they are fitted.

    Parameters
    ----------
    steps : sequence of tuple
        Names and transformers.
    X, y : object
        The data.
    params : mapping
        Of each step, as `params_of_steps` has them.
    """
    for step in steps:
        if _encodes_targets(step[1]):
            X, _ = fit_head([(step[0], clone(step[1]))], X, y, params)
        else:
            X = transformed([step], X, params)
    return X


def _encodes_targets(step: Any) -> bool:
    within = step.get_params().values() if hasattr(step, "get_params") else ()
    return any(isinstance(one, TargetEncoder) for one in (step, *within))


def params_of_steps(pipeline: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what goes to which step of a pipeline of what its ``fit`` is given.

    Parameters
    ----------
    pipeline : Pipeline
        Which.
    params : mapping
        What it is given.

    Raises
    ------
    ValueError
        If a name says no step.
    """
    if sklearn.get_config()["enable_metadata_routing"]:
        routed: Mapping[str, Any] = process_routing(pipeline, "fit", **params)
        return routed
    parts: dict[str, dict[str, Any]] = {name: {} for name, _ in pipeline.steps}
    for name, value in params.items():
        step, found, parameter = name.partition("__")
        if not found or step not in parts:
            raise ValueError(
                f"Pipeline.fit does not accept the {name} parameter. You can pass parameters to "
                "specific steps of your pipeline using the stepname__parameter format, e.g. "
                "`Pipeline.fit(X, y, logisticregression__sample_weight=sample_weight)`."
            )
        parts[step][parameter] = value
    return {
        name: Bunch(fit=given, fit_transform=given, transform={}) for name, given in parts.items()
    }
