"""The driver's side of checkpoints that are relayed: a real dock at the other end of a bad wire."""

from __future__ import annotations

import asyncio
import builtins
import errno
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dasktune.cluster.driver.actor_handle import ActorCallFailed
from dasktune.cluster.driver.checkpoint_relay import CheckpointRelay
from dasktune.cluster.driver.worker_link import LinkCallbacks, WorkerLink
from dasktune.cluster.protocol.wire_messages import Refused
from dasktune.errors import CheckpointNotFound, StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.checkpoints.relay import (
    DownloadTransfer,
    EndTransfer,
    LocalFile,
    ReadPiece,
    RemoveStale,
    TransferQueue,
    UploadTransfer,
    WritePiece,
)
from dasktune.trainable.reporting.trial_messages import StopAnswer

FILES = {"weights": b"0123456789", "sub/empty": b"", "sub/four": b"abcd"}


@pytest.fixture(autouse=True)
def spool(tmp_path, monkeypatch):
    """Where the driver gathers what comes; at the end nothing is left there."""
    place = tmp_path / "spool"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    # A thread deletes it, and the driver does not wait for that.
    deadline = time.monotonic() + 30.0
    while list(place.glob("*/*")):
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Slot:
    """A worker's end, which may fail, or have something happen, at certain calls."""

    def __init__(self, dock):
        self.dock = dock
        self.steps = []
        self.failures = 0
        self.before = {}

    async def transfer_step(self, carriage):
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise ActorCallFailed("no answer")
        self.steps.append(carriage.step)
        self.before.get(type(carriage.step), lambda: None)()
        try:
            return self.dock.perform(carriage.number, carriage.step)
        except Exception as error:
            raise Refused(f"Traceback\n{error!r}") from error


class Bench:
    """A driver and a worker with one trial, whose storage the worker does not see."""

    def __init__(self, storage):
        self.storage = storage
        self.store = CheckpointStore(storage)
        self.outcomes = []
        self.dock = TransferQueue(lambda number, transfer: None)
        self.actor = Slot(self.dock)
        spec = SimpleNamespace(storage=storage, trial_dir="a", incarnation=2, next_checkpoint=0)
        reservation = SimpleNamespace(actor=self.actor)
        self.run = SimpleNamespace(trial_id="a", key="a-2", spec=spec, reservation=reservation, order=None)
        self.link = None

    def carry(self, transfer, *, max_silence=300.0):
        """Carry something, and return what the trial was told: an error, None, or nothing."""
        self.outcomes.clear()
        number = self.dock.submit(transfer, self.outcomes.append)

        async def work():
            self.link = WorkerLink(
                "tcp://a:1",
                heartbeat_timeout=30.0,
                stop_grace=1.0,
                now=asyncio.get_running_loop().time,
                interval=lambda: (1.0, 0.0),
                callbacks=LinkCallbacks(
                    emit=print,
                    on_transfer=print,
                    on_end=print,
                    on_memory=print,
                    on_unrestored=print,
                ),
            )
            self.link.runs[self.run.key] = self.run
            relay = CheckpointRelay(piece_size=4, retry_interval=0.0, max_silence=max_silence)
            try:
                await relay.transfer(self.link, self.run, number)
            finally:
                relay.close()

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
    return UploadTransfer(record=record(**where), files=tuple(local))


def files_of(store, record):
    with store.load(record).as_directory() as directory:
        return {name: Path(directory, name).read_bytes() for name in FILES}


@pytest.mark.parametrize("url", ["disk", "memory"])
def test_what_a_worker_saves_is_committed_by_the_driver(tmp_path, bench, url):
    if url == "memory":
        bench = Bench(Storage(f"memory://{tmp_path.name}"))
    transfer = upload(tmp_path)
    assert bench.carry(transfer) == [None]
    assert files_of(bench.store, transfer.record) == FILES
    # In pieces, of which none is larger than was settled.
    assert max(step.size for step in bench.actor.steps if isinstance(step, ReadPiece)) == 4


def test_what_is_restored_comes_from_the_driver(tmp_path, bench):
    bench.store.write(FILES, record(), incarnation=2)
    target = tmp_path / "target"
    target.mkdir()
    assert bench.carry(DownloadTransfer(record=record(), directory=str(target))) == [None]
    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    assert max(len(step.data) for step in bench.actor.steps if isinstance(step, WritePiece)) == 4


def test_calls_that_fail_are_repeated(tmp_path, bench):
    transfer = upload(tmp_path)
    failures = itertools.chain([2, 0, 1, 3], itertools.repeat(0))

    def fail():
        bench.actor.failures = next(failures)

    bench.actor.before = {ReadPiece: fail}
    assert bench.carry(transfer) == [None]
    assert files_of(bench.store, transfer.record) == FILES


def test_a_network_that_is_too_slow_fails_the_upload(tmp_path, bench):
    bench.actor.before = {ReadPiece: lambda: setattr(bench.actor, "failures", 1)}
    [error] = bench.carry(upload(tmp_path), max_silence=-1.0)
    assert "could not be sent between the driver and tcp://a:1: no answer" in str(error)


def test_what_is_missing_is_named_so(tmp_path, bench):
    [error] = bench.carry(DownloadTransfer(record=record(), directory=str(tmp_path)))
    assert isinstance(error, CheckpointNotFound)


