"""`create_searcher`, which creates a searcher from its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dasktune.plugins import create
from dasktune.search.ax import AxSearch
from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.search.bayesopt import BayesOptSearch
from dasktune.search.bohb import TuneBOHB
from dasktune.search.gp import GaussianProcessSearch
from dasktune.search.hyperopt import HyperOptSearch
from dasktune.search.optuna import OptunaSearch
from dasktune.search.quasi_random import QuasiRandomSearch
from dasktune.search.search_algorithm import SearchAlgorithm
from dasktune.search.searcher import Searcher
from dasktune.search.warm import WarmStart

#: The searchers of dasktune by name.
SEARCHERS: Final[Mapping[str, Callable[..., Searcher | SearchAlgorithm]]] = {
    "random": BasicVariantGenerator,
    "variant_generator": BasicVariantGenerator,
    "quasi_random": QuasiRandomSearch,
    "optuna": OptunaSearch,
    "bohb": TuneBOHB,
    "gp": GaussianProcessSearch,
    "hyperopt": HyperOptSearch,
    "bayesopt": BayesOptSearch,
    "ax": AxSearch,
    "warm_start": WarmStart,
}


def create_searcher(name: str, **kwargs: Any) -> Searcher | SearchAlgorithm:
    """Create a searcher from its name.

    Parameters
    ----------
    name : str
        "random" (also "variant_generator") for random and grid search; "quasi_random"; "bohb";
        "gp"; "warm_start", which needs the argument `past`; "optuna", "hyperopt", "bayesopt" or
        "ax", each of which needs its extra; or a searcher that another package registers as an
        entry point of the group ``dasktune.searchers``.
    **kwargs
        Arguments of the searcher's constructor.

    Raises
    ------
    ConfigError
        If there is no searcher of this name, a registered one is not a searcher, or an argument is
        invalid.

    Examples
    --------
    >>> create_searcher("random", max_concurrent=4).max_concurrent
    4
    """
    kinds: tuple[type[Searcher | SearchAlgorithm], ...] = (Searcher, SearchAlgorithm)
    return create("searcher", kinds, SEARCHERS, name, kwargs)
