"""Checkpoints that a trial in a process of its own uploads while its code runs on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import disk_store
import psutil
import pytest
from process_run_kit import PATIENCE, Slot

import dasktune as tune
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.trial_messages import Ended, Failed, StopAnswer, Stopped

MANIFEST = ".manifest.json"


class Gate:
    """The worker's fence: it lets one checkpoint be committed for each call of `open`."""

    def __init__(self) -> None:
        self._is_written = True
        self.asked = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def __call__(self) -> None:
        # A fence is asked twice for each checkpoint: before its first file, and after its last one.
        self._is_written = not self._is_written
        if not self._is_written:
            return
        self.asked.release()
        assert self._open.acquire(timeout=PATIENCE)

    def open(self, count: int = 1) -> None:
        self._open.release(count)


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    slot = Slot(tmp_path_factory.mktemp("runs"))
    yield slot
    slot.warm.close()


@pytest.fixture
def remote(slot: Slot) -> Storage:
    return Storage(f"disk://{slot.place}")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)


class opened:
    """Code that brings the store along: to open it, a process must import this module."""

    def __init__(self, do: Any) -> None:
        self.do = do

    def __reduce__(self) -> Any:
        return the_same, (self.do,)


def the_same(do: Any) -> Any:
    return do


def two_steps(config: dict[str, Any]) -> None:
    tune.report({"step": 1, "pid": os.getpid()})
    tune.report({"step": 2}, checkpoint=tune.Checkpoint.from_dict({"step": 2}))
    tune.report({"step": 3})
    Path(config["trained"]).touch()
    if config.get("waits"):
        threading.Event().wait()


def below(slot: Slot, trial: Any) -> list[str]:
    return disk_store.files_below(slot.place / "trials" / trial.run.spec.trial_id)


def test_code_in_a_process_runs_on_while_its_checkpoint_is_uploaded(
    slot: Slot, remote: Storage, tmp_path: Path
) -> None:
    gate, config = Gate(), {"trained": tmp_path / "trained"}
    trial = slot.start(opened(two_steps), config, fence=gate, storage=remote)
    assert gate.asked.acquire(timeout=PATIENCE)
    until(config["trained"].exists)
    trial.collect()
    assert trial.values("step") == [1]
    gate.open()
    assert isinstance(trial.end(), Ended)
    assert trial.values("step") == [1, 2, 3]
    record = trial.results[1].checkpoint
    assert record is not None
    names = ["_dict_checkpoint.pkl", ".dasktune-writer", MANIFEST]
    directory = record.path.rpartition("/")[2]
    assert below(slot, trial) == sorted(f"{directory}/{name}" for name in names)
    # The thread that uploads is gone: the process is as good as new.
    assert slot.run(two_steps, config).values("pid")[:1] == trial.values("pid")[:1]


def test_a_process_that_is_killed_tells_nothing_of_what_it_had_not_uploaded(
    slot: Slot, remote: Storage, tmp_path: Path
) -> None:
    gate, config = Gate(), {"trained": tmp_path / "trained", "waits": True}
    trial = slot.start(opened(two_steps), config, fence=gate, storage=remote, chance=0.0)
    assert gate.asked.acquire(timeout=PATIENCE)
    process = psutil.Process(trial.result("pid"))
    trial.run.interrupt()
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    gate.open()
    assert isinstance(trial.end(), Stopped)
    assert trial.values("step") == [1]
    assert not any(name.endswith(MANIFEST) for name in below(slot, trial))


def test_the_next_start_sweeps_what_a_killed_process_left_half_written(
    slot: Slot, remote: Storage, tmp_path: Path
) -> None:
    def dies(config: dict[str, Any]) -> None:
        tune.report({"pid": os.getpid()})
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
        threading.Event().wait()

    def steps(config: dict[str, Any]) -> None:
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))

    gate = Gate()
    dead = slot.start(opened(dies), fence=gate, storage=remote)
    # Everything but the manifest is there, and the worker has not said that it may come.
    assert gate.asked.acquire(timeout=PATIENCE)
    process = psutil.Process(dead.result("pid"))
    process.kill()
    # It is not buried before the worker has let the checkpoint pass.
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    gate.open()
    dead.end()
    left = below(slot, dead)
    assert left == [f"checkpoint_000000_i01/{name}" for name in (".dasktune-writer", "_dict_checkpoint.pkl")]
    name = dead.run.spec.trial_id
    again = slot.run(opened(steps), storage=remote, incarnation=2, trial_id=name)
    assert isinstance(again.messages[-1], Ended)
    names = {name.partition("/")[0] for name in below(slot, dead)}
    assert names == {".incarnation-000002", "checkpoint_000000_i02"}


def test_an_upload_that_is_refused_ends_the_trial_as_ordered(
    slot: Slot, remote: Storage, tmp_path: Path
) -> None:
    def refuse() -> None:
        assert started.wait(PATIENCE)
        trial.run.answer(StopAnswer())
        raise RuntimeError("the driver is silent")

    config, started = {"trained": tmp_path / "trained"}, threading.Event()
    trial = slot.start(opened(two_steps), config, fence=refuse, storage=remote)
    started.set()
    assert isinstance(trial.end(), Stopped)
    assert trial.values("step") == [1]
    assert below(slot, trial) == []


def test_an_upload_that_fails_fails_a_trial_in_a_process(slot: Slot, remote: Storage, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report({"step": 1})
        Path(config["in_the_way"]).write_text("a file where a directory should be")
        tune.report({"step": 2}, checkpoint=tune.Checkpoint.from_dict({}))

    trial = slot.run(
        opened(train),
        {"in_the_way": slot.place / "trials" / "in_the_way"},
        storage=remote,
        trial_dir="in_the_way",
    )
    failed = trial.messages[-1]
    assert isinstance(failed, Failed)
    assert "in_the_way" in failed.error.message
    assert trial.values("step") == [1]


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_process_that_is_to_end_finishes_its_upload_within_its_grace(
    slot: Slot, remote: Storage, interrupt: bool
) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
        while True:
            time.sleep(0.001)
            tune.report({"step": 2})

    gate = Gate()
    trial = slot.start(opened(train), fence=gate, storage=remote, chance=PATIENCE)
    assert gate.asked.acquire(timeout=PATIENCE)
    trial.run.stop("enough")
    if interrupt:
        trial.run.interrupt()
    gate.open()
    assert isinstance(trial.end(), Stopped)
    assert trial.values("step")[:1] == [1]
    assert trial.results[0].checkpoint is not None
    assert any(name.endswith(MANIFEST) for name in below(slot, trial))
