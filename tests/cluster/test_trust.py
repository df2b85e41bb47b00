"""Real experiments tell no secrets, and can be looked at without running what is in them."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from cluster_kit import journal
from distributed import LocalCluster
from fsspec.spec import AbstractFileSystem

import dasktune as tune

#: Part of all secrets. It does not stand in this file, as tracebacks quote the source.
WORD = "2retnuh"[::-1]
SECRETS = {
    "key": f"{WORD}-key",
    "client_kwargs": {"token": f"{WORD}/to+ken", "nested": [{"password": f"{WORD}-b".encode()}]},
}


def train(config: dict[str, Any]) -> None:
    for step in range(3):
        checkpoint = tune.Checkpoint.from_dict({"step": step, "x": config["x"]})
        tune.report({"loss": step * config["x"]}, checkpoint=checkpoint)
        if config["x"] == 2:
            raise RuntimeError("no more")


def loud(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everybody say everything.

    Dask says no more than it is made to say by default: for debugging it writes down each message
    that crosses the wire, whatever is in it.
    """
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, logger="distributed")
    monkeypatch.setattr(logging.getLogger("distributed"), "propagate", True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Workers in this process, so that it hears all that they log."""
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": ":0"}
    with LocalCluster(processes=False, **options) as cluster:
        yield cluster


def run(cluster: LocalCluster, url: str, options: dict[str, Any], **more: Any) -> tune.ResultGrid:
    config = tune.RunConfig(name="run", storage_path=url, storage_options=options, **more)
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=config,
        client=cluster,
    )
    assert WORD not in f"{config!r}"
    results = tuner.fit()
    assert WORD not in f"{config!r} {results!r} {results._repr_html_()}"
    assert WORD not in "".join(f"{result!r} {result.error}" for result in results)
    return results


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> str:
    """Return all that was logged and printed, tracebacks included."""
    return caplog.text + "".join(capfd.readouterr())


def test_options_of_the_storage_are_in_no_file_and_in_no_log(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    loud(caplog, monkeypatch)
    results = run(cluster, str(tmp_path), {**SECRETS, "auto_mkdir": True})
    found = files(tmp_path)
    assert results.num_errors == 1
    assert any(name.endswith("_dict_checkpoint.pkl") for name in found)
    assert len(journal(tmp_path, event="ResultReported")) >= 7
    assert not [name for name, content in found.items() if WORD.encode() in content]
    assert WORD not in told(caplog, capfd)


class Talkative(AbstractFileSystem):
    """A store below a directory, whose failures tell everything that it knows."""

    protocol = "talkative"
    root = Path()
    #: Parts of the names of files that cannot be written.
    failing: tuple[str, ...] = ()

    def _real(self, path: str) -> Path:
        # The first part is the user, the password and the host.
        return Path(self.root, *self._strip_protocol(path).split("/")[1:])

    def _check(self, path: str) -> None:
        if any(name in path for name in self.failing):
            key = self.storage_options["key"]
            try:
                raise ConnectionError(f"signed by {self.storage_options}")
            except ConnectionError as error:
                text = f"403 for https://{path}?signature={WORD}-signed by {key!r}"
                raise PermissionError(13, text, path) from error

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        real = self._real(path)
        if not real.exists():
            raise FileNotFoundError(path)
        names = [f"{self._strip_protocol(path)}/{one.name}" for one in real.iterdir()]
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        real, name = self._real(path), self._strip_protocol(path)
        if not real.exists():
            raise FileNotFoundError(path)
        kind = "directory" if real.is_dir() else "file"
        return {"name": name, "size": real.stat().st_size, "type": kind}

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        real = self._real(path)
        if not real.is_file():
            raise FileNotFoundError(path)
        return real.read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._check(path)
        real = self._real(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        with real.open("xb" if mode == "create" else "wb") as stream:
            stream.write(value)

    def rm_file(self, path: str) -> None:
        if not self._real(path).is_file():
            raise FileNotFoundError(path)
        self._real(path).unlink()

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        return _Upload(self, path)


class _Upload(io.BytesIO):
    def __init__(self, store: Talkative, path: str) -> None:
        super().__init__()
        self.store, self.path = store, path

    def close(self) -> None:
        if not self.closed:
            self.store.pipe_file(self.path, self.getvalue())
        super().close()


@pytest.fixture
def talkative(tmp_path: Path) -> str:
    """The URL of a store that tells secrets."""
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    Talkative.root, Talkative.failing = tmp_path, ()
    return f"talkative://me:{WORD}-pw@host"


def test_failures_of_the_storage_tell_no_secrets(
    cluster: LocalCluster,
    talkative: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    loud(caplog, monkeypatch)
    # Of each trial the third checkpoint, and its params.
    Talkative.failing = ("checkpoint_000002", "params.json")
    results = run(cluster, talkative, SECRETS)
    assert results.num_errors == 3
    # It is still told what happened.
    assert "403 for https://" in str(results.errors[0])
    assert results[0].checkpoint is not None
    assert WORD not in repr(results[0].checkpoint)
    found = files(tmp_path)
    assert sum(name.endswith("error.txt") for name in found) == 3
    assert not [name for name, content in found.items() if WORD.encode() in content]
    logged = told(caplog, capfd)
    assert "could not write trials/" in logged
    assert WORD not in logged


@pytest.mark.parametrize("failing", [".probe-", "experiment.json", "journal"])
def test_a_storage_that_cannot_be_used_tells_no_secrets(
    cluster: LocalCluster, talkative: str, failing: str
) -> None:
    Talkative.failing = (failing,)
    with pytest.raises(Exception, match="403 for https") as caught:
        run(cluster, talkative, SECRETS)
    # As it is printed, with all that it came from.
    assert WORD not in str(caught.getrepr(chain=True, showlocals=False))


# Reading never unpickles

GUARD = """
import os, pickle, sys
import cloudpickle
import numpy
from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.segments import next_epoch
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord

def refuse(*args, **kwargs):
    os._exit(66)

def watch(event, args):
    if event == "pickle.find_class":
        os._exit(66)

sys.addaudithook(watch)
pickle.loads = pickle.load = pickle.Unpickler = cloudpickle.loads = cloudpickle.load = refuse

storage, seen, refused = Storage(sys.argv[1]), [], 0

def tried(read):
    global refused
    try:
        return read()
    except StorageError:
        refused += 1

store = CheckpointStore(storage)
tried(ExperimentStore(storage).spec)
records = tried(lambda: list(read_journal(storage))) or []
for one in records:
    if one.get("checkpoint") is not None:
        record = CheckpointRecord.from_json(one["checkpoint"])
        loaded = tried(lambda: store.load(record))
        if loaded is not None:
            seen.append(loaded)
            tried(loaded.get_metadata)
            loaded.to_directory(sys.argv[2])
        tried(lambda: store.reference(record).get_metadata())
for name in storage.names("trials"):
    tried(lambda: store.remove_stale(name, incarnation=99, first_index=99))
def lead():
    with LeaderLock(storage, ttl_s=0.1):
        reader = JournalReader(storage)
        list(reader)
        JournalWriter(storage, next_epoch(storage), after=reader.end).close()
tried(lead)
print(len(records), len(seen), refused, flush=True)
if len(sys.argv) > 3:
    seen[0].to_dict()
"""


class Evil:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


def look(place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", GUARD, str(place / "run"), str(place / "copy"), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_experiment_is_read_without_running_what_is_in_it(cluster: LocalCluster, tmp_path: Path) -> None:
    run(cluster, str(tmp_path), {})
    marker = tmp_path / "was here"
    evil = pickle.dumps(Evil(str(marker)))
    # Where other frameworks, and a careless version of this one, would look.
    for name in ("tuner.pkl", "trainable.pkl", "searcher.pkl", "snapshots/000001.pkl"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(evil)
    # Checkpoints that are whole, and evil.
    entry = {"size": len(evil), "crc32": f"{zlib.crc32(evil):08x}"}
    checkpoints = sorted(tmp_path.glob("run/trials/*/checkpoint_*"))
    assert len(checkpoints) >= 7
    for checkpoint in checkpoints:
        manifest = json.loads((checkpoint / ".manifest.json").read_bytes())
        manifest["files"] = {"_dict_checkpoint.pkl": entry}
        (checkpoint / "_dict_checkpoint.pkl").write_bytes(evil)
        (checkpoint / ".manifest.json").write_text(json.dumps(manifest))
        (checkpoint.parent / "params.pkl").write_bytes(evil)
    looked = look(tmp_path)
    records, loaded, refused = map(int, looked.stdout.split())
    assert (looked.returncode, refused) == (0, 0), looked.stderr
    assert records > 10
    assert loaded >= len(checkpoints)
    # The guard sees what user code does on purpose.
    assert look(tmp_path, "unpickle").returncode == 66

    # Now everything is a pickle.
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            path.write_bytes(evil)
    looked = look(tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.split()[:2] == ["0", "0"]
    assert int(looked.stdout.split()[2]) >= 2
    assert not marker.exists()
    # It would have worked.
    pickle.loads(evil)
    assert marker.exists()
