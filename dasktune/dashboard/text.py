"""Names and values of users, made fit to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isnan
from numbers import Integral
from reprlib import Repr
from typing import Any, Final

from dasktune.trial.metrics import number

__all__ = ["configuration", "duration", "elapsed_unit", "printable", "shown", "value_text"]

#: What Bokeh takes for the beginning of a formula; an invisible character inside of it undoes that.
_FORMULAS: Final = ("$$", r"\[", r"\(")
_JOINER: Final = "\u2060"

#: Characters of a text whose looks are remembered.
_SHORT: Final = 120

_brief = Repr()
_brief.maxstring = _brief.maxother = 80
_brief.maxdict = _brief.maxlist = _brief.maxtuple = 8

#: Seconds in each unit, the largest first, and from how many seconds on it is used.
_UNITS: Final = (("d", 86_400.0, 172_800.0), ("h", 3_600.0, 7_200.0), ("min", 60.0, 180.0))


def printable(text: object) -> str:
    r"""Return a text in which nothing is invisible but spaces; line feeds and tabs stay.

    Examples
    --------
    >>> printable("a\u200bb\x1b[0m")
    'a?b?[0m'
    """
    return "".join(
        char if char.isprintable() or char in "\n\t\u2060" else "?" for char in str(text)
    )


def shown(text: object, width: int = 40) -> str:
    r"""Return a text as one line that nothing takes for more than a text.

    It does not keep HTML from being HTML: what is drawn on a canvas or put into a cell or a tooltip
    is never taken for it.

    Parameters
    ----------
    text : object
        A user's.
    width : int, default=40
        The most characters; what is longer loses its middle.

    Examples
    --------
    >>> shown("optimizer/\n" + "x" * 50, 20)
    'optimizer/…xxxxxxxxx'
    """
    text = str(text)
    # Names of trials and workers come again and again, long texts do not.
    return _shown(text, width) if len(text) <= _SHORT else _shown.__wrapped__(text, width)


@lru_cache(1 << 15)
def _shown(text: str, width: int) -> str:
    line = " ".join(printable(text).split())
    if len(line) > width:
        half = width // 2
        line = f"{line[:half]}…{line[len(line) - (width - half - 1) :]}"
    for formula in _FORMULAS:
        line = line.replace(formula, f"{formula[0]}{_JOINER}{formula[1]}")
    return line


def value_text(value: object, width: int = 40) -> str:
    """Return a value of a configuration or a result as a short text.

    Examples
    --------
    >>> value_text(0.000123456789), value_text("adam"), value_text([64, 64]), value_text(None)
    ('0.000123457', 'adam', '[64, 64]', 'None')
    >>> value_text(12345678)
    '12345678'
    """
    if isinstance(value, str):
        return shown(value, width)
    if not isinstance(value, bool) and isinstance(value, Integral):
        return shown(str(int(value)), width)
    real = None if isinstance(value, bool) else number(value)
    if real is None:
        return shown(_brief.repr(value), width)
    return "NaN" if isnan(real) else f"{real:.6g}"


def configuration(config: Mapping[str, Any], width: int = 300) -> str:
    """Return a flat configuration as one line.

    Examples
    --------
    >>> configuration({"lr": 0.1, "net/depth": 3})
    'lr=0.1, net/depth=3'
    """
    return shown(
        ", ".join(f"{shown(name)}={value_text(value)}" for name, value in config.items()), width
    )


def elapsed_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which such a time is best told, and how many seconds it has.

    Examples
    --------
    >>> elapsed_unit(100.0), elapsed_unit(10_000.0)
    (('s', 1.0), ('h', 3600.0))
    """
    for name, length, least in _UNITS:
        if seconds >= least:
            return name, length
    return "s", 1.0


def duration(seconds: float) -> str:
    """Return a time in the unit in which it is best told.

    Examples
    --------
    >>> duration(21.4), duration(7_500.0)
    ('21.4 s', '2.08 h')
    """
    unit, length = elapsed_unit(seconds)
    return "unknown" if isnan(seconds) else f"{seconds / length:.3g} {unit}"
