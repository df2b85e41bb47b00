"""Ways to train an estimator a little further: what a step of a trial adds to it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Final

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline

from dasktune.errors import check
from dasktune.sklearn.compat import safe_indexing
from dasktune.sklearn.heads import fit_head, params_of_steps

__all__ = ["BUDGETS", "Part", "Route", "find_route", "refuse_collisions", "trained_part"]

#: What `TuneSearchCV` takes as its budget.
BUDGETS: Final = (
    "auto",
    "partial_fit",
    "max_iter",
    "n_estimators",
    "boosting",
    "folds",
    "n_samples",
)

#: Names of the number of rounds, all of which mean the same to the libraries.
_ROUNDS: Final = ("n_estimators", "num_boost_round", "num_iterations", "num_trees", "iterations")

#: Fewest samples of a step, and fewest of each class.
_FEWEST: Final = 10
_OF_EACH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an estimator is trained on."""

    X: Any
    y: Any
    #: For its ``fit``.
    params: Mapping[str, Any]

    def fit(self, method: Callable[..., Any], **more: Any) -> None:
        """Call a method that fits."""
        targets = () if self.y is None else (self.y,)
        method(self.X, *targets, **self.params, **more)


class Route(ABC):
    """A way to train step by step.

    Parameters
    ----------
    amount : int
        How much a step adds.
    """

    #: The value of `budget` that asks for it.
    budget: ClassVar[str]

    def __init__(self, amount: int) -> None:
        self.amount = amount

    @property
    @abstractmethod
    def owned(self) -> tuple[str, ...]:
        """Parameters that it sets itself, so that they cannot be searched."""

    @abstractmethod
    def advance(self, model: Any, part: Part, start: int, stop: int) -> Any:
        """Train a model some steps further, and return it.

        What comes of it does not hang on how many steps are taken at a time, but for what a library
        draws anew in each fit.

        Parameters
        ----------
        model : estimator
            After `start` steps; unfitted before the first.
        part : Part
            What it is trained on, the same at each step.
        start, stop : int
            After which step it is, and is to be.
        """

    def samples(self, y: Any, rows: Any, step: int) -> Any:
        """Return on which samples a step trains, of those of a split: all by default.

        Parameters
        ----------
        y : object
            All targets.
        rows : array of int
            Which samples the split trains on.
        step : int
            The number of the step, from 1.
        """
        return rows

    def fit_all(self, model: Any, part: Part, steps: int) -> None:
        """Fit an estimator, perhaps a whole pipeline, with what so many steps come to."""
        part.fit(model.fit)


class _PartialFit(Route):
    budget = "partial_fit"
    #: Of no effect on ``partial_fit``, which trains for one epoch.
    owned = ("max_iter", "n_iter_no_change", "tol")

    def __init__(self, amount: int, classes: Any) -> None:
        super().__init__(amount)
        self._classes = classes

    def advance(self, model: Any, part: Part, start: int, stop: int) -> Any:
        takes = "classes" in signature(model.partial_fit).parameters
        more = {"classes": self._classes} if takes and self._classes is not None else {}
        for _ in range(self.amount * (stop - start)):
            part.fit(model.partial_fit, **more)
        return model

    def fit_all(self, model: Any, part: Part, steps: int) -> None:
        last, inner = model, part
        if isinstance(model, Pipeline):
            params = params_of_steps(model, part.params)
            X, _ = fit_head(model.steps[:-1], part.X, part.y, params)
            last = model.steps[-1][1]
            inner = Part(X=X, y=part.y, params=params[model.steps[-1][0]].fit)
        self.advance(last, inner, 0, steps)


class _WarmStart(Route):
    """Goes on where the last ``fit`` ended.

    Parameters
    ----------
    amount : int
        How much a step adds.
    parameter : str
        What limits a ``fit``.
    counts_all : bool
        Whether the limit is for all that was fitted so far, or for this ``fit`` only.
    """

    def __init__(self, amount: int, parameter: str, counts_all: bool) -> None:
        super().__init__(amount)
        self._parameter = parameter
        self._counts_all = counts_all

    @property
    def budget(self) -> str:  # type: ignore[override]
        return self._parameter

    @property
    def owned(self) -> tuple[str, ...]:
        return (self._parameter, "warm_start")

    def advance(self, model: Any, part: Part, start: int, stop: int) -> Any:
        # Solvers begin anew with each fit, so that one long fit is another thing than some short.
        limits = [self.amount * stop] if self._counts_all else [self.amount] * (stop - start)
        with warnings.catch_warnings():
            # To end before it has converged is the purpose.
            warnings.simplefilter("ignore", ConvergenceWarning)
            for limit in limits:
                model.set_params(warm_start=True, **{self._parameter: limit})
                part.fit(model.fit)
        return model

    def fit_all(self, model: Any, part: Part, steps: int) -> None:
        trained_part(model).set_params(**{self._parameter: self.amount * steps})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            part.fit(model.fit)


