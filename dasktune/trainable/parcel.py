"""Opening what travels to a worker in pickled form. It may run user code: imports, for one."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["open_config", "open_trainable"]


def open_trainable(payload: bytes) -> Any:
    """Return the user's code."""
    return pickle.loads(payload)["trainable"]


def open_config(blob: bytes) -> dict[str, Any]:
    """Return a trial's configuration."""
    config: dict[str, Any] = pickle.loads(blob)["config"]
    return config
