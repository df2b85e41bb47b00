"""What an experiment has gone through, as figures, as a report, and live in a browser."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasktune.dashboard.server import serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    # Bokeh takes half a second to import.
    if name == "serve":
        return import_module("dasktune.dashboard.server").serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
