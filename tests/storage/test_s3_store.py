"""What only a real S3 server shows: exclusive writes, uploads in parts, and what a kill leaves."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError
from s3_kit import Line, S3Server
from s3fs.core import S3File

from dasktune.errors import CheckpointNotFound, PreflightError, StorageError
from dasktune.storage.checkpoints.checkpoint import dict_files
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs import streams
from dasktune.storage.fs.probe import probe
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.trial.checkpoint_record import CheckpointRecord

LARGE = bytes(range(256)) * (30 * 1024**2 // 256)

#: Takes a pickled storage and what to do from its standard input, once for each line on it.
RACER = """
import pickle, sys
from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
storage, me = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2]
store = CheckpointStore(storage)
storage.names()
print("ready", flush=True)
for line in sys.stdin:
    what, number = line.split()
    try:
        if what == "create":
            storage.create(f"race-{number}", me.encode())
        else:
            files = {f"part{n}": me.encode() * 50_000 for n in range(4)}
            trial, incarnation = ("a", 1) if what == "commit" else ("own", int(me))
            store.commit(files, trial_dir=trial, index=int(number), incarnation=incarnation,
                         iteration=1, metrics={"me": me})
        print("won", flush=True)
    except (FileExistsError, StorageError):
        print("lost", flush=True)
"""


class Racers:
    """Processes that do the same thing at the same time."""

    def __init__(self, storage: Storage, count: int) -> None:
        blob = pickle.dumps(storage).hex()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, blob, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for number in range(1, count + 1)
        ]
        assert self._answers() == ["ready"] * count

    def race(self, what: str) -> list[str]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what}\n")
        return self._answers()

    def _answers(self) -> list[str]:
        return [process.stdout.readline().strip() for process in self._processes if process.stdout]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module", params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """A directory that several processes can write to."""
    if request.param == "local":
        return Storage(str(tmp_path_factory.mktemp("shared")))
    server: S3Server = request.getfixturevalue("s3")
    return server.storage()


@pytest.fixture(scope="module")
def racers(shared: Storage) -> Iterator[Racers]:
    racers = Racers(shared, 3)
    yield racers
    racers.close()


def test_of_several_processes_exactly_one_creates_a_file(shared: Storage, racers: Racers) -> None:
    for number in range(30):
        outcome = racers.race(f"create {number}")
        assert sorted(outcome) == ["lost", "lost", "won"]
        winner = str(outcome.index("won") + 1)
        assert shared.read_bytes(f"race-{number}") == winner.encode()


def committed(storage: Storage, trial: str) -> dict[str, dict[str, bytes]]:
    """Return the files of all committed checkpoints, by their directories, verified."""
    found = {}
    for name in storage.names("trials", trial):
        path = f"trials/{trial}/{name}"
        with (
            CheckpointStore(storage)
            .load(CheckpointRecord(path=path, index=0, iteration=1))
            .as_directory() as directory
        ):
            found[name] = {part.name: part.read_bytes() for part in Path(directory).glob("part*")}
    return found


def test_of_two_processes_that_are_the_same_start_of_a_trial_one_commits_and_nothing_is_mixed(
    shared: Storage, racers: Racers
) -> None:
    winners = []
    for number in range(10):
        outcome = racers.race(f"commit {number}")
        assert sorted(outcome) == ["lost", "lost", "won"]
        winners.append(str(outcome.index("won") + 1))
    checkpoints = committed(shared, "a")
    for number, winner in enumerate(winners):
        files = checkpoints[f"checkpoint_{number:06d}_i01"]
        assert files == {f"part{n}": winner.encode() * 50_000 for n in range(4)}


def test_two_incarnations_with_one_checkpoint_number_do_not_touch_each_other(
    shared: Storage, racers: Racers
) -> None:
    for number in range(5):
        assert racers.race(f"commit-own {number}") == ["won"] * 3
    checkpoints = committed(shared, "own")
    assert len(checkpoints) == 5 * 3
    for name, files in checkpoints.items():
        me = str(int(name[-2:])).encode()
        assert files == {f"part{n}": me * 50_000 for n in range(4)}


def commit(storage: Storage, files: Any, index: int = 0) -> CheckpointRecord:
    return CheckpointStore(storage).commit(
        files, trial_dir="a", index=index, incarnation=1, iteration=1, metrics={}
    )


@pytest.mark.parametrize("size", [streams.PART - 1, streams.PART, len(LARGE)])
def test_a_large_file_goes_in_parts_and_comes_back(s3: S3Server, size: int) -> None:
    storage = s3.storage()
    record = commit(storage, {"weights": LARGE[:size], "small": b"1"})
    with CheckpointStore(storage).load(record).as_directory() as directory:
        assert Path(directory, "weights").read_bytes() == LARGE[:size]
    etag = storage.fs.info(storage.path(record.path, "weights"))["ETag"].strip('"')
    parts = int(etag.partition("-")[2] or 0)
    assert parts == (0 if size < streams.PART else -(-size // streams.PART))
    assert s3.uploads(storage) == []


def test_a_large_dict_is_read_where_it_lies(s3: S3Server) -> None:
    storage = s3.storage()
    record = commit(storage, dict_files({"weights": LARGE}))
    assert CheckpointStore(storage).reference(record).to_dict() == {"weights": LARGE}


def test_a_checkpoint_that_fails_in_the_middle_leaves_no_upload_behind(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = s3.storage()
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(LARGE)
    seen: list[int] = []
    write = S3File.write

    def second_fails(self: S3File, data: bytes) -> int:
        count: int = write(self, data)
        seen.append(len(s3.uploads(storage)))
        if len(seen) == 2:
            raise ZeroDivisionError
        return count

    monkeypatch.setattr(S3File, "write", second_fails)
    with pytest.raises(ZeroDivisionError):
        commit(storage, source)
    assert seen == [1, 1]
    assert s3.uploads(storage) == []
    assert storage.find() == []


#: Says when a part has been sent, and waits to be killed.
VICTIM = """
import pickle, sys, time
from s3fs.core import S3File
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
storage = pickle.loads(bytes.fromhex(sys.argv[1]))
write = S3File.write
def tell(self, data):
    write(self, data)
    print("sent", flush=True)
    time.sleep(1000)
