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

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.text import shown, value_text
from dasktune.dashboard.trial_log import TrialLog
from dasktune.trial.metrics import Mode, number

__all__ = [
    "Parameter",
    "fair_iteration",
    "finite_text",
    "is_few",
    "marks_of",
    "names_of",
    "parameters_of",
    "values_at",
]

_Floats = NDArray[np.float64]

#: Categories that are told apart; the rarer ones are taken together.
_MOST_CATEGORIES: Final = 20
#: Parameters that are looked at.
_MOST_PARAMETERS: Final = 64
#: Positive values that span so much are shown on a logarithmic scale if nobody says how they are.
_WIDE: Final = 100.0

#: So many values of a number are all written at an axis.
_FEW: Final = 8

#: Of more powers of ten some are left out.
_MOST_MARKS: Final = 6

#: Of an axis, what a number needs for itself.
_NEAR: Final = 0.09

_OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """The values of a parameter in some trials."""

    name: str
    #: NaN where there is none; the number of the category if there are categories.
    values: _Floats
    #: Their texts; empty if the values are numbers.
    categories: tuple[str, ...] = ()
    is_log: bool = False
    #: Whether there is nothing between two whole numbers.
    is_whole: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether it is the same in all trials."""
        return not np.ptp(self.values) > 0 and not np.isnan(self.values).any()

    @property
    def units(self) -> _Floats:
        """The values from 0 to 1, on their scale; 0.5 if there is but one."""
        values = np.log10(self.values) if self.is_log else self.values
        if np.isnan(values).all():
            return np.full(len(values), 0.5)
        low, high = np.nanmin(values), np.nanmax(values)
        return (values - low) / (high - low) if high > low else values * 0 + 0.5

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value; NaN if there is none."""
        finite = self.values[np.isfinite(self.values)]
        return (float(finite.min()), float(finite.max())) if finite.size else (nan, nan)

    def unit(self, value: float) -> float:
        """Return the place of a value from 0 to 1; 0.5 if there is but one."""
        low, high = self.span
        if self.is_log:
            low, high, value = log10(low), log10(high), log10(value)
        return (value - low) / (high - low) if high > low else 0.5


def parameters_of(
    chronicle: Chronicle, logs: Sequence[TrialLog], names: Sequence[str] | None = None
) -> list[Parameter]:
    """Return the parameters that differ between trials, in the order of the configurations.

    Parameters
    ----------
    chronicle : Chronicle
        Knows their scales.
    logs : sequence of TrialLog
        The trials.
    names : sequence of str, optional
        Only these, whether they differ or not.
    """
    wanted = dict.fromkeys(name for log in logs for name in log.config) if names is None else names
    found = [
        _parameter(name, [log.config.get(name, _MISSING) for log in logs], chronicle)
        for name in list(wanted)[: 10 * _MOST_PARAMETERS]
    ]
    if names is None:
        found = [one for one in found if not one.is_constant]
    return found[:_MOST_PARAMETERS]


_MISSING: Final = object()


class _Names:
    """Names of parameters in the order in which they came, and whether trials differ in them."""

    def __init__(self) -> None:
        self._version = 0
        self._configs: dict[int, dict[str, Any]] = {}
        #: What all trials have so far; `_MISSING` where they differ.
        self.common: dict[str, Any] = {}

    def update(self, chronicle: Chronicle) -> None:
        """Look at the trials that are new, or have another configuration than before."""
        changed = list(chronicle.changed_since(self._version))[::-1]
        self._version = chronicle.version
        for log in changed:
            if self._configs.get(log.index) is not log.config:
                self._look(log.config)
                self._configs[log.index] = log.config

    def _look(self, config: dict[str, Any]) -> None:
        for name, value in config.items():
            if name not in self.common:
                # The trials before had none.
                self.common[name] = _MISSING if self._configs else value
            elif self.common[name] is not _MISSING and _differ(self.common[name], value):
                self.common[name] = _MISSING
        if len(config) < len(self.common):
            for name in self.common.keys() - config.keys():
                self.common[name] = _MISSING


def _differ(one: Any, other: Any) -> bool:
    try:
        return one is not other and bool(one != other)
    except Exception:  # a user's object, which need not compare
        return True


def names_of(chronicle: Chronicle) -> tuple[list[str], dict[str, Any]]:
    """Return the names of all parameters, and the values of those that are the same everywhere.

    It costs as much as the trials that have changed. New names come last, and one whose value is
    not the same everywhere stays so.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    """
    names: _Names = chronicle.memo.setdefault("names of parameters", _Names())
    names.update(chronicle)
    common = names.common
    return list(common), {name: one for name, one in common.items() if one is not _MISSING}


