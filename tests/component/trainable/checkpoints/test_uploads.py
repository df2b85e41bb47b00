"""Checkpoints that are uploaded while user code runs on. The fence is where they can be held."""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from trial_run_kit import PATIENCE, Driver

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.session import get_checkpoint, report
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.trial_messages import (
    Committed,
    ContinueAnswer,
    Ended,
    Failed,
    PauseAnswer,
    SaveAnswer,
    StopAnswer,
    Stopped,
)
from dasktune.trial.milestone import Milestone


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.001)


def once_written(fence):
    """Let a fence be asked when a checkpoint is written, and not also before its first file."""
    turn = itertools.cycle((False, True))
    return lambda: fence() if next(turn) else None


class Gate:
    """A fence that lets one checkpoint be committed for each call of `open`."""

    def __init__(self):
        self.asked = 0
        self._open = threading.Semaphore(0)

    def __call__(self):
        self.asked += 1
        assert self._open.acquire(timeout=PATIENCE)

    def open(self, count=1):
        self._open.release(count)


def copies(place):
    """Return the temporary checkpoints."""
    return list(place.glob("*/*"))


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where copies are made; at the end none is left."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    gc.collect()
    assert copies(place) == []


def kinds(driver):
    return [type(message).__name__ for message in driver.messages]


def test_user_code_runs_on_while_its_checkpoint_is_uploaded(gate):
    trained, resume = threading.Event(), threading.Event()

    def train(config):
        report({"step": 0})
        report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))
        report({"step": 2})
        trained.set()
        assert resume.wait(PATIENCE)

    driver = Driver(train, fence=once_written(gate))
    assert trained.wait(PATIENCE)
    until(lambda: gate.asked == 1)
    driver.collect()
    # Nothing overtakes the checkpoint, and its own result does not come before it.
    assert driver.values("step") == [0]
    gate.open()
    driver.until(lambda message: len(driver.results) == 3)
    assert driver.values("step") == [0, 1, 2]
    record = driver.results[1].checkpoint
    store = CheckpointStore(driver.run.spec.storage)
    assert store.load(record).to_dict() == {"step": 1}
    assert record.metrics["step"] == 1
    assert record.seconds > 0
    resume.set()
    assert isinstance(driver.end(), Ended)


def test_a_directory_may_change_as_soon_as_report_returns(gate, tmp_path):
    place = tmp_path / "mine"

    def train(config):
        (place / "sub").mkdir(parents=True)
        for step in range(2):
            (place / "sub" / "weights").write_text(str(step))
            Checkpoint.from_directory(place).set_metadata({"step": step})
            report({}, checkpoint=Checkpoint.from_directory(place))
        (place / "sub" / "weights").unlink()
        (place / ".metadata.json").unlink()
        (place / "sub").rmdir()
        place.rmdir()
        gate.open(2)

    driver = Driver(train, fence=once_written(gate))
    assert isinstance(driver.end(), Ended)
    store = CheckpointStore(driver.run.spec.storage)
    for step, result in enumerate(driver.results):
        checkpoint = store.load(result.checkpoint)
        assert Path(checkpoint.path, "sub", "weights").read_text() == str(step)
        assert checkpoint.get_metadata() == {"step": step}


def test_a_remote_checkpoint_is_copied_before_report_returns(gate):
    elsewhere = Storage("memory://somewhere/else")

    def train(config):
        elsewhere.write_bytes("weights", b"w")
        report({}, checkpoint=Checkpoint(elsewhere.url))
        elsewhere.remove_tree()
        gate.open()

    driver = Driver(train, fence=once_written(gate))
    assert isinstance(driver.end(), Ended)
    checkpoint = CheckpointStore(driver.run.spec.storage).load(driver.results[0].checkpoint)
    assert Path(checkpoint.path, "weights").read_bytes() == b"w"


def test_at_most_two_checkpoints_wait(gate, temporary):
    reported = []

    def train(config):
        for step in range(4):
            report({"step": step}, checkpoint=Checkpoint.from_dict({}))
            # Two copies, and no third before the first has been uploaded.
            assert len(copies(temporary)) <= 2
            reported.append(step)

    driver = Driver(train, fence=once_written(gate))
    until(lambda: reported == [0, 1] and gate.asked == 1)
    gate.open()
    until(lambda: reported == [0, 1, 2])
    gate.open(3)
    assert isinstance(driver.end(), Ended)
    assert driver.values("step") == [0, 1, 2, 3]
    assert [result.checkpoint.index for result in driver.results] == [0, 1, 2, 3]


