"""What the recorded sets of curves consist of: families of models, data sets, rows, and seals.

A *row* of a set is a configuration. All sets of a family have the same configurations: the set
with fewer rows has the first ones.

The seal
--------
Half of the curves are sealed. They are used once, for the table that a claim about a method rests
on; a method, its defaults and its version are fixed before. Sealed are

- the sets of `SETS` with ``sealed=True``: data sets on which no method was tried;
- the training seed `SEALED_SEED` of all other sets;
- the orders and seeds of a search from `SEALED_ORDER` on, also with synthetic problems.

`benchmarks.reproduce.curves.load` refuses the first two unless it is called with ``sealed=True``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.space import choice, lograndint, loguniform, randint, uniform

__all__ = ["EPOCHS", "FAMILIES", "POOL", "SEALED_ORDER", "SEALED_SEED", "SEEDS", "SETS", "Recipe"]

#: The length of each curve, in boosting rounds or epochs.
EPOCHS = 81

#: The number of training seeds: 0, 1 and 2.
SEEDS = 3

#: The number of configurations that are drawn from the space of a family.
POOL = 2000

SEALED_SEED = 2

SEALED_ORDER = 1000

#: The search space of each family. Configurations are drawn from it at random.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    # Gradient boosted trees of LightGBM; an epoch is a boosting round.
    "lightgbm": {
        "learning_rate": loguniform(0.005, 1.0),
        "num_leaves": lograndint(2, 65),
        "min_child_samples": lograndint(1, 61),
        "lambda_l2": loguniform(1e-4, 100.0),
        "feature_fraction": uniform(0.2, 1.0),
        "bagging_fraction": uniform(0.3, 1.0),
        "max_bin": lograndint(8, 256),
        "extra_trees": choice([False, True]),
    },
    # Fully connected networks, trained by SGD.
    "mlp": {
        "learning_rate": loguniform(1e-3, 1.0),
        # The weight decay.
        "alpha": loguniform(1e-6, 1e-1),
        "batch_size": lograndint(32, 257),
        # One less the momentum.
        "friction": loguniform(0.01, 1.0),
        # In epoch t the step size is learning_rate / t**decay.
        "decay": uniform(0.0, 1.0),
        "layers": randint(1, 3),
        "units": lograndint(4, 129),
        "activation": choice(["relu", "tanh", "logistic"]),
    },
    # Logistic and linear regression, trained by SGD: networks without a hidden layer.
    "linear": {
        "learning_rate": loguniform(1e-4, 1.0),
        "alpha": loguniform(1e-6, 1.0),
        "batch_size": lograndint(16, 257),
        "friction": loguniform(0.01, 1.0),
        "decay": uniform(0.0, 1.0),
    },
}


@dataclass(frozen=True)
class Recipe:
    """How a set is recorded."""

    family: str
    #: A name of `benchmarks.reproduce.data_sets`.
    data: str
    #: The number of configurations.
    rows: int
    sealed: bool = False


def _sets(*recipes: Recipe) -> dict[str, Recipe]:
    return {f"{one.family}_{one.data}": one for one in recipes}


#: All recorded sets. Recording them took 20 minutes of one core.
SETS: Mapping[str, Recipe] = _sets(
    Recipe("lightgbm", "breast_cancer", 1500),
    Recipe("lightgbm", "wine", 1500),
    Recipe("lightgbm", "diabetes", 2000),
    Recipe("lightgbm", "friedman1", 2000),
    Recipe("lightgbm", "clf20", 1000),
    Recipe("lightgbm", "digits", 500),
    Recipe("mlp", "digits", 400),
    Recipe("mlp", "clf20", 400),
    Recipe("linear", "breast_cancer", 1000),
    Recipe("linear", "diabetes", 1000),
    Recipe("lightgbm", "friedman2", 1500, sealed=True),
    Recipe("lightgbm", "hastie", 1000, sealed=True),
    Recipe("mlp", "clf40", 400, sealed=True),
    Recipe("linear", "regression40", 1000, sealed=True),
)
