"""Search with Hyperopt's tree of Parzen estimators."""

from dasktune.search.hyperopt.hyperopt_search import HyperOptSearch

__all__ = ["HyperOptSearch"]
