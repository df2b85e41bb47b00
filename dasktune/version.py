"""The version of dasktune, in one place: the build reads it from this line."""

from __future__ import annotations

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.2.0"
