"""Numbers and functions as users give them."""

from __future__ import annotations

import inspect
from math import isnan

from dasktune.errors import ConfigError
from dasktune.trial.metrics import number

__all__ = ["as_float", "as_int", "takes"]


def as_float(name: str, value: object) -> float:
    """Return `value` as a float, if it is a number and neither a bool nor NaN.

    Raises
    ------
    ConfigError
        If it is not; `name` says which argument it was.

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

    A float like ``1e3`` is taken: it is what people write for a thousand.

    Raises
    ------
    ConfigError
        If it is not; `name` says which argument it was.

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


def takes(function: object, *arguments: object) -> bool:
    """Whether `function` can be called with positional arguments, as far as one can tell.

    Examples
    --------
    >>> takes(lambda a, b=0: a, 1), takes(lambda a, b=0: a, 1, 2, 3), takes(3, 1)
    (True, False, False)
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return True  # written in C, without a signature: calling it will tell
    except TypeError:
        return False
    return True


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    # numpy's integers take this way as well; those above 2**53 are not met as bounds.
    real = number(value)
    return int(real) if real is not None and real.is_integer() else None