class _Boosting(Route):
    """Adds rounds to a booster of another library.

    Parameters
    ----------
    amount : int
        How many rounds a step adds.
    keyword : str
        Argument of its ``fit`` that takes the model to go on from.
    """

    budget = "boosting"
    owned = _ROUNDS

    _GO_ON: ClassVar[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
        "xgboost": ("xgb_model", lambda model: model.get_booster()),
        "lightgbm": ("init_model", lambda model: model.booster_),
        "catboost": ("init_model", lambda model: model),
    }

    def __init__(self, amount: int, library: str) -> None:
        super().__init__(amount)
        self._library = library
        self._rounds = "iterations" if library == "catboost" else "n_estimators"

    def advance(self, model: Any, part: Part, start: int, stop: int) -> Any:
        rounds = {self._rounds: self.amount * (stop - start)}
        if not start:
            part.fit(model.set_params(**rounds).fit)
            return model
        keyword, fitted = self._GO_ON[self._library]
        # Another object: some take the model that they go on from apart.
        longer = clone(model).set_params(**rounds)
        go_on = {keyword: fitted(model)}
        if self._library == "lightgbm":
            _fit_with_other_draws(longer, part, start, go_on)
        else:
            part.fit(longer.fit, **go_on)
        return longer

    def fit_all(self, model: Any, part: Part, steps: int) -> None:
        trained_part(model).set_params(**{self._rounds: self.amount * steps})
        part.fit(model.fit)


def _fit_with_other_draws(model: Any, part: Part, start: int, go_on: Mapping[str, Any]) -> None:
    """Fit a model of LightGBM, which draws by its seed as if it went on from nothing.

    With the same seed all steps would see the same samples and features.
    """
    seed = model.random_state
    if isinstance(seed, int | np.integer | None):
        # Numbers of 31 bits are seeds.
        model.set_params(random_state=((seed or 0) + start) % 2**31)
    part.fit(model.fit, **go_on)
    model.set_params(random_state=seed)


