"""Train a configuration with several seeds, and return the validation metrics of each epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from benchmarks.reproduce.data_sets import Halves
from benchmarks.reproduce.recipes import EPOCHS

__all__ = ["TRAINERS", "Networks", "Trainer", "train_lightgbm", "train_networks"]

#: The loss and the error of each seed and epoch: arrays of shape (seeds, epochs).
Metrics = tuple[NDArray[np.float64], NDArray[np.float64]]

#: ``train(config, halves, seeds)``
Trainer = Callable[[Mapping[str, Any], Halves, Sequence[int]], Metrics]


def train_lightgbm(config: Mapping[str, Any], halves: Halves, seeds: Sequence[int]) -> Metrics:
    """Train boosted trees; the loss is the log loss or the mean squared error."""
    import lightgbm

    classes = halves.classes
    kind = "regression" if not classes else "binary" if classes == 2 else "multiclass"
    names = {"binary": ("binary_logloss", "binary_error"), "multiclass": ("multi_logloss", "multi_error")}
    metrics = names.get(kind, ("l2",))
    params = {
        **config,
        "objective": kind,
        "metric": list(metrics),
        "bagging_freq": 1,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbose": -1,
        **({"num_class": classes} if kind == "multiclass" else {}),
    }
    # The bins do not depend on the seed.
    shared = {"params": {**params, "seed": 0}, "free_raw_data": False}
    train = lightgbm.Dataset(halves.train_rows, halves.train_labels, **shared)
    validation = train.create_valid(halves.validation_rows, halves.validation_labels)
    found = np.full((2, len(seeds), EPOCHS), np.nan)
    for index, seed in enumerate(seeds):
        record: dict[str, dict[str, list[float]]] = {}
        lightgbm.train(
            {**params, "bagging_seed": seed, "feature_fraction_seed": seed, "extra_seed": seed},
            train,
            EPOCHS,
            valid_sets=[validation],
            valid_names=["validation"],
            callbacks=[lightgbm.record_evaluation(record)],
        )
        for metric, name in enumerate(metrics):
            found[metric, index] = record["validation"][name]
    return found[0], found[1]


class Networks:
    """Networks of one configuration with several seeds, trained side by side by SGD.

    scikit-learn's networks would be the obvious choice; with batches of this size nearly all of
    their time is spent in Python, so the side by side training of three seeds in NumPy records
    several times as many curves in the same time.

    Parameters
    ----------
    config : mapping
        A configuration of the family ``mlp`` or ``linear``.
    features : int
        The number of features.
    classes : int
        The number of classes; 0 for a regression.
    streams : sequence of Generator
        The random numbers of each network.
    """

    def __init__(
        self, config: Mapping[str, Any], features: int, classes: int, streams: Sequence[Generator]
    ) -> None:
        hidden = [config["units"]] * config.get("layers", 0) if "units" in config else []
        sizes = [features, *hidden, classes or 1]
        self.classes = classes
        self._config, self._streams = config, streams
        self._activation = config.get("activation", "relu")
        # The bounds of Glorot and Bengio (2010), as in scikit-learn.
        gain = 2 if self._activation == "logistic" else 6
        self.weights, self.biases = [], []
        for rows, columns in pairwise(sizes):
            bound = (gain / (rows + columns)) ** 0.5
            drawn = [one.uniform(-bound, bound, (rows + 1, columns)) for one in streams]
            stacked = np.stack(drawn).astype("f4")
            self.weights.append(stacked[:, :-1].copy())
            self.biases.append(stacked[:, -1:].copy())
        self._velocities = [np.zeros_like(one) for one in (*self.weights, *self.biases)]

    def outputs(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the rows and the outputs of each layer, of shape (seeds, rows, units)."""
        layers = [rows]
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            value = layers[-1] @ weight + bias
            if index < len(self.weights) - 1:
                value = self._activate(value)
            layers.append(value)
        return layers

    def gradients(self, rows: NDArray[Any], targets: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the gradients of the weights, then of the biases.

        The objective is the mean of log losses, or of half the squared errors, plus half of
        ``alpha`` times the squared weights.

        Parameters
        ----------
        rows : ndarray of shape (seeds, rows, features)
        targets : ndarray of shape (seeds, rows, outputs)
            For a classification 1 in the column of the class, otherwise 0.
        """
        layers = self.outputs(rows)
        delta = _softmax(layers[-1]) if self.classes else layers[-1]
        delta = (delta - targets) / np.float32(rows.shape[-2])
        alpha = np.float32(self._config["alpha"])
        of_weights, of_biases = [], []
        for index in reversed(range(len(self.weights))):
            weight = self.weights[index]
            of_weights.append(layers[index].swapaxes(-1, -2) @ delta + alpha * weight)
            of_biases.append(delta.sum(axis=-2, keepdims=True))
            if index:
                delta = (delta @ weight.swapaxes(-1, -2)) * self._slope(layers[index])
        return [*reversed(of_weights), *reversed(of_biases)]

    def train(self, rows: NDArray[Any], targets: NDArray[Any], epoch: int) -> None:
        """Train for one epoch, of which the first one is 1."""
        step = np.float32(self._config["learning_rate"] / epoch ** self._config["decay"])
        momentum = np.float32(1 - self._config["friction"])
        orders = np.stack([one.permutation(len(rows)) for one in self._streams])
        size = min(self._config["batch_size"], len(rows))
        # A last batch of few rows would be noise; other rows are left out in each epoch.
        for begin in range(0, len(rows) - size + 1, size):
            batch = orders[:, begin : begin + size]
            gradients = self.gradients(rows[batch], targets[batch])
            parameters = (*self.weights, *self.biases)
            for own, velocity, gradient in zip(parameters, self._velocities, gradients, strict=True):
                velocity *= momentum
                velocity -= step * gradient
                own += velocity

    def evaluate(self, rows: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the loss and the error of each seed; the error of a regression is NaN."""
        output = self.outputs(rows)[-1].astype("f8")
        if not self.classes:
            return ((output[..., 0] - labels) ** 2).mean(axis=1), np.full(len(output), np.nan)
        output -= output.max(axis=-1, keepdims=True)
        own = np.take_along_axis(output, labels[None, :, None], axis=-1)[..., 0]
        loss = (np.log(np.exp(output).sum(axis=-1)) - own).mean(axis=1)
        return loss, (output.argmax(axis=-1) != labels).mean(axis=1)

    def _activate(self, value: NDArray[Any]) -> NDArray[Any]:
        if self._activation == "relu":
            return np.maximum(value, np.float32(0))
        if self._activation == "tanh":
            return np.tanh(value)
        return 1 / (1 + np.exp(-value))

    def _slope(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the derivative of the activation where it has this output."""
        if self._activation == "relu":
            return (output > 0).astype("f4")
        return 1 - output**2 if self._activation == "tanh" else output * (1 - output)


def _softmax(value: NDArray[Any]) -> NDArray[Any]:
    shares = np.exp(value - value.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def train_networks(config: Mapping[str, Any], halves: Halves, seeds: Sequence[int]) -> Metrics:
    """Train networks or linear models on standardised halves.

    A network whose numbers overflow has an infinite loss and the error 1 from then on.
    """
    rows, labels, classes = halves.train_rows, halves.train_labels, halves.classes
    targets = np.eye(classes, dtype="f4")[labels] if classes else labels.astype("f4")[:, None]
    networks = Networks(config, rows.shape[1], classes, [default_rng(seed) for seed in seeds])
    loss, error = np.full((len(seeds), EPOCHS), np.inf), np.full((len(seeds), EPOCHS), 1.0)
    for epoch in range(EPOCHS):
        with np.errstate(all="ignore"):
            networks.train(rows, targets, epoch + 1)
            found, wrong = networks.evaluate(halves.validation_rows, halves.validation_labels)
        sound = np.isfinite(found)
        if not sound.any():
            break
        loss[sound, epoch], error[sound, epoch] = found[sound], wrong[sound]
    return loss, error if classes else np.full_like(error, np.nan)


TRAINERS: Mapping[str, Trainer] = {
    "lightgbm": train_lightgbm,
    "mlp": train_networks,
    "linear": train_networks,
}
