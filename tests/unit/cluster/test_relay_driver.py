"""The driver's side of checkpoints that are relayed: a real dock at the other end of a bad wire."""

from __future__ import annotations

import asyncio
import errno
import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dasktune.cluster import relay as relay_module
from dasktune.cluster.envelope import Refused
from dasktune.cluster.line import Line
from dasktune.cluster.listener import Listener
from dasktune.cluster.relay import Relay
from dasktune.cluster.slot_handle import SlotFailed
from dasktune.errors import CheckpointNotFound, StorageError
from dasktune.storage import filesystem
from dasktune.storage.checkpoint_store import CheckpointStore
from dasktune.storage.location import Storage
from dasktune.trainable.messages import StopNow
from dasktune.trainable.relay import (
    Dock,
    Download,
    EndHaul,
    LocalFile,
    Put,
    Sweep,
    Take,
    Upload,
)

FILES = {"weights": b"0123456789", "sub/empty": b"", "sub/four": b"abcd"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(relay_module, "_PIECE", 4)
    monkeypatch.setattr(relay_module, "_RETRY_PAUSE", 0.0)


@pytest.fixture(autouse=True)
def spool(tmp_path, monkeypatch):
    """Where the driver gathers what comes; at the end nothing is left there."""
    place = tmp_path / "spool"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.glob("*/*")) == []


class Slot:
    """A worker's end, which may fail, or have something happen, at certain calls."""

    def __init__(self, dock):
        self.dock = dock
        self.steps = []
        self.failures = 0
        self.before = {}

    async def carry(self, carriage):
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise SlotFailed("no answer")
        self.steps.append(carriage.step)
        self.before.get(type(carriage.step), lambda: None)()
        try:
            return self.dock.do(carriage.number, carriage.step)
        except Exception as error:
            raise Refused(f"Traceback\n{error!r}") from error


class Bench:
    """A driver and a worker with one trial, whose storage the worker does not see."""

    def __init__(self, storage):
        self.storage = storage
        self.store = CheckpointStore(storage)
        self.outcomes = []
        self.dock = Dock(lambda number, haul: None)
        self.slot = Slot(self.dock)
        spec = SimpleNamespace(storage=storage, trial_dir="a", incarnation=2, next_checkpoint=0)
        seat = SimpleNamespace(slot=self.slot)
        self.run = SimpleNamespace(trial_id="a", key="a-2", spec=spec, seat=seat, order=None)
        self.line = None

    def carry(self, haul):
        """Carry something, and return what the trial was told: an error, None, or nothing."""
        self.outcomes.clear()
        number = self.dock.begin(haul, self.outcomes.append)

        async def work():
            self.line = Line(
                "tcp://a:1",
                heartbeat_timeout=30.0,
                stop_grace=1.0,
                now=asyncio.get_running_loop().time,
                interval=lambda: (1.0, 0.0),
                listener=Listener(
                    emit=print,
                    on_haul=print,
                    on_end=print,
                    on_memory=print,
                ),
            )
            self.line.runs[self.run.key] = self.run
            relay = Relay()
            try:
                await relay.carry(self.line, self.run, number)
            finally:
                relay.close()
                relay._pool.shutdown(wait=True)

        asyncio.run(work())
        return self.outcomes


@pytest.fixture
def bench(tmp_path):
    return Bench(Storage(str(tmp_path / "runs")))


def record(index=0, incarnation=2, trial="a"):
    return CheckpointStore.plan(
        trial_dir=trial, index=index, incarnation=incarnation, iteration=3, metrics={}
    )


def upload(tmp_path, files=FILES, names=None, **where):
    local = []
    for number, (name, content) in enumerate(files.items()):
        path = tmp_path / f"file-{number}"
        path.write_bytes(content)
        local.append(LocalFile(name=name, path=str(path), size=len(content)))
    return Upload(record=record(**where), files=tuple(local))


def files_of(store, record):
    with store.load(record).as_directory() as directory:
        return {name: Path(directory, name).read_bytes() for name in FILES}


@pytest.mark.parametrize("url", ["disk", "memory"])
def test_what_a_worker_saves_is_committed_by_the_driver(tmp_path, bench, url):
    if url == "memory":
        bench = Bench(Storage(f"memory://{tmp_path.name}"))
    haul = upload(tmp_path)
    assert bench.carry(haul) == [None]
    assert files_of(bench.store, haul.record) == FILES
    # In pieces, of which none is larger than was settled.
    assert max(step.size for step in bench.slot.steps if isinstance(step, Take)) == 4


def test_what_is_restored_comes_from_the_driver(tmp_path, bench):
    bench.store.write(FILES, record(), incarnation=2)
    target = tmp_path / "target"
    target.mkdir()
    assert bench.carry(Download(record=record(), directory=str(target))) == [None]
    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    assert max(len(step.data) for step in bench.slot.steps if isinstance(step, Put)) == 4