S3File.write = tell
CheckpointStore(storage).commit({"small": b"1", "weights": bytes(30 * 1024**2)}, trial_dir="a",
                                index=0, incarnation=1, iteration=1, metrics={})
"""


def test_a_process_killed_in_an_upload_leaves_no_checkpoint_and_only_parts_to_be_expired(
    s3: S3Server,
) -> None:
    storage = s3.storage()
    blob = pickle.dumps(storage).hex()
    command = [sys.executable, "-c", VICTIM, blob]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.send_signal(signal.SIGKILL)
    record = CheckpointRecord(path="trials/a/checkpoint_000000_i01", index=0, iteration=1)
    store = CheckpointStore(storage)
    with pytest.raises(CheckpointNotFound):
        store.load(record)
    # The next start of the trial commits the same number, and may sweep what was left.
    again = store.commit({"x": b"2"}, trial_dir="a", index=0, incarnation=2, iteration=1, metrics={})
    assert store.remove_stale("a", incarnation=2, first_index=2) == [record.path]
    assert storage.names("trials", "a") == [".incarnation-000002", again.path.rpartition("/")[2]]
    # No file shows the parts. They cost money until a rule of the bucket ends the upload.
    assert s3.uploads(storage) == [storage.path(record.path, "weights").partition("/")[2]]


def test_a_driver_killed_while_it_writes_leaves_a_journal_that_is_whole(s3: S3Server) -> None:
    storage = s3.storage()
    program = """
import pickle, sys
from dasktune.storage.journal.journal_writer import JournalWriter
writer = JournalWriter(pickle.loads(bytes.fromhex(sys.argv[1])), 1)
while True:
    position = writer.append({"padding": "x" * 20_000})
    print(writer.commit(force=position % 3 == 0), flush=True)
