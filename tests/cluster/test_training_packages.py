"""Packages that train, in trials that are stopped early and cloned, on real workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
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
        # From good to poor, so that a trial that comes late is worse than those before.
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


def die_once(place: Path) -> Any:
    """Return a callback that kills the process of a trainer when its third epoch begins, once."""
    pytest.importorskip("transformers")
    from transformers import TrainerCallback

    class DieOnce(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if round(state.epoch or 0) == 2 and not (place / "killed").exists():
                (place / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return DieOnce()


def make_model(trial: dict[str, Any] | None = None) -> Any:
    """Return a linear model with a scale that the search may choose."""
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    class Linear(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, settings: Any) -> None:
            super().__init__(settings)
            self.layer = torch.nn.Linear(4, 1)
            self.scale = (trial or {}).get("scale", 1.0)
            self.post_init()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            predicted = self.scale * self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}

    return Linear(PretrainedConfig())


def make_trainer(place: Path, model_init: Any = make_model, callbacks: Any = (), **arguments: Any) -> Any:
    """Return a trainer of a linear model, which saves and evaluates after each epoch."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import torch
    from transformers import Trainer, TrainingArguments

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    rows = [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]
    settings: dict[str, Any] = {
        "output_dir": str(place / "output"),
        "num_train_epochs": 4,
        "per_device_train_batch_size": 8,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return Trainer(
        model_init=model_init,
        args=TrainingArguments(**{**settings, **arguments}),
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=list(callbacks),
    )


def search_options(place: Path) -> dict[str, Any]:
    return {"storage_path": str(place), "name": "run", "verbose": 0, "dashboard": False}


@pytest.mark.filterwarnings("default")
def test_a_search_of_a_trainer_stops_poor_trials_and_returns_the_best_run(
    pair: LocalCluster, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, learning_rate=1e-5)
    from transformers.trainer_utils import BestRun

    from dasktune.integration.transformers import hyperparameter_search

    model = trainer.model
    best = hyperparameter_search(
        trainer,
        # From good to poor, so that a trial that comes late is worse than those before.
        hp_space=lambda trial: {
            "learning_rate": tune.grid_search([0.3, 0.1, 0.01, 0.001]),
            "per_device_train_batch_size": 16.0,
        },
        n_trials=1,
        hp_name=lambda config: f"rate-{config['learning_rate']}",
        scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        client=pair,
        **search_options(tmp_path),
    )
    assert isinstance(best, BestRun)
    results = best.run_summary
    assert statuses(results) == {"TERMINATED"}
    assert best.hyperparameters == {"learning_rate": 0.3, "per_device_train_batch_size": 16.0}
    assert best.run_id == results[0].trial_id
    assert len(results[0].history) == 4
    assert min(len(result.history) for result in results) == 1
    # 64 rows in batches of 16, a float that was converted to an int, are 4 steps in each epoch.
    history = results[0].history
    assert [row["step"] for row in history] == [4, 8, 12, 16]
    assert [row["objective"] for row in history] == [row["eval_loss"] for row in history]
    assert best.objective == history[-1]["objective"] < 0.5 * history[0]["objective"]
    checkpoint = results[0].checkpoint
    assert checkpoint is not None
    with checkpoint.as_directory() as directory:
        names = {path.name for path in Path(directory).iterdir()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names
    # The given trainer is as before, and has saved nothing.
    assert trainer.model is model
    assert trainer.args.learning_rate == 1e-5
    assert list((tmp_path / "output").iterdir()) == []


@pytest.fixture
def mortal() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.mark.filterwarnings("default")
def test_a_trial_of_a_trainer_whose_worker_is_killed_continues(mortal: LocalCluster, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[die_once(tmp_path)])
    from dasktune.integration.transformers import hyperparameter_search

    best = hyperparameter_search(
        trainer,
        hp_space=lambda trial: {"learning_rate": 0.1, "scale": 2.0},
        n_trials=1,
        client=mortal,
        # In a thread, so that the worker dies and not only a process of the trial.
        isolation="thread",
        **search_options(tmp_path),
    )
    assert (tmp_path / "killed").exists()
    [result] = best.run_summary
    assert [row["step"] for row in result.history] == [8, 16, 24, 32]
    # The driver may not have heard of the second result when the worker died.
    assert result.history[-1]["iterations_since_restore"] in (2, 3)
    assert best.objective < result.history[0]["objective"]


@pytest.mark.filterwarnings("default")
def test_clones_of_trainers_train_with_their_own_learning_rate(pair: LocalCluster, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, lr_scheduler_type="constant")

    class ReportRate(type(trainer)):  # type: ignore[misc]
        def evaluate(self, *args: Any, **options: Any) -> Any:
            rate = self.optimizer.param_groups[0]["lr"]
            return {**super().evaluate(*args, **options), "rate": rate}

    trainer.__class__ = ReportRate
    from dasktune.integration.transformers import hyperparameter_search

    best = hyperparameter_search(
        trainer,
        hp_space=lambda trial: {"learning_rate": tune.grid_search([0.1, 0.0001])},
        compute_objective=lambda metrics: metrics["eval_loss"],
        n_trials=1,
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"learning_rate": [0.05, 0.2]},
            quantile_fraction=0.5,
            synch=True,
        ),
        client=pair,
        seed=1,
        **search_options(tmp_path),
    )
    results = best.run_summary
    assert statuses(results) == {"TERMINATED"}
    actions = [action for record in journal(tmp_path) for action in record.get("actions", ())]
    assert [action for action in actions if action["do"] == "ExploitTrial"]
    for result in results:
        assert [row["step"] for row in result.history] == [8, 16, 24, 32]
    # The optimizer of the donor has the rate 0.1.
    donor, clone = results
    assert [row["rate"] for row in donor.history] == [0.1] * 4
    rates = [row["rate"] for row in clone.history]
    assert rates[:2] == [0.0001] * 2
    assert rates[2] == rates[3]
    assert rates[2] in (0.05, 0.2)


@pytest.mark.filterwarnings("default")
def test_the_trials_of_a_search_train_on_several_processes(pair: LocalCluster, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[die_once(tmp_path)])
    from dasktune.integration.transformers import hyperparameter_search

    best = hyperparameter_search(
        trainer,
        hp_space=lambda trial: {"learning_rate": 0.3},
        n_trials=1,
        ranks={"ranks": 2, "start_timeout_s": 200, "preload": ["transformers.trainer"]},
        client=pair,
        max_failures=1,
        **search_options(tmp_path),
    )
    [result] = best.run_summary
    assert len(journal(tmp_path, event="TrialFailed")) == 1
    # Two ranks share 64 rows: 4 steps of 8 rows in each epoch.
    assert [row["step"] for row in result.history] == [4, 8, 12, 16]
    assert best.objective < 0.5 * result.history[0]["objective"]
    with result.checkpoint.as_directory() as directory:
        names = {path.name for path in Path(directory).iterdir()}
    assert {"model.safetensors", "rng_state_0.pth", "rng_state_1.pth"} <= names


@pytest.mark.timeout(600)
def test_the_search_that_the_page_shows_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    page = Path(__file__).parents[2] / "docs" / "integrations.md"
    section = page.read_text(encoding="utf-8").partition("\n### Hyperparameter search\n")[2]
    [code] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    (tmp_path / "search.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "search.py"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    objective, _, hyperparameters = done.stdout.splitlines()[-1].partition(" ")
    # Tokens of two kinds: guessing has the loss 0.69.
    assert float(objective) < 0.69
    assert "'learning_rate'" in hyperparameters
