"""The version of dasktune, in one place: the build reads it from this line."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.2.0"