"""
    command = [sys.executable, "-c", program, pickle.dumps(storage).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        durable = 0
        while durable < 20:
            durable = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    assert len(list(read_journal(storage))) >= durable


def test_the_probe_finds_a_wrong_key_and_a_bucket_that_is_not_there(s3: S3Server) -> None:
    storage = s3.storage()
    probe(storage)
    assert storage.find() == []
    with pytest.raises(PreflightError, match="storage_path must be writable") as told:
        probe(Storage("s3://no-such-bucket-here/exp", s3.options()))
    assert "s3://no-such-bucket-here/exp" in str(told.value)


def test_a_client_that_changes_its_options_changes_no_storage(s3: S3Server) -> None:
    bucket = s3.storage().path().partition("/")[0]
    options = {**s3.options(), "config_kwargs": {"retries": {"max_attempts": 2}}}
    storage, other = (Storage(f"s3://{bucket}", options) for _ in range(2))
    storage.write_bytes("x", b"1")
    assert options["config_kwargs"] == {"retries": {"max_attempts": 2}}
    assert storage == other
    assert storage.fs is other.fs


def test_the_metadata_of_a_remote_checkpoint_comes_along(s3: S3Server) -> None:
    storage = s3.storage()
    record = commit(storage, {"x": b"1"})
    store = CheckpointStore(storage)
    store.reference(record).set_metadata({"epoch": 3})
    assert store.load(record).get_metadata() == {"epoch": 3}


@pytest.mark.parametrize("disturbance", ["refused", "error", "mute"])
def test_each_call_comes_back_from_a_store_that_is_away(s3: S3Server, line: Line, disturbance: str) -> None:
    usual = s3.storage(line.port)
    usual.write_bytes("x", b"1")
    line.set(disturbance)
    storage = replace(usual, timeout=lambda size: 0.3)
    for call in (
        lambda: storage.read_bytes("x"),
        lambda: storage.write_bytes("y", b"2"),
        lambda: storage.create("z", b"3"),
        lambda: storage.exists("x"),
        lambda: storage.names(),
        lambda: storage.find(),
        lambda: storage.remove("other"),  # the line may deliver it yet
        lambda: storage.open_read("x"),
        lambda: commit(storage, {"weights": LARGE[:100]}),
    ):
        with pytest.raises((StorageError, OSError, BotoCoreError)) as told:
            call()
        assert not isinstance(told.value, FileNotFoundError | FileExistsError)
    line.set("open")
    assert usual.read_bytes("x") == b"1"


@pytest.mark.parametrize("disturbance", ["refused", "mute"])
def test_an_upload_in_parts_comes_back_from_a_store_that_goes_away(
    s3: S3Server, line: Line, disturbance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = s3.storage(line.port)
    storage = replace(usual, timeout=lambda size: 1.0)
    write = S3File.write

    def away_after_the_first(self: S3File, data: bytes) -> int:
        count: int = write(self, data)
        line.set(disturbance)
        return count

    monkeypatch.setattr(S3File, "write", away_after_the_first)
    with pytest.raises((StorageError, OSError, BotoCoreError)):
        commit(storage, {"weights": LARGE})
    line.set("open")
    assert not usual.exists("trials/a/checkpoint_000000_i01", ".manifest.json")


@pytest.mark.parametrize(
    "disturbance",
    ["error", *(pytest.param(one, marks=pytest.mark.slow) for one in ("refused", "mute", "slow"))],
)
def test_a_checkpoint_and_a_journal_outlast_what_passes(
    s3: S3Server, line: Line, disturbance: str, caplog: pytest.LogCaptureFixture
) -> None:
    usual = s3.storage(line.port)
    storage = replace(usual, timeout=lambda size: 1.0 + size / streams.SLOWEST).with_retry(120.0)
    writer = JournalWriter(storage, 1)
    line.set(disturbance)
    for number in range(100):
        writer.append({"n": number})
    restore = threading.Timer(3.0, line.set, ["open"])
    restore.start()
    record = commit(storage, {"weights": LARGE[: 9 * 1024**2]})
    assert writer.commit(force=True) == writer.close() == 100
    restore.join()
    assert [one["n"] for one in read_journal(storage)] == list(range(100))
    assert json.loads(storage.read_bytes(record.path, ".manifest.json"))["incarnation"] == 1
    with CheckpointStore(storage).load(record).as_directory() as directory:
        assert Path(directory, "weights").read_bytes() == LARGE[: 9 * 1024**2]
    # What is merely slow may be too slow on a busy machine.
    assert "retried until" in caplog.text or disturbance == "slow"
    assert "secret" not in caplog.text
