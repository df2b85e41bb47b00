"""The searches of scikit-learn, with their fits run on a Dask cluster."""

from dasktune.sklearn.incremental.hyperband_search import HyperbandSearchCV
from dasktune.sklearn.incremental.incremental_search import (
    IncrementalSearchCV,
    InverseDecaySearchCV,
)
from dasktune.sklearn.incremental.successive_halving_search import SuccessiveHalvingSearchCV
from dasktune.sklearn.searches.grid_random import GridSearchCV, RandomizedSearchCV
from dasktune.sklearn.searches.halving_search import HalvingGridSearchCV, HalvingRandomSearchCV
from dasktune.sklearn.searches.tune_search import TuneSearchCV

__all__ = [
    "GridSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "RandomizedSearchCV",
    "SuccessiveHalvingSearchCV",
    "TuneSearchCV",
]
