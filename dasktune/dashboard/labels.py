"""User text as labels of Bokeh models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dasktune.text.formatting import format_config, format_value, one_line

#: Bokeh reads these as the beginning of a formula; an invisible character inside prevents that.
_FORMULAS: Final = ("$$", r"\[", r"\(")
_JOINER: Final = "\u2060"

#: Labels of texts with more characters than this are not cached. Names of trials and workers are
#: shorter.
_CACHED: Final = 120


def label(text: object, width: int = 40) -> str:
    r"""Return a text as one line that Bokeh draws as it is, not as a formula.

    HTML is not escaped: Bokeh draws labels on a canvas, and sets cells and tooltips as plain text.

    Parameters
    ----------
    text : object
        The text.
    width : int, default=40
        Maximum number of columns; a longer text loses its middle.

    Examples
    --------
    >>> label("a$$b") == "a$\u2060$b", label("x" * 50, 8)
    (True, 'xxxx…xxx')
    """
    text = str(text)
    return _label(text, width) if len(text) <= _CACHED else _label.__wrapped__(text, width)


@lru_cache(1 << 15)
def _label(text: str, width: int) -> str:
    # The text may contain another label, with its invisible characters.
    line = one_line(text.replace(_JOINER, ""), width, middle=True)
    for formula in _FORMULAS:
        line = line.replace(formula, f"{formula[0]}{_JOINER}{formula[1]}")
    return line


def value_label(value: object, width: int = 40) -> str:
    """Return a metric, a parameter or another value as a label."""
    return label(value if isinstance(value, str) else format_value(value), width)


def config_label(config: Mapping[str, Any], width: int = 300) -> str:
    """Return a flat configuration as a label.

    Examples
    --------
    >>> config_label({"lr": 0.1, "net/depth": 3})
    'lr=0.1, net/depth=3'
    """
    return label(format_config(config), width)