def test_calls_that_fail_are_repeated(tmp_path, bench):
    haul = upload(tmp_path)
    failures = itertools.chain([2, 0, 1, 3], itertools.repeat(0))

    def fail():
        bench.slot.failures = next(failures)

    bench.slot.before = {Take: fail}
    assert bench.carry(haul) == [None]
    assert files_of(bench.store, haul.record) == FILES


def test_a_network_that_is_too_slow_is_told_to_the_trial(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(relay_module, "_PATIENCE", -1.0)
    bench.slot.before = {Take: lambda: setattr(bench.slot, "failures", 1)}
    [error] = bench.carry(upload(tmp_path))
    assert "could not be sent between the driver and tcp://a:1: no answer" in str(error)


def test_what_is_missing_is_told_as_such(tmp_path, bench):
    [error] = bench.carry(Download(record=record(), directory=str(tmp_path)))
    assert isinstance(error, CheckpointNotFound)


def test_a_damaged_checkpoint_is_not_sent(tmp_path, bench):
    bench.store.write(FILES, record(), incarnation=2)
    (tmp_path / "runs" / record().path / "weights").write_bytes(b"damaged")
    [error] = bench.carry(Download(record=record(), directory=str(tmp_path)))
    assert "is damaged" in str(error)
    assert not [step for step in bench.slot.steps if isinstance(step, Put)]


def test_the_leftovers_of_earlier_starts_are_removed(tmp_path, bench):
    half = tmp_path / "runs" / record(incarnation=1).path
    half.mkdir(parents=True)
    bench.store.write(FILES, record(index=1), incarnation=2)
    assert bench.carry(Sweep()) == [None]
    assert not half.exists()
    assert files_of(bench.store, record(index=1)) == FILES


@pytest.mark.parametrize("where", [{"incarnation": 1}, {"trial": "b"}])
def test_a_worker_commits_checkpoints_of_its_own_start_of_the_trial_only(tmp_path, bench, where):
    [error] = bench.carry(upload(tmp_path, **where))
    assert "is no checkpoint of a-2" in str(error)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["../weights", "/etc/weights", "a//b"])
def test_no_file_leads_out_of_its_checkpoint(tmp_path, bench, name):
    [error] = bench.carry(upload(tmp_path, {name: b"x"}))
    assert "leads out of its directory" in str(error)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_became_shorter_is_no_checkpoint(tmp_path, bench):
    haul = upload(tmp_path)
    (tmp_path / "file-0").write_bytes(b"01")
    [error] = bench.carry(haul)
    assert "'weights' became shorter" in str(error)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_gone_is_named(tmp_path, bench):
    haul = upload(tmp_path)
    (tmp_path / "file-0").unlink()
    [error] = bench.carry(haul)
    assert isinstance(error, StorageError)
    assert "tcp://a:1 could not be read or written: FileNotFoundError" in str(error)


def test_a_storage_that_fails_is_told_to_the_trial(tmp_path, bench):
    (tmp_path / "runs").write_text("in the way")
    [error] = bench.carry(upload(tmp_path))
    assert isinstance(error, StorageError)
    assert "the driver could not use" in str(error)


def test_a_worker_that_dies_on_the_way_leaves_no_checkpoint(tmp_path, bench):
    bench.slot.before = {Take: lambda: bench.line.lose("died")}
    assert bench.carry(upload(tmp_path)) == []
    assert not (tmp_path / "runs").exists()


def test_a_trial_that_has_ended_on_the_way_gets_no_checkpoint(tmp_path, bench):
    bench.slot.before = {Take: lambda: bench.line.runs.clear()}
    assert bench.carry(upload(tmp_path)) == []
    assert not (tmp_path / "runs").exists()


def test_a_trial_that_ends_while_its_checkpoint_is_written_gets_none(tmp_path, bench, monkeypatch):
    write = CheckpointStore.write

    def slowly(self, *args, **options):
        bench.line.runs.clear()
        write(self, *args, **options)

    monkeypatch.setattr(CheckpointStore, "write", slowly)
    haul = upload(tmp_path)
    assert bench.carry(haul) == []
    with pytest.raises(CheckpointNotFound):
        bench.store.load(haul.record)


def test_a_trial_that_is_to_stop_does_not_wait_for_a_storage_that_fails(
    tmp_path, bench, monkeypatch
):
    tries = []

    def is_full(fs, path):
        tries.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filesystem, "open_write", is_full)
    bench.run.spec.storage = bench.storage.patient(3600.0)
    bench.run.order = StopNow()
    [error] = bench.carry(upload(tmp_path))
    assert "No space left" in str(error)
    assert len(tries) == 1


def test_the_trial_may_have_left_when_it_is_to_be_told(tmp_path, bench):
    bench.slot.before = {EndHaul: lambda: bench.dock.end(1, StorageError("the driver is gone"))}
    [error] = bench.carry(upload(tmp_path))
    assert "the driver is gone" in str(error)
