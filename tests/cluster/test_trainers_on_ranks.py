"""Trainers of other packages in distributed trials: they train, save, die and resume.

Each test is skipped where its package is missing. Lightning, Accelerate and Transformers use CUDA
where each rank has a GPU of its own; JAX and ranks that share a GPU use the CPU.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import assert_clean, journal, run_config, statuses, until
from distributed import Client, LocalCluster

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EPOCHS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One worker process, so that each experiment imports its packages once."""
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster
        with Client(cluster, set_as_default=False) as client:
            until(lambda: len(client.scheduler_info()["workers"]) == 1)
            assert_clean(client)


def trained(cluster: LocalCluster, place: Path, function: Any, **options: Any) -> Any:
    """Return the result of a trial of two ranks, of which one was killed once."""
    results = tune.Tuner(
        tune.with_ranks(function, 2, start_timeout_s=200, **options),
        param_space={"place": str(place)},
        run_config=run_config(place, failure_config=tune.FailureConfig(max_failures=1), log_to_file=True),
        client=cluster,
    ).fit()
    assert statuses(results) == {"TERMINATED"}, results.errors
    assert (place / "killed").exists()
    assert len(journal(place, event="TrialFailed")) == 1
    return results[0]


def die_once(place: Path, epoch: int) -> None:
    """Kill rank 1 when it reaches the third epoch for the first time."""
    if epoch == 2 and tune.get_context().get_world_rank() == 1 and not (place / "killed").exists():
        (place / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def values(place: Path, name: str) -> list[Any]:
    """Return a metric of all recorded results."""
    return [one["metrics"][name] for one in journal(place, event="ResultReported")]


def numbers() -> tuple[Any, Any]:
    """Return data whose rule a linear model can learn."""
    import torch

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])


def accelerator_name() -> str:
    """Return the accelerator of Lightning: CUDA only if each rank has a GPU of its own."""
    import torch

    own = torch.cuda.device_count() >= tune.get_context().get_local_world_size()
    return "gpu" if own else "cpu"


