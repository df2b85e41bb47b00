"""What a trial says of its checkpoints on a worker that does not see the storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from trial_run_kit import PATIENCE, Driver

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.trainable.api.session import get_checkpoint, report
from dasktune.trainable.checkpoints.relay import (
    DownloadTransfer,
    EndTransfer,
    GetTransfer,
    LocalFile,
    ReadPiece,
    RelayedStore,
    RemoveStale,
    TransferQueue,
    UploadTransfer,
    WritePiece,
)
from dasktune.trainable.reporting.trial_messages import Ended, Failed, StopAnswer, Stopped


def plan(index=0):
    return CheckpointStore.plan(trial_dir="a", index=index, incarnation=1, iteration=3, metrics={})


def make_queue():
    """Return a queue, and the transfers that it has rung for."""
    rung = []
    return TransferQueue(lambda number, transfer: rung.append((number, transfer))), rung


def begun(transfer):
    """Return a queue with one transfer, and how it ended."""
    queue, _ = make_queue()
    outcomes = []
    assert queue.submit(transfer, outcomes.append) == 1
    return queue, outcomes


def file_of(path: Path, content: bytes) -> LocalFile:
    path.write_bytes(content)
    return LocalFile(name=path.name, path=str(path), size=len(content))


class Carrier:
    """A driver that takes what it is rung for at once, in the thread of the trial."""

    def __init__(self, error=None):
        self.error = error
        self.queue = TransferQueue(self._carry)
        self.uploads = []

    def _carry(self, number, transfer):
        if isinstance(transfer, UploadTransfer):
            self.uploads.append(
                {
                    file.name: self.queue.perform(number, ReadPiece(file=at, offset=0, size=file.size))
                    for at, file in enumerate(transfer.files)
                }
            )
        elif isinstance(transfer, DownloadTransfer):
            self.queue.perform(number, WritePiece(name="sub/weights", offset=0, data=b"ab"))
            self.queue.perform(number, WritePiece(name="sub/weights", offset=2, data=b"c"))
        self.queue.perform(number, EndTransfer(error=self.error))


# The queue


def test_a_transfer_lasts_until_the_driver_ends_it():
    queue, rung = make_queue()
    outcomes = []
    number = queue.submit(RemoveStale(), outcomes.append)
    assert (queue.pending, rung) == ((number,), [(number, RemoveStale())])
    assert queue.perform(number, GetTransfer()) == RemoveStale()
    assert outcomes == []
    queue.perform(number, EndTransfer())
    assert (queue.pending, outcomes) == ((), [None])


def test_every_step_may_be_repeated(tmp_path):
    source = file_of(tmp_path / "weights", b"0123456789")
    queue, outcomes = begun(UploadTransfer(record=plan(), files=(source,)))
    for _ in range(2):
        assert queue.perform(1, ReadPiece(file=0, offset=8, size=4)) == b"89"
    for _ in range(2):
        queue.perform(1, EndTransfer())
    assert outcomes == [None]
    directory = tmp_path / "target"
    directory.mkdir()
    queue, _ = begun(DownloadTransfer(record=plan(), directory=str(directory)))
    for _ in range(2):
        queue.perform(1, WritePiece(name="sub/weights", offset=0, data=b"abc"))
        queue.perform(1, WritePiece(name="sub/weights", offset=3, data=b"def"))
        queue.perform(1, WritePiece(name="nothing", offset=0, data=b""))
    assert (directory / "sub" / "weights").read_bytes() == b"abcdef"
    assert (directory / "nothing").read_bytes() == b""


def test_the_numbers_rise_so_that_a_driver_knows_the_new_ones():
    queue, _ = make_queue()
    first = queue.submit(RemoveStale(), print)
    queue.end(first, None)
    second = queue.submit(RemoveStale(), print)
    third = queue.submit(RemoveStale(), print)
    assert first < second < third
    assert queue.pending == (second, third)


def test_a_step_of_an_ended_transfer_is_refused(tmp_path):
    queue, _ = begun(RemoveStale())
    queue.end(1, None)
    with pytest.raises(StorageError, match="checkpoint transfer 1 has already ended"):
        queue.perform(1, GetTransfer())
    with pytest.raises(StorageError, match="checkpoint transfer 7 has already ended"):
        queue.perform(7, ReadPiece(file=0, offset=0, size=1))


def test_a_step_of_another_transfer_is_a_bug():
    queue, _ = begun(RemoveStale())
    with pytest.raises(TypeError, match="a bug in dasktune"):
        queue.perform(1, ReadPiece(file=0, offset=0, size=1))


def test_nothing_is_written_for_a_trial_that_has_dropped_its_checkpoint(tmp_path):
    gone = tmp_path / "gone"
    queue, _ = begun(DownloadTransfer(record=plan(), directory=str(gone)))
    with pytest.raises(StorageError, match="no longer waits"):
        queue.perform(1, WritePiece(name="weights", offset=0, data=b"abc"))
    assert not gone.exists()


def test_when_the_driver_is_gone_none_waits_for_it_any_more():
    queue, rung = make_queue()
    outcomes = []
    queue.submit(RemoveStale(), outcomes.append)
    error = StorageError("the driver is gone")
    queue.close(error)
    queue.submit(RemoveStale(), outcomes.append)
    assert outcomes == [error, error]
    assert len(rung) == 1
    assert queue.pending == ()


# The store


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_all_files_of_a_checkpoint_are_offered(tmp_path, where):
    files = {"weights": b"abc", "sub/empty": b""}
    source = files
    if where == "disk":
        (tmp_path / "sub").mkdir()
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        source = Checkpoint.from_directory(tmp_path)
    carrier = Carrier()
    RelayedStore(carrier.queue.submit).write(source, plan(), incarnation=1)
    assert carrier.uploads == [files]


def test_a_committed_checkpoint_comes_as_a_local_copy():
    with RelayedStore(Carrier().queue.submit).load(plan()).as_directory() as directory:
        assert Path(directory, "sub", "weights").read_bytes() == b"abc"


def test_what_went_wrong_at_the_driver_is_raised_in_the_trial():
    store = RelayedStore(Carrier(StorageError("the disk is full")).queue.submit)
    with pytest.raises(StorageError, match="the disk is full"):
        store.write({"weights": b"abc"}, plan(), incarnation=1)
    with pytest.raises(StorageError, match="the disk is full"):
        store.load(plan())
    with pytest.raises(StorageError, match="the disk is full"):
        store.remove_stale("a", 2, 0)


def test_a_checkpoint_that_is_too_large_is_refused_with_the_remedy():
    carrier = Carrier()
    store = RelayedStore(carrier.queue.submit, largest=1 << 20)
    store.write({"weights": bytes(1 << 20)}, plan(), incarnation=1)
    with pytest.raises(StorageError, match=r"at most 1 MiB .* got 2 MiB .* use a storage_path"):
        store.write({"weights": bytes(2 << 20)}, plan(), incarnation=1)
    assert len(carrier.uploads) == 1


def test_what_is_no_checkpoint_is_refused_before_anything_is_sent(tmp_path):
    carrier = Carrier()
    with pytest.raises(ConfigError, match="an existing directory"):
        RelayedStore(carrier.queue.submit).write(str(tmp_path / "none"), plan(), incarnation=1)
    assert carrier.uploads == []


# In a trial


def next_transfer(driver):
    while not (waiting := driver.run.transfers.pending):
        assert driver.bell.acquire(timeout=PATIENCE)
    return waiting[0]


def test_nothing_overtakes_a_checkpoint_that_is_carried():
    trained = threading.Event()

    def train(config):
        report({"step": 0})
        report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))
        report({"step": 2})
        trained.set()
        assert get_checkpoint().to_dict() == {"step": 1}

    driver = Driver(train, relayed=True)
    number = next_transfer(driver)
    # User code has gone on meanwhile; it waits where it asks for the checkpoint.
    assert trained.wait(PATIENCE)
    driver.collect()
    assert driver.values("step") == [0]
    upload = driver.run.transfers.perform(number, GetTransfer())
    assert upload.record.iteration == 2
    content = driver.run.transfers.perform(number, ReadPiece(file=0, offset=0, size=upload.files[0].size))
    driver.run.transfers.perform(number, EndTransfer())
    number = next_transfer(driver)
    assert driver.run.transfers.perform(number, GetTransfer()).record == upload.record
    driver.run.transfers.perform(number, WritePiece(name=upload.files[0].name, offset=0, data=content))
    driver.run.transfers.perform(number, EndTransfer())
    assert isinstance(driver.end(), Ended)
    assert driver.values("step") == [0, 1, 2]
    assert driver.results[1].checkpoint == upload.record


def test_a_checkpoint_that_could_not_be_carried_fails_its_trial():
    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 2})

    driver = Driver(train, relayed=True)
    driver.run.transfers.perform(next_transfer(driver), EndTransfer(error=StorageError("the disk is full")))
    end = driver.end()
    assert isinstance(end, Failed)
    assert "the disk is full" in end.error.message
    assert driver.results == []


def test_a_trial_whose_driver_is_gone_ends():
    def train(config):
        report({"step": 1, "done": True}, checkpoint=Checkpoint.from_dict({}))

    driver = Driver(train, relayed=True)
    next_transfer(driver)
    driver.run.answer(StopAnswer(reason="its driver is gone"))
    driver.run.transfers.close(StorageError("the driver is gone"))
    assert isinstance(driver.end(), Stopped)
    assert driver.results == []


def test_a_restart_has_the_driver_sweep():
    driver = Driver(lambda config: report({}), relayed=True, incarnation=2)
    number = next_transfer(driver)
    assert driver.run.transfers.perform(number, GetTransfer()) == RemoveStale()
    driver.run.transfers.perform(number, EndTransfer())
    assert isinstance(driver.end(), Ended)
