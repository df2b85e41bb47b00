"""Parameters of trials as numbers: for axes, colours and importance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, isnan, log10, nan
from numbers import Integral
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.text.formatting import format_value
from dasktune.trial.metrics import Mode, number

_Floats = NDArray[np.float64]

#: Maximum number of categories with their own number; rarer categories share the last number.
_MOST_CATEGORIES: Final = 20
#: Maximum number of parameters with an axis.
_MOST_PARAMETERS: Final = 64
#: Without a given scale, the scale is logarithmic if the distinct values are few and positive, and
#: the highest one is at least this multiple of the lowest one, as in a choice or a grid.
_WIDE: Final = 100.0

#: Up to this number of distinct values, each one gets a tick.
_FEW: Final = 8

#: Maximum number of powers of ten with a tick.
_MOST_MARKS: Final = 6

#: The share of an axis that a tick label needs.
_NEAR: Final = 0.09

_OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True, eq=False)
class ParameterAxis:
    """The values of a parameter as numbers, one for each of some trials."""

    name: str
    #: NaN for trials without the parameter; the number of the category if there are categories.
    values: _Floats
    #: Texts of the categories; empty if the values are numbers.
    categories: tuple[str, ...] = ()
    is_log: bool = False
    #: Whether all values are integers.
    is_whole: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether the parameter has the same value in all trials."""
        return not np.ptp(self.values) > 0 and not np.isnan(self.values).any()

    @property
    def units(self) -> _Floats:
        """The values mapped to 0 to 1 on their scale; 0.5 if all are equal."""
        values = np.log10(self.values) if self.is_log else self.values
        if np.isnan(values).all():
            return np.full(len(values), 0.5)
        low, high = np.nanmin(values), np.nanmax(values)
        return (values - low) / (high - low) if high > low else values * 0 + 0.5

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value; NaN without values."""
        finite = self.values[np.isfinite(self.values)]
        return (float(finite.min()), float(finite.max())) if finite.size else (nan, nan)

    def unit(self, value: float) -> float:
        """Return a value mapped to 0 to 1; 0.5 if all values are equal."""
        low, high = self.span
        if self.is_log:
            low, high, value = log10(low), log10(high), log10(value)
        return (value - low) / (high - low) if high > low else 0.5


def parameter_axes(
    projection: ExperimentProjection, trials: Sequence[TrialProjection], names: Sequence[str] | None = None
) -> list[ParameterAxis]:
    """Return the parameters that differ between trials, in the order of the configurations.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment, which has the scales.
    trials : sequence of TrialProjection
        The trials.
    names : sequence of str, optional
        Only these parameters, even if they do not differ.
    """
    wanted = dict.fromkeys(name for trial in trials for name in trial.config) if names is None else names
    found = [
        _parameter(name, [trial.config.get(name, _MISSING) for trial in trials], projection)
        for name in list(wanted)[: 10 * _MOST_PARAMETERS]
    ]
    if names is None:
        found = [one for one in found if not one.is_constant]
    return found[:_MOST_PARAMETERS]


_MISSING: Final = object()


class _ParameterNames:
    """Names of parameters in the order of appearance, and whether trials differ in them."""

    def __init__(self) -> None:
        self._version = 0
        self._configs: dict[int, dict[str, Any]] = {}
        #: The value that all trials share; `_MISSING` where they differ.
        self.common: dict[str, Any] = {}

    def update(self, projection: ExperimentProjection) -> None:
        """Read the configurations that are new or have changed."""
        changed = list(projection.changed_since(self._version))[::-1]
        self._version = projection.version
        for trial in changed:
            if self._configs.get(trial.index) is not trial.config:
                self._add_config(trial.config)
                self._configs[trial.index] = trial.config

    def _add_config(self, config: dict[str, Any]) -> None:
        for name, value in config.items():
            if name not in self.common:
                # Earlier trials do not have this parameter.
                self.common[name] = _MISSING if self._configs else value
            elif self.common[name] is not _MISSING and _differs(self.common[name], value):
                self.common[name] = _MISSING
        if len(config) < len(self.common):
            for name in self.common.keys() - config.keys():
                self.common[name] = _MISSING


def _differs(one: Any, other: Any) -> bool:
    try:
        return one is not other and bool(one != other)
    except Exception:  # comparing objects of the user may raise
        return True


def parameter_names(projection: ExperimentProjection) -> tuple[list[str], dict[str, Any]]:
    """Return the names of all parameters, and the values that all trials share, by name.

    Costs O(trials that have changed). New names come last. A parameter that differed once counts as
    different from then on.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    """
    names: _ParameterNames = projection.memo.setdefault("names of parameters", _ParameterNames())
    names.update(projection)
    common = names.common
    return list(common), {name: one for name, one in common.items() if one is not _MISSING}


def _parameter(name: str, values: list[Any], projection: ExperimentProjection) -> ParameterAxis:
    given = [value for value in values if value is not _MISSING and value is not None]
    reals = [None if isinstance(value, bool | str) else number(value) for value in given]
    if not given or any(real is None for real in reals) or any(v is None for v in values):
        return _categorical(name, values)
    column = np.array([nan if one is _MISSING else number(one) for one in values], dtype=np.float64)
    column[~np.isfinite(column)] = nan
    finite = column[np.isfinite(column)]
    positive = bool(finite.size) and float(finite.min()) > 0
    whole = all(isinstance(value, Integral) for value in given)
    scale = projection.scales.get(name)
    # Without a scale, only a short list of values shows its scale: random values that happen to
    # span decades may be uniform.
    listed = positive and len(np.unique(finite)) <= _FEW
    wide = listed and float(finite.max()) / float(finite.min()) >= _WIDE
    is_log = positive and (wide if scale is None else scale == "log")
    return ParameterAxis(name, column, is_log=is_log, is_whole=whole)


def _categorical(name: str, values: list[Any]) -> ParameterAxis:
    texts = [None if value is _MISSING else format_value(value, width=40) for value in values]
    counts = Counter(text for text in texts if text is not None)
    kept = sorted(text for text, _ in counts.most_common(_MOST_CATEGORIES))
    categories = (*kept, _OTHERS) if len(counts) > len(kept) else tuple(kept)
    codes = {text: float(code) for code, text in enumerate(kept)}
    others = float(len(kept))
    column = [nan if text is None else codes.get(text, others) for text in texts]
    return ParameterAxis(name, np.array(column, dtype=np.float64), categories=categories)


def fair_iteration(projection: ExperimentProjection, share: float = 0.5) -> int:
    """Return the highest iteration that a share of the trials has reached.

    Trials that were stopped early have trained less than others, so all are compared at the same
    iteration.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    share : float, default=0.5
        The share of the trials with a result.
    """
    reached = sorted((trial.iteration for trial in projection.trials if trial.iteration), reverse=True)
    return reached[min(len(reached) - 1, int(len(reached) * share))] if reached else 0


def value_at(trial: TrialProjection, iteration: int, mode: Mode | None, goal: int = 0) -> float:
    """Return the best finite value of a trial up to an iteration; NaN if it did not reach it.

    Parameters
    ----------
    trial : TrialProjection
        The trial.
    iteration : int
        ``training_iteration``.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better; without it, the last value is returned.
    goal : int, default=0
        The index of the goal.
    """
    best_at, best = trial.best[goal]
    if trial.iteration < iteration:
        return nan
    if best_at <= iteration and not isnan(best):
        return best
    curve = trial.curves[goal]
    values = curve.values[curve.iterations <= iteration]
    values = values[np.isfinite(values)]
    if not values.size:
        return nan
    return float(values[-1] if mode is None else values.min() if mode == "min" else values.max())


def axis_ticks(parameter: ParameterAxis) -> dict[float, str]:
    """Return tick labels by position from 0 to 1: all values if they are few, else round values.

    Parameters
    ----------
    parameter : ParameterAxis
        The parameter of the axis.
    """
    values, units = parameter.values, parameter.units
    distinct, rows = np.unique(values, return_index=True)
    if parameter.categories:
        return {
            float(units[row]): label(parameter.categories[int(code)], 16)
            for code, row in zip(distinct, rows, strict=True)
            if isfinite(code)
        }
    if has_few_values(parameter):
        pairs = zip(distinct, rows, strict=True)
        return {float(units[row]): tick_text(value) for value, row in pairs if isfinite(value)}
    low, high = parameter.span
    marks = _decades(low, high) if parameter.is_log else []
    marks = marks or _round_values(low, high, least=1.0 if parameter.is_whole else 0.0)
    return {parameter.unit(value): tick_text(value) for value in marks}


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten within a range; none if there are fewer than two."""
    first, last = ceil(log10(low)), floor(log10(high))
    step = -(-(last - first) // _MOST_MARKS) or 1
    return [10.0**power for power in range(first, last + 1, step)] if last > first else []


def _round_values(low: float, high: float, least: float) -> list[float]:
    """Return about five round values within a range, at least `least` apart."""
    rough = (high - low) / 4
    if not 0.0 < rough < inf:
        return [low] if isfinite(low) else []
    power = 10.0 ** floor(log10(rough))
    step = max(least, next(one * power for one in (1, 2, 5, 10) if one * power >= rough * 0.7))
    numbers = range(ceil(low / step), floor(high / step) + 1)
    # If the values are nearly equal, the labels of more ticks would be the same.
    return [number * step for number in numbers] if 1 < len(numbers) < 10 else [low, high]


def has_few_values(parameter: ParameterAxis) -> bool:
    """Whether every value can have a tick: the values are few and not too close.

    Parameters
    ----------
    parameter : ParameterAxis
        The parameter of the axis.
    """
    units = np.unique(parameter.units[np.isfinite(parameter.values)])
    return len(units) <= _FEW and not (np.diff(units) < _NEAR).any()


def tick_text(value: float) -> str:
    """Return a number as an axis shows it.

    Examples
    --------
    >>> tick_text(0.25), tick_text(1e-05), tick_text(2e25), tick_text(float("nan"))
    ('0.25', '1e-5', '2e25', '')
    """
    if not isfinite(value):
        return ""
    digits, _, power = f"{value:.4g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
