"""The searches of scikit-learn, with their fits run on a Dask cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dasktune.sklearn.incremental.hyperband_search import HyperbandSearchCV
    from dasktune.sklearn.incremental.incremental_search import (
        IncrementalSearchCV,
        InverseDecaySearchCV,
    )
    from dasktune.sklearn.incremental.successive_halving_search import SuccessiveHalvingSearchCV
    from dasktune.sklearn.searches.grid_random import GridSearchCV, RandomizedSearchCV
    from dasktune.sklearn.searches.halving_search import HalvingGridSearchCV, HalvingRandomSearchCV
    from dasktune.sklearn.searches.tune_grid_search import TuneGridSearchCV
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
    "TuneGridSearchCV",
    "TuneSearchCV",
]

#: The module of each class, which is imported at the first access. If this package imported them, a
#: thread that imports the package and a thread that unpickles an object of one of its modules could
#: wait for each other: the first holds the package's import lock, the second that of the module.
_HOME_OF: Final = {
    "GridSearchCV": "searches.grid_random",
    "HalvingGridSearchCV": "searches.halving_search",
    "HalvingRandomSearchCV": "searches.halving_search",
    "HyperbandSearchCV": "incremental.hyperband_search",
    "IncrementalSearchCV": "incremental.incremental_search",
    "InverseDecaySearchCV": "incremental.incremental_search",
    "RandomizedSearchCV": "searches.grid_random",
    "SuccessiveHalvingSearchCV": "incremental.successive_halving_search",
    "TuneGridSearchCV": "searches.tune_grid_search",
    "TuneSearchCV": "searches.tune_search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
