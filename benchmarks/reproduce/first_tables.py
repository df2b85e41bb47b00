"""Record the two tables that `load_curves` reads: ``python -m benchmarks.reproduce.first_tables``.

They are older than the sets of `benchmarks.reproduce.record`, and stay because published figures
rest on them. It takes some minutes, and needs scikit-learn.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from benchmarks.reproduce.curves import CONFIGS, EPOCHS, NAMES, SEEDS, Curves
from benchmarks.reproduce.data_sets import split_data

__all__ = ["record_table"]

_ACTIVATIONS = ("relu", "tanh", "logistic")

#: Each is drawn as ``exp(uniform(log(low), log(high)))``; those of `_INTEGERS` are rounded.
_LOG_RANGES = {
    "learning_rate": (1e-3, 1.0),
    "alpha": (1e-6, 1.0),
    "batch_size": (20, 200),
    "units": (4, 128),
}
_INTEGERS = ("batch_size", "units")


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


def record_table(name: str) -> Curves:
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
        record_table(name).save()


if __name__ == "__main__":
    main()
