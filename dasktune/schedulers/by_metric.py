"""What schedulers that judge by a metric at times of their own have in common."""

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

__all__ = ["MetricScheduler", "check_flag", "check_mode", "check_name", "real"]

logger = logging.getLogger(__name__)


def check_name(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless `value` could be the name of a metric."""
    check(isinstance(value, str) and value != "", name, "the name of a metric", value)


def check_mode(mode: object) -> None:
    """Raise :class:`ConfigError` unless `mode` is one, or left open."""
    check(mode in (None, "min", "max"), "mode", "'min', 'max' or None", mode)


def check_flag(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless `value` is True or False."""
    check(isinstance(value, bool), name, "True or False", value)


def real(name: str, value: object) -> float:
    """Return a finite number, as an int if it is whole, so that powers of it are exact.

    Raises
    ------
    ConfigError
        If it is none; `name` says which argument it was.

    Examples
    --------
    >>> real("max_t", 9.0), real("max_t", 1.5)
    (9, 1.5)
    """
    given = None if isinstance(value, bool) else number(value)
    if given is None or not isfinite(given):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    if isinstance(value, Integral):
        return int(value)
    return int(given) if given.is_integer() else given


class MetricScheduler(TrialScheduler):
    """Reads the time and the metric of a result, and warns once of each that is missing.

    Parameters
    ----------
    time_attr : str
        The metric that measures how long a trial has trained; it never falls.
    metric : str or None
        What to judge by; the experiment's if None.
    mode : {"min", "max"} or None
        Which way `metric` is better; likewise.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    """

    def __init__(self, *, time_attr: str, metric: str | None, mode: Mode | None) -> None:
        check_name("time_attr", time_attr)
        if metric is not None:
            check_name("metric", metric)
        check_mode(mode)
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

    def _time(self, trial: Trial, result: Mapping[str, Any]) -> float | None:
        """Return how long the trial has trained, or None if the result does not say."""
        time = number(lookup(result, self.time_attr))
        if time is None or isnan(time):
            self._warn(trial, self.time_attr)
            return None
        return time

    def _value(self, trial: Trial, result: Mapping[str, Any]) -> float | None:
        """Return the metric as it was reported, NaN and infinity included; None if it is none."""
        metric, _ = self._goal()
        value = number(lookup(result, metric))
        if value is None:
            self._warn(trial, metric)
        return value

    def _score(self, value: float | None) -> float | None:
        """Return a value turned so that higher is better; None unless it is a finite number."""
        if value is None or not isfinite(value):
            return None
        return value if self._goal()[1] == "max" else -value

    def _warn(self, trial: Trial, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "trial %s reports no number %r, by which %s judges; check its spelling",
                trial.trial_id,
                name,
                type(self).__name__,
            )
