"""The searches of scikit-learn, with their fits run on a Dask cluster."""

from dasktune.sklearn.halving import HalvingGridSearchCV, HalvingRandomSearchCV
from dasktune.sklearn.search import GridSearchCV, RandomizedSearchCV

__all__ = [
    "GridSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "RandomizedSearchCV",
]
