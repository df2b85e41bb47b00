"""The code for training packages on the page about distributed trials, run as it stands.

Each test is skipped where its package is missing. What the page leaves to the reader, such as the
network and its data, is below.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import assert_clean, journal, run_config, statuses, until
from distributed import Client, LocalCluster

import dasktune as tune

PAGE = Path(__file__).parents[2] / "docs" / "distributed-trials.md"

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

#: What is the reader's for code with PyTorch itself.
OF_TORCH = """
import torch
import dasktune as tune


class Net(torch.nn.Sequential):
    def __init__(self, config):
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def numbers():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])


def train_epoch(model, optimizer):
    rank, size = tune.get_context().get_world_rank(), tune.get_context().get_world_size()
    device = next(model.parameters()).device
    x, y = (one[rank::size].to(device) for one in numbers())
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return float(loss)
"""

OF_LIGHTNING = """
import lightning.pytorch as pl
import torch
import dasktune as tune


class Net(pl.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.lr = config["lr"]
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)

    val_dataloader = train_dataloader


data = Data()
"""

OF_ACCELERATE = (
    OF_TORCH
    + """

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*numbers()), batch_size=8)


def train_epoch(accelerator, model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
    return float(accelerator.reduce(loss.detach(), "mean"))
"""
)

OF_TRANSFORMERS = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
import dasktune as tune


class Net(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(PretrainedConfig())
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()

    def forward(self, x, labels):
        predicted = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
rows = held_out = [{"x": one, "labels": other} for one, other in zip(x, y)]
"""

#: The page only shows how the processes meet.
OF_JAX = """
import dasktune as tune


def train_on(config):
    train(config)
    tune.report({"loss": 1.0, "processes": jax.process_count()})
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One worker process, so that each experiment imports its packages once."""
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster
        with Client(cluster, set_as_default=False) as client:
            until(lambda: len(client.scheduler_info()["workers"]) == 1)
            assert_clean(client)


def block(section: str) -> str:
    """Return the first code of a section that is not run with the page itself."""
    text = "\n" + PAGE.read_text(encoding="utf-8")
    _, found, after = text.partition(f"\n{section}\n")
    assert found, section
    code = re.search(r"^```py\n(.*?)^```$", after, re.MULTILINE | re.DOTALL)
    assert code is not None
    return code[1]


def import_on_workers(cluster: LocalCluster, package: str) -> None:
    """Import a package on the worker, which may take it longer than it may be silent in a run."""

    def load(name: str) -> None:
        importlib.import_module(name)

    with Client(cluster, set_as_default=False) as client:
        client.run(load, package)


def names_of(*code: str) -> dict[str, Any]:
    """Run code as a reader's script, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for part in code:
        exec(compile(part, "how-to", "exec"), names)
    return names


def losses(cluster: LocalCluster, place: Path, function: Any, **options: Any) -> list[float]:
    """Run a trial of two ranks, and return the losses that it has reported."""
    results = tune.Tuner(
        tune.with_ranks(function, 2, start_timeout_s=200, **options),
        param_space={"lr": 0.05},
        run_config=run_config(place, log_to_file=True),
        client=cluster,
    ).fit()
    assert statuses(results) == {"TERMINATED"}, results.errors
    assert results[0].checkpoint is not None or "env" in options
    return [one["metrics"]["loss"] for one in journal(place, event="ResultReported")]


@pytest.mark.parametrize(
    ("package", "before", "sections"),
    [
        pytest.param("torch", OF_TORCH, ["# Distributed trials"], id="first"),
        pytest.param("torch", OF_TORCH, ["### PyTorch DDP"], id="ddp"),
        pytest.param("torch", OF_TORCH, ["### PyTorch DDP", "### PyTorch FSDP"], id="fsdp"),
        pytest.param("lightning", OF_LIGHTNING, ["### Lightning"], id="lightning"),
        pytest.param("accelerate", OF_ACCELERATE, ["### Accelerate"], id="accelerate"),
        pytest.param("transformers", OF_TRANSFORMERS, ["### Transformers"], id="transformers"),
    ],
)
def test_the_code_of_the_page_trains_on_two_ranks(
    cluster: LocalCluster, tmp_path: Path, package: str, before: str, sections: list[str]
) -> None:
    pytest.importorskip(package)
    if package == "transformers":
        pytest.importorskip("accelerate")
    import_on_workers(cluster, "transformers.trainer" if package == "transformers" else package)
    train = names_of(before, *map(block, sections))["train"]
    found = losses(cluster, tmp_path, train, preload=["torch"])
    assert len(found) == (3 if package == "transformers" else 10)
    assert found[-1] < found[0]


def test_jax_meets_at_the_port_of_the_environment(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    train = names_of(OF_JAX, block("### JAX"))["train_on"]
    assert losses(cluster, tmp_path, train, env={"JAX_PLATFORMS": "cpu"}) == [1.0]
    [result] = journal(tmp_path, event="ResultReported")
    assert result["metrics"]["processes"] == 2
