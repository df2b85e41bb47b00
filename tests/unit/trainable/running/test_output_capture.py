"""What trials print in threads of one process is kept apart, in their own files."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from trial_run_kit import PATIENCE, Driver, make_spec

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.checkpoints.relay import EndTransfer, LogChunk, ReadPiece, TransferQueue
from dasktune.trainable.reporting.trial_messages import Ended, Failed
from dasktune.trainable.running.output_capture import CaptureLimits, streams_redirected

BOTH = ("stdout", "stderr")


def read(storage: Storage, trial: str, name: str) -> str:
    return storage.read_bytes("trials", trial, name).decode()


@pytest.fixture(params=["disk", "memory"])
def storage(request: Any, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return Storage(str(tmp_path / "exp"))
    return Storage(f"memory://output-{tmp_path.name}")


def run(train: Any, storage: Storage, trial: str = "a", **spec: Any) -> Any:
    spec = {"log_files": BOTH, **spec}
    return Driver(train, storage=storage, trial_id=trial, trial_dir=trial, **spec)


def test_each_trial_has_its_own_words_and_no_others(storage: Storage, capsys: Any):
    turn = threading.Barrier(3)

    def train(config: Any) -> None:
        turn.wait(PATIENCE)
        print("out of", config["name"])
        print("err of", config["name"], file=sys.stderr)
        turn.wait(PATIENCE)

    runs = [run(train, storage, name, config={"name": name}) for name in "ab"]
    turn.wait(PATIENCE)
    print("of the worker")
    turn.wait(PATIENCE)
    for name, one in zip("ab", runs, strict=True):
        assert isinstance(one.end(), Ended)
        assert read(storage, name, "stdout") == f"out of {name}\n"
        assert read(storage, name, "stderr") == f"err of {name}\n"
    shown = capsys.readouterr()
    # All is shown as before, too; whose words come first is not fixed.
    assert sorted(shown.out) == sorted("of the worker\nout of a\nout of b\n")


def test_a_trial_that_is_started_again_adds_to_its_file(storage: Storage):
    for number in (1, 2):
        run(lambda config, n=number: print("start", n), storage, incarnation=number).end()
    assert read(storage, "a", "stdout") == "start 1\nstart 2\n"


def test_one_name_is_one_file_in_the_order_of_the_words(storage: Storage):
    def train(config: Any) -> None:
        print("first")
        print("second", file=sys.stderr)
        sys.stdout.writelines(["third\n", "fourth\n"])

    run(train, storage, log_files=("words.txt", "words.txt")).end()
    assert read(storage, "a", "words.txt") == "first\nsecond\nthird\nfourth\n"


def test_handlers_of_logging_that_were_there_before_are_kept_too(storage: Storage):
    handler = logging.StreamHandler(sys.stderr)
    log = logging.getLogger("of-the-user")
    log.addHandler(handler)
    before = handler.stream
    try:
        run(lambda config: log.warning("mind this"), storage).end()
        assert read(storage, "a", "stderr") == "mind this\n"
        assert handler.stream is before
    finally:
        log.removeHandler(handler)


def test_the_streams_of_the_worker_are_its_own_again_when_no_trial_runs(storage: Storage):
    before = sys.stdout, sys.stderr
    seen = []

    def train(config: Any) -> None:
        seen.append(sys.stdout)
        print("word", flush=True)

    run(train, storage).end()
    assert (sys.stdout, sys.stderr) == before
    assert seen[0] is not before[0]
    assert seen[0].encoding == before[0].encoding


def test_without_the_wish_nothing_is_touched(storage: Storage):
    seen = []
    run(lambda config: seen.append(sys.stdout), storage, log_files=None).end()
    assert seen == [sys.stdout]
    assert not storage.exists("trials", "a", "stdout")


def test_the_last_words_of_a_failure_are_kept(storage: Storage):
    def train(config: Any) -> None:
        print("so far", end="")
        raise ValueError("no more")

    assert isinstance(run(train, storage).end(), Failed)
    assert read(storage, "a", "stdout") == "so far"


def test_what_cannot_be_kept_is_logged_and_no_error(tmp_path: Path, caplog: Any):
    (tmp_path / "trials").write_text("in the way")
    assert isinstance(run(lambda config: print("?"), Storage(str(tmp_path))).end(), Ended)
    assert "the output of trial a is not kept" in caplog.text


class Carrier:
    """A driver that takes words at once, in the thread of the trial, or fails."""

    def __init__(self, error: StorageError | None = None) -> None:
        self.error = error
        self.transfers = TransferQueue(self._carry)
        self.words: dict[str, Any] = {}
        self.came = threading.Event()

    def _carry(self, number: int, transfer: Any) -> None:
        assert isinstance(transfer, LogChunk)
        for at, file in enumerate(transfer.files):
            words = self.transfers.perform(number, ReadPiece(file=at, offset=0, size=file.size))
            if self.error is None:
                self.words[file.name] = self.words.get(file.name, b"") + words
        self.transfers.perform(number, EndTransfer(error=self.error))
        self.came.set()


def test_a_worker_that_does_not_see_the_storage_hands_words_to_the_driver(storage: Storage):
    carrier = Carrier()
    told = run(lambda config: print("words"), storage, relayed=True, transfers=carrier.transfers).end()
    assert isinstance(told, Ended)
    # Nothing stands in the other file.
    assert carrier.words == {"stdout": b"words\n"}
    assert not storage.exists("trials", "a", "stdout")


def captured(storage: Storage, transfers: TransferQueue | None = None, **limits: Any) -> Any:
    """Capture what this thread prints, within such limits."""
    spec = make_spec(
        storage=storage, trial_id="a", trial_dir="a", log_files=BOTH, relayed=transfers is not None
    )
    queue = transfers or TransferQueue(lambda number, transfer: None)
    return streams_redirected(spec, queue, CaptureLimits(**limits))


def test_words_that_do_not_reach_the_driver_cost_only_themselves(storage: Storage, caplog: Any):
    transfers = Carrier(StorageError("the driver is gone")).transfers
    train = lambda config: print("words")  # noqa: E731
    assert isinstance(run(train, storage, relayed=True, transfers=transfers).end(), Ended)
    assert "is lost: the driver is gone" in caplog.text
    carrier = Carrier()
    with captured(storage, carrier.transfers, max_bytes=3):
        print("words")
    assert carrier.words == {"stdout": b"wor"}
    assert "beyond 0 MiB is lost: the driver is not sent more" in caplog.text


def test_words_reach_the_driver_while_the_trial_runs_each_once(storage: Storage):
    carrier = Carrier(StorageError("the disk of the driver is full"))
    with captured(storage, carrier.transfers, period_seconds=0.01):
        for words in ("first", "second", "third"):
            carrier.came.clear()
            print(words)
            assert carrier.came.wait(PATIENCE)
            carrier.error = None
    assert carrier.words == {"stdout": b"first\nsecond\nthird\n"}


def test_who_prints_nothing_troubles_no_driver(storage: Storage):
    carrier = Carrier()
    run(lambda config: None, storage, relayed=True, transfers=carrier.transfers).end()
    assert carrier.words == {}


def test_an_object_is_stored_while_the_trial_runs_and_has_an_end():
    storage = Storage("memory://output-now")
    storage.remove_tree()
    kept = "(the first 1 bytes are left out)\nbcdefgh\n"
    deadline = time.monotonic() + PATIENCE
    with captured(storage, period_seconds=0.01, max_bytes=8):
        print("abcdefgh")
        while not storage.exists("trials", "a", "stdout") or read(storage, "a", "stdout") != kept:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert read(storage, "a", "stdout") == kept
