"""The searches of scikit-learn, with their fits run on a Dask cluster."""

from dasktune.sklearn.halving import HalvingGridSearchCV, HalvingRandomSearchCV
from dasktune.sklearn.hyperband import HyperbandSearchCV
from dasktune.sklearn.incremental import IncrementalSearchCV, InverseDecaySearchCV
from dasktune.sklearn.search import GridSearchCV, RandomizedSearchCV
from dasktune.sklearn.successive_halving import SuccessiveHalvingSearchCV
from dasktune.sklearn.tune_search import TuneSearchCV

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
