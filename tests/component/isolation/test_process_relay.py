"""Checkpoints of a trial in a process of its own whose worker does not see the storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from process_run_kit import PATIENCE, Slot, Trial

import dasktune as tune
from dasktune.errors import StorageError
from dasktune.trainable.checkpoints.relay import (
    DownloadTransfer,
    EndTransfer,
    GetTransfer,
    ReadPiece,
    Transfer,
    UploadTransfer,
    WritePiece,
)
from dasktune.trainable.reporting.trial_messages import Ended, Failed, StopAnswer, Stopped


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    slot = Slot(tmp_path_factory.mktemp("runs"))
    yield slot
    slot.warm.close()


def next_transfer(trial: Trial) -> tuple[int, Any]:
    """Wait for something to be carried, and return its number and what it is."""
    while not (waiting := trial.run.transfers.pending):
        assert trial.bell.acquire(timeout=PATIENCE)
    transfer = trial.run.transfers.perform(waiting[0], GetTransfer())
    assert isinstance(transfer, Transfer)
    return waiting[0], transfer


def save_and_load(config: dict[str, Any]) -> None:
    tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
    checkpoint = tune.get_checkpoint()
    assert checkpoint is not None
    tune.report({"step": checkpoint.to_dict()["step"] + 1})


def test_the_worker_reads_and_writes_files_for_its_child(slot: Slot) -> None:
    trial = slot.start(save_and_load, relayed=True)
    number, upload = next_transfer(trial)
    assert isinstance(upload, UploadTransfer)
    [file] = upload.files
    content = trial.run.transfers.perform(number, ReadPiece(file=0, offset=0, size=file.size))
    assert isinstance(content, bytes)
    trial.collect()
    assert trial.values("step") == []
    trial.run.transfers.perform(number, EndTransfer())
    number, download = next_transfer(trial)
    assert isinstance(download, DownloadTransfer)
    trial.run.transfers.perform(number, WritePiece(name=file.name, offset=0, data=content))
    trial.run.transfers.perform(number, EndTransfer())
    assert isinstance(trial.end(), Ended)
    assert trial.values("step") == [1, 2]
    assert trial.results[0].checkpoint == upload.record == download.record


def test_what_went_wrong_reaches_the_child(slot: Slot) -> None:
    trial = slot.start(save_and_load, relayed=True)
    number, _ = next_transfer(trial)
    trial.run.transfers.perform(number, EndTransfer(error=StorageError("the disk is full")))
    end = trial.end()
    assert isinstance(end, Failed)
    assert "the disk is full" in end.error.message


def test_a_child_whose_driver_is_gone_ends(slot: Slot) -> None:
    trial = slot.start(save_and_load, relayed=True)
    next_transfer(trial)
    trial.run.answer(StopAnswer(reason="its driver is gone"))
    trial.run.transfers.close(StorageError("the driver is gone"))
    assert isinstance(trial.end(), Stopped)
    assert trial.results == []
