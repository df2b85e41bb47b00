"""Search with a Gaussian process of the package bayesian-optimization."""

from dasktune.search.bayesopt.bayesopt_search import BayesOptSearch

__all__ = ["BayesOptSearch"]
