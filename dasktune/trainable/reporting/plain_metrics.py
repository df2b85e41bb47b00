"""Converts metrics to plain data that a driver without the user's libraries can read."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle

from dasktune.errors import ConfigError

__all__ = ["is_numpy_scalar", "plain_metrics"]

#: Types of values that are not converted.
_PLAIN = (bool, int, float, str, bytes, type(None))

#: Libraries whose arrays can be unpickled only where the library, or even the device, exists.
_TENSOR_LIBRARIES = frozenset({"cupy", "jax", "jaxlib", "mlx", "mxnet", "paddle", "tensorflow", "torch"})


def plain_metrics(metrics: object, name: str = "metrics") -> dict[str, Any]:
    """Return a copy of `metrics` in which numpy scalars are Python numbers.

    Parameters
    ----------
    metrics : dict
        The user's metrics, perhaps nested.
    name : str, default="metrics"
        The name in error messages.

    Raises
    ------
    ConfigError
        If `metrics` is not a dict, a key is not a string, or a value is a tensor or cannot be
        pickled.

    Examples
    --------
    >>> import numpy as np
    >>> plain_metrics({"loss": np.float32(0.5), "eval": {"n": np.int64(3)}})
    {'loss': 0.5, 'eval': {'n': 3}}
    """
    if not isinstance(metrics, dict):
        raise ConfigError(
            f'{name} must be a dict of metric names to values, got {_kind(metrics)}. Write {{"loss": value}}.'
        )
    plain = {}
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise ConfigError(f"a key of {name} must be a string, got {_kind(key)}")
        plain[str(key)] = _plain(value, f"{name}[{key!r}]")
    return plain


def is_numpy_scalar(value: object) -> bool:
    """Whether `value` is a numpy scalar or an array without dimensions."""
    # numpy is not imported: if it is not in `sys.modules`, `value` is no numpy scalar, and a child
    # process may never need numpy.
    np = sys.modules.get("numpy")
    if np is None:
        return False
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _plain(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if is_numpy_scalar(value):
        item = value.item()
        # `item()` of a numpy long double returns a long double again.
        return float(item) if is_numpy_scalar(item) else item
    if isinstance(value, dict):
        return plain_metrics(value, name)
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{name}[{i}]") for i, item in enumerate(value))
    if type(value).__module__.partition(".")[0] in _TENSOR_LIBRARIES:
        raise ConfigError(
            f"{name} must be plain data, got {_kind(value)}. "
            f"Report its .item(), or .tolist() if it has several elements."
        )
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
