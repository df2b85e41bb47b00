"""Packages that train, in trials that are stopped early and cloned, on real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_kit import journal, run_config, statuses
from distributed import LocalCluster

import dasktune as tune
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS = 9


def patients() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    held_out = np.arange(len(y)) % 4 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def pictures() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    return x[:1024], y[:1024], x[1024:], y[1024:]


def with_xgboost(config: dict[str, Any]) -> None:
    import xgboost

    from dasktune.integration.xgboost import TuneReportCheckpointCallback

    x, y, val_x, val_y = patients()
    checkpoint = tune.get_checkpoint()
    model = None if checkpoint is None else TuneReportCheckpointCallback.get_model(checkpoint)
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1, "eta": config["rate"]},
        xgboost.DMatrix(x, y),
        ROUNDS - (model.num_boosted_rounds() if model else 0),
        evals=[(xgboost.DMatrix(val_x, val_y), "eval")],
        verbose_eval=False,
        xgb_model=model,
        callbacks=[TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=3)],
    )


def with_lightgbm(config: dict[str, Any]) -> None:
    import lightgbm

    from dasktune.integration.lightgbm import TuneReportCheckpointCallback

    x, y, val_x, val_y = patients()
    checkpoint = tune.get_checkpoint()
    model = None if checkpoint is None else TuneReportCheckpointCallback.get_model(checkpoint)
    left = ROUNDS - (model.current_iteration() if model else 0)
    if left == 0:
        # It was paused after its last round. LightGBM refuses to train for none.
        return
    data = lightgbm.Dataset(x, y)
    lightgbm.train(
        {"objective": "binary", "num_threads": 1, "verbosity": -1, "learning_rate": config["rate"]},
        data,
        left,
        valid_sets=[data.create_valid(val_x, val_y)],
        valid_names=["eval"],
        init_model=model,
        callbacks=[TuneReportCheckpointCallback({"loss": "eval-binary_logloss"}, frequency=3)],
    )


def with_lightning(config: dict[str, Any]) -> None:
    import lightning.pytorch as pl
    import torch

    from dasktune.integration.pytorch_lightning import TuneReportCheckpointCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=config["rate"])

    def loader(x: Any, y: Any) -> Any:
        data = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
        return torch.utils.data.DataLoader(data, batch_size=128)

    torch.manual_seed(0)
    x, y, val_x, val_y = pictures()
    trainer = pl.Trainer(
        max_epochs=ROUNDS,
        accelerator="cpu",
        callbacks=[TuneReportCheckpointCallback({"loss": "val"})],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), loader(x, y), loader(val_x, val_y))


def with_keras(config: dict[str, Any]) -> None:
    import keras

    from dasktune.integration.keras import TuneReportCheckpointCallback

    keras.utils.set_random_seed(0)
    x, y, val_x, val_y = pictures()
    model = keras.Sequential([keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(config["rate"]), loss)
    callback = TuneReportCheckpointCallback(metrics={"loss": "val_loss"})
    model.fit(
        x,
        y,
        batch_size=128,
        epochs=ROUNDS,
        validation_data=(val_x, val_y),
        verbose=0,
        callbacks=[callback],
    )


def with_torch(config: dict[str, Any]) -> None:
    import torch

    from dasktune.integration.torch import load_state, report_state

    torch.manual_seed(0)
    x, y, val_x, val_y = (torch.as_tensor(part) for part in pictures())
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["rate"])
    parts = {"model": model, "optimizer": optimizer}
    start = load_state(tune.get_checkpoint(), **parts, epoch=0)["epoch"]
    for epoch in range(start, ROUNDS):
        for rows in torch.arange(len(x)).split(128):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        loss = torch.nn.functional.cross_entropy(model(val_x), val_y)
        report_state({"loss": loss.item()}, **parts, epoch=epoch + 1)


CASES = [
    ("xgboost", with_xgboost, "model.ubj"),
    ("lightgbm", with_lightgbm, "model.txt"),
    ("lightning", with_lightning, "checkpoint"),
    ("keras", with_keras, "model.keras"),
    ("torch", with_torch, "state.pt"),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("package", "train", "file"), CASES, ids=[case[0] for case in CASES])
def test_asha_ends_poor_trials_within_their_training(
    package: str, train: Any, file: str, pair: LocalCluster, tmp_path: Path
) -> None:
    try:
        __import__(package)
    except ImportError as error:
        pytest.skip(str(error))
    results = tune.Tuner(
        train,
        # From good to poor, so that whoever comes late is worse than those before.
        param_space={"rate": tune.grid_search([0.3, 0.1, 0.03, 0.003, 0.001, 0.0003])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=ASHAScheduler(max_t=ROUNDS, grace_period=1, reduction_factor=3),
        ),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    lengths = [len(result.history) for result in results]
    assert max(lengths) == ROUNDS
    assert min(lengths) in (1, 3)
    for result in results:
        numbers = [row["training_iteration"] for row in result.history]
        assert numbers == list(range(1, len(numbers) + 1))
    best = results.get_best_result()
    assert best.checkpoint is not None
    with best.checkpoint.as_directory() as directory:
        assert Path(directory, file).stat().st_size > 0
    assert best.metrics["loss"] < best.history[0]["loss"]


@pytest.mark.parametrize(("package", "train", "file"), CASES[:2], ids=[case[0] for case in CASES[:2]])
def test_clones_grow_further_trees_on_those_of_their_donor(
    package: str, train: Any, file: str, pair: LocalCluster, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    results = tune.Tuner(
        train,
        param_space={"rate": tune.grid_search([0.3, 0.001])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=3,
                hyperparam_mutations={"rate": [0.1, 0.3]},
                quantile_fraction=0.5,
                synch=True,
            ),
            seed=1,
        ),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    actions = [action for record in journal(tmp_path) for action in record.get("actions", ())]
    orders = [action for action in actions if action["do"] == "ExploitTrial"]
    assert orders
    assert {order["checkpoint"]["iteration"] % 3 for order in orders} == {0}
    from importlib import import_module

    get_model = import_module(f"dasktune.integration.{package}").TuneReportCheckpointCallback.get_model
    for result in results:
        model = get_model(result.checkpoint)
        grown = model.num_boosted_rounds() if package == "xgboost" else model.current_iteration()
        assert grown == ROUNDS
