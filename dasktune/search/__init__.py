"""Searchers, which suggest configurations: grid, random and model-based search.

Domains are in ``dasktune.space``, their translation for other libraries in ``search.spaces``.
"""

from dasktune.search.ask_tell import AskTell, AskTellSearch
from dasktune.search.ax import AxSearch
from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.search.bayesopt import BayesOptSearch
from dasktune.search.bohb import TuneBOHB
from dasktune.search.concurrency_limiter import ConcurrencyLimiter
from dasktune.search.create import create_searcher
from dasktune.search.gp import GaussianProcessSearch
from dasktune.search.hyperopt import HyperOptSearch
from dasktune.search.optuna import OptunaSearch
from dasktune.search.quasi_random import QuasiRandomSearch
from dasktune.search.repeater import Repeater
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.search.searcher import FINISHED, STOPPED_EARLY, Searcher
from dasktune.search.searcher_adapter import SearchGenerator
from dasktune.search.warm import WarmStart

__all__ = [
    "FINISHED",
    "STOPPED_EARLY",
    "AskTell",
    "AskTellSearch",
    "AxSearch",
    "BasicVariantGenerator",
    "BayesOptSearch",
    "ConcurrencyLimiter",
    "GaussianProcessSearch",
    "HyperOptSearch",
    "OptunaSearch",
    "QuasiRandomSearch",
    "Repeater",
    "SearchAlgorithm",
    "SearchGenerator",
    "SearchSpec",
    "Searcher",
    "Suggestion",
    "TuneBOHB",
    "WarmStart",
    "create_searcher",
]
