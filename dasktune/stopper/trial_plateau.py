"""Stop a trial when its metric no longer changes."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from dasktune.errors import check
from dasktune.stopper.absence import AbsenceWarning
from dasktune.stopper.plateau_rules import check_count, check_metric, check_std, deviation
from dasktune.stopper.stopper import Stopper
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.milestone import EVERY_RESULT, Milestone

__all__ = ["TrialPlateauStopper"]


class TrialPlateauStopper(Stopper):
    """Stop a trial when the standard deviation of its last results is below `std`.

    Results without the metric are passed over. One that is NaN or infinite is no plateau: what was
    seen before it no longer counts.

    Parameters
    ----------
    metric : str
        What to watch; nested names are joined by ``/``.
    std : float, default=0.01
        Standard deviation (of the population) below which it is a plateau, more than 0.
    num_results : int, default=4
        How many results are looked at, at least 2.
    grace_period : int, default=4
        Results before which no trial is stopped.
    metric_threshold : float, optional
        Stop no trial before its metric has come to this value.
    mode : {"min", "max"}, optional
        Whether it comes to `metric_threshold` from above or from below. Needed with it.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Notes
    -----
    A trial waits for the stopper only where it could be stopped: from `grace_period` on and, with
    ``mode="max"``, where the metric is at least `metric_threshold`.

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
            hint = "Say from which side the metric comes to it."
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
        self._absence = AbsenceWarning("nothing can be said of its plateau")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Take in the result, and return whether the trial has come to a plateau."""
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
            and self._is_far_enough(value)
            and deviation(last) < self.std
        )

    def _is_far_enough(self, value: float) -> bool:
        if self.metric_threshold is None:
            return True
        if self.mode == "min":
            return value <= self.metric_threshold
        return value >= self.metric_threshold

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return where the trial could be stopped next."""
        first = max(self.grace_period, self.num_results)
        if self._results.get(trial_id, 0) < first - 1:
            return (Milestone("training_iteration", first),)
        if self.mode == "max" and self.metric_threshold is not None:
            return (Milestone(self.metric, self.metric_threshold, required=False),)
        return EVERY_RESULT

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the deviation and its limit."""
        return (
            f"the standard deviation of the last {self.num_results} results of {self.metric} is "
            f"{deviation(self._last[trial_id]):.3g}, below {self.std:g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the last values."""
        last = {trial_id: list(values) for trial_id, values in self._last.items()}
        return {"results": dict(self._results), "last": last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._results = dict(state["results"])
        self._last = {trial_id: list(values) for trial_id, values in state["last"].items()}
