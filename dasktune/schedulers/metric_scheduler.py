"""The base of schedulers that compare trials by a metric, and checks of their arguments."""

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

logger = logging.getLogger(__name__)


def check_name(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless `value` is a non-empty string."""
    check(isinstance(value, str) and value != "", name, "the name of a metric", value)


def check_mode(mode: object) -> None:
    """Raise :class:`ConfigError` unless `mode` is "min", "max" or None."""
    check(mode in (None, "min", "max"), "mode", "'min', 'max' or None", mode)


def check_flag(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless `value` is True or False."""
    check(isinstance(value, bool), name, "True or False", value)


def finite_number(name: str, value: object) -> float:
    """Return `value` as a finite number; whole numbers as int, so that their powers are exact.

    Raises
    ------
    ConfigError
        If `value` is not a finite number; the message begins with `name`, the argument's name.

    Examples
    --------
    >>> finite_number("max_t", 9.0), finite_number("max_t", 1.5)
    (9, 1.5)
    """
    given = None if isinstance(value, bool) else number(value)
    if given is None or not isfinite(given):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    if isinstance(value, Integral):
        return int(value)
    return int(given) if given.is_integer() else given


class MetricScheduler(TrialScheduler):
    """Base class that reads the time and metric of results, and warns once if one is missing.

    Parameters
    ----------
    time_attr : str
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str or None
        The metric to compare trials by; if None, that of `TuneConfig`.
    mode : {"min", "max"} or None
        Whether to minimise or maximise `metric`; if None, that of `TuneConfig`.

    Raises
    ------
    ConfigError
        If an argument is invalid.
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
        """Set metric and mode from the experiment where the constructor left them None.

        Raises
        ------
        ConfigError
            If metric or mode is set in neither place, or differently in the two.
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
        """Return the value of `time_attr`, or None if the result has none."""
        time = number(lookup(result, self.time_attr))
        if time is None or isnan(time):
            self._warn(trial, self.time_attr)
            return None
        return time

    def _value(self, trial: Trial, result: Mapping[str, Any]) -> float | None:
        """Return the metric as reported, perhaps NaN or infinite; None if it is not a number."""
        metric, _ = self._goal()
        value = number(lookup(result, metric))
        if value is None:
            self._warn(trial, metric)
        return value

    def _score(self, value: float | None) -> float | None:
        """Return the score of a value (higher is better), or None unless it is finite."""
        if value is None or not isfinite(value):
            return None
        return value if self._goal()[1] == "max" else -value

    def _warn(self, trial: Trial, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "trial %s reports no number %r, which %s needs; check its spelling",
                trial.trial_id,
                name,
                type(self).__name__,
            )
