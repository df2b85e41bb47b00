"""What proposes configurations: grid and random search, and the contract for searchers."""

from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.search.concurrency_limiter import ConcurrencyLimiter
from dasktune.search.optuna import OptunaSearch
from dasktune.search.search_generator import SearchGenerator
from dasktune.search.searcher import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.search.suggest import FINISHED, STOPPED_EARLY, Searcher

__all__ = [
    "FINISHED",
    "STOPPED_EARLY",
    "BasicVariantGenerator",
    "ConcurrencyLimiter",
    "OptunaSearch",
    "SearchAlgorithm",
    "SearchGenerator",
    "SearchSpec",
    "Searcher",
    "Suggestion",
]
