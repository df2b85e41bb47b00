"""Who searches."""

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
    """A searcher, or a sampler that Optuna's own loop asks."""

    #: ``make(seed)``: what ``TuneConfig(search_alg=...)`` is given.
    make: Callable[[int], Any] | None = None
    #: The name of a sampler, instead.
    sampler: str = ""
    #: Packages that it needs.
    needs: tuple[str, ...] = ()
    #: Whether it is left out of most problems, because each trial costs it a third of a second.
    slow: bool = False


def sampler(name: str, seed: int) -> Any:
    """Return one of Optuna's samplers as it comes, but for the seed."""
    import optuna

    logging.getLogger("optuna").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if name == "CMA-ES":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return {"TPE": optuna.samplers.TPESampler, "GP": optuna.samplers.GPSampler}[name](seed=seed)


def _driven(name: str) -> Callable[[int], OptunaSearch]:
    return lambda seed: OptunaSearch(sampler=sampler(name, seed))


def _bohb(seed: int) -> Any:
    from dasktune.search.bohb import TuneBOHB

    return TuneBOHB()


#: Another one needs no more than a line here.
CONTENDERS: Mapping[str, Contender] = {
    RANDOM: Contender(lambda seed: None),
    "Sobol": Contender(lambda seed: QuasiRandomSearch(), needs=("scipy",)),
    "TPE": Contender(_driven("TPE"), needs=("optuna",)),
    "CMA-ES": Contender(_driven("CMA-ES"), needs=("optuna", "cmaes")),
    "BOHB": Contender(_bohb, needs=("dasktune.search.bohb",)),
    "GP": Contender(_driven("GP"), needs=("optuna", "torch", "scipy"), slow=True),
    "TPE, Optuna's loop": Contender(sampler="TPE", needs=("optuna",)),
    "CMA-ES, Optuna's loop": Contender(sampler="CMA-ES", needs=("optuna", "cmaes")),
    "GP, Optuna's loop": Contender(sampler="GP", needs=("optuna", "torch", "scipy"), slow=True),
}


def missing(contender: Contender) -> list[str]:
    """Return the packages that it needs and that are not installed."""
    return [name for name in contender.needs if find_spec(name) is None]
