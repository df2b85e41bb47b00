"""What schedulers share that judge trials by a metric, at points of their training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import isfinite, isnan
from numbers import Integral
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.trial import Trial

__all__ = ["MetricScheduler", "real"]

logger = logging.getLogger(__name__)


class MetricScheduler(TrialScheduler):
    """Judges trials by a metric, at points of their training.

    Parameters
    ----------
    time_attr : str
        The metric that measures how long a trial has trained; it never falls.
    metric : str or None
        What to judge by; the experiment's if left out.
    mode : {"min", "max"} or None
        Which way `metric` is better; likewise.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    """

    def __init__(self, *, time_attr: str, metric: str | None, mode: Mode | None) -> None:
        check(_is_name(time_attr), "time_attr", "the name of a metric", time_attr)
        check(metric is None or _is_name(metric), "metric", "the name of a metric", metric)
        check(mode in (None, "min", "max"), "mode", "'min', 'max' or None", mode)
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        self._warned: set[str] = set()

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Take metric and mode from the experiment where the constructor left them open.

        Raises
        ------
        ConfigError
            If one of them is given in neither place, or differently in both.
        """
        super().set_search_properties(metric, mode)
        self._goal()

    def _goal(self) -> tuple[str, Mode]:
        metric, mode = self.metric, self.mode
        if metric is None or mode is None:
            raise ConfigError(
                f"metric and mode must be set, got metric={metric!r} and mode={mode!r}. "
                f"Set them in TuneConfig or in {type(self).__name__}."
            )
        return metric, mode

    def _budget(self, trial: Trial, result: Mapping[str, Any]) -> float | None:
        """Return how long the trial has trained, or None if the result does not say."""
        budget = number(lookup(result, self.time_attr))
        if budget is None or isnan(budget):
            self._warn(trial, self.time_attr)
            return None
        return budget

    def _value(self, trial: Trial, result: Mapping[str, Any]) -> float | None:
        """Return the metric as it is, or None if the result has no number there."""
        metric, _ = self._goal()
        value = number(lookup(result, metric))
        if value is None:
            self._warn(trial, metric)
        return value

    def _score(self, value: float | None) -> float | None:
        """Return a value turned so that higher is better; None if it is not finite: the worst."""
        if value is None or not isfinite(value):
            return None
        return value if self.mode == "max" else -value

    def _warn(self, trial: Trial, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "trial %s reports no number %r, by which %s judges; check its spelling",
                trial.trial_id,
                name,
                type(self).__name__,
            )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def real(name: str, value: object) -> float:
    """Return a finite number, as an int if it is whole, so that powers of it are exact.

    Raises
    ------
    ConfigError
        If it is none; `name` is what the user calls it.

    Examples
    --------
    >>> real("max_t", 81.0)
    81
    """
    if isinstance(value, Integral):
        return int(value)
    plain = number(value)
    if plain is None or not isfinite(plain):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return int(plain) if plain.is_integer() else plain
