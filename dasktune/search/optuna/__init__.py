"""Search with Optuna's samplers."""

from dasktune.search.optuna.optuna_search import OptunaSearch

__all__ = ["OptunaSearch"]
