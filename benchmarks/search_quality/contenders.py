"""The searchers that are compared."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from dasktune.search import OptunaSearch, QuasiRandomSearch

__all__ = ["CONTENDERS", "RANDOM", "Contender", "missing", "sampler"]

RANDOM = "random"


@dataclass(frozen=True)
class Contender:
    """A searcher, or a sampler that runs in Optuna's own loop."""

    #: ``make(seed)`` returns the ``search_alg`` of `TuneConfig`.
    make: Callable[[int], Any] | None = None
    #: The name of the sampler, if `make` is None.
    sampler: str = ""
    #: Packages that it requires.
    needs: tuple[str, ...] = ()
    #: Whether it is left out of most problems, because each trial costs it a third of a second.
    slow: bool = False


def sampler(name: str, seed: int) -> Any:
    """Return one of Optuna's samplers with its defaults and this seed."""
    import optuna

    logging.getLogger("optuna").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if name == "CMA-ES":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return {"TPE": optuna.samplers.TPESampler, "GP": optuna.samplers.GPSampler}[name](seed=seed)


def _with_optuna(name: str) -> Callable[[int], OptunaSearch]:
    return lambda seed: OptunaSearch(sampler=sampler(name, seed))


def _bohb(seed: int) -> Any:
    from dasktune.search.bohb import TuneBOHB

    return TuneBOHB()


#: The searchers by name.
CONTENDERS: Mapping[str, Contender] = {
    RANDOM: Contender(lambda seed: None),
    "Sobol": Contender(lambda seed: QuasiRandomSearch(), needs=("scipy",)),
    "TPE": Contender(_with_optuna("TPE"), needs=("optuna",)),
    "CMA-ES": Contender(_with_optuna("CMA-ES"), needs=("optuna", "cmaes")),
    "BOHB": Contender(_bohb, needs=("dasktune.search.bohb",)),
    "GP": Contender(_with_optuna("GP"), needs=("optuna", "torch", "scipy"), slow=True),
    "TPE, Optuna's loop": Contender(sampler="TPE", needs=("optuna",)),
    "CMA-ES, Optuna's loop": Contender(sampler="CMA-ES", needs=("optuna", "cmaes")),
    "GP, Optuna's loop": Contender(sampler="GP", needs=("optuna", "torch", "scipy"), slow=True),
}


def missing(contender: Contender) -> list[str]:
    """Return the required packages that are not installed."""
    return [name for name in contender.needs if find_spec(name) is None]