class _Samples(Route):
    """Fits anew, with more samples each time.

    Parameters
    ----------
    max_steps : int
        At which step all samples are there.
    classes : array or list of array, optional
        Of a classifier.
    """

    budget = "n_samples"
    owned = ()

    def __init__(self, max_steps: int, classes: Any) -> None:
        super().__init__(1)
        self._max_steps = max_steps
        self._classes = classes

    def advance(self, model: Any, part: Part, start: int, stop: int) -> Any:
        fresh = clone(model)
        part.fit(fresh.fit)
        return fresh

    def samples(self, y: Any, rows: Any, step: int) -> Any:
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        is_classifier = self._classes is not None
        fewest = max(_FEWEST, _OF_EACH * len(self._classes)) if is_classifier else _FEWEST
        # The same order at each step, so that samples are only added.
        order = _order(len(rows), safe_indexing(y, rows) if is_classifier else None)
        count = max(fewest, -(-len(rows) * step // self._max_steps))
        return rows[np.sort(order[:count])]


def _order(count: int, labels: Any) -> Any:
    """Return the numbers of samples in an order whose beginnings have each class by its share.

    Some of each class come first, for a classifier that lacks one fails.
    """
    order = np.random.default_rng(0).permutation(count)
    labels = None if labels is None else np.asarray(labels)
    if labels is None or labels.size != count:
        return order
    _, kinds = np.unique(labels.ravel(), return_inverse=True)
    places = np.empty(count)
    for kind in range(kinds.max() + 1):
        own = order[kinds[order] == kind]
        places[own] = (np.arange(len(own)) + 0.5) / len(own)
        places[own[:_OF_EACH]] -= 1
    return order[np.argsort(places[order], kind="stable")]


def trained_part(estimator: Any) -> Any:
    """Return what is trained step by step: the last step of a pipeline, else the estimator."""
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def find_route(
    estimator: Any,
    budget: str,
    *,
    amount: int,
    max_steps: int,
    classes: Any = None,
    variants: Sequence[Any] = (),
) -> Route | None:
    """Return how an estimator can be trained step by step.

    Parameters
    ----------
    estimator : estimator
        Which; of a pipeline it is the last step.
    budget : str
        What a step adds to, or "auto" for the first way that there is.
    amount : int
        How much a step adds.
    max_steps : int
        Most steps of a trial.
    classes : array, optional
        All that there are.
    variants : sequence of estimator
        The same with other parameters, which must be trained by the same way.

    Returns
    -------
    Route or None
        None if there is none.
    """
    if budget == "n_samples":
        return _Samples(max_steps, classes)
    found = [one for one in _routes(estimator, amount, classes) if budget in ("auto", one.budget)]
    for variant in variants if found else ():
        allowed = {one.budget for one in _routes(variant, amount, classes)}
        found = [one for one in found if one.budget in allowed]
    return found[0] if found else None


def _routes(estimator: Any, amount: int, classes: Any) -> list[Route]:
    """Return all ways to train an estimator step by step, the best first."""
    if not _is_separable(estimator):
        return []
    model = trained_part(estimator)
    routes: list[Route] = []
    if hasattr(model, "partial_fit"):
        routes.append(_PartialFit(amount, classes))
    for parameter in ("max_iter", "n_estimators"):
        if _has(model, "warm_start") and _has(model, parameter):
            # Those of trees count what is there already.
            is_histogram = isinstance(
                model, HistGradientBoostingClassifier | HistGradientBoostingRegressor
            )
            counts_all = parameter == "n_estimators" or is_histogram
            routes.append(_WarmStart(amount, parameter, counts_all))
    library = _library(model)
    if library:
        routes.append(_Boosting(amount, library))
    return [one for one in routes if not _is_ruled_out(model, one.budget)]


def _is_ruled_out(model: Any, budget: str) -> bool:
    """Whether scikit-learn refuses to train a model this way, or begins anew with each step."""
    if budget == "partial_fit":
        # Others may know what to do with parameters of these names.
        is_theirs = getattr(model.partial_fit, "__module__", "").startswith("sklearn.")
        return is_theirs and (
            _has_value(model, "early_stopping", True)
            or _has_value(model, "class_weight", "balanced")
        )
    if budget == "max_iter":
        return _has_value(model, "solver", "liblinear")
    return isinstance(model, BaggingClassifier | BaggingRegressor) and bool(model.oob_score)


def refuse_collisions(route: Route, estimator: Any, names: set[str]) -> None:
    """Refuse parameters that are searched and that a route sets itself.

    Parameters
    ----------
    route : Route
        How the estimator is trained.
    estimator : estimator
        Which.
    names : set of str
        What is searched.

    Raises
    ------
    ConfigError
        If there is one.
    """
    prefix = f"{estimator.steps[-1][0]}__" if isinstance(estimator, Pipeline) else ""
    taken = sorted(names & {prefix + name for name in route.owned})
    check(
        not taken,
        "param_distributions",
        f"without {', '.join(prefix + name for name in route.owned)}, which the budget "
        f"{route.budget!r} decides",
        taken,
        "Leave them out, or choose another budget=.",
    )


def _is_separable(estimator: Any) -> bool:
    """Whether the transformers of a pipeline can be fitted on their own."""
    if not isinstance(estimator, Pipeline):
        return True
    return all(
        step in (None, "passthrough") or hasattr(step, "transform")
        for _, step in estimator.steps[:-1]
    )


def _has(model: Any, parameter: str) -> bool:
    return hasattr(model, "get_params") and parameter in model.get_params(deep=False)


def _has_value(model: Any, parameter: str, wanted: str | bool) -> bool:
    """Whether a model, or an estimator within it, has this value of a parameter."""
    params = model.get_params() if hasattr(model, "get_params") else {}
    return any(
        name.rpartition("__")[2] == parameter
        and isinstance(value, str | bool | np.bool_)
        and value == wanted
        for name, value in params.items()
    )


def _library(model: Any) -> str:
    """Return which library's booster it is that can go on; empty if it is none."""
    kind = type(model)
    if kind.__name__.startswith("XGBRF"):
        # A forest of one round.
        return ""
    names = [parent.__module__.partition(".")[0] for parent in kind.__mro__]
    return next((name for name in names if name in _Boosting._GO_ON), "")
