"""Training modes: the ways to train an estimator a little further in each step of a trial."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
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
from dasktune.sklearn.compat import check_method_params, num_samples, safe_indexing
from dasktune.sklearn.steps.pipeline_cache import fit_transformers, route_fit_params

#: Values of the argument `budget` of `TuneSearchCV`.
BUDGETS: Final = (
    "auto",
    "partial_fit",
    "max_iter",
    "n_estimators",
    "boosting",
    "folds",
    "n_samples",
)

#: The names of the number of rounds, which the boosting libraries accept as synonyms.
_ROUND_PARAMS: Final = (
    "n_estimators",
    "num_boost_round",
    "num_iterations",
    "num_trees",
    "iterations",
)

#: Minimum number of samples in a step, and of samples of each class.
_MIN_SAMPLES: Final = 10
_MIN_PER_CLASS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The samples, the targets and the fit parameters of one split."""

    #: Returns X, y and the parameters of ``fit``. An estimator may change its samples in place, as
    #: ``Lasso(copy_X=False)`` does, so samples for several calls must be new copies each time.
    take: Callable[[], tuple[Any, Any, Mapping[str, Any]]]

    def fit(self, method: Callable[..., Any], **extra_params: Any) -> None:
        """Call ``fit`` or ``partial_fit`` of an estimator with this data."""
        X, y, params = self.take()
        targets = () if y is None else (y,)
        method(X, *targets, **params, **extra_params)


class TrainingMode(ABC):
    """One way to train an estimator step by step.

    Parameters
    ----------
    amount : int
        Units of the budget that a step adds.
    """

    #: The value of `budget` that selects this mode.
    budget: ClassVar[str]

    def __init__(self, amount: int) -> None:
        self.amount = amount

    @property
    @abstractmethod
    def reserved_params(self) -> tuple[str, ...]:
        """Parameters that the mode sets itself, so that they cannot be searched."""

    @abstractmethod
    def advance(self, model: Any, data: TrainingData, start: int, stop: int) -> Any:
        """Train a model some steps further, and return it.

        The result does not depend on how many steps one call takes, except for random numbers that
        a library draws again in each fit.

        Parameters
        ----------
        model : estimator
            The model after `start` steps; unfitted before the first.
        data : TrainingData
            The training data, the same at each step.
        start, stop : int
            The number of steps before and after this call.
        """

    def samples(self, y: Any, rows: Any, step: int) -> Any:
        """Return the indices of a step's training samples, by default all of `rows`.

        Parameters
        ----------
        y : object
            All targets.
        rows : array of int
            The indices of the split's training samples.
        step : int
            The number of the step, from 1.
        """
        return rows

    def fit_steps(self, model: Any, data: TrainingData, steps: int) -> None:
        """Fit an estimator or a whole pipeline with the budget of this many steps.

        Parameters
        ----------
        model : estimator
            The unfitted estimator or pipeline.
        data : TrainingData
            The training data.
        steps : int
            The number of steps.
        """
        data.fit(model.fit)


class _PartialFit(TrainingMode):
    budget = "partial_fit"
    #: These have no effect on ``partial_fit``, which trains for one epoch.
    reserved_params = ("max_iter", "n_iter_no_change", "tol")

    def __init__(self, amount: int, classes: Any) -> None:
        super().__init__(amount)
        self._classes = classes

    def advance(self, model: Any, data: TrainingData, start: int, stop: int) -> Any:
        takes_classes = "classes" in signature(model.partial_fit).parameters
        extra_params = {"classes": self._classes} if takes_classes and self._classes is not None else {}
        for _ in range(self.amount * (stop - start)):
            data.fit(model.partial_fit, **extra_params)
        return model

    def fit_steps(self, model: Any, data: TrainingData, steps: int) -> None:
        (X, y, params), final = data.take(), final_estimator(model)
        if isinstance(model, Pipeline):
            routed = route_fit_params(model, params)
            X, _ = fit_transformers(model.steps[:-1], X, y, routed)
            params = routed[model.steps[-1][0]].fit
        rows = np.arange(num_samples(X))

        def take() -> tuple[Any, Any, Mapping[str, Any]]:
            # Parameters with a value for each sample are copied, others may be objects of the user.
            return *deepcopy((X, y)), check_method_params(X, params=params, indices=rows)

        self.advance(final, TrainingData(take=take), 0, steps)


