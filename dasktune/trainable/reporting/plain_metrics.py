"""Converts metrics to plain data that a driver without the user's libraries can read."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import cloudpickle

from dasktune.errors import ConfigError, ReportError
from dasktune.trial.metrics import number
from dasktune.trial.nesting import check_nesting

#: Types of values that are not converted.
_PLAIN = (bool, int, float, str, bytes, type(None))

#: Bits of the largest integer that is kept. A larger one exceeds every float, so it ranks like an
#: infinite value, and the journal could not hold it.
_MAX_BITS: Final = 1024

#: Libraries whose arrays can be unpickled only where the library, or even the device, exists.
_TENSOR_LIBRARIES = frozenset({"cupy", "jax", "jaxlib", "mlx", "mxnet", "paddle", "tensorflow", "torch"})


def plain_metrics(metrics: object, name: str = "metrics") -> dict[str, Any]:
    """Return a copy of `metrics` in which all numbers are Python's own.

    Numpy scalars become the numbers that they hold, fractions, decimals and other real numbers
    become floats. So a metric has the same value before and after the journal has stored it.

    Parameters
    ----------
    metrics : dict
        The user's metrics, perhaps nested.
    name : str, default="metrics"
        The name in error messages.

    Raises
    ------
    ReportError
        If `metrics` is not a dict.
    ConfigError
        If a key is not a string, a dict or list contains itself, or a value is a tensor or cannot
        be pickled.

    Examples
    --------
    >>> import numpy as np
    >>> plain_metrics({"loss": np.float32(0.5), "eval": {"n": np.int64(3)}})
    {'loss': 0.5, 'eval': {'n': 3}}
    """
    if not isinstance(metrics, dict):
        raise ReportError(
            f'{name} must be a dict of metric names to values, got {_kind(metrics)}. Write {{"loss": value}}.'
        )
    try:
        return _plain_mapping(metrics, name)
    except RecursionError:
        check_nesting(metrics, name)
        raise


def is_numpy_scalar(value: object) -> bool:
    """Whether `value` is a numpy scalar or an array without dimensions."""
    # numpy is not imported: if it is not in `sys.modules`, `value` is no numpy scalar, and a child
    # process may never need numpy.
    np = sys.modules.get("numpy")
    if np is None:
        return False
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _plain_mapping(metrics: Mapping[Any, Any], name: str) -> dict[str, Any]:
    plain = {}
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise ConfigError(f"a key of {name} must be a string, got {_kind(key)}")
        plain[str(key)] = _plain(value, f"{name}[{key!r}]")
    return plain


def _plain(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return number(value) if type(value) is int and value.bit_length() > _MAX_BITS else value
    if is_numpy_scalar(value):
        item = value.item()
        # `item()` of a numpy long double returns a long double again.
        return float(item) if is_numpy_scalar(item) else item
    if isinstance(value, Mapping):
        return _plain_mapping(value, name)
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{name}[{i}]") for i, item in enumerate(value))
    if type(value).__module__.partition(".")[0] in _TENSOR_LIBRARIES:
        raise ConfigError(
            f"{name} must be plain data, got {_kind(value)}. "
            f"Report its .item(), or .tolist() if it has several elements."
        )
    # Other types of numbers, such as fractions, would rank now, but not after a restore: the
    # journal would hold their text.
    if isinstance(value, Enum):
        return _plain(value.value, name)
    real = number(value)
    if real is not None:
        return real
    _check_pickles(value, name)
    return value


def _check_pickles(value: Any, name: str) -> None:
    try:
        pickle.loads(cloudpickle.dumps(value))
    except Exception as error:
        raise ConfigError(
            f"{name} must be plain data that can be pickled, got {_kind(value)} "
            f"({type(error).__name__}). Report a number, a string, a list or a dict."
        ) from error


def _kind(value: object) -> str:
    """Return the name of the type; the value itself may be huge, or fail to print."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
