"""What Ray Tune's users' guides teach, as small programs with Ray's names and arguments.

They are written for these tests, not copied from the guides. PyTorch Lightning is no dependency of
the tests: its program runs where it is installed.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

import dasktune as tune
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.search import ConcurrencyLimiter
from dasktune.stopper import Stopper

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


def checkpointed(config):
    """Train for some epochs, from the checkpoint if there is one."""
    epoch = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            epoch = json.loads(Path(checkpoint_dir, "state.json").read_text())["epoch"] + 1
    while epoch < config.get("epochs", 4):
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "state.json").write_text(json.dumps({"epoch": epoch}))
            tune.report(
                {"epoch": epoch, "score": epoch * config.get("lr", 1)},
                checkpoint=tune.Checkpoint.from_directory(temporary),
            )
        flag = Path(config.get("flag", __file__))
        if epoch == 1 and not flag.exists():
            flag.touch()
            raise RuntimeError("interrupted")
        epoch += 1


def test_getting_started_with_a_grid_and_early_stopping(run_config):
    def train_mnist(config):
        for step in range(1, 9):
            tune.report({"mean_accuracy": 1 - config["lr"] / step})

    search_space = {
        "lr": tune.sample_from(lambda spec: 10 ** (-10 * random.random())),
        "momentum": tune.uniform(0.1, 0.9),
    }
    tuner = tune.Tuner(
        train_mnist,
        tune_config=tune.TuneConfig(
            num_samples=4, scheduler=ASHAScheduler(metric="mean_accuracy", mode="max", max_t=8)
        ),
        param_space=search_space,
        run_config=run_config(),
    )
    results = tuner.fit()
    frames = {result.path: result.metrics_dataframe for result in results}
    assert all("mean_accuracy" in frame for frame in frames.values())
    assert results.get_best_result("mean_accuracy", mode="max").path in frames


def test_search_spaces(run_config):
    config = {
        "uniform": tune.uniform(-5, -1),
        "quniform": tune.quniform(3.2, 5.4, 0.2),
        "loguniform": tune.loguniform(1e-4, 1e-1),
        "qloguniform": tune.qloguniform(1e-4, 1e-1, 5e-5),
        "randn": tune.randn(10, 2),
        "qrandn": tune.qrandn(10, 2, 0.2),
        "randint": tune.randint(-9, 15),
        "qrandint": tune.qrandint(-21, 12, 3),
        "lograndint": tune.lograndint(1, 10),
        "qlograndint": tune.qlograndint(2, 10, 2),
        "choice": tune.choice(["a", "b", "c"]),
        "func": tune.sample_from(lambda spec: spec.config.uniform * 0.01),
        "any": tune.sample_from(lambda config: config.config.randint + random.random()),
        "grid": tune.grid_search([32, 64, 128]),
    }
    tuner = tune.Tuner(
        lambda config: {"score": config["func"]},
        param_space=config,
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert len(results) == 6
    assert all(one.config["func"] == one.config["uniform"] * 0.01 for one in results)
    assert all(0 <= one.config["any"] - one.config["randint"] < 1 for one in results)


def test_checkpoints_of_functions(run_config):
    checkpoint_config = tune.CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="max"
    )
    tuner = tune.Tuner(checkpointed, run_config=run_config(checkpoint_config=checkpoint_config))
    (result,) = tuner.fit()
    with result.checkpoint.as_directory() as directory:
        assert json.loads(Path(directory, "state.json").read_text()) == {"epoch": 3}
    assert {metrics["score"] for _, metrics in result.best_checkpoints} == {2, 3}


def test_fault_tolerance_of_trials(run_config, tmp_path):
    tuner = tune.Tuner(
        checkpointed,
        param_space={"flag": str(tmp_path / "flag")},
        run_config=run_config(failure_config=tune.FailureConfig(max_failures=3)),
    )
    (result,) = tuner.fit()
    assert result.error is None
    assert [row["epoch"] for row in result.history] == [0, 1, 2, 3]


def test_fault_tolerance_of_experiments(run_config, tmp_path):
    path = str(tmp_path / "exp")
    for _ in range(2):
        if tune.Tuner.can_restore(path):
            tuner = tune.Tuner.restore(path, trainable=checkpointed, resume_errored=True)
        else:
            space = {"flag": str(tmp_path / "flag")}
            tuner = tune.Tuner(checkpointed, param_space=space, run_config=run_config())
        results = tuner.fit()
    assert results[0].metrics["epoch"] == 3
    assert results.num_errors == 0


class StopsAll(Stopper):
    def __init__(self):
        self.should_stop = False

    def __call__(self, trial_id, result):
        if not self.should_stop and result["epoch"] >= 2:
            self.should_stop = True
        return self.should_stop

    def stop_all(self):
        return self.should_stop


@pytest.mark.parametrize(
    "stop",
    [
        {"training_iteration": 3},
        {"epoch": 2, "training_iteration": 99},
        lambda trial_id, result: result["epoch"] >= 2,
        StopsAll(),
    ],
    ids=["iterations", "metrics", "function", "class"],
)
def test_stopping(run_config, stop):
    tuner = tune.Tuner(checkpointed, param_space={"epochs": 50}, run_config=run_config(stop=stop))
    (result,) = tuner.fit()
    assert result.metrics["epoch"] >= 2


def test_resources_and_parallelism(run_config):
    def asking(config):
        resources = tune.get_context().get_trial_resources()
        return {"cpus": resources.required_resources["CPU"]}

    for number, resources in enumerate(
        [{"cpu": 0.5}, tune.PlacementGroupFactory([{"CPU": 0.5}]), lambda config: {"cpu": config["cpus"]}]
    ):
        tuner = tune.Tuner(
            tune.with_resources(asking, resources),
            param_space={"cpus": 0.5, "number": number},
            tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=run_config().storage_path, verbose=0),
        )
        assert [result.metrics["cpus"] for result in tuner.fit()] == [0.5, 0.5]


def test_population_based_training(run_config):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        metric="score",
        mode="max",
        hyperparam_mutations={"lr": tune.uniform(0.001, 1), "momentum": [0.8, 0.9, 0.99]},
        quantile_fraction=0.5,
        log_config=True,
    )
    tuner = tune.Tuner(
        checkpointed,
        param_space={"lr": tune.uniform(0.001, 1), "momentum": tune.choice([0.8, 0.9]), "epochs": 8},
        tune_config=tune.TuneConfig(num_samples=2, scheduler=scheduler, reuse_actors=True),
        run_config=run_config(checkpoint_config=tune.CheckpointConfig(num_to_keep=4)),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    # A trial that continues the other one's last checkpoint has nothing left to report.
    assert max(result.metrics["epoch"] for result in results) == 7


@pytest.mark.slow
def test_xgboost_with_the_callback_and_early_stopping(run_config):
    pytest.importorskip("xgboost")
    pytest.importorskip("sklearn")

    def train_breast_cancer(config):
        import sklearn.datasets
        import xgboost as xgb
        from sklearn.model_selection import train_test_split

        from dasktune.integration.xgboost import TuneReportCheckpointCallback

        data, labels = sklearn.datasets.load_breast_cancer(return_X_y=True)
        train_x, test_x, train_y, test_y = train_test_split(data, labels, random_state=0)
        test_set = xgb.DMatrix(test_x, label=test_y)
        xgb.train(
            {**config, "nthread": 1},
            xgb.DMatrix(train_x, label=train_y),
            evals=[(test_set, "eval")],
            verbose_eval=False,
            callbacks=[TuneReportCheckpointCallback(frequency=1)],
        )

    space = {
        "objective": "binary:logistic",
        "eval_metric": ["logloss", "error"],
        "max_depth": tune.randint(1, 9),
        "eta": tune.loguniform(1e-4, 1e-1),
    }
    tuner = tune.Tuner(
        tune.with_resources(train_breast_cancer, resources={"cpu": 1}),
        tune_config=tune.TuneConfig(
            metric="eval-logloss",
            mode="min",
            num_samples=3,
            scheduler=ASHAScheduler(max_t=10, grace_period=1, reduction_factor=2),
        ),
        param_space=space,
        run_config=run_config(),
    )
    best = tuner.fit().get_best_result()
    assert best.metrics["eval-error"] < 0.5
    with best.checkpoint.as_directory() as directory:
        import xgboost

        booster = xgboost.Booster()
        booster.load_model(Path(directory, "model.ubj"))
        assert booster.num_boosted_rounds() >= 1


@pytest.mark.slow
def test_pytorch_lightning(run_config):
    pytest.importorskip("lightning")

    def train_iris(config):
        import lightning
        import torch
        from sklearn.datasets import load_iris

        from dasktune.integration.pytorch_lightning import TuneReportCheckpointCallback

        class Classifier(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(
                    torch.nn.Linear(4, config["layer_1_size"]),
                    torch.nn.ReLU(),
                    torch.nn.Linear(config["layer_1_size"], 3),
                )

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=config["lr"])

            def training_step(self, batch, number):
                x, y = batch
                return torch.nn.functional.cross_entropy(self.layers(x), y)

            def validation_step(self, batch, number):
                x, y = batch
                scores = self.layers(x)
                self.log("ptl/val_loss", torch.nn.functional.cross_entropy(scores, y))
                self.log("ptl/val_accuracy", (scores.argmax(1) == y).float().mean())

        x, y = load_iris(return_X_y=True)
        flowers = torch.utils.data.TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        loader = torch.utils.data.DataLoader(flowers, batch_size=50)
        metrics = {"loss": "ptl/val_loss", "mean_accuracy": "ptl/val_accuracy"}
        trainer = lightning.Trainer(
            max_epochs=4,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[TuneReportCheckpointCallback(metrics, on="validation_end")],
        )
        trainer.fit(Classifier(), loader, loader)

    tuner = tune.Tuner(
        tune.with_resources(train_iris, {"cpu": 1}),
        param_space={"layer_1_size": tune.choice([8, 16]), "lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=3, scheduler=ASHAScheduler(max_t=4, grace_period=1)
        ),
        run_config=run_config(),
    )
    results = tuner.fit()
    assert not results.errors
    best = results.get_best_result()
    assert best.metrics["training_iteration"] == 4
    assert 0 <= best.metrics["mean_accuracy"] <= 1
    assert best.checkpoint is not None


@pytest.mark.slow
def test_scikit_learn_with_a_searcher(run_config):
    pytest.importorskip("sklearn")
    pytest.importorskip("optuna")
    from dasktune.search.optuna import OptunaSearch

    def train(config):
        from sklearn.datasets import load_iris
        from sklearn.linear_model import SGDClassifier
        from sklearn.model_selection import cross_val_score

        features, labels = load_iris(return_X_y=True)
        model = SGDClassifier(alpha=config["alpha"], penalty=config["penalty"], random_state=0)
        tune.report({"accuracy": cross_val_score(model, features, labels, cv=3).mean()})

    tuner = tune.Tuner(
        train,
        param_space={"alpha": tune.loguniform(1e-5, 1e-1), "penalty": tune.choice(["l1", "l2"])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=4,
            search_alg=ConcurrencyLimiter(OptunaSearch(), max_concurrent=2),
        ),
        run_config=run_config(),
    )
    assert tuner.fit().get_best_result().metrics["accuracy"] > 0.4


class Weights:
    """An object of the user's own, which JSON cannot hold."""

    def __init__(self, size):
        self.size = size


