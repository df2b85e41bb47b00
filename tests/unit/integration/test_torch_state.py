"""The state of real trainings with PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from trial_run_kit import Driver, paused_and_whole

from dasktune.errors import ConfigError
from dasktune.integration.torch import load_state, report_state
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable import get_checkpoint
from dasktune.trainable.reporting.trial_messages import Ended, Failed

torch = pytest.importorskip("torch")

EPOCHS = 4

# As the workers of Dask set it: threads that wait for each other are slow on a busy machine.
torch.set_num_threads(1)


def train(config: dict[str, Any]) -> None:
    """Learn the digits with everything that must not be lost on the way."""
    torch.manual_seed(1 if get_checkpoint() is None else 2)
    pictures, digits = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    pictures = pictures.float() / 16
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    order = torch.Generator().manual_seed(3 if get_checkpoint() is None else 4)
    parts = {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "order": order,
        "noise": torch.default_generator,
    }
    start = load_state(get_checkpoint(), **parts, epoch=0)["epoch"]
    for epoch in range(start, EPOCHS):
        for rows in torch.randperm(len(digits), generator=order).split(256):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pictures[rows]), digits[rows])
            loss.backward()
            optimizer.step()
        schedule.step()
        right = (model(pictures).argmax(1) == digits).float().mean()
        report_state({"loss": loss.item(), "accuracy": right.item()}, **parts, epoch=epoch + 1)


def test_a_training_that_was_paused_computes_what_it_would_have(tmp_path: Path):
    whole, begun, rest = paused_and_whole(train, tmp_path)
    assert whole.values("accuracy")[-1] > 0.5
    assert begun.values("loss") + rest.values("loss") == whole.values("loss")


def stored(tmp_path: Path, **parts: Any) -> Checkpoint:
    """Have a trial report these parts, and return its checkpoint."""
    storage = Storage(str(tmp_path / "experiment"))
    driver = Driver(lambda config: report_state({"loss": 1.0}, **parts), storage=storage)
    last = driver.end()
    assert isinstance(last, Ended), last
    return Checkpoint(storage.child(*driver.results[0].checkpoint.path.split("/")).path())


def test_a_model_alone_is_read_from_a_checkpoint_of_everything(tmp_path: Path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = stored(tmp_path, model=model, optimizer=optimizer, epoch=7, names=["a", "b"])
    other = torch.nn.Linear(3, 2)
    assert load_state(checkpoint, model=other) == {}
    assert torch.equal(other.weight, model.weight)
    assert load_state(checkpoint, epoch=0, names=None) == {"epoch": 7, "names": ["a", "b"]}


def test_without_a_checkpoint_everything_stays_as_it_is():
    model = torch.nn.Linear(3, 2)
    before = model.weight.clone()
    assert load_state(None, model=model, random=torch.Generator(), epoch=0) == {"epoch": 0}
    assert torch.equal(model.weight, before)


def test_a_part_that_was_not_saved_is_missed(tmp_path: Path):
    checkpoint = stored(tmp_path, epoch=1)
    with pytest.raises(ConfigError, match=r"got \['model'\].*It has \['epoch'\]"):
        load_state(checkpoint, model=torch.nn.Linear(1, 1), epoch=0)


def test_what_only_code_could_read_is_refused_when_it_is_saved():
    driver = Driver(lambda config: report_state({"loss": 1.0}, rate=np.float64(0.1)))
    last = driver.end()
    assert isinstance(last, Failed)
    assert "parts must be tensors and plain data, got ['numpy" in last.error.message
    assert driver.results == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_part_gets_its_state_on_its_own_device(tmp_path: Path):
    model = torch.nn.Linear(3, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3).cuda()).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "noise": torch.cuda.default_generators[0]}
    checkpoint = stored(tmp_path, **parts)
    for device in ("cpu", "cuda"):
        other = torch.nn.Linear(3, 2).to(device)
        adam = torch.optim.Adam(other.parameters())
        load_state(checkpoint, model=other, optimizer=adam)
        assert torch.equal(other.weight.cpu(), model.weight.cpu())
        assert {part.device.type for part in other.parameters()} == {device}
        other(torch.ones(1, 3).to(device)).sum().backward()
        adam.step()
    noise = torch.cuda.default_generators[0]
    load_state(checkpoint, noise=noise)
    drawn = torch.rand(3, device="cuda")
    load_state(checkpoint, noise=noise)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
