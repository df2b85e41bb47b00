"""Search that begins with what earlier experiments have found."""

from dasktune.search.warm.warm_start import WarmStart

__all__ = ["WarmStart"]