def _parameter(name: str, values: list[Any], chronicle: Chronicle) -> Parameter:
    given = [value for value in values if value is not _MISSING and value is not None]
    reals = [None if isinstance(value, bool | str) else number(value) for value in given]
    if not given or any(real is None for real in reals) or any(v is None for v in values):
        return _categorical(name, values)
    column = np.array([nan if one is _MISSING else number(one) for one in values], dtype=np.float64)
    column[~np.isfinite(column)] = nan
    finite = column[np.isfinite(column)]
    positive = bool(finite.size) and float(finite.min()) > 0
    whole = all(isinstance(value, Integral) for value in given)
    scale = chronicle.scales.get(name)
    wide = positive and float(finite.max()) / float(finite.min()) >= _WIDE
    is_log = positive and (wide if scale is None else scale == "log")
    return Parameter(name, column, is_log=is_log, is_whole=whole)


def _categorical(name: str, values: list[Any]) -> Parameter:
    texts = [None if value is _MISSING else value_text(value) for value in values]
    counts = Counter(text for text in texts if text is not None)
    kept = sorted(text for text, _ in counts.most_common(_MOST_CATEGORIES))
    categories = (*kept, _OTHERS) if len(counts) > len(kept) else tuple(kept)
    codes = {text: float(code) for code, text in enumerate(kept)}
    others = float(len(kept))
    column = [nan if text is None else codes.get(text, others) for text in texts]
    return Parameter(name, np.array(column, dtype=np.float64), categories=categories)


def fair_iteration(chronicle: Chronicle, share: float = 0.5) -> int:
    """Return the highest iteration that a share of the trials has come to.

    Trials that were ended early differ from the others by more than their parameters, so they are
    compared at the same iteration.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    share : float, default=0.5
        Of those that have a result.
    """
    reached = sorted((log.iteration for log in chronicle.trials if log.iteration), reverse=True)
    return reached[min(len(reached) - 1, int(len(reached) * share))] if reached else 0


def values_at(log: TrialLog, iteration: int, mode: Mode | None, goal: int = 0) -> float:
    """Return the best finite value that a trial had come to by an iteration, NaN if it did not.

    Parameters
    ----------
    log : TrialLog
        The trial.
    iteration : int
        ``training_iteration``.
    mode : {"min", "max"}, optional
        Which way it is better; without it, the last value counts.
    goal : int, default=0
        Of which goal.
    """
    best_at, best = log.best[goal]
    if log.iteration < iteration:
        return nan
    if best_at <= iteration and not isnan(best):
        return best
    curve = log.curves[goal]
    values = curve.values[curve.iterations <= iteration]
    values = values[np.isfinite(values)]
    if not values.size:
        return nan
    return float(values[-1] if mode is None else values.min() if mode == "min" else values.max())


def marks_of(parameter: Parameter) -> dict[float, str]:
    """Return what an axis from 0 to 1 says, and where: all values if they are few, else round ones.

    Parameters
    ----------
    parameter : Parameter
        Whose axis it is.
    """
    values, units = parameter.values, parameter.units
    distinct, rows = np.unique(values, return_index=True)
    if parameter.categories:
        return {
            float(units[row]): shown(parameter.categories[int(code)], 16)
            for code, row in zip(distinct, rows, strict=True)
            if isfinite(code)
        }
    if is_few(parameter):
        pairs = zip(distinct, rows, strict=True)
        return {float(units[row]): finite_text(value) for value, row in pairs if isfinite(value)}
    low, high = parameter.span
    marks = _decades(low, high) if parameter.is_log else []
    marks = marks or _round_values(low, high, least=1.0 if parameter.is_whole else 0.0)
    return {parameter.unit(value): finite_text(value) for value in marks}


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten within a range, not too many; none if they are fewer than two."""
    first, last = ceil(log10(low)), floor(log10(high))
    step = -(-(last - first) // _MOST_MARKS) or 1
    return [10.0**power for power in range(first, last + 1, step)] if last > first else []


def _round_values(low: float, high: float, least: float) -> list[float]:
    """Return about five round values within a range, at least so far from each other."""
    rough = (high - low) / 4
    if not 0.0 < rough < inf:
        return [low] if isfinite(low) else []
    power = 10.0 ** floor(log10(rough))
    step = max(least, next(one * power for one in (1, 2, 5, 10) if one * power >= rough * 0.7))
    numbers = range(ceil(low / step), floor(high / step) + 1)
    # Of nearly the same values only the ends can be told apart.
    return [number * step for number in numbers] if 1 < len(numbers) < 10 else [low, high]


def is_few(parameter: Parameter) -> bool:
    """Whether all values can be written at an axis: few, and none too near to another one.

    Parameters
    ----------
    parameter : Parameter
        Whose axis it is.
    """
    units = np.unique(parameter.units[np.isfinite(parameter.values)])
    return len(units) <= _FEW and not (np.diff(units) < _NEAR).any()


def finite_text(value: float) -> str:
    """Return a number as an axis shows it.

    Examples
    --------
    >>> finite_text(0.25), finite_text(1e-05), finite_text(2e25), finite_text(float("nan"))
    ('0.25', '1e-5', '2e25', '')
    """
    if not isfinite(value):
        return ""
    digits, _, power = f"{value:.4g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
