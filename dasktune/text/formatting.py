"""Format values, durations, counts, calls and configurations as text without control characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from numbers import Integral
from reprlib import Repr
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final
from unicodedata import combining, east_asian_width

from dasktune.trial.metrics import number

#: Maximum number of characters examined of a text that is truncated, half of them at each end.
_EXAMINED: Final = 10_000

_brief: Final = Repr()
_brief.maxstring = _brief.maxother = 80
_brief.maxdict = _brief.maxlist = _brief.maxtuple = 8
_brief.maxlevel = 3

#: Characters with which a formula begins in a spreadsheet; some of them skip the white space.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")

#: Units of time, the largest first: name, length in seconds, shortest duration shown, in seconds.
_UNITS: Final = (("d", 86_400.0, 172_800.0), ("h", 3_600.0, 7_200.0), ("min", 60.0, 180.0))

#: What a class inherits that says nothing about its objects.
_NO_REPR: Final[Any] = object.__repr__


def printable(text: object, keep: str = "") -> str:
    r"""Return a text with each control character and invisible character replaced by ``?``.

    Names and messages are user input: an escape sequence in one must not reach a terminal.

    Parameters
    ----------
    text : object
        The text.
    keep : str, default=""
        Characters that stay although they are not printable.

    Examples
    --------
    >>> printable("a\u200bb\x1b[31m\n")
    'a?b?[31m?'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else "?" for char in text)


def printable_lines(text: object) -> str:
    r"""Return a text as :func:`printable` does, but keep its line feeds and tabs.

    Examples
    --------
    >>> printable_lines("Traceback:\n\tx\x1b[0m")
    'Traceback:\n\tx?[0m'
    """
    return printable(text, "\n\t")


def one_line(text: object, width: int | None = None, *, middle: bool = False) -> str:
    r"""Return a text as one printable line, with each run of white space as a single space.

    Parameters
    ----------
    text : object
        The text.
    width : int, optional
        Maximum number of columns; no limit by default.
    middle : bool, default=False
        Cut the middle of a text that is too long, instead of its end. Names of trials and of
        parameters often differ only in their ends.

    Examples
    --------
    >>> one_line("a\x1b[31m\nb")
    'a?[31m b'
    >>> one_line("optimizer/\n" + "x" * 50, 20, middle=True)
    'optimizer/…xxxxxxxxx'
    """
    text = str(text)
    if width is not None and len(text) > _EXAMINED > width:
        half = _EXAMINED // 2
        text = f"{text[:half]}…{text[-half:]}"
    line = printable(" ".join(text.split()))
    return line if width is None else truncate(line, width, middle=middle)


