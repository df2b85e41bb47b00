"""Recorded learning curves: `load` returns a set, `load_curves` one of the first two tables.

A set has the validation losses of random configurations of a model after each of 81 epochs, with
some training seeds. `benchmarks.reproduce.recipes` says what the sets are and which half of them
is sealed. ``python -m benchmarks.reproduce.record`` has recorded them. Losses have a relative
error of at most 0.05 % (`benchmarks.reproduce.quantised`), which leaves few ties.

::

    curves = load("lightgbm_wine")
    curves.param_space                                # {name: domain}, for a searcher
    curves.configs[0]["learning_rate"]                # configuration 0
    curves.loss                                       # an array (configs, seeds, epochs)
    curves.curves["error"][0, curves.axis(seed=1)]    # the error of configuration 0, seed 1

The first two tables, ``digits`` and ``breast_cancer``, have the numbers of wrong rows of the
validation and of the test set, of 500 configurations of scikit-learn's `MLPClassifier` with 3 seeds
each. `load` returns them, too, with the error instead of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from benchmarks.reproduce import quantised
from benchmarks.reproduce.recipes import EPOCHS, FAMILIES, SEALED_SEED, SEEDS, SETS
from dasktune.errors import check
from dasktune.space import choice, lograndint, loguniform, randint, uniform

__all__ = [
    "CONFIGS",
    "EPOCHS",
    "NAMES",
    "SEEDS",
    "CurveSet",
    "Curves",
    "config_path",
    "load",
    "load_configs",
    "load_curves",
    "save",
    "set_names",
    "set_path",
]

#: The first tables, named after their data sets.
NAMES = ("digits", "breast_cancer")

#: The number of configurations of each of the first tables.
CONFIGS = 500

_DIRECTORY = Path(__file__).parent
_RECORDED = _DIRECTORY / "recorded"

#: The search space of the first tables. Half of the configurations have a constant step size, for
#: which `decay` is 0; a searcher has as many if a `decay` below 0 stands for it, too.
_FIRST_SPACE: Mapping[str, Any] = {
    "learning_rate": loguniform(1e-3, 1.0),
    "alpha": loguniform(1e-6, 1.0),
    "batch_size": lograndint(20, 201),
    "units": lograndint(4, 129),
    "layers": randint(1, 3),
    # One less the momentum.
    "friction": loguniform(0.01, 1.0),
    "decay": uniform(-0.5, 0.5),
    "activation": choice(["relu", "tanh", "logistic"]),
}


@dataclass(frozen=True, eq=False)
class CurveSet:
    """The curves of a model on a data set. The arrays are read-only."""

    name: str
    #: The family of models; sets of a family have the same search space and configurations.
    family: str
    #: Hyperparameter -> its domain.
    param_space: Mapping[str, Any]
    #: The configurations, row by row.
    configs: Sequence[Mapping[str, Any]]
    #: The training seeds, along the second axis of the curves.
    seeds: tuple[int, ...]
    #: Metric -> an array of shape (configs, seeds, epochs). The lower, the better. ``loss`` is the
    #: log loss, or the mean squared error as a share of the targets' variance; infinite if a
    #: training has diverged. ``error`` is the share of wrong rows, if there are classes.
    curves: Mapping[str, NDArray[np.float64]]

    @property
    def metric(self) -> str:
        """``loss``, or ``error`` in the first tables, which have no loss."""
        return next(iter(self.curves))

    @property
    def loss(self) -> NDArray[np.float64]:
        """The curves of `metric`."""
        return self.curves[self.metric]

    def axis(self, seed: int) -> int:
        """Return the index of a training seed along the second axis."""
        check(seed in self.seeds, "seed", f"one of {self.seeds}", seed)
        return self.seeds.index(seed)

    def trainable(self, seed: int, *, order: int = 0) -> Any:
        """Return a trainable for `dasktune.testing.simulate` that replays rows of the set.

        The configuration has the number of the row as ``row``. It reports all metrics, and resumes
        from its checkpoint, the number of epochs so far. An epoch of a row takes 0.5 to 2 virtual
        seconds, drawn with the seed `order`; with equal durations trials would report in the order
        of their start.
        """
        axis = self.axis(seed)
        pace = default_rng([order, 1]).uniform(0.5, 2, len(self.configs))
        curves = {metric: values[:, axis].tolist() for metric, values in self.curves.items()}

        def replay(config: dict[str, Any], checkpoint: int | None) -> Any:
            row = config["row"]
            for epoch in range(checkpoint or 0, EPOCHS):
                metrics = {metric: values[row][epoch] for metric, values in curves.items()}
                yield metrics, float(pace[row]), epoch + 1

        return replay


def set_names(*, sealed: bool = False) -> tuple[str, ...]:
    """Return the names of all sets that `load` returns with the same `sealed`."""
    if sealed:
        return tuple(SETS)
    return (*NAMES, *(name for name, recipe in SETS.items() if not recipe.sealed))


@lru_cache(maxsize=4)
def load(name: str, *, sealed: bool = False) -> CurveSet:
    """Return a set of curves.

    Parameters
    ----------
    name : str
        A name of `SETS`, or of `NAMES` for one of the first tables.
    sealed : bool, default=False
        Whether to return the sealed curves, and only these: all of a sealed set, and one training
        seed of the others. They are for the final table about a method, once.

    Raises
    ------
    ConfigError
        If there is no such set, or it is sealed, or has no sealed curves.
    """
    check(name in SETS or name in NAMES, "name", f"one of {', '.join((*NAMES, *SETS))}", name)
    if name in NAMES:
        check(not sealed, "sealed", f"False for {name}", sealed, "The first tables have no sealed curves.")
        return _first_table(name)
    recipe = SETS[name]
    hint = "It is sealed: load(name, sealed=True) is for the final table about a method, once."
    check(sealed or not recipe.sealed, "name", f"one of {', '.join(set_names())}", name, hint)
    seeds = tuple(seed for seed in range(SEEDS) if recipe.sealed or sealed == (seed == SEALED_SEED))
    with np.load(set_path(name), allow_pickle=False) as saved:
        curves = {"loss": quantised.losses(quantised.unpack(saved["loss"])[:, list(seeds)])}
        if "wrong" in saved:
            wrong = quantised.unpack(saved["wrong"])[:, list(seeds)]
            curves["error"] = wrong / int(saved["validation_rows"])
    configs = load_configs(recipe.family)[: recipe.rows]
    return _read_only(CurveSet(name, recipe.family, FAMILIES[recipe.family], configs, seeds, curves))


def save(
    name: str, loss: NDArray[np.float64], error: NDArray[np.float64], *, validation_rows: int, about: str
) -> None:
    """Save a recorded set.

    Parameters
    ----------
    name : str
        A name of `SETS`.
    loss, error : ndarray of shape (configs, seeds, epochs)
        The curves; the error is NaN if there are no classes.
    validation_rows : int
        The number of rows of which the error is the share of the wrong ones.
    about : str
        The versions of the packages that have trained the models.
    """
    saved = {"loss": quantised.pack(quantised.loss_codes(loss)), "about": np.array(about)}
    if not np.isnan(error).any():
        wrong = np.rint(error * validation_rows).astype(np.uint16)
        saved |= {"wrong": quantised.pack(wrong), "validation_rows": np.array(validation_rows)}
    set_path(name).parent.mkdir(exist_ok=True)
    np.savez_compressed(set_path(name), **saved)


def set_path(name: str) -> Path:
    """Return the file of a set."""
    return _RECORDED / f"{name}.npz"


def config_path(family: str) -> Path:
    """Return the file with the configurations of a family."""
    return _RECORDED / f"configs_{family}.npz"


def load_configs(family: str) -> list[dict[str, Any]]:
    """Return the configurations that all sets of a family have."""
    with np.load(config_path(family), allow_pickle=False) as saved:
        columns = {name: saved[name].tolist() for name in FAMILIES[family]}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _first_table(name: str) -> CurveSet:
    table = load_curves(name)
    columns = {**table.configs, "friction": 1 - table.configs["momentum"].astype(float)}
    columns["decay"] = columns["power_t"]
    values = zip(*(columns[key].tolist() for key in _FIRST_SPACE), strict=True)
    configs = [dict(zip(_FIRST_SPACE, row, strict=True)) for row in values]
    curves = {"error": table.validation, "test_error": table.test}
    return _read_only(CurveSet(name, "first", _FIRST_SPACE, configs, tuple(range(SEEDS)), curves))


def _read_only(curve_set: CurveSet) -> CurveSet:
    for values in curve_set.curves.values():
        values.flags.writeable = False
    return curve_set


@dataclass(frozen=True)
class Curves:
    """One of the first tables; arrays of wrong rows have shape (configs, seeds, epochs)."""

    name: str
    #: Hyperparameter -> its value for each configuration.
    configs: dict[str, NDArray[Any]]
    validation_wrong: NDArray[np.uint16]
    test_wrong: NDArray[np.uint16]
    validation_rows: int
    test_rows: int

    @property
    def validation(self) -> NDArray[np.float64]:
        """The share of the validation set that is wrong."""
        return self.validation_wrong / self.validation_rows

    @property
    def test(self) -> NDArray[np.float64]:
        """The share of the test set that is wrong."""
        return self.test_wrong / self.test_rows

    def save(self) -> None:
        """Save the table beside this module."""
        np.savez_compressed(
            _path(self.name),
            validation_wrong=self.validation_wrong,
            test_wrong=self.test_wrong,
            rows=np.array([self.validation_rows, self.test_rows]),
            **{f"config_{name}": values for name, values in self.configs.items()},
        )


def load_curves(name: str) -> Curves:
    """Return one of the first tables; `name` is one of `NAMES`."""
    with np.load(_path(name), allow_pickle=False) as saved:
        configs = {key.removeprefix("config_"): saved[key] for key in saved if key.startswith("config_")}
        validation_rows, test_rows = map(int, saved["rows"])
        return Curves(
            name,
            configs,
            saved["validation_wrong"],
            saved["test_wrong"],
            validation_rows,
            test_rows,
        )


def _path(name: str) -> Path:
    return _DIRECTORY / f"curves_{name}.npz"
