"""The objects that users hold: ``Tuner``, results, and submitted experiments.

The loop that runs trials lives in ``dasktune.runner``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasktune.tuner.tuner import Tuner

__all__ = ["Tuner"]


def __getattr__(name: str) -> Any:
    # Importing the class here would import the runner for every module of this package.
    if name == "Tuner":
        return import_module(f"{__name__}.tuner").Tuner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