class _WarmStart(TrainingMode):
    """Calls ``fit`` again with ``warm_start``, which continues the last ``fit``.

    Parameters
    ----------
    amount : int
        Iterations or trees that a step adds.
    parameter : str
        The estimator's parameter that limits the iterations or trees.
    counts_all : bool
        Whether that limit is for all fits so far together; False if it is for each ``fit`` alone.
    """

    def __init__(self, amount: int, parameter: str, counts_all: bool) -> None:
        super().__init__(amount)
        self._parameter = parameter
        self._counts_all = counts_all

    @property
    def budget(self) -> str:  # type: ignore[override]
        return self._parameter

    @property
    def reserved_params(self) -> tuple[str, ...]:
        return (self._parameter, "warm_start")

    def advance(self, model: Any, data: TrainingData, start: int, stop: int) -> Any:
        # A solver restarts its schedule in each fit, so one long fit differs from several short
        # ones.
        limits = [self.amount * stop] if self._counts_all else [self.amount] * (stop - start)
        with warnings.catch_warnings():
            # A step ends before the solver has converged, on purpose.
            warnings.simplefilter("ignore", ConvergenceWarning)
            for limit in limits:
                model.set_params(warm_start=True, **{self._parameter: limit})
                data.fit(model.fit)
        return model

    def fit_steps(self, model: Any, data: TrainingData, steps: int) -> None:
        final_estimator(model).set_params(**{self._parameter: self.amount * steps})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            data.fit(model.fit)


class _Boosting(TrainingMode):
    """Adds boosting rounds to a model of XGBoost, LightGBM or CatBoost.

    Parameters
    ----------
    amount : int
        Rounds that a step adds.
    library : str
        ``"xgboost"``, ``"lightgbm"`` or ``"catboost"``.
    """

    budget = "boosting"
    reserved_params = _ROUND_PARAMS

    #: {library: (the argument of ``fit`` for the model to continue, a getter of that model)}
    _CONTINUE_FROM: ClassVar[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
        "xgboost": ("xgb_model", lambda model: model.get_booster()),
        "lightgbm": ("init_model", lambda model: model.booster_),
        "catboost": ("init_model", lambda model: model),
    }

    def __init__(self, amount: int, library: str) -> None:
        super().__init__(amount)
        self._library = library
        self._rounds = "iterations" if library == "catboost" else "n_estimators"

    def advance(self, model: Any, data: TrainingData, start: int, stop: int) -> Any:
        rounds = {self._rounds: self.amount * (stop - start)}
        if not start:
            data.fit(model.set_params(**rounds).fit)
            return model
        keyword, fitted = self._CONTINUE_FROM[self._library]
        # A new estimator: some libraries destroy the model that they continue.
        continued = clone(model).set_params(**rounds)
        init_model = {keyword: fitted(model)}
        if self._library == "lightgbm":
            _fit_with_new_seed(continued, data, start, init_model)
        else:
            data.fit(continued.fit, **init_model)
        return continued

    def fit_steps(self, model: Any, data: TrainingData, steps: int) -> None:
        final_estimator(model).set_params(**{self._rounds: self.amount * steps})
        data.fit(model.fit)


def _fit_with_new_seed(model: Any, data: TrainingData, start: int, init_model: Mapping[str, Any]) -> None:
    """Fit a LightGBM model with a seed of its own for this step.

    LightGBM seeds its random numbers in each fit, also when it continues a model. With one seed all
    steps would draw the same samples and features.
    """
    seed = model.random_state
    if isinstance(seed, int | np.integer | None):
        # LightGBM takes seeds of 31 bits.
        model.set_params(random_state=((seed or 0) + start) % 2**31)
    data.fit(model.fit, **init_model)
    model.set_params(random_state=seed)


