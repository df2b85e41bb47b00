"""The part of an axis that matters: the values between the best one and the usual ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.dashboard.model.density import robust_range
from dasktune.trial.metrics import Mode

#: The length of the range, as a multiple of the distance between the best value and the median.
#: Evenly spread values all lie in it.
_REACH: Final = 2.5
#: The scale is logarithmic if the median and the best value differ by at least this factor.
_WIDE: Final = 100.0
_MARGIN: Final = 0.05
_MAX: Final = float(np.finfo(np.float64).max)
#: Powers of ten that are positive, finite numbers.
_EXPONENTS: Final = (-323.0, 308.0)


@dataclass(frozen=True, slots=True)
class FocusRange:
    """The range of an axis, and what it leaves out."""

    low: float
    high: float
    is_log: bool
    #: Number of finite values outside of the range.
    left_out: int


def focus_range(
    values: NDArray[np.float64], mode: Mode | None, others: NDArray[np.float64] | None = None
) -> FocusRange:
    """Return the range of an axis on which good values can be told apart.

    A few values that are worse by powers of ten would leave all good values in one line at the
    edge of the figure. So the range reaches from the best value to 2.5 times the distance of the
    median, and its scale is logarithmic if the median differs from the best value by a factor of
    100 or more.

    Parameters
    ----------
    values : ndarray
        The best value of each trial; values that are not finite are ignored.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better; without it the range has nearly all values.
    others : ndarray, optional
        Other values on the same axis, which do not change the range unless the best value and the
        median are equal. A logarithmic scale needs all of them to be positive.

    Examples
    --------
    >>> focus_range(np.array([0.5, 0.6, 0.7, 1e6]), "min").high < 1
    True
    >>> focus_range(np.array([1e-6, 1e-3, 1.0, 1e3]), "min").is_log
    True
    """
    finite = values[np.isfinite(values)]
    if not finite.size or mode is None:
        with np.errstate(over="ignore"):
            low, high = (min(max(one, -_MAX), _MAX) for one in robust_range(values))
        return FocusRange(low, high, False, _outside(finite, low, high))
    is_log = _is_wide(finite, mode) and (others is None or bool((others > 0).all()))
    scaled = np.log10(finite) if is_log else finite
    best = float(scaled.min() if mode == "min" else scaled.max())
    with np.errstate(over="ignore"):
        # An axis cannot be longer than the largest number, even if the distance of two values is.
        reach = min(_REACH * abs(float(np.median(scaled)) - best), _MAX / 4)
        near = scaled[np.abs(scaled - best) <= reach] if reach else scaled
        if reach:
            low, high = _padded(near)
        else:
            # All of the better half are equal, for example because there is one trial. Then the
            # other values give the axis its length.
            low, high = robust_range(_with_others(scaled, others, is_log=is_log), _MARGIN)
    low, high = (min(max(one, -_MAX), _MAX) for one in (low, high))
    if is_log:
        low, high = (10.0 ** min(max(one, _EXPONENTS[0]), _EXPONENTS[1]) for one in (low, high))
    return FocusRange(low, high, is_log, _outside(finite, low, high))


def _with_others(
    scaled: NDArray[np.float64], others: NDArray[np.float64] | None, *, is_log: bool
) -> NDArray[np.float64]:
    if others is None:
        return scaled
    others = others[np.isfinite(others)]
    return np.concatenate([scaled, np.log10(others) if is_log else others])


def _is_wide(finite: NDArray[np.float64], mode: Mode) -> bool:
    if float(finite.min()) <= 0:
        return False
    best = float(finite.min() if mode == "min" else finite.max())
    # By logarithms, because a quotient may overflow.
    return bool(abs(np.log10(np.median(finite)) - np.log10(best)) >= np.log10(_WIDE))


def _padded(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    pad = _MARGIN * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def _outside(finite: NDArray[np.float64], low: float, high: float) -> int:
    return int(((finite < low) | (finite > high)).sum())