def with_weights(config):
    tune.report({"size": config["weights"].size})
    if Path(config["broken"]).exists():
        raise RuntimeError("the input is broken")


def test_fault_tolerance_of_objects_in_the_space(run_config, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()

    def space():
        return {"broken": str(broken), "weights": tune.grid_search([Weights(1), Weights(2)])}

    assert tune.Tuner(with_weights, param_space=space(), run_config=run_config()).fit().num_errors == 2
    broken.unlink()
    path = str(tmp_path / "exp")
    assert tune.Tuner.can_restore(path)
    tuner = tune.Tuner.restore(path, trainable=with_weights, param_space=space(), resume_errored=True)
    results = tuner.fit()
    assert results.num_errors == 0
    assert [result.metrics["size"] for result in results] == [1, 2]


def test_search_spaces_with_conditions_and_lists(run_config):
    def pairs():
        for first in range(5, 7):
            for second in range(2):
                yield first, second

    space = {
        "pair": tune.grid_search(list(pairs())),
        "below": tune.sample_from(lambda spec: random.randrange(spec.config.pair[0])),
        "alpha": tune.uniform(100, 200),
        "beta": tune.sample_from(lambda spec: spec.config.alpha * 2),
        "layers": [tune.grid_search([16, 64]), tune.grid_search([16, 64])],
        "constant": "text",
    }
    results = tune.Tuner(
        lambda config: {"score": 1},
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=run_config(),
    ).fit()
    assert len(results) == 4 * 4 * 2
    for result in results:
        assert 0 <= result.config["below"] < result.config["pair"][0]
        assert result.config["beta"] == 2 * result.config["alpha"]
        assert result.config["constant"] == "text"
    layers = [tuple(result.config["layers"]) for result in results]
    assert {layers.count(both) for both in layers} == {8}


class Counted(tune.Trainable):
    """Reports nothing of its own, and returns the directory that it has written to."""

    def setup(self, config):
        self.steps = np.zeros(config.get("input_size", 32))

    def step(self):
        self.steps += 1
        return {}

    def save_checkpoint(self, tmp_checkpoint_dir):
        np.save(Path(tmp_checkpoint_dir, "steps.npy"), self.steps)
        return tmp_checkpoint_dir

    def load_checkpoint(self, tmp_checkpoint_dir):
        self.steps = np.load(Path(tmp_checkpoint_dir, "steps.npy"))


@pytest.mark.parametrize(
    ("options", "newest", "count"),
    [
        # As in Ray Tune, classes are saved at the end by default.
        ({"checkpoint_frequency": 2}, 5, 3),
        ({"checkpoint_frequency": 2, "checkpoint_at_end": False}, 4, 2),
        ({"checkpoint_frequency": 10, "checkpoint_at_end": True}, 5, 1),
        ({"checkpoint_frequency": 2, "checkpoint_at_end": True, "num_to_keep": 1}, 5, 1),
    ],
)
def test_checkpoints_of_classes(options, newest, count, run_config):
    config = run_config(stop={"training_iteration": 5}, checkpoint_config=tune.CheckpointConfig(**options))
    [result] = tune.Tuner(Counted, param_space={"input_size": 4}, run_config=config).fit()
    with result.checkpoint.as_directory() as directory:
        assert list(np.load(Path(directory, "steps.npy"))) == [newest] * 4
    assert len(result.best_checkpoints) == count


def test_data_goes_in_and_comes_out(run_config, tmp_path):
    def train(config, num_epochs=5, data=None):
        folder = Path(config["place"], "model")
        folder.mkdir(exist_ok=True)
        for epoch in range(num_epochs):
            Path(folder, "epoch").write_text(str(epoch))
            metrics = {
                "total": float(data.sum()),
                "text": "my_metric",
                "id": tune.get_context().get_trial_id(),
            }
            tune.report(metrics=metrics, checkpoint=tune.Checkpoint.from_directory(str(folder)))

    bound = tune.with_parameters(train, num_epochs=3, data=np.ones(1_000_000))
    [result] = tune.Tuner(bound, param_space={"place": str(tmp_path)}, run_config=run_config()).fit()
    assert result.metrics["total"] == 1_000_000
    assert (result.metrics["text"], result.metrics["id"]) == ("my_metric", result.trial_id)
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "epoch").read_text() == "2"


def test_results_of_a_stored_experiment_are_analysed(run_config, tmp_path):
    pytest.importorskip("pandas")
    tuner = tune.Tuner(
        checkpointed,
        param_space={"lr": tune.uniform(0.001, 1), "momentum": 0.9, "epochs": 4},
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=run_config(),
    )
    tuner.fit()
    restored = tune.Tuner.restore(str(tmp_path / "exp"), trainable=checkpointed)
    results = restored.get_results()
    assert (results.num_errors, results.errors, len(results)) == (0, [], 3)
    best = results.get_best_result(metric="score", mode="max", scope="all")
    table = results.get_dataframe(filter_metric="score", filter_mode="max")
    assert table["score"].max() == max(best.metrics_dataframe["score"])
    assert list(best.metrics_dataframe[["training_iteration", "time_total_s"]].columns) == [
        "training_iteration",
        "time_total_s",
    ]
    frames = {result.path: result.metrics_dataframe for result in results}
    assert all(list(frame["training_iteration"]) == [1, 2, 3, 4] for frame in frames.values())
    assert best.get_best_checkpoint(metric="score", mode="max").path in {
        checkpoint.path for checkpoint, _ in best.best_checkpoints
    }
