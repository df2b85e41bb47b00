"""Search with the model of BOHB: kernel density estimates of good and bad configurations."""

from dasktune.search.bohb.tune_bohb import TuneBOHB

__all__ = ["TuneBOHB"]
