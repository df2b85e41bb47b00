"""Callbacks within real trainings of Keras."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from trial_run_kit import Driver, paused_and_whole

from dasktune.errors import ConfigError
from dasktune.integration.keras import TuneReportCheckpointCallback
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable import get_checkpoint
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    Failed,
    StopAnswer,
    Stopped,
)
from dasktune.trial.milestone import Milestone

try:
    # Fails, too, where its backend is missing: choose one by KERAS_BACKEND.
    import keras
except ImportError as error:
    pytest.skip(f"Keras: {error}", allow_module_level=True)

# What Keras and its backends warn about in each other.
pytestmark = pytest.mark.filterwarnings("default")

EPOCHS = 4


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    pictures, labels = load_digits(return_X_y=True)
    return pictures.astype("float32") / 16, labels


def network() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def fit(callback: Any, epochs: int = EPOCHS) -> None:
    checkpoint, epoch = get_checkpoint(), 0
    if checkpoint is None:
        model = network()
    else:
        model = TuneReportCheckpointCallback.get_model(checkpoint)
        epoch = checkpoint.get_metadata()["epoch"]
    x, y = digits()
    model.fit(
        x[:1024],
        y[:1024],
        batch_size=256,
        validation_data=(x[1024:], y[1024:]),
        epochs=epochs,
        initial_epoch=epoch,
        shuffle=False,
        verbose=0,
        callbacks=[callback],
    )


def train(config: Any) -> None:
    fit(TuneReportCheckpointCallback(metrics={"loss": "val_loss", "accuracy": "val_accuracy"}))


def test_each_epoch_is_a_result_with_the_model():
    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert len(driver.results) == EPOCHS
    assert driver.values("accuracy")[-1] > 0.5
    record = driver.results[-1].checkpoint
    place = driver.run.spec.storage.child(*record.path.split("/"))
    checkpoint = Checkpoint(place.path(), place.fs)
    assert checkpoint.get_metadata() == {"epoch": EPOCHS}
    x, y = digits()
    model = TuneReportCheckpointCallback.get_model(checkpoint)
    right = model.predict(x[1024:], verbose=0).argmax(1) == y[1024:]
    assert right.mean() == pytest.approx(driver.values("accuracy")[-1], abs=1e-6)


def test_a_paused_training_ends_like_one_without_pause(tmp_path: Path):
    whole, begun, rest = paused_and_whole(train, tmp_path)
    losses = begun.values("loss") + rest.values("loss")
    assert losses == pytest.approx(whole.values("loss"), rel=1e-4)


def test_a_stopped_trial_ends_within_the_training():
    after = []

    def for_long(config: Any) -> None:
        fit(TuneReportCheckpointCallback(), epochs=10_000)
        after.append("the training continued")

    driver = Driver(for_long, milestones=(Milestone("training_iteration", 2.0),))
    driver.awaiting()
    driver.run.answer(StopAnswer(reason="not good enough"))
    assert isinstance(driver.end(), Stopped)
    assert len(driver.results) == 2
    assert after == []


def test_results_and_checkpoints_come_at_the_hooks_that_were_asked_for():
    def train_once(config: Any) -> None:
        callback = TuneReportCheckpointCallback(
            checkpoint_on="train_end", report_metrics_on=["train_batch_end", "test_end"]
        )
        fit(callback, epochs=1)

    driver = Driver(train_once)
    assert isinstance(driver.end(), Ended)
    # Four batches, the validation, and the end.
    assert len(driver.results) == 6
    assert all(loss > 0 for loss in driver.values("loss")[:5])
    assert [result.checkpoint is not None for result in driver.results] == [False] * 5 + [True]


def test_without_hooks_for_batches_keras_need_not_wait_for_each_batch():
    assert TuneReportCheckpointCallback().on_train_batch_end._is_default
    busy = TuneReportCheckpointCallback(report_metrics_on="train_batch_end")
    assert not hasattr(busy.on_train_batch_end, "_is_default")


def test_a_metric_that_keras_does_not_have_fails_the_trial():
    driver = Driver(lambda config: fit(TuneReportCheckpointCallback(metrics="nonsense")))
    last = driver.end()
    assert isinstance(last, Failed)
    assert "metrics must be names that Keras uses, got ['nonsense']" in last.error.message


@pytest.mark.parametrize("argument", ["checkpoint_on", "report_metrics_on"])
def test_hooks_that_keras_does_not_have_are_refused(argument):
    with pytest.raises(ConfigError, match=f"{argument} must be among"):
        TuneReportCheckpointCallback(**{argument: "on_epoch_end"})
