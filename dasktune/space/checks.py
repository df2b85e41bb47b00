"""Checks of numbers and functions that users pass as arguments."""

from __future__ import annotations

import inspect
from math import isnan

from dasktune.errors import ConfigError
from dasktune.trial.metrics import number


def as_float(name: str, value: object) -> float:
    """Return `value` as a float, if it is a number and neither a bool nor NaN.

    Raises
    ------
    ConfigError
        If `value` is anything else; the message begins with `name`, the argument's name.

    Examples
    --------
    >>> as_float("lower", 1)
    1.0
    """
    real = None if isinstance(value, bool) else number(value)
    if real is None or isnan(real):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    return real


def as_int(name: str, value: object, *, least: int | None = None) -> int:
    """Return `value` as an int, if it is a whole number, not a bool, and at least `least`.

    A float with a whole value, such as ``1e3``, is accepted.

    Raises
    ------
    ConfigError
        If `value` is anything else; the message begins with `name`, the argument's name.

    Examples
    --------
    >>> as_int("upper", 1e3)
    1000
    """
    rule = "an integer" if least is None else f"an integer >= {least}"
    whole = _whole(value)
    if whole is None or (least is not None and whole < least):
        raise ConfigError(f"{name} must be {rule}, got {value!r}")
    return whole


def accepts_arguments(function: object, *arguments: object) -> bool:
    """Return whether the signature of `function` accepts these positional arguments.

    A function written in C without a signature is assumed to accept them.

    Examples
    --------
    >>> accepts_arguments(lambda a, b=0: a, 1), accepts_arguments(3, 1)
    (True, False)
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    # Floats and numpy's integers; the latter lose precision above 2**53.
    real = number(value)
    return int(real) if real is not None and real.is_integer() else None
