"""Metrics of ranks as bytes, so that only the threads that need their values unpickle them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle


def pack_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Return the pickled metrics, which may hold objects of classes that workers cannot import.

    Parameters
    ----------
    metrics : mapping of str to object
        The metrics.

    Examples
    --------
    >>> unpack_metrics(pack_metrics({"loss": 0.5}))
    {'loss': 0.5}
    """
    try:
        return pickle.dumps(metrics)
    except Exception:  # whatever the objects raise
        # Slower, so it is only for classes that are pickled by value.
        blob: bytes = cloudpickle.dumps(metrics)
        return blob


def unpack_metrics(blob: bytes) -> dict[str, Any]:
    """Return the metrics of :func:`pack_metrics`; this may run user code.

    Parameters
    ----------
    blob : bytes
        The pickled metrics.

    Raises
    ------
    Exception
        Any exception that unpickling raises.
    """
    metrics: dict[str, Any] = pickle.loads(blob)
    return metrics