def truncate(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text with an ellipsis in place of its end if it takes more than `width` columns.

    Parameters
    ----------
    text : str
        The text.
    width : int
        Maximum number of columns, at least 1.
    middle : bool, default=False
        Leave out the middle instead of the end.

    Examples
    --------
    >>> truncate("learning_rate", 9), truncate("learning_rate", 9, middle=True)
    ('learning…', 'lear…rate')
    """
    if _fitting(text, width) >= len(text):
        return text
    room = width - 1
    tail = room // 2 if middle else 0
    end = text[::-1][: _fitting(text[::-1], tail)][::-1] if tail else ""
    return f"{text[: _fitting(text, room - tail)]}…{end}"


def column_width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    Examples
    --------
    >>> column_width("loss"), column_width("精度")
    (4, 4)
    """
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def _fitting(text: str, width: int) -> int:
    """Return how many of the first characters fit into `width` columns."""
    if text.isascii():
        return min(width, len(text))
    used = 0
    for place, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return place
    return len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return a text filled with spaces to `width` columns; with `right`, spaces go to its left."""
    gap = " " * (width - column_width(text))
    return f"{gap}{text}" if right else f"{text}{gap}"


def format_value(value: object, digits: int = 6, width: int | None = None) -> str:
    """Return a metric, a parameter or another value in one line.

    Parameters
    ----------
    value : object
        Any value. Integers keep all digits; long collections are abbreviated.
    digits : int, default=6
        Significant digits of a number with a fraction.
    width : int, optional
        Maximum number of columns; no limit by default.

    Examples
    --------
    >>> format_value(0.000123456789), format_value(12345678), format_value("adam")
    ('0.000123457', '12345678', 'adam')
    >>> format_value([64, 64]), format_value(None), format_value(0.1234567, 4)
    ('[64, 64]', 'None', '0.1235')
    """
    if isinstance(value, str):
        return one_line(value, width)
    if not isinstance(value, bool):
        if isinstance(value, Integral):
            return one_line(str(int(value)), width)
        real = number(value)
        if real is not None:
            return f"{real:.{digits}g}"
    return one_line(_brief.repr(value), width)


def format_cell(value: object, digits: int = 6, width: int | None = None) -> str:
    """Return a value as :func:`format_value` does, but None as an empty cell of a table.

    Examples
    --------
    >>> format_cell(None), format_cell(True)
    ('', 'True')
    """
    return "" if value is None else format_value(value, digits, width)


def format_config(config: Mapping[str, Any], digits: int = 6, width: int = 40) -> str:
    """Return a flat configuration in one line.

    Parameters
    ----------
    config : mapping
        Names and values.
    digits : int, default=6
        Significant digits of a number with a fraction.
    width : int, default=40
        Maximum number of columns of each name, and of each value.

    Examples
    --------
    >>> format_config({"lr": 0.1, "net/depth": 3})
    'lr=0.1, net/depth=3'
    """
    return ", ".join(
        f"{one_line(name, width, middle=True)}={format_value(value, digits, width)}"
        for name, value in config.items()
    )


def format_counts(counts: Mapping[Any, int]) -> str:
    """Return a count for each kind in one line; kinds with a count of 0 are left out.

    Examples
    --------
    >>> format_counts({"RUNNING": 2, "PENDING": 0, "ERROR": 1})
    '2 RUNNING, 1 ERROR'
    """
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def plural(noun: str, count: float) -> str:
    """Return a noun in the form that follows a count.

    Examples
    --------
    >>> plural("trial", 1), plural("trial", 2)
    ('trial', 'trials')
    """
    return noun if count == 1 else f"{noun}s"


def first_few(names: Sequence[str], most: int) -> str:
    """Return at most so many names as a list in a sentence, and the number of others.

    Examples
    --------
    >>> first_few(["a", "b", "c"], 2), first_few(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def elapsed_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a duration is shown, and how many seconds that unit has.

    Examples
    --------
    >>> elapsed_unit(100.0), elapsed_unit(10_000.0)
    (('s', 1.0), ('h', 3600.0))
    """
    for name, length, least in _UNITS:
        if seconds >= least:
            return name, length
    return "s", 1.0


def format_duration(seconds: float) -> str:
    """Return a duration with three digits and its unit.

    Examples
    --------
    >>> format_duration(21.4), format_duration(7_500.0)
    ('21.4 s', '2.08 h')
    """
    unit, length = elapsed_unit(seconds)
    return "unknown" if isnan(seconds) else f"{seconds / length:.3g} {unit}"


def csv_cell(value: object) -> object:
    """Return a value for a CSV file, with ``'`` before a text that a spreadsheet would execute.

    Spreadsheets take a cell for a formula if it begins with ``=``, ``+``, ``-``, ``@``, a tab or a
    line break, and formulas can start programs and send data. Numbers stay as they are. A carriage
    return becomes a line feed.

    Examples
    --------
    >>> csv_cell("=cmd|' /C calc'!A0"), csv_cell("-0.5"), csv_cell(-0.5), csv_cell("adam")
    ("'=cmd|' /C calc'!A0", '-0.5', -0.5, 'adam')
    """
    if not isinstance(value, str):
        return value
    # Python's writer puts no quotes around a lone carriage return, which begins a new row.
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    if not value.lstrip(" ").startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def format_clock(seconds: float) -> str:
    """Return a duration as a clock, for displays that are redrawn while it grows.

    Unlike :func:`format_duration` it changes every second and keeps its width.

    Examples
    --------
    >>> format_clock(62.9), format_clock(3600)
    ('01:02', '1:00:00')
    """
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


class _ArgumentRepr(Repr):
    """Bounded texts of arguments, without the addresses of objects in memory."""

    def repr_instance(self, x: Any, level: int) -> str:  # named by `Repr`
        if isinstance(x, type | FunctionType | BuiltinFunctionType | MethodType):
            return x.__qualname__
        if type(x).__repr__ is _NO_REPR:
            return f"<{type(x).__qualname__}>"
        return super().repr_instance(x, level)


_argument: Final = _ArgumentRepr()
_argument.maxstring = _argument.maxother = 100
_argument.maxdict = _argument.maxlist = _argument.maxtuple = 12
_argument.maxlevel = 4


def call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the call of `name` with these arguments as one text.

    Parameters
    ----------
    name : str
        The name of what is called.
    args : sequence
        The positional arguments.
    kwargs : mapping of str to object
        The keyword arguments. Long values are shortened; functions and classes are named.

    Examples
    --------
    >>> call_text("range", (1, 5), {})
    'range(1, 5)'
    >>> call_text("sorted", ([3, 1],), {"key": abs})
    'sorted([3, 1], key=abs)'
    """
    shown = [_argument.repr(value) for value in args]
    shown += [f"{key}={_argument.repr(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(shown)})"
