"""Search with Ax."""

from dasktune.search.ax.ax_search import AxSearch

__all__ = ["AxSearch"]
