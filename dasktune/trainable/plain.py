"""Metrics as plain data: what a driver without the user's libraries can read."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle

from dasktune.errors import ConfigError

__all__ = ["is_numpy_scalar", "plain_metrics"]

#: Values of these are passed on as they are.
_PLAIN = (bool, int, float, str, bytes, type(None))

#: Libraries whose arrays can be read only where the library, or the device, is.
_TENSOR_LIBRARIES = frozenset(
    {"cupy", "jax", "jaxlib", "mlx", "mxnet", "paddle", "tensorflow", "torch"}
)


def plain_metrics(metrics: object, name: str = "metrics") -> dict[str, Any]:
    """Return a copy of `metrics` in which numpy scalars are Python numbers.

    Parameters
    ----------
    metrics : dict
        What the user reported; may be nested.
    name : str, default="metrics"
        What to call it in errors.

    Raises
    ------
    ConfigError
        If it is no dict, a key is no string, or a value is a tensor or cannot be pickled.

    Examples
    --------
    >>> import numpy as np
    >>> plain_metrics({"loss": np.float32(0.5), "eval": {"n": np.int64(3)}})
    {'loss': 0.5, 'eval': {'n': 3}}
    """
    if not isinstance(metrics, dict):
        raise ConfigError(
            f"{name} must be a dict of metric names to values, got {_kind(metrics)}. "
            f'Write {{"loss": value}}.'
        )
    plain = {}
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise ConfigError(f"a key of {name} must be a string, got {_kind(key)}")
        plain[str(key)] = _plain(value, f"{name}[{key!r}]")
    return plain


def is_numpy_scalar(value: object) -> bool:
    """Whether it is a scalar of numpy's, or an array without dimensions."""
    # Nobody has one who has not imported numpy; the process of a trial may never need to.
    np = sys.modules.get("numpy")
    if np is None:
        return False
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _plain(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if is_numpy_scalar(value):
        item = value.item()
        # The item of a long double is a long double, which only numpy knows.
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
    """Name the type only: the value may be huge, or fail to print."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
