"""Callbacks within real trainings of XGBoost and of LightGBM, on real data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from trial_run_kit import Driver

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable import get_checkpoint
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    Failed,
    PauseAnswer,
    Paused,
    StopAnswer,
    Stopped,
)
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.milestone import Milestone

ROUNDS = 5


@cache
def tumours() -> tuple[np.ndarray, np.ndarray]:
    return load_breast_cancer(return_X_y=True)


class XGBoost:
    """Trains with XGBoost, every fourth patient held out."""

    loss, mean = "eval-logloss", "test-logloss-mean"
    deviation = "test-logloss-std"

    def __init__(self) -> None:
        self.package = pytest.importorskip("xgboost")
        from dasktune.integration.xgboost import TuneReportCheckpointCallback

        self.Callback = TuneReportCheckpointCallback
        self.params = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1}

    def data(self) -> tuple[Any, Any]:
        x, y = tumours()
        held_out = np.arange(len(y)) % 4 == 0
        make = self.package.DMatrix
        return make(x[~held_out], y[~held_out]), make(x[held_out], y[held_out])

    def train(self, callbacks: list[Any], model: Any = None, rounds: int = ROUNDS) -> Any:
        d_train, d_eval = self.data()
        return self.package.train(
            self.params,
            d_train,
            rounds - (model.num_boosted_rounds() if model else 0),
            evals=[(d_eval, "eval")],
            verbose_eval=False,
            xgb_model=model,
            callbacks=callbacks,
        )

    def cv(self, callbacks: list[Any]) -> Any:
        return self.package.cv(self.params, self.data()[0], ROUNDS, nfold=3, seed=0, callbacks=callbacks)[
            "test-logloss-mean"
        ]

    def fit(self, callbacks: list[Any]) -> None:
        x, y = tumours()
        estimator = self.package.XGBClassifier(
            n_estimators=ROUNDS, callbacks=callbacks, n_jobs=1, eval_metric="logloss"
        )
        estimator.fit(x, y, eval_set=[(x, y)], verbose=False)

    @staticmethod
    def rounds(model: Any) -> int:
        return model.num_boosted_rounds()


class LightGBM:
    """Trains with LightGBM, every fourth patient held out."""

    loss, mean = "eval-binary_logloss", "valid-binary_logloss-mean"
    deviation = "valid-binary_logloss-stdv"

    def __init__(self) -> None:
        self.package = pytest.importorskip("lightgbm")
        from dasktune.integration.lightgbm import TuneReportCheckpointCallback

        self.Callback = TuneReportCheckpointCallback
        self.params = {
            "objective": "binary",
            "num_leaves": 4,
            "num_threads": 1,
            "deterministic": True,
            "verbosity": -1,
        }

    def data(self) -> tuple[Any, Any]:
        x, y = tumours()
        held_out = np.arange(len(y)) % 4 == 0
        train = self.package.Dataset(x[~held_out], y[~held_out])
        return train, train.create_valid(x[held_out], y[held_out])

    def train(self, callbacks: list[Any], model: Any = None, rounds: int = ROUNDS) -> Any:
        d_train, d_eval = self.data()
        return self.package.train(
            self.params,
            d_train,
            rounds - (model.current_iteration() if model else 0),
            valid_sets=[d_eval],
            valid_names=["eval"],
            init_model=model,
            callbacks=callbacks,
        )

    def cv(self, callbacks: list[Any]) -> Any:
        table = self.package.cv(self.params, self.data()[0], ROUNDS, nfold=3, seed=0, callbacks=callbacks)
        return table["valid binary_logloss-mean"]

    def fit(self, callbacks: list[Any]) -> None:
        x, y = tumours()
        estimator = self.package.LGBMClassifier(n_estimators=ROUNDS, n_jobs=1, verbosity=-1)
        estimator.fit(x, y, eval_set=[(x, y)], callbacks=callbacks)

    @staticmethod
    def rounds(model: Any) -> int:
        return model.current_iteration()


@pytest.fixture(params=[XGBoost, LightGBM], ids=lambda kind: kind.__name__)
def trees(request: pytest.FixtureRequest) -> Any:
    return request.param()


def run(train: Callable[[], Any], **options: Any) -> Driver:
    """Run a whole trial."""
    driver = Driver(lambda config: train() and None, **options)
    last = driver.end()
    assert isinstance(last, Ended), last
    return driver


def saved(driver: Driver) -> list[int]:
    """Return the iterations that have a checkpoint."""
    return [r.metrics["training_iteration"] for r in driver.results if r.checkpoint is not None]


def opened(driver: Driver, record: CheckpointRecord) -> Checkpoint:
    place = driver.run.spec.storage.child(*record.path.split("/"))
    return Checkpoint(place.path(), place.fs)


def test_each_round_is_one_result_and_the_last_one_brings_the_model(trees):
    models = []
    driver = run(lambda: models.append(trees.train([trees.Callback()])))
    losses = driver.values(trees.loss)
    assert len(losses) == ROUNDS
    assert losses == sorted(losses, reverse=True)
    assert saved(driver) == [ROUNDS]
    model = trees.Callback.get_model(opened(driver, driver.results[-1].checkpoint))
    assert trees.rounds(model) == ROUNDS
    x = tumours()[0]
    x = trees.package.DMatrix(x) if isinstance(trees, XGBoost) else x
    assert np.allclose(model.predict(x), models[0].predict(x))


@pytest.mark.parametrize(
    ("frequency", "at_end", "rounds"),
    [
        (0, False, []),
        (2, True, [2, 4, 5]),
        (2, False, [2, 4]),
        (5, True, [5]),
        (1, False, [1, 2, 3, 4, 5]),
    ],
)
def test_models_are_saved_as_often_as_was_asked_for_and_none_twice(trees, frequency, at_end, rounds):
    callback = trees.Callback(frequency=frequency, checkpoint_at_end=at_end)
    driver = run(lambda: trees.train([callback]))
    assert len(driver.results) == ROUNDS
    assert saved(driver) == rounds
    for result in driver.results:
        if result.checkpoint is not None:
            model = trees.Callback.get_model(opened(driver, result.checkpoint))
            assert trees.rounds(model) == result.metrics["training_iteration"]


def test_metrics_are_chosen_renamed_and_processed(trees):
    seen = []

    def process(metrics: dict[str, float]) -> dict[str, float]:
        seen.append(dict(metrics))
        return {"twice": 2 * metrics["loss"]}

    callback = trees.Callback({"loss": trees.loss}, results_postprocessing_fn=process)
    driver = run(lambda: trees.train([callback]))
    assert driver.values("twice") == [2 * metrics["loss"] for metrics in seen]
    assert driver.values("loss") == [None] * ROUNDS


def test_an_unknown_metric_fails_the_trial_with_the_names_that_there_are(trees):
    driver = Driver(lambda config: trees.train([trees.Callback("eval-nonsense")]))
    last = driver.end()
    assert isinstance(last, Failed)
    assert "eval-nonsense" in last.error.traceback
    assert trees.loss in last.error.traceback


def test_a_stopped_trial_ends_within_the_training(trees):
    after = []

    def train(config: Any) -> None:
        trees.train([trees.Callback(frequency=1)], rounds=100)
        after.append("the training continued")

    driver = Driver(train, milestones=(Milestone("training_iteration", 3.0),))
    driver.awaiting()
    driver.run.answer(StopAnswer(reason="not good enough"))
    assert isinstance(driver.end(), Stopped)
    assert len(driver.results) == 3
    assert after == []


def test_a_paused_trial_ends_like_one_without_a_pause(trees, tmp_path):
    def train(config: Any = None) -> None:
        checkpoint = get_checkpoint()
        model = None if checkpoint is None else trees.Callback.get_model(checkpoint)
        trees.train([trees.Callback(frequency=3)], model, rounds=7)

    whole = run(lambda: train())
    storage = Storage(str(tmp_path))
    driver = Driver(train, storage=storage, milestones=(Milestone("training_iteration", 3.0),))
    driver.awaiting()
    driver.run.answer(PauseAnswer())
    assert isinstance(driver.end(), Paused)
    record = driver.results[-1].checkpoint
    assert record is not None
    rest = Driver(train, storage=storage, incarnation=2, checkpoint=record, next_checkpoint=1)
    assert isinstance(rest.end(), Ended)
    assert rest.values("training_iteration") == [4, 5, 6, 7]
    # Counted with those before the pause.
    assert saved(rest) == [6, 7]
    both = driver.values(trees.loss) + rest.values(trees.loss)
    assert both == pytest.approx(whole.values(trees.loss), abs=1e-6)


def test_a_cross_validation_reports_means_and_deviations_and_saves_nothing(trees):
    tables = []
    driver = run(lambda: tables.append(trees.cv([trees.Callback(frequency=1)])))
    assert driver.values(trees.mean) == pytest.approx(list(tables[0]))
    assert all(value > 0 for value in driver.values(trees.deviation))
    assert saved(driver) == []


@pytest.mark.parametrize("metrics", [None, {"test-logloss": "test-logloss", "mean": "test-logloss-mean"}])
def test_a_function_gets_the_pairs_of_a_cross_validation_as_in_ray_tune(metrics: Any):
    trees, seen = XGBoost(), []

    def process(given: dict[str, Any]) -> dict[str, float]:
        seen.append(given)
        mean, _ = given["test-logloss"]
        return {"test-logloss": mean}

    tables = []
    callback = trees.Callback(metrics, results_postprocessing_fn=process)
    driver = run(lambda: tables.append(trees.cv([callback])))
    assert driver.values("test-logloss") == pytest.approx(list(tables[0]))
    names = {"train-logloss", "test-logloss"} if metrics is None else set(metrics)
    assert {frozenset(given) for given in seen} == {frozenset(names)}


def test_one_callback_serves_several_trainings(trees):
    callback = trees.Callback()

    def train() -> None:
        trees.train([callback], rounds=2)
        trees.train([callback], rounds=3)

    driver = run(train)
    losses = driver.values(trees.loss)
    assert len(losses) == 5
    assert losses[:2] == losses[2:4]
    assert saved(driver) == [2, 5]


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_estimators_report_each_round_too(trees):
    driver = run(lambda: trees.fit([trees.Callback()]))
    assert len(driver.results) == ROUNDS
    assert saved(driver) == [ROUNDS]


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_round_at_which_xgboost_stops_early_is_reported_once_with_the_model(ours_first):
    trees = XGBoost()
    # The first rounds are never outdone by so much.
    early = trees.package.callback.EarlyStopping(rounds=2, min_delta=10.0)
    callbacks = [trees.Callback(), early]
    driver = run(lambda: trees.train(callbacks if ours_first else callbacks[::-1], rounds=100))
    assert len(driver.results) == 3
    assert saved(driver) == [3]
    assert len(set(driver.values(trees.loss))) == 3


def test_early_stopping_of_lightgbm_leaves_the_checkpoints_of_the_way():
    trees = LightGBM()
    early = trees.package.early_stopping(2, min_delta=10.0, verbose=False)
    driver = run(lambda: trees.train([trees.Callback(frequency=2), early], rounds=100))
    assert len(driver.results) == 3
    assert saved(driver) == [2]


def test_rounds_without_held_out_data_are_results_without_metrics():
    trees = XGBoost()

    def train() -> None:
        trees.package.train(trees.params, trees.data()[0], 3, callbacks=[trees.Callback()])

    driver = run(train)
    assert driver.values("training_iteration") == [1, 2, 3]
    assert saved(driver) == [3]
