"""BOHB: HyperBand's budgets, and a model of the density of good configurations."""

from dasktune.search.bohb.tune_bohb import TuneBOHB

__all__ = ["TuneBOHB"]
