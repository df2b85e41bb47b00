"""Search with a Gaussian process over configurations and resources."""

from dasktune.search.gp.gaussian_process_search import GaussianProcessSearch

__all__ = ["GaussianProcessSearch"]
