"""Figures, a report and web pages of experiments, made from their journals.

Text on terminals is in ``dasktune.progress``; the HTTP API for commands is in ``dasktune.control``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasktune.dashboard.server.serve import serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    # Imported on demand: Bokeh takes half a second.
    if name == "serve":
        return import_module("dasktune.dashboard.server.serve").serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
