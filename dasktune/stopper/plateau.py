"""Stop a trial or the experiment when a metric has reached a plateau."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from dasktune.errors import check
from dasktune.stopper.stopper import MissingMetricWarner, Stopper
from dasktune.trial.metrics import Mode, lookup, number, score
from dasktune.trial.milestone import EVERY_RESULT, Milestone


class TrialPlateauStopper(Stopper):
    """Stop a trial when the standard deviation of its last results is below `std`.

    Results without the metric are ignored. After a value that is NaN or infinite, the values before
    it no longer count.

    Parameters
    ----------
    metric : str
        Name of the metric; nested names are joined by ``/``.
    std : float, default=0.01
        Population standard deviation below which the values are a plateau, more than 0.
    num_results : int, default=4
        Number of last results that are compared, at least 2.
    grace_period : int, default=4
        Number of results before which no trial is stopped.
    metric_threshold : float, optional
        A trial is stopped only if its metric has reached this value.
    mode : {"min", "max"}, optional
        Whether the metric reaches `metric_threshold` from above ("min") or from below ("max").
        Required with `metric_threshold`.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    A trial waits for the stopper only at results that could stop it: from `grace_period` on and,
    with ``mode="max"``, if the metric is at least `metric_threshold`.

    Examples
    --------
    >>> stopper = TrialPlateauStopper("loss", std=0.1, num_results=2, grace_period=3)
    >>> [stopper("a_00000", {"loss": loss}) for loss in (9.0, 5.0, 4.95)]
    [False, False, True]
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: Mode | None = None,
    ) -> None:
        check_metric(metric)
        check_std(std)
        check_count("num_results", num_results, least=2)
        check_count("grace_period", grace_period, least=0)
        check(mode in (None, "min", "max"), "mode", "'min', 'max' or None", mode)
        if metric_threshold is not None:
            bound = None if isinstance(metric_threshold, bool) else number(metric_threshold)
            usable = bound is not None and isfinite(bound)
            check(usable, "metric_threshold", "a finite number", metric_threshold)
            hint = "Set whether the metric decreases or increases to the threshold."
            check(mode is not None, "mode", "'min' or 'max' with metric_threshold", mode, hint)
        self.metric = metric
        self.std = std
        self.num_results = num_results
        self.grace_period = grace_period
        self.metric_threshold = metric_threshold
        self.mode = mode
        #: ``{trial_id: results so far}``
        self._results: dict[str, int] = {}
        #: ``{trial_id: the last values, oldest first, all finite}``
        self._last: dict[str, list[float]] = {}
        self._absence = MissingMetricWarner("its plateau cannot be detected")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Add the result, and return whether the trial has reached a plateau."""
        self._results[trial_id] = self._results.get(trial_id, 0) + 1
        value = number(lookup(result, self.metric))
        if value is None:
            self._absence.warn(trial_id, self.metric)
            return False
        last = self._last.setdefault(trial_id, [])
        if not isfinite(value):
            last.clear()
            return False
        last.append(value)
        del last[: -self.num_results]
        return (
            self._results[trial_id] >= self.grace_period
            and len(last) == self.num_results
            and self._passes_threshold(value)
            and deviation(last) < self.std
        )

    def _passes_threshold(self, value: float) -> bool:
        if self.metric_threshold is None:
            return True
        if self.mode == "min":
            return value <= self.metric_threshold
        return value >= self.metric_threshold

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return the next results that could stop the trial."""
        first = max(self.grace_period, self.num_results)
        if self._results.get(trial_id, 0) < first - 1:
            return (Milestone("training_iteration", first),)
        if self.mode == "max" and self.metric_threshold is not None:
            return (Milestone(self.metric, self.metric_threshold, required=False),)
        return EVERY_RESULT

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the standard deviation and its limit."""
        return (
            f"the standard deviation of the last {self.num_results} results of {self.metric} is "
            f"{deviation(self._last[trial_id]):.3g}, below {self.std:g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the last values."""
        last = {trial_id: list(values) for trial_id, values in self._last.items()}
        return {"results": dict(self._results), "last": last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._results = dict(state["results"])
        self._last = {trial_id: list(values) for trial_id, values in state["last"].items()}


class ExperimentPlateauStopper(Stopper):
    """End the experiment when the standard deviation of its best results is at most `std`.

    The best results of all trials are compared; several may come from one trial. Results without a
    finite value of the metric are ignored.

    Parameters
    ----------
    metric : str
        Name of the metric; nested names are joined by ``/``.
    std : float, default=0.001
        Population standard deviation up to which the values are a plateau, more than 0.
    top : int, default=10
        Number of best results that are compared, at least 2.
    mode : {"min", "max"}, default="min"
        Whether lower or higher values of the metric are better.
    patience : int, default=0
        Number of further results for which the plateau must last.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Examples
    --------
    >>> stopper = ExperimentPlateauStopper("loss", std=0.1, top=2)
    >>> stopper("a_00000", {"loss": 1.0}), stopper.stop_all()
    (False, False)
    >>> stopper("a_00001", {"loss": 1.1}), stopper.stop_all()
    (True, True)
    """

    def __init__(
        self, metric: str, std: float = 0.001, top: int = 10, mode: Mode = "min", patience: int = 0
    ) -> None:
        check_metric(metric)
        check_std(std)
        check_count("top", top, least=2)
        check(mode in ("min", "max"), "mode", "'min' or 'max'", mode)
        check_count("patience", patience, least=0)
        self.metric = metric
        self.std = std
        self.top = top
        self.mode: Mode = mode
        self.patience = patience
        #: Scores of the best results, higher is better, ascending.
        self._best: list[float] = []
        #: Number of results for which the plateau has lasted, the first one included.
        self._lasted = 0
        self._absence = MissingMetricWarner("a plateau cannot be detected")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Add the result, and return whether the experiment ends."""
        value = score(result, self.metric, self.mode)
        if value is None:
            self._absence.warn(trial_id, self.metric)
        elif isfinite(value):
            insort(self._best, value)
            del self._best[: -self.top]
            self._lasted = self._lasted + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def has_plateaued(self) -> bool:
        """Return whether the best results are a plateau now, regardless of `patience`."""
        return len(self._best) == self.top and deviation(self._best) <= self.std

    def stop_all(self) -> bool:
        """Return whether the plateau has lasted long enough."""
        return self._lasted > self.patience

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return why the experiment ends."""
        return self.stop_all_reason()

    def stop_all_reason(self) -> str:
        """Return the standard deviation and its limit."""
        return (
            f"the standard deviation of the best {self.top} results of {self.metric} is "
            f"{deviation(self._best):.3g}, at most {self.std:g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the best results, and for how many results the plateau has lasted."""
        return {"best": list(self._best), "lasted": self._lasted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._best = list(state["best"])
        self._lasted = int(state["lasted"])


def check_metric(metric: object) -> None:
    """Raise :class:`ConfigError` unless `metric` is a non-empty string."""
    check(isinstance(metric, str) and metric != "", "metric", "the name of a metric", metric)


def check_std(std: object) -> None:
    """Raise :class:`ConfigError` unless `std` is finite and more than 0."""
    value = None if isinstance(std, bool) else number(std)
    usable = value is not None and isfinite(value) and value > 0
    check(usable, "std", "a finite number, more than 0", std)


def check_count(name: str, value: object, *, least: int) -> None:
    """Raise :class:`ConfigError` unless `value` is an int of at least `least`."""
    check(type(value) is int and value >= least, name, f"an int, at least {least}", value)


def deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation.

    Examples
    --------
    >>> deviation([1.0, 3.0])
    1.0
    """
    # For values near the largest float it is infinite or NaN, which is no plateau.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.std(values))