def test_a_damaged_checkpoint_is_not_sent(tmp_path, bench):
    bench.store.write(FILES, record(), incarnation=2)
    (tmp_path / "runs" / record().path / "weights").write_bytes(b"damaged")
    [error] = bench.carry(DownloadTransfer(record=record(), directory=str(tmp_path)))
    assert "is damaged" in str(error)
    assert not [step for step in bench.actor.steps if isinstance(step, WritePiece)]


@pytest.mark.parametrize("state", ["intact", "damaged", "missing", "unreadable"])
def test_the_driver_looks_whether_a_checkpoint_is_damaged(tmp_path, bench, state):
    bench.store.write(FILES, record(), incarnation=2)
    place = tmp_path / "runs" / record().path
    if state == "damaged":
        (place / "weights").write_bytes(b"damaged")
    elif state == "missing":
        shutil.rmtree(place)
    elif state == "unreadable":
        (place / "weights").unlink()
        (place / "weights").mkdir()

    async def look():
        relay = CheckpointRelay()
        link = SimpleNamespace(unless_lost=lambda work: work)
        try:
            return await relay.is_damaged(link, bench.run, record())
        finally:
            relay.close()

    assert asyncio.run(look()) is (state in ("damaged", "missing"))


def test_the_leftovers_of_earlier_starts_are_removed(tmp_path, bench):
    half = tmp_path / "runs" / record(incarnation=1).path
    half.mkdir(parents=True)
    bench.store.write(FILES, record(index=1), incarnation=2)
    assert bench.carry(RemoveStale()) == [None]
    assert not half.exists()
    assert files_of(bench.store, record(index=1)) == FILES


@pytest.mark.parametrize("where", [{"incarnation": 1}, {"trial": "b"}])
def test_a_worker_commits_checkpoints_of_its_own_start_of_the_trial_only(tmp_path, bench, where):
    [error] = bench.carry(upload(tmp_path, **where))
    assert "is not a checkpoint of a-2" in str(error)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["../weights", "/etc/weights", "a//b"])
def test_no_file_leads_out_of_its_checkpoint(tmp_path, bench, name):
    [error] = bench.carry(upload(tmp_path, {name: b"x"}))
    assert "points outside its directory" in str(error)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_became_shorter_is_no_checkpoint(tmp_path, bench):
    transfer = upload(tmp_path)
    (tmp_path / "file-0").write_bytes(b"01")
    [error] = bench.carry(transfer)
    assert "'weights' shrank" in str(error)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_gone_is_named(tmp_path, bench):
    transfer = upload(tmp_path)
    (tmp_path / "file-0").unlink()
    [error] = bench.carry(transfer)
    assert isinstance(error, StorageError)
    assert "tcp://a:1 could not be read or written: FileNotFoundError" in str(error)


def test_a_storage_that_fails_ends_the_transfer(tmp_path, bench):
    (tmp_path / "runs").write_text("in the way")
    [error] = bench.carry(upload(tmp_path))
    assert isinstance(error, StorageError)
    assert "the driver could not use" in str(error)


def test_a_worker_that_dies_on_the_way_leaves_no_checkpoint(tmp_path, bench):
    bench.actor.before = {ReadPiece: lambda: bench.link.mark_lost("died")}
    assert bench.carry(upload(tmp_path)) == []
    assert not (tmp_path / "runs").exists()


def test_a_trial_that_has_ended_on_the_way_gets_no_checkpoint(tmp_path, bench):
    bench.actor.before = {ReadPiece: lambda: bench.link.runs.clear()}
    assert bench.carry(upload(tmp_path)) == []
    assert not (tmp_path / "runs").exists()


def before_writing(monkeypatch, directory, happens):
    """Let something happen before a file below a directory is opened for writing."""
    whole = open

    def open_file(path, mode="r", *args, **options):
        if mode == "wb" and str(path).startswith(str(directory)):
            happens(path)
        return whole(path, mode, *args, **options)

    monkeypatch.setattr(builtins, "open", open_file)


def test_a_trial_that_ends_while_its_checkpoint_is_written_gets_none(tmp_path, bench, monkeypatch):
    before_writing(monkeypatch, tmp_path / "runs", lambda path: bench.link.runs.clear())
    transfer = upload(tmp_path)
    assert bench.carry(transfer) == []
    with pytest.raises(CheckpointNotFound):
        bench.store.load(transfer.record)


def test_a_trial_that_is_to_stop_does_not_wait_for_a_storage_that_fails(tmp_path, bench, monkeypatch):
    tries = []

    def is_full(path):
        tries.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    before_writing(monkeypatch, tmp_path / "runs", is_full)
    bench.run.spec.storage = bench.storage.with_retry(3600.0)
    bench.run.order = StopAnswer()
    [error] = bench.carry(upload(tmp_path))
    assert "No space left" in str(error)
    assert len(tries) == 1


def test_the_trial_may_have_left_before_the_answer(tmp_path, bench):
    bench.actor.before = {EndTransfer: lambda: bench.dock.end(1, StorageError("the driver is gone"))}
    [error] = bench.carry(upload(tmp_path))
    assert "the driver is gone" in str(error)
