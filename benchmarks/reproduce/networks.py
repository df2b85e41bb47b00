"""Population based training of real networks, compared with random search of as many epochs.

The networks are scikit-learn's `MLPClassifier` of 32 hidden units on the digits, a third of the
rows each for training, validation and test. A population of 16 trains for 40 epochs; learning rate,
momentum and L2 penalty may change every 4 epochs. A checkpoint consists of the weights, so a clone
starts without momentum. Random search trains the same 16 initial configurations without changes. It
also selects the network with the lowest validation error at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng

import dasktune as tune
from benchmarks._report import lead, spread, table
from benchmarks.reproduce._result_store import ResultStore
from benchmarks.reproduce.data_sets import split_data
from dasktune.schedulers import PopulationBasedTraining, TrialScheduler
from dasktune.testing import simulate

__all__ = ["SIDES", "train"]

_SPACE = {
    "learning_rate": tune.loguniform(1e-4, 1.0),
    "momentum": tune.uniform(0.0, 0.99),
    "alpha": tune.loguniform(1e-6, 1.0),
}


def _pbt(synch: bool) -> TrialScheduler:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_mutations=_SPACE,
        synch=synch,
    )


SIDES: Mapping[str, Callable[[], TrialScheduler | None]] = {
    "random search": lambda: None,
    "PBT": lambda: _pbt(False),
    "PBT, synch": lambda: _pbt(True),
}


_BATCH = 50


class _Network:
    """A network whose weights can be replaced, through public names only."""

    def __init__(self, config: Mapping[str, Any], rows: Any, labels: Any, seed: int) -> None:
        from sklearn.neural_network import MLPClassifier

        self._network = MLPClassifier(
            hidden_layer_sizes=(32,),
            solver="sgd",
            alpha=config["alpha"],
            batch_size=_BATCH,
            learning_rate_init=config["learning_rate"],
            momentum=config["momentum"],
            random_state=seed,
        )
        self._data = rows, labels

    def load(self, weights: list[Any]) -> None:
        # A step creates the weights, which are then overwritten in place. It leaves one step of
        # noise in the momentum.
        rows, labels = self._data
        self._network.partial_fit(rows[:_BATCH], labels[:_BATCH], classes=np.arange(10))
        for own, other in zip(self._parameters, weights, strict=True):
            own[...] = other

    def train(self) -> None:
        self._network.partial_fit(*self._data, classes=np.arange(10))

    def error(self, rows: Any, labels: Any) -> float:
        return float((self._network.predict(rows) != labels).mean())

    @property
    def weights(self) -> list[Any]:
        return [one.copy() for one in self._parameters]

    @property
    def _parameters(self) -> list[Any]:
        return [*self._network.coefs_, *self._network.intercepts_]


def train(
    scheduler: TrialScheduler | None, seed: int, *, population: int = 16, epochs: int = 40
) -> tuple[float, float]:
    """Return the lowest validation error at the end, and the test error of the same network.

    The end is when all trials together have trained for ``population * epochs`` epochs.
    """
    from threadpoolctl import threadpool_limits

    fitting, *held_out = split_data("digits", default_rng(seed))
    streams = SeedSequence(seed)

    current: dict[str, Mapping[str, Any]] = {}
    trained = 0

    def on_result(time: float, metrics: Mapping[str, Any]) -> None:
        # A clone may repeat epochs. They count, too, so that all sides train for as many.
        nonlocal trained
        trained += 1
        if trained <= population * epochs:
            current[metrics["trial_id"]] = metrics

    def training(config: dict[str, Any], checkpoint: Any) -> Any:
        rng = default_rng(streams.spawn(1)[0])
        weights, done = checkpoint or (None, 0)
        network = _Network(config, *fitting, int(rng.integers(2**31)))
        if weights is not None:
            network.load(weights)
        errors = [1.0, 1.0]
        for epoch in range(done, epochs):
            # A network that diverges gets all rows wrong.
            try:
                network.train()
                errors = [network.error(*part) for part in held_out]
                weights = network.weights
            except ValueError:
                errors = [1.0, 1.0]
            metrics = dict(zip(("error", "test"), errors, strict=True))
            yield metrics, float(rng.uniform(0.5, 1.5)), (weights, epoch + 1)

    with threadpool_limits(1), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulate(
            training,
            param_space=_SPACE,
            tune_config=tune.TuneConfig(
                metric="error", mode="min", num_samples=population, seed=seed, scheduler=scheduler
            ),
            slots=population,
            store=ResultStore(on_result),
        )
    best = min(current.values(), key=lambda metrics: metrics["error"])
    return best["error"], best["test"]


def main(repeats: int = 10) -> None:
    print(f"\ndigits, {repeats} seeds: median (minimum to maximum); difference of means (95 % interval)\n")
    found = {name: [train(make(), seed) for seed in range(repeats)] for name, make in SIDES.items()}
    percent = {
        name: [[100 * one for one in column] for column in zip(*errors, strict=True)]
        for name, errors in found.items()
    }
    rows = []
    for name, columns in percent.items():
        row: list[str] = [name]
        for own, random in zip(columns, percent["random search"], strict=True):
            difference = "" if own is random else lead(own, random)
            row += [spread(own, ".1f"), f"{fmean(own):.2f}", difference]
        pairs = zip(columns[0], percent["random search"][0], strict=True)
        rows.append([*row, f"{sum(own < other for own, other in pairs)} of {repeats}"])
    header = ["search", "validation error, %", "mean", "less random search's"]
    header += ["its test error, %", "mean", "less random search's", "lower validation error"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