def test_a_milestone_waits_for_the_checkpoints_before_it(gate):
    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))
        report({"step": 2}, checkpoint=Checkpoint.from_dict({"step": 2}))

    driver = Driver(train, fence=once_written(gate), milestones=(Milestone("training_iteration", 2),))
    until(lambda: gate.asked == 1)
    driver.collect()
    assert driver.results == []
    gate.open(2)
    second = driver.awaiting()
    store = CheckpointStore(driver.run.spec.storage)
    steps = [store.load(result.checkpoint).to_dict()["step"] for result in driver.results]
    assert steps == [1, 2]
    driver.run.answer(ContinueAnswer(seq=second.seq, milestones=()))
    assert isinstance(driver.end(), Ended)


def test_the_newest_checkpoint_is_waited_for(gate):
    seen = []

    def train(config):
        report({}, checkpoint=Checkpoint.from_dict({"step": 7}))
        gate.open()
        seen.append(get_checkpoint().to_dict())

    assert isinstance(Driver(train, fence=once_written(gate)).end(), Ended)
    assert seen == [{"step": 7}]


# Ends.


@pytest.mark.parametrize("done", [False, True])
def test_the_end_waits_for_the_uploads(gate, done):
    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 2, "done": done})

    driver = Driver(train, fence=once_written(gate))
    until(lambda: gate.asked == 1)
    driver.collect()
    assert kinds(driver) == ["Started"]
    gate.open()
    assert isinstance(driver.end(), Ended)
    assert kinds(driver) == ["Started", "Reported", "Reported", "Ended"]


@pytest.mark.parametrize("how", ["stop", "interrupt", "raise"])
def test_no_end_loses_a_checkpoint_that_is_under_way(gate, how):
    running = threading.Event()

    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        running.set()
        if how == "raise":
            raise ValueError("user code")
        while how == "interrupt":
            pass
        while True:
            report({"step": 2})

    driver = Driver(train, fence=once_written(gate))
    assert running.wait(PATIENCE)
    until(lambda: gate.asked == 1)
    if how != "raise":
        driver.run.stop("enough")
    if how == "interrupt":
        driver.run.interrupt()
    gate.open()
    assert isinstance(driver.end(), Failed if how == "raise" else Stopped)
    assert driver.results[0].checkpoint is not None
    CheckpointStore(driver.run.spec.storage).load(driver.results[0].checkpoint)


def test_after_an_order_the_last_checkpoint_is_saved_with_those_before_it(gate):
    resume = threading.Event()

    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))
        assert resume.wait(PATIENCE)
        report({"step": 2}, checkpoint=Checkpoint.from_dict({"step": 2}))

    driver = Driver(train, fence=once_written(gate))
    until(lambda: gate.asked == 1)
    driver.run.answer(PauseAnswer())
    resume.set()
    gate.open(2)
    driver.end()
    assert kinds(driver) == ["Started", "Reported", "Reported", "Paused"]
    assert [result.checkpoint.index for result in driver.results] == [0, 1]


# Failures.


class Fails:
    """A fence that lets so many through and then raises."""

    def __init__(self, error, after=1):
        self.error, self.left = error, after
        self.failing = threading.Event()

    def __call__(self):
        if not self.left:
            assert self.failing.wait(PATIENCE)
            raise self.error
        self.left -= 1


@pytest.mark.parametrize("caught", [False, True])
def test_an_upload_that_fails_fails_the_trial_and_nothing_comes_after_it(caught):
    fence = Fails(StorageError("the bucket is gone"))
    raised = []

    def train(config):
        report({"step": 0})
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 2})
        report({"step": 3}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 4})
        fence.failing.set()
        for _ in range(2):
            try:
                get_checkpoint()
            except StorageError as error:
                raised.append(str(error))
                if not caught:
                    raise
        for checkpoint in (None, Checkpoint.from_dict({})):
            with pytest.raises(StorageError, match="the bucket is gone"):
                report({"step": 5}, checkpoint=checkpoint)

    driver = Driver(train, fence=once_written(fence))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "StorageError: the bucket is gone"
    assert driver.values("step") == [0, 1, 2]
    assert raised == ["the bucket is gone"] * (1 + caught)
    names = driver.run.spec.storage.names("trials", "t1_dir")
    assert names == ["checkpoint_000000_i01"]


def test_an_upload_that_fails_at_the_end_fails_the_trial(gate):
    fence = Fails(OSError("reset"), after=0)
    fence.failing.set()

    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        fence.failing.set()

    failed = Driver(train, fence=once_written(fence)).end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "OSError: reset"


def test_the_failure_of_user_code_counts_rather_than_that_of_its_upload():
    fence = Fails(OSError("reset"), after=0)

    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        fence.failing.set()
        raise ValueError("first")

    driver = Driver(train, fence=once_written(fence))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert failed.error.message == "ValueError: first"
    assert driver.results == []


