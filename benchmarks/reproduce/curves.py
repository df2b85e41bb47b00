"""Recorded learning curves of real networks: ``python -m benchmarks.reproduce.curves`` makes them.

Each table has 500 random configurations of scikit-learn's `MLPClassifier`, trained for 81 epochs
with 3 seeds each. It stores how many rows of the validation and of the test set are wrong after
every epoch. These are integers, so the tables lose no precision. Only making a table needs
scikit-learn, and some minutes.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

__all__ = ["CONFIGS", "EPOCHS", "NAMES", "SEEDS", "Curves", "load_curves", "split_data"]

#: The tables, named after their data sets.
NAMES = ("digits", "breast_cancer")

CONFIGS, SEEDS, EPOCHS = 500, 3, 81

_DIRECTORY = Path(__file__).parent

_ACTIVATIONS = ("relu", "tanh", "logistic")

#: Each is drawn as ``exp(uniform(log(low), log(high)))``; those of `_INTEGERS` are rounded.
_LOG_RANGES = {
    "learning_rate": (1e-3, 1.0),
    "alpha": (1e-6, 1.0),
    "batch_size": (20, 200),
    "units": (4, 128),
}
_INTEGERS = ("batch_size", "units")


@dataclass(frozen=True)
class Curves:
    """The curves of one data set; arrays of wrong rows have shape (configs, seeds, epochs)."""

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
    """Return a saved table; `name` is one of `NAMES`."""
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


def _draw(rng: Generator) -> dict[str, NDArray[Any]]:
    """Return random values of all hyperparameters, in the types of the saved table."""
    configs: dict[str, NDArray[Any]] = {}
    for name, bounds in _LOG_RANGES.items():
        drawn = np.exp(rng.uniform(*np.log(bounds), CONFIGS))
        configs[name] = drawn.round().astype(np.uint8) if name in _INTEGERS else drawn.astype("f4")
    configs["layers"] = rng.integers(1, 3, CONFIGS, dtype=np.uint8)
    configs["momentum"] = (1 - np.exp(rng.uniform(np.log(0.01), 0, CONFIGS))).astype("f4")
    # The step size is learning_rate / (rows seen so far)**power_t; for half of them it is constant.
    power = rng.uniform(0, 0.5, CONFIGS) * rng.integers(0, 2, CONFIGS)
    configs["power_t"] = power.astype("f4")
    configs["activation"] = rng.choice(np.array(_ACTIVATIONS), CONFIGS)
    return configs


def split_data(name: str, rng: Generator) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return training, validation and test set, a third each."""
    from sklearn import datasets, preprocessing

    rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.array_split(rng.permutation(len(rows)), 3)
    scaler = preprocessing.StandardScaler().fit(rows[order[0]])
    return [(scaler.transform(rows[part]).astype("f4"), labels[part]) for part in order]


def _network(config: dict[str, Any], seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(
        hidden_layer_sizes=(int(config["units"]),) * int(config["layers"]),
        activation=str(config["activation"]),
        solver="sgd",
        alpha=float(config["alpha"]),
        batch_size=int(config["batch_size"]),
        learning_rate="invscaling",
        learning_rate_init=float(config["learning_rate"]),
        power_t=float(config["power_t"]),
        momentum=float(config["momentum"]),
        random_state=seed,
    )


def _train(config: dict[str, Any], seed: int, parts: list[Any]) -> NDArray[np.uint16]:
    """Return how many rows of validation and test set are wrong after each epoch."""
    train, *held_out = parts
    network, classes = _network(config, seed), np.unique(train[1])
    # A network that diverges gets all rows wrong from then on.
    wrong = np.array([[len(labels)] * EPOCHS for _, labels in held_out], dtype=np.uint16)
    for epoch in range(EPOCHS):
        try:
            network.partial_fit(*train, classes=classes)
        except ValueError:  # its weights are not finite
            break
        for index, (rows, labels) in enumerate(held_out):
            wrong[index, epoch] = (network.predict(rows) != labels).sum()
    return wrong


def build(name: str) -> Curves:
    """Train all networks on a data set."""
    from threadpoolctl import threadpool_limits

    rng = default_rng(NAMES.index(name))
    configs, parts = _draw(rng), split_data(name, rng)
    wrong = np.empty((2, CONFIGS, SEEDS, EPOCHS), dtype=np.uint16)
    with threadpool_limits(1), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(CONFIGS):
            config = {key: values[number] for key, values in configs.items()}
            for seed in range(SEEDS):
                wrong[:, number, seed] = _train(config, seed, parts)
            if number % 50 == 49:
                print(f"{name}: {number + 1} of {CONFIGS}", flush=True)
    _, validation, test = parts
    return Curves(name, configs, wrong[0], wrong[1], len(validation[1]), len(test[1]))


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        build(name).save()


if __name__ == "__main__":
    main()