class _GrowingSamples(TrainingMode):
    """Fits a new clone in each step, with more samples each time.

    Parameters
    ----------
    max_steps : int
        Number of the step that trains on all samples.
    classes : array or list of array, optional
        All classes of y; None unless the estimator is a classifier.
    """

    budget = "n_samples"
    reserved_params = ()

    def __init__(self, max_steps: int, classes: Any) -> None:
        super().__init__(1)
        self._max_steps = max_steps
        self._classes = classes

    def advance(self, model: Any, data: TrainingData, start: int, stop: int) -> Any:
        unfitted = clone(model)
        data.fit(unfitted.fit)
        return unfitted

    def samples(self, y: Any, rows: Any, step: int) -> Any:
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        is_classifier = self._classes is not None
        minimum = max(_MIN_SAMPLES, _MIN_PER_CLASS * len(self._classes)) if is_classifier else _MIN_SAMPLES
        # The order is the same at each step, so a later step has all samples of an earlier one.
        order = _stratified_order(len(rows), safe_indexing(y, rows) if is_classifier else None)
        count = max(minimum, -(-len(rows) * step // self._max_steps))
        return rows[np.sort(order[:count])]


def _stratified_order(count: int, labels: Any) -> Any:
    """Return the sample indices in a shuffled order whose every prefix is stratified by class.

    Some samples of each class come first, because a classifier fails on a missing class.
    """
    order = np.random.default_rng(0).permutation(count)
    labels = None if labels is None else np.asarray(labels)
    if labels is None or labels.size != count:
        return order
    _, class_codes = np.unique(labels.ravel(), return_inverse=True)
    positions = np.empty(count)
    for code in range(class_codes.max() + 1):
        members = order[class_codes[order] == code]
        positions[members] = (np.arange(len(members)) + 0.5) / len(members)
        positions[members[:_MIN_PER_CLASS]] -= 1
    return order[np.argsort(positions[order], kind="stable")]


def final_estimator(estimator: Any) -> Any:
    """Return the estimator to train step by step: the last step of a pipeline, or `estimator`."""
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def choose_mode(
    estimator: Any,
    budget: str,
    *,
    amount: int,
    max_steps: int,
    classes: Any = None,
    variants: Sequence[Any] = (),
) -> TrainingMode | None:
    """Return the mode by which an estimator can be trained step by step.

    Parameters
    ----------
    estimator : estimator
        The estimator; of a pipeline the last step is trained.
    budget : str
        The budget that a step adds to, or "auto" for the first mode that the estimator supports.
    amount : int
        Units of the budget that a step adds.
    max_steps : int
        Maximum number of steps of a trial.
    classes : array, optional
        All classes of y.
    variants : sequence of estimator
        The estimator with other parameters; the mode must work for all of them.

    Returns
    -------
    TrainingMode or None
        None if no mode works.
    """
    if budget == "n_samples":
        return _GrowingSamples(max_steps, classes)
    modes = [mode for mode in _available_modes(estimator, amount, classes) if budget in ("auto", mode.budget)]
    for variant in variants if modes else ():
        allowed = {mode.budget for mode in _available_modes(variant, amount, classes)}
        modes = [mode for mode in modes if mode.budget in allowed]
    return modes[0] if modes else None


def _available_modes(estimator: Any, amount: int, classes: Any) -> list[TrainingMode]:
    """Return all modes that an estimator supports, in order of preference."""
    if not _is_separable(estimator):
        return []
    model = final_estimator(estimator)
    modes: list[TrainingMode] = []
    if hasattr(model, "partial_fit"):
        modes.append(_PartialFit(amount, classes))
    for parameter in ("max_iter", "n_estimators"):
        if _has_param(model, "warm_start") and _has_param(model, parameter):
            # Ensembles of trees count the trees of earlier fits; solvers count each fit alone.
            is_histogram = isinstance(model, HistGradientBoostingClassifier | HistGradientBoostingRegressor)
            counts_all = parameter == "n_estimators" or is_histogram
            modes.append(_WarmStart(amount, parameter, counts_all))
    library = _boosting_library(model)
    if library:
        modes.append(_Boosting(amount, library))
    return [mode for mode in modes if not _is_unsupported(model, mode.budget)]


def _is_unsupported(model: Any, budget: str) -> bool:
    """Whether scikit-learn refuses this mode for a model, or restarts the training in each step."""
    if budget == "partial_fit":
        # Estimators of other packages may support parameters of these names.
        is_from_sklearn = getattr(model.partial_fit, "__module__", "").startswith("sklearn.")
        return is_from_sklearn and (
            _has_param_value(model, "early_stopping", True)
            or _has_param_value(model, "class_weight", "balanced")
        )
    if budget == "max_iter":
        return _has_param_value(model, "solver", "liblinear")
    return isinstance(model, BaggingClassifier | BaggingRegressor) and bool(model.oob_score)


def check_no_collisions(mode: TrainingMode, estimator: Any, names: set[str]) -> None:
    """Check that no searched parameter is one that the training mode sets itself.

    Parameters
    ----------
    mode : TrainingMode
        The training mode of the estimator.
    estimator : estimator
        The estimator.
    names : set of str
        The names of the searched parameters.

    Raises
    ------
    ConfigError
        If the training mode sets a searched parameter.
    """
    prefix = f"{estimator.steps[-1][0]}__" if isinstance(estimator, Pipeline) else ""
    collisions = sorted(names & {prefix + name for name in mode.reserved_params})
    check(
        not collisions,
        "param_distributions",
        f"without {', '.join(prefix + name for name in mode.reserved_params)}, which the budget "
        f"{mode.budget!r} sets",
        collisions,
        "Remove them from the search space, or choose another budget=.",
    )


def _is_separable(estimator: Any) -> bool:
    """Whether the transformers of a pipeline can be fitted without its last step."""
    if not isinstance(estimator, Pipeline):
        return True
    return all(
        step in (None, "passthrough") or hasattr(step, "transform") for _, step in estimator.steps[:-1]
    )


def _has_param(model: Any, parameter: str) -> bool:
    return hasattr(model, "get_params") and parameter in model.get_params(deep=False)


def _has_param_value(model: Any, parameter: str, wanted: str | bool) -> bool:
    """Whether a model, or an estimator nested in it, has this value of a parameter."""
    params = model.get_params() if hasattr(model, "get_params") else {}
    return any(
        name.rpartition("__")[2] == parameter and isinstance(value, str | bool | np.bool_) and value == wanted
        for name, value in params.items()
    )


def _boosting_library(model: Any) -> str:
    """Return the boosting library of a model that can be continued; empty if there is none."""
    model_class = type(model)
    if model_class.__name__.startswith("XGBRF"):
        # XGBoost's random forests have one round only.
        return ""
    names = [parent.__module__.partition(".")[0] for parent in model_class.__mro__]
    return next((name for name in names if name in _Boosting._CONTINUE_FROM), "")