@pytest.mark.parametrize("done", [False, True])
def test_a_worker_that_may_not_commit_leaves_as_ordered(done):
    def fence():
        driver.run.answer(StopAnswer(reason="the driver is silent"))
        raise TrialInterrupted("the driver is silent")

    def train(config):
        assert there.wait(PATIENCE)
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        report({"step": 2, "done": done})

    there = threading.Event()
    driver = Driver(train, fence=once_written(fence))
    there.set()
    assert isinstance(driver.end(), Stopped)
    assert driver.results == []
    assert driver.run.spec.storage.find() == []


def test_a_disk_without_room_for_a_copy_makes_the_upload_wait(gate, monkeypatch, caplog):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(config):
        report({"step": 1}, checkpoint=Checkpoint.from_dict({}))
        second = Checkpoint.from_dict({})
        monkeypatch.setattr(tempfile, "mkdtemp", full)
        gate.open(2)
        report({"step": 2}, checkpoint=second)
        assert gate.asked == 2

    driver = Driver(train, fence=once_written(gate))
    with caplog.at_level(logging.WARNING):
        assert isinstance(driver.end(), Ended)
    assert [result.checkpoint.index for result in driver.results] == [0, 1]
    assert "the local disk is full" in caplog.text


def test_a_trial_that_gets_no_thread_for_its_uploads_fails_and_says_so(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.endswith("-upload"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    driver = Driver(lambda config: report({}, checkpoint=Checkpoint.from_dict({})))
    failed = driver.end()
    assert isinstance(failed, Failed)
    assert "can't start new thread" in failed.error.message


def test_what_is_no_checkpoint_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def train(config):
        checkpoint = Checkpoint.from_directory(tmp_path)
        with pytest.raises(ValueError, match="'pipe'"):
            report({}, checkpoint=checkpoint)
        (tmp_path / "pipe").unlink()
        report({}, checkpoint=checkpoint)

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert driver.values("training_iteration") == [1]
    # The first attempt has used a number up.
    assert [result.checkpoint.index for result in driver.results] == [1]


@pytest.mark.parametrize("fails_at", [None, 0, 9])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_timing_nothing_is_seen_before_its_checkpoint_exists(seed, fails_at):
    chance, commits = random.Random(seed), itertools.count()

    def fence():
        if next(commits) == fails_at:
            raise OSError("reset")
        if chance.random() < 0.5:
            time.sleep(0.002 * chance.random())

    def train(config):
        for step in range(120):
            save = step % 3 == 0 or chance.random() < 0.2
            checkpoint = Checkpoint.from_dict({"step": step}) if save else None
            report({"step": step}, checkpoint=checkpoint)

    every_seventh = tuple(Milestone("training_iteration", n) for n in range(7, 121, 7))
    driver = Driver(train, fence=once_written(fence), milestones=every_seventh[:1])
    store = CheckpointStore(driver.run.spec.storage)
    seen = 0
    while not any(isinstance(message, Ended | Failed) for message in driver.messages):
        assert driver.bell.acquire(timeout=PATIENCE)
        driver.collect()
        for result in driver.results[seen:]:
            if result.checkpoint is not None:
                assert store.load(result.checkpoint).to_dict() == {"step": result.metrics["step"]}
            if result.awaits:
                rest = [one for one in every_seventh if one.value > result.metrics["step"] + 1]
                driver.run.answer(ContinueAnswer(seq=result.seq, milestones=tuple(rest[:1])))
        seen = len(driver.results)
    assert isinstance(driver.end(), Ended if fails_at is None else Failed)
    steps = driver.values("step")
    assert steps == list(range(len(steps)))
    saved = [result.checkpoint.index for result in driver.results if result.checkpoint]
    assert saved == list(range(len(saved)))
    if fails_at is None:
        assert len(steps) == 120
    else:
        assert len(saved) == fails_at


# The class API.


class Steps(Trainable):
    def setup(self, config):
        self.steps = 0

    def step(self):
        self.steps += 1
        return {"steps": self.steps, "done": self.steps == self.config.get("until")}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint):
        self.steps = int(Path(checkpoint, "steps").read_text())


def test_a_class_steps_on_while_its_checkpoints_are_uploaded(gate):
    stepped = threading.Event()

    class Tells(Steps):
        def step(self):
            if self.steps == 3:
                stepped.set()
            return super().step()

    driver = Driver(Tells, config={"until": 4}, checkpoint_frequency=2, fence=once_written(gate))
    assert stepped.wait(PATIENCE)
    until(lambda: gate.asked == 1)
    driver.collect()
    assert driver.values("steps") == [1]
    gate.open(2)
    assert isinstance(driver.end(), Ended)
    assert driver.values("steps") == [1, 2, 3, 4]
    store = CheckpointStore(driver.run.spec.storage)
    for result in (driver.results[1], driver.results[3]):
        checkpoint = store.load(result.checkpoint)
        saved = Path(checkpoint.path, "steps").read_text()
        assert saved == str(result.metrics["steps"])


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_a_class_links_to_may_change_after_it_was_saved(gate, tmp_path, link):
    live = tmp_path / "live"

    class Links(Steps):
        def step(self):
            result = super().step()
            # In place: a link of either kind sees it.
            live.write_text(str(self.steps))
            if self.steps == 3:
                # The second checkpoint, behind the first one, has not been touched yet.
                gate.open(3)
            return result

        def save_checkpoint(self, checkpoint_dir):
            link(live, Path(checkpoint_dir, "steps"))

    driver = Driver(Links, config={"until": 3}, checkpoint_frequency=1, fence=once_written(gate))
    assert isinstance(driver.end(), Ended)
    checkpoint = CheckpointStore(driver.run.spec.storage).load(driver.results[1].checkpoint)
    assert Path(checkpoint.path, "steps").read_text() == "2"


def test_a_checkpoint_that_the_driver_asked_for_is_uploaded_while_the_class_trains(gate):
    first, second = Milestone("training_iteration", 1), Milestone("training_iteration", 3)
    driver = Driver(Steps, milestones=(first,), fence=once_written(gate))
    driver.run.answer(SaveAnswer(seq=driver.awaiting().seq, milestones=(second,)))
    until(lambda: gate.asked == 1)
    driver.collect()
    assert kinds(driver) == ["Started", "Reported"]
    gate.open()
    driver.awaiting()
    assert kinds(driver) == ["Started", "Reported", "Committed", "Reported", "Reported"]
    assert driver.messages[2].checkpoint.iteration == 1
    driver.run.stop("enough")
    assert isinstance(driver.end(), Stopped)


def test_a_class_that_is_to_pause_saves_behind_what_is_under_way(gate):
    class Waits(Steps):
        def step(self):
            if self.steps == 2:
                assert resume.wait(PATIENCE)
            return super().step()

    resume = threading.Event()
    driver = Driver(Waits, checkpoint_frequency=2, fence=once_written(gate))
    until(lambda: gate.asked == 1)
    driver.run.answer(PauseAnswer(save=True))
    resume.set()
    gate.open(2)
    driver.end()
    assert kinds(driver) == ["Started", *["Reported"] * 3, "Committed", "Paused"]
    assert isinstance(driver.messages[-2], Committed)
    assert driver.messages[-2].checkpoint.iteration == 3


# What earlier starts of the trial have left.


def half_written(storage, incarnation):
    name = f"trials/t1_dir/checkpoint_000000_i{incarnation:02d}"
    storage.write_bytes(f"{name}/weights", b"half")
    return name.rpartition("/")[2]


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_restart_sweeps_what_the_starts_before_it_left_half_written(kind, tmp_path):
    storage = Storage(str(tmp_path / "exp") if kind == "local" else f"memory://{tmp_path.name}")
    half_written(storage, 1)
    theirs = half_written(storage, 3)
    driver = Driver(
        lambda config: report({}, checkpoint=Checkpoint.from_dict({})),
        storage=storage,
        incarnation=2,
        next_checkpoint=0,
    )
    assert isinstance(driver.end(), Ended)
    names = storage.names("trials", "t1_dir")
    assert names == [".incarnation-000002", "checkpoint_000000_i02", theirs]


def test_the_first_start_has_nothing_to_sweep():
    storage = Storage("memory://first-start")
    name = half_written(storage, 0)
    assert isinstance(Driver(lambda config: 1, storage=storage).end(), Ended)
    assert storage.names("trials", "t1_dir") == [name]


def test_a_sweep_that_fails_is_logged_and_user_code_does_not_wait_for_it(monkeypatch, caplog):
    trained = threading.Event()

    def hangs(*_, **options):
        assert trained.wait(PATIENCE)
        raise PermissionError("no listing")

    def train(config):
        report({})
        trained.set()

    monkeypatch.setattr(MemoryFileSystem, "ls", hangs)
    with caplog.at_level(logging.WARNING):
        driver = Driver(train, incarnation=2)
        assert isinstance(driver.end(), Ended)
    assert len(driver.results) == 1
    assert "the checkpoints that lost starts of trial t1 left" in caplog.text


def test_no_thread_is_left_behind(gate):
    gate.open(1)
    before = set(threading.enumerate())
    driver = Driver(
        lambda config: report({}, checkpoint=Checkpoint.from_dict({})),
        fence=once_written(gate),
        incarnation=2,
    )
    driver.end()
    left = set(threading.enumerate()) - before
    assert not [one.name for one in left if one.name.startswith("dasktune-t1")]
