"""What a trial says of its checkpoints on a worker that does not see the storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from trial_run_kit import PATIENCE, Driver

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.trainable.messages import Ended, Failed, StopNow, Stopped
from dasktune.trainable.relay import (
    Dock,
    Download,
    EndHaul,
    LocalFile,
    Look,
    Put,
    RelayedStore,
    Sweep,
    Take,
    Upload,
)
from dasktune.trainable.session import get_checkpoint, report


def plan(index=0):
    return CheckpointStore.plan(trial_dir="a", index=index, incarnation=1, iteration=3, metrics={})


def make_dock():
    """Return a dock, and the hauls that it has rung for."""
    rung = []
    return Dock(lambda number, haul: rung.append((number, haul))), rung


def begun(haul):
    """Return a dock with one haul, and how it ended."""
    dock, _ = make_dock()
    outcomes = []
    assert dock.begin(haul, outcomes.append) == 1
    return dock, outcomes


def file_of(path: Path, content: bytes) -> LocalFile:
    path.write_bytes(content)
    return LocalFile(name=path.name, path=str(path), size=len(content))


class Carrier:
    """A driver that takes what it is rung for at once, in the thread of the trial."""

    def __init__(self, error=None):
        self.error = error
        self.dock = Dock(self._carry)
        self.uploads = []

    def _carry(self, number, haul):
        if isinstance(haul, Upload):
            self.uploads.append(
                {
                    file.name: self.dock.do(number, Take(file=at, offset=0, size=file.size))
                    for at, file in enumerate(haul.files)
                }
            )
        elif isinstance(haul, Download):
            self.dock.do(number, Put(name="sub/weights", offset=0, data=b"ab"))
            self.dock.do(number, Put(name="sub/weights", offset=2, data=b"c"))
        self.dock.do(number, EndHaul(error=self.error))


# The dock


def test_a_haul_waits_until_the_driver_ends_it():
    dock, rung = make_dock()
    outcomes = []
    number = dock.begin(Sweep(), outcomes.append)
    assert (dock.waiting, rung) == ((number,), [(number, Sweep())])
    assert dock.do(number, Look()) == Sweep()
    assert outcomes == []
    dock.do(number, EndHaul())
    assert (dock.waiting, outcomes) == ((), [None])


def test_every_step_may_be_repeated(tmp_path):
    source = file_of(tmp_path / "weights", b"0123456789")
    dock, outcomes = begun(Upload(record=plan(), files=(source,)))
    for _ in range(2):
        assert dock.do(1, Take(file=0, offset=8, size=4)) == b"89"
    for _ in range(2):
        dock.do(1, EndHaul())
    assert outcomes == [None]
    directory = tmp_path / "target"
    directory.mkdir()
    dock, _ = begun(Download(record=plan(), directory=str(directory)))
    for _ in range(2):
        dock.do(1, Put(name="sub/weights", offset=0, data=b"abc"))
        dock.do(1, Put(name="sub/weights", offset=3, data=b"def"))
        dock.do(1, Put(name="nothing", offset=0, data=b""))
    assert (directory / "sub" / "weights").read_bytes() == b"abcdef"
    assert (directory / "nothing").read_bytes() == b""


def test_the_numbers_rise_so_that_a_driver_knows_the_new_ones():
    dock, _ = make_dock()
    first = dock.begin(Sweep(), print)
    dock.end(first, None)
    second = dock.begin(Sweep(), print)
    third = dock.begin(Sweep(), print)
    assert first < second < third
    assert dock.waiting == (second, third)


def test_a_step_of_a_haul_that_has_ended_is_refused(tmp_path):
    dock, _ = begun(Sweep())
    dock.end(1, None)
    with pytest.raises(StorageError, match="haul 1 has ended"):
        dock.do(1, Look())
    with pytest.raises(StorageError, match="haul 7 has ended"):
        dock.do(7, Take(file=0, offset=0, size=1))


def test_a_step_that_does_not_fit_its_haul_is_a_bug():
    dock, _ = begun(Sweep())
    with pytest.raises(TypeError, match="a bug in dasktune"):
        dock.do(1, Take(file=0, offset=0, size=1))


def test_nothing_is_written_for_a_trial_that_has_dropped_its_checkpoint(tmp_path):
    gone = tmp_path / "gone"
    dock, _ = begun(Download(record=plan(), directory=str(gone)))
    with pytest.raises(StorageError, match="nobody waits"):
        dock.do(1, Put(name="weights", offset=0, data=b"abc"))
    assert not gone.exists()


def test_when_the_driver_is_gone_nobody_waits_for_it_any_more():
    dock, rung = make_dock()
    outcomes = []
    dock.begin(Sweep(), outcomes.append)
    error = StorageError("the driver is gone")
    dock.close(error)
    dock.begin(Sweep(), outcomes.append)
    assert outcomes == [error, error]
    assert len(rung) == 1
    assert dock.waiting == ()


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
    RelayedStore(carrier.dock.begin).write(source, plan(), incarnation=1)
    assert carrier.uploads == [files]


def test_a_committed_checkpoint_comes_as_a_local_copy():
    with RelayedStore(Carrier().dock.begin).load(plan()).as_directory() as directory:
        assert Path(directory, "sub", "weights").read_bytes() == b"abc"


def test_what_went_wrong_at_the_driver_is_raised_in_the_trial():
    store = RelayedStore(Carrier(StorageError("the disk is full")).dock.begin)
    with pytest.raises(StorageError, match="the disk is full"):
        store.write({"weights": b"abc"}, plan(), incarnation=1)
    with pytest.raises(StorageError, match="the disk is full"):
        store.load(plan())
    with pytest.raises(StorageError, match="the disk is full"):
        store.sweep("a", 2, 0)


def test_a_checkpoint_that_is_too_large_is_refused_with_the_remedy():
    carrier = Carrier()
    store = RelayedStore(carrier.dock.begin, largest=1 << 20)
    store.write({"weights": bytes(1 << 20)}, plan(), incarnation=1)
    with pytest.raises(StorageError, match=r"at most 1 MiB .* got 2 MiB .* use a storage_path"):
        store.write({"weights": bytes(2 << 20)}, plan(), incarnation=1)
    assert len(carrier.uploads) == 1


def test_what_is_no_checkpoint_is_refused_before_anything_is_sent(tmp_path):
    carrier = Carrier()
    with pytest.raises(ConfigError, match="an existing directory"):
        RelayedStore(carrier.dock.begin).write(str(tmp_path / "none"), plan(), incarnation=1)
    assert carrier.uploads == []


# In a trial


def wait_for_haul(driver):
    while not (waiting := driver.run.dock.waiting):
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
    number = wait_for_haul(driver)
    # User code has gone on meanwhile; it waits where it asks for the checkpoint.
    assert trained.wait(PATIENCE)
    driver.collect()
    assert driver.values("step") == [0]
    upload = driver.run.dock.do(number, Look())
    assert upload.record.iteration == 2
    content = driver.run.dock.do(number, Take(file=0, offset=0, size=upload.files[0].size))
    driver.run.dock.do(number, EndHaul())
    number = wait_for_haul(driver)
    assert driver.run.dock.do(number, Look()).record == upload.record
    driver.run.dock.do(number, Put(name=upload.files[0].name, offset=0, data=content))
    driver.run.dock.do(number, EndHaul())
    assert isinstance(driver.end(), Ended)
    assert driver.values("step") == [0, 1, 2]
    assert driver.results[1].checkpoint == upload.record


def test_a_checkpoint_that_could_not_be_carried_fails_its_trial():
    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 2})

    driver = Driver(train, relayed=True)
    driver.run.dock.do(wait_for_haul(driver), EndHaul(error=StorageError("the disk is full")))
    end = driver.end()
    assert isinstance(end, Failed)
    assert "the disk is full" in end.error.message
    assert driver.results == []


def test_a_trial_whose_driver_is_gone_ends():
    def train(config):
        report({"step": 1, "done": True}, checkpoint=Checkpoint.from_dict({}))

    driver = Driver(train, relayed=True)
    wait_for_haul(driver)
    driver.run.answer(StopNow(reason="its driver is gone"))
    driver.run.dock.close(StorageError("the driver is gone"))
    assert isinstance(driver.end(), Stopped)
    assert driver.results == []


def test_a_restart_has_the_driver_sweep():
    driver = Driver(lambda config: report({}), relayed=True, incarnation=2)
    number = wait_for_haul(driver)
    assert driver.run.dock.do(number, Look()) == Sweep()
    driver.run.dock.do(number, EndHaul())
    assert isinstance(driver.end(), Ended)