def with_lightning(config: dict[str, Any]) -> None:
    """Train with Lightning on several devices, which it finds in the environment."""
    import lightning.pytorch as pl
    import torch

    from dasktune.integration.pytorch_lightning import TuneReportCheckpointCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("val", loss, sync_dist=True)

        def on_train_epoch_start(self) -> None:
            die_once(Path(config["place"]), self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    context = tune.get_context()
    pl.seed_everything(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*numbers()), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator=accelerator_name(),
        devices=context.get_local_world_size(),
        num_nodes=context.get_world_size() // context.get_local_world_size(),
        strategy="ddp",
        callbacks=[TuneReportCheckpointCallback({"loss": "val"}, filename="trainer.ckpt")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = tune.get_checkpoint()
    path = None if checkpoint is None else f"{checkpoint.path}/trainer.ckpt"
    trainer.fit(Net(), loader, loader, ckpt_path=path)
    (Path(config["place"]) / f"ended-{trainer.global_rank}").write_text(
        f"{trainer.world_size} {trainer.global_step}"
    )


def test_lightning_trains_on_all_ranks_and_resumes(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    trained(cluster, tmp_path, with_lightning, per_host=2, preload=["lightning.pytorch"])
    losses = values(tmp_path, "loss")
    assert len(losses) == EPOCHS
    assert losses[-1] < 0.5 * losses[0]
    # Two ranks share 64 rows: 4 steps of 8 rows in each of 4 epochs.
    assert [(tmp_path / f"ended-{rank}").read_text() for rank in range(2)] == ["2 16", "2 16"]


def with_accelerate(config: dict[str, Any]) -> None:
    """Train with Accelerate, which finds the process group in the environment."""
    import torch
    from accelerate import Accelerator

    context = tune.get_context()
    accelerator = Accelerator(cpu=accelerator_name() == "cpu")
    assert accelerator.num_processes == context.get_world_size() == 2
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*numbers()), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    begun, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        accelerator.load_state(checkpoint.path)
        begun = checkpoint.get_metadata()["epoch"]
    for epoch in range(begun, EPOCHS):
        die_once(Path(config["place"]), epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        mean = float(accelerator.reduce(loss.detach(), "mean"))
        with tempfile.TemporaryDirectory() as directory:
            # Rank 0 writes the model, and each rank the state of its own random numbers.
            accelerator.save_state(directory)
            saved = tune.Checkpoint.from_directory(directory)
            if accelerator.is_main_process:
                saved.set_metadata({"epoch": epoch + 1})
            tune.report({"loss": mean}, checkpoint=saved)


def test_accelerate_trains_on_all_ranks_and_resumes(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    result = trained(cluster, tmp_path, with_accelerate, preload=["accelerate"])
    losses = values(tmp_path, "loss")
    assert len(losses) == EPOCHS
    assert losses[-1] < 0.5 * losses[0]
    with result.checkpoint.as_directory() as directory:
        names = {path.name for path in Path(directory).iterdir()}
    assert {"random_states_0.pkl", "random_states_1.pkl", "model.safetensors"} <= names


def with_transformers(config: dict[str, Any]) -> None:
    """Train with the `Trainer` of Transformers and its callback."""
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

    from dasktune.integration.transformers import TuneReportCheckpointCallback

    class Linear(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, settings: Any) -> None:
            super().__init__(settings)
            self.layer = torch.nn.Linear(4, 1)
            self.post_init()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            predicted = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}

    class DieOnce(TrainerCallback):
        def on_epoch_begin(self, arguments: Any, state: Any, control: Any, **more: Any) -> None:
            die_once(Path(config["place"]), round(state.epoch or 0))

    rows = [{"x": x, "labels": y} for x, y in zip(*numbers(), strict=True)]
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=Linear(PretrainedConfig()),
            args=TrainingArguments(
                output_dir=directory,
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=8,
                learning_rate=0.3,
                eval_strategy="epoch",
                save_strategy="epoch",
                report_to="none",
                disable_tqdm=True,
                use_cpu=accelerator_name() == "cpu",
                seed=0,
            ),
            train_dataset=rows,
            eval_dataset=rows,
            callbacks=[TuneReportCheckpointCallback({"loss": "eval_loss"}), DieOnce()],
        )
        assert trainer.args.world_size == 2
        checkpoint = tune.get_checkpoint()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else checkpoint.path)
        (Path(config["place"]) / f"ended-{trainer.args.process_index}").write_text(
            str(trainer.state.global_step)
        )


def test_transformers_train_on_all_ranks_and_resume(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    result = trained(cluster, tmp_path, with_transformers, preload=["transformers.trainer"])
    losses = values(tmp_path, "loss")
    assert len(losses) == EPOCHS
    assert losses[-1] < 0.5 * losses[0]
    assert [(tmp_path / f"ended-{rank}").read_text() for rank in range(2)] == ["16", "16"]
    with result.checkpoint.as_directory() as directory:
        assert (Path(directory) / "trainer_state.json").exists()


def with_jax(config: dict[str, Any]) -> None:
    """Train with JAX on several processes, which meet at the port of the environment."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    context = tune.get_context()
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=context.get_world_size(),
        process_id=context.get_world_rank(),
    )
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils

    assert jax.process_count() == context.get_world_size() == 2
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x @ np.array([1.0, -2.0, 3.0, 0.5], "float32")
    rank, size = context.get_world_rank(), context.get_world_size()
    own_x, own_y = jnp.asarray(x[rank::size]), jnp.asarray(y[rank::size])
    gradient = jax.jit(jax.value_and_grad(lambda w: ((own_x @ w - own_y) ** 2).mean()))
    weights, begun = np.zeros(4, "float32"), 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with np.load(f"{checkpoint.path}/state.npz") as state:
            weights, begun = state["weights"], int(state["epoch"])
    for epoch in range(begun, EPOCHS):
        die_once(Path(config["place"]), epoch)
        for _ in range(4):
            losses, gradients = multihost_utils.process_allgather(gradient(jnp.asarray(weights)))
            weights = weights - 0.1 * np.asarray(gradients).mean(0)
        with tempfile.TemporaryDirectory() as directory:
            saved = None
            if rank == 0:
                np.savez(f"{directory}/state.npz", weights=weights, epoch=epoch + 1)
                saved = tune.Checkpoint.from_directory(directory)
            tune.report({"loss": float(np.mean(losses)), "weight": float(weights[1])}, checkpoint=saved)


def test_jax_trains_on_all_ranks_and_resumes(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    trained(cluster, tmp_path, with_jax)
    losses = values(tmp_path, "loss")
    assert len(losses) == EPOCHS
    assert losses[-1] < 0.5 * losses[0]
    assert values(tmp_path, "weight")[-1] < -1.0
