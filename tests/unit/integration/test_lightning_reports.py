"""Callbacks within real trainings of PyTorch Lightning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_digits
from trial_run_kit import Driver, paused_and_whole

from dasktune.errors import ConfigError
from dasktune.integration.pytorch_lightning import (
    TuneCallback,
    TuneReportCallback,
    TuneReportCheckpointCallback,
)
from dasktune.trainable import get_checkpoint
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    StopAnswer,
    Stopped,
)
from dasktune.trial.milestone import Milestone

torch = pytest.importorskip("torch")
try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    pl = pytest.importorskip("pytorch_lightning")

# As the workers of Dask set it: threads that wait for each other are slow on a busy machine.
torch.set_num_threads(1)

# What Lightning advises, and warns about in other packages.
pytestmark = pytest.mark.filterwarnings("default")

EPOCHS = 4


def batches(rows: slice) -> Any:
    pictures, digits = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    data = torch.utils.data.TensorDataset(pictures[rows].float() / 16, digits[rows])
    return torch.utils.data.DataLoader(data, batch_size=256)


class Net(pl.LightningModule):
    """Learns the digits; counts its epochs as the trainer does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def training_step(self, batch: Any, index: int) -> Any:
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        guesses = self.layers(batch[0])
        self.log("val_loss", torch.nn.functional.cross_entropy(guesses, batch[1]))
        self.log("val_accuracy", (guesses.argmax(1) == batch[1]).float().mean())
        self.log("epoch_of_trainer", float(self.current_epoch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer_of(*callbacks: Any, epochs: int = EPOCHS) -> Any:
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit(callback: Any) -> None:
    pl.seed_everything(0, verbose=False)
    checkpoint = get_checkpoint()
    data = batches(slice(0, 1024)), batches(slice(1024, None))
    if checkpoint is None:
        trainer_of(callback).fit(Net(), *data)
        return
    with checkpoint.as_directory() as directory:
        trainer_of(callback).fit(Net(), *data, ckpt_path=f"{directory}/trainer.ckpt")


def train(config: Any) -> None:
    metrics = {"loss": "val_loss", "accuracy": "val_accuracy", "epoch": "epoch_of_trainer"}
    fit(TuneReportCheckpointCallback(metrics, filename="trainer.ckpt"))


def test_each_validation_is_a_result_with_a_checkpoint_but_not_the_trial_one():
    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    # Lightning has validated once before the first epoch, to see whether that works.
    assert driver.values("epoch") == [0, 1, 2, 3]
    assert driver.values("accuracy")[-1] > 0.5
    assert all(result.checkpoint is not None for result in driver.results)


def test_a_paused_training_ends_like_one_without_pause(tmp_path: Path):
    whole, begun, rest = paused_and_whole(train, tmp_path)
    assert rest.values("epoch") == [2, 3]
    losses = begun.values("loss") + rest.values("loss")
    assert losses == pytest.approx(whole.values("loss"), rel=1e-4)


def test_a_stopped_trial_ends_within_the_training_and_lightning_sees_it():
    heard = []

    class Witness(TuneReportCallback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            heard.append((type(exception).__name__, str(trainer.state.status.value)))

    def for_ever(config: Any) -> None:
        data = batches(slice(0, 1024)), batches(slice(1024, None))
        trainer_of(Witness(), epochs=-1).fit(Net(), *data)
        heard.append("the training continued")

    driver = Driver(for_ever, milestones=(Milestone("training_iteration", 2.0),))
    driver.awaiting()
    driver.run.answer(StopAnswer(reason="not good enough"))
    assert isinstance(driver.end(), Stopped)
    assert len(driver.results) == 2
    assert heard == [("TrialInterrupted", "interrupted")]


def test_results_can_be_reported_at_other_hooks_and_what_is_not_logged_is_left_out(caplog):
    class Noted(TuneCallback):
        def _handle(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.current_epoch, type(pl_module).__name__))

    seen: list[tuple[int, str]] = []

    def train_twice(config: Any) -> None:
        callback = TuneReportCallback(["train_loss", "nonsense"], on=["train_epoch_end"])
        data = batches(slice(0, 256)), batches(slice(1024, 1280))
        trainer_of(callback, Noted("train_epoch_start"), epochs=2).fit(Net(), *data)

    with caplog.at_level(logging.WARNING, "dasktune"):
        driver = Driver(train_twice)
        assert isinstance(driver.end(), Ended)
    assert len(driver.results) == 2
    assert all(loss > 0 for loss in driver.values("train_loss"))
    assert all("nonsense" not in result.metrics for result in driver.results)
    assert seen == [(0, "Net"), (1, "Net")]
    # Once, not at each hook.
    assert [record.args[0] for record in caplog.records if record.args] == [["nonsense"]]


@pytest.mark.parametrize("on", ["on_validation_end", "save_checkpoint", ["train_end", "nonsense"]])
def test_hooks_that_lightning_does_not_have_are_refused(on):
    with pytest.raises(ConfigError, match="on must be hooks of Lightning without on_"):
        TuneReportCheckpointCallback(on=on)
