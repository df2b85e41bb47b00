"""The files of a queue: each step of several drivers, and each death between two steps."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product

import pytest

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock, OtherDriverLeadsError
from dasktune.storage.queue.experiment_queue import ExperimentQueue
from dasktune.storage.queue.queue_state import MOST_DEATHS, OVER, QueueState


@pytest.fixture
def queue(tmp_path) -> ExperimentQueue:
    return ExperimentQueue(Storage(str(tmp_path / "queue")))


def submit(queue: ExperimentQueue, name: str = "run") -> str:
    return queue.add(name, b"tuner", priority=1, weight=2.0, submitted=1e9)


class World:
    """What drivers share: the lock of an experiment, and the experiment itself."""

    def __init__(self, queue: ExperimentQueue, entry_id: str) -> None:
        self.queue, self.entry_id = queue, entry_id
        self.holder: object = None
        self.epoch = 0
        #: Records of the experiment's journal by directory; 3 is its end.
        self.records: dict[str, int] = {}
        self.ends: list[str] = []

    def driver(self, name: str) -> Iterator[None]:
        """Take the steps of a driver; between any two of them it may die."""
        me = object()
        while self.holder is not None:
            yield
        self.holder, epoch = me, self.epoch + 1
        self.epoch = epoch
        yield
        directory = self.queue.directory(self.entry_id)
        if self.queue.begin(self.entry_id, epoch, self.records.get(directory, 0)):
            yield
            if not directory:
                directory = f"chosen-by-{name}"
                self.queue.set_directory(self.entry_id, directory)
                yield
            while self.records.get(directory, 0) < 3:
                self.records[directory] = self.records.get(directory, 0) + 1
                yield
            if self.queue.end(self.entry_id, QueueState.FINISHED, f"in {directory}"):
                self.ends.append(directory)
            yield
        self.holder = None


def play(world: World, order: tuple[int, ...], deaths: dict[int, int]) -> None:
    """Let drivers take steps in an order; a driver dies after so many of its steps."""
    drivers: dict[int, Iterator[None]] = {}
    taken = dict.fromkeys(range(3), 0)
    # In the end all that live take their other steps.
    for who in (*order, *(0, 1, 2) * 20):
        steps = drivers.setdefault(who, world.driver(str(who)))
        if deaths.get(who) == taken[who]:
            frame = steps.gi_frame  # type: ignore[attr-defined]
            if frame is not None and frame.f_locals.get("me") is world.holder:
                world.holder = None  # the system unlocks what a dead process has locked
            steps.close()  # type: ignore[attr-defined]
        taken[who] += 1
        next(steps, None)


def test_each_order_of_two_drivers_and_their_deaths_gives_one_result(tmp_path):
    orders = list(product((0, 1), repeat=7))
    for number, order in enumerate(orders):
        # Each moment of death of each driver occurs with many orders.
        deaths = {0: number % 8, 1: number // 8 % 9}
        queue = ExperimentQueue(Storage(f"memory://orders-{os.getpid()}-{number}"))
        world = World(queue, submit(queue))
        play(world, order, deaths)
        status = queue.status(world.entry_id)
        assert status.state is QueueState.FINISHED
        assert len(world.ends) == 1
        # No result is lost, and no second directory is begun.
        assert world.records == {status.directory: 3}
        queue.storage.remove_tree()


@pytest.mark.parametrize("cancels", [False, True])
def test_a_driver_never_runs_an_experiment_that_is_removed(tmp_path, cancels):
    """A removal begins at each step of a driver, dies after each of its own, and is repeated."""
    for number, (steps, calls) in enumerate(product(range(9), range(4))):
        queue = ExperimentQueue(Storage(str(tmp_path / str(number))))
        entry_id = submit(queue)
        world = World(queue, entry_id)
        driver = world.driver("a")
        for _ in range(steps):
            next(driver, None)
        if cancels and world.epoch == 0:
            queue.cancel(entry_id)
        was_over = queue.status(entry_id).state.is_over
        dying = ExperimentQueue(DyingStorage(str(tmp_path / str(number)), calls))
        with suppress(ConnectionAbortedError):
            dying.prune(older_than_s=0)
        ran = dict(world.records)
        # This driver continues, and a runner that has read the queue before starts another one.
        for late in (driver, world.driver("b")):
            for _ in late:
                pass
        if was_over:
            assert world.records == ran
        else:
            assert world.records == {"chosen-by-a": 3}
        queue.prune(older_than_s=0)
        assert queue.ids() == []


class DyingStorage(Storage):
    """A storage whose process dies after a number of calls that delete something."""

    def __init__(self, url: str, calls: int) -> None:
        super().__init__(url)
        self.calls = calls

    def _count(self) -> None:
        if self.calls == 0:
            raise ConnectionAbortedError
        self.calls -= 1

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)

    def remove_tree(self, *parts: str) -> None:
        self._count()
        super().remove_tree(*parts)


def test_only_old_experiments_that_are_over_are_removed(queue, monkeypatch):
    now = 2e9
    monkeypatch.setattr(time, "time", lambda: now)
    names = ("waits", "runs", "finished", "failed", "cancelled", "new", "undated", "damaged")
    ids = {name: submit(queue, name) for name in names}
    for name in ("finished", "failed", "new", "undated"):
        outcome = QueueState.FAILED if name == "failed" else QueueState.FINISHED
        now = 2e9 + 500 * (name == "new")
        queue.end(ids[name], outcome)
    now = 2e9
    queue.cancel(ids["cancelled"])
    end = json.loads(queue.storage.read_bytes(f"{ids['undated']}/end.json"))
    del end["time"]
    queue.storage.write_bytes(f"{ids['undated']}/end.json", json.dumps(end).encode())
    queue.storage.write_bytes(f"{ids['damaged']}/entry.json", b"{}")
    queue.storage.write_bytes("mine/other.txt", b"of the user")
    with LeaderLock(queue.entry(ids["runs"])):
        queue.cancel(ids["runs"])

        def prune(*states: QueueState, age: float = 1000) -> set[str]:
            return {one.name for one in queue.prune(older_than_s=age, now=2e9 + 1000, states=states or OVER)}

        assert prune(age=1e9 + 1001) == set()
        assert prune(age=1001) == {"undated"}
        assert prune(QueueState.FAILED) == {"failed"}
        assert prune() == {"finished", "cancelled"}
        assert prune(age=0) == {"new"}
        assert {one.name for one in queue.statuses()} == {"waits", "runs", ids["damaged"]}
    assert "mine" in queue.ids()


def test_a_submission_that_has_not_ended_is_not_removed(queue):
    other = submit(queue)
    queue.storage.remove(f"{other}/entry.json")
    assert queue.prune(older_than_s=0) == []
    assert queue.storage.exists(f"{other}/tuner.pkl")


def test_a_submission_that_writes_its_first_file_is_not_removed(tmp_path):
    """The file has another name until it is complete, so the directory seems to be empty."""
    writing = PruningStorage(str(tmp_path))
    queue = ExperimentQueue(writing)
    entry_id = queue.add("run", b"tuner", priority=1, weight=2.0, submitted=writing.now)
    assert writing.seen == [[entry_id]]
    assert queue.status(entry_id).state is QueueState.QUEUED
    # What a submission has left that died then is removed later.
    for file in ("entry.json", "tuner.pkl"):
        queue.storage.remove(f"{entry_id}/{file}")
    queue.prune(older_than_s=0, now=writing.now + 100_000)
    assert queue.ids() == []


class PruningStorage(Storage):
    """A storage on which another process prunes while the first file of a submission is written."""

    now = 2e9
    seen: list[list[str]]

    def claim(self, name: str, data: bytes, *, durable: bool = False) -> None:
        if name.endswith("tuner.pkl"):
            temporary = self.path(name.replace("tuner.pkl", ".tmp-0"))
            os.makedirs(os.path.dirname(temporary))
            with open(temporary, "wb"):
                other = ExperimentQueue(Storage(self.url))
                other.prune(older_than_s=0, now=self.now + 3600)
                self.__dict__["seen"] = [other.ids()]
            os.unlink(temporary)
        super().claim(name, data, durable=durable)


def test_a_queue_in_an_object_store_has_each_file_once(s3):
    storage = s3.storage()
    queue, other = ExperimentQueue(storage), ExperimentQueue(Storage(storage.url, s3.options()))
    assert queue.statuses() == []
    entry_id = submit(queue)
    assert [one.state for one in other.statuses()] == [QueueState.QUEUED]
    with LeaderLock(queue.entry(entry_id)) as lock:
        with pytest.raises(OtherDriverLeadsError):
            LeaderLock(other.entry(entry_id)).acquire()
        assert other.status(entry_id).state is QueueState.RUNNING
        assert queue.begin(entry_id, lock.epoch, 0)
        queue.set_directory(entry_id, "first")
        other.set_directory(entry_id, "second")
        assert (queue.directory(entry_id), other.directory(entry_id)) == ("first", "first")
        queue.give_back(entry_id, lock.epoch, "the cluster is away")
        assert queue.add_failure(entry_id, lock.epoch, "kind", 0) == 1
    assert other.status(entry_id).reason == "the cluster is away"
    other.cancel(entry_id)
    assert queue.is_cancelled(entry_id)
    assert queue.end(entry_id, QueueState.FINISHED)
    assert not other.end(entry_id, QueueState.FAILED, "too late")
    assert other.status(entry_id).state is QueueState.FINISHED


def test_a_submission_that_died_before_its_last_write_is_not_in_the_queue(queue):
    entry_id = submit(queue)
    queue.storage.remove(f"{entry_id}/entry.json")
    assert queue.statuses() == []
    with pytest.raises(ConfigError, match="entry must be one of the queue"):
        queue.status(entry_id)


def test_an_experiment_runs_while_a_driver_holds_its_lock(queue):
    entry_id = submit(queue)
    with LeaderLock(queue.entry(entry_id)):
        assert queue.status(entry_id).state is QueueState.RUNNING
        queue.cancel(entry_id)
        assert queue.status(entry_id).state is QueueState.RUNNING
    assert queue.status(entry_id).state is QueueState.CANCELLED


def test_a_damaged_file_of_a_cancelling_has_no_issuer(queue):
    entry_id = submit(queue)
    assert queue.cancelled_by(entry_id) == ""
    queue.storage.write_bytes(f"{entry_id}/cancel.json", b'{"by": "an')
    assert queue.cancelled_by(entry_id) == ""
    assert queue.is_cancelled(entry_id)


def test_a_cancelled_experiment_does_not_begin_again(queue):
    entry_id = submit(queue)
    queue.cancel(entry_id)
    queue.cancel(entry_id)
    assert not queue.begin(entry_id, 1, 0)
    assert queue.status(entry_id).state is QueueState.CANCELLED


def test_the_queue_says_who_has_cancelled_an_experiment_if_that_is_known(queue):
    entry_id = submit(queue)
    assert queue.cancelled_by(entry_id) == ""
    queue.cancel(entry_id, "ann@node7")
    queue.cancel(entry_id, "bob@node8")
    assert queue.cancelled_by(entry_id) == "ann@node7"
    for content in (b"", b"{}", b'{"by": 3}'):
        queue.storage.write_bytes(f"{entry_id}/cancel.json", content)
        assert queue.cancelled_by(entry_id) == ""


def test_the_first_end_stands(queue):
    entry_id = submit(queue)
    assert queue.end(entry_id, QueueState.FINISHED)
    assert not queue.end(entry_id, QueueState.FAILED, "too late")
    assert queue.status(entry_id).state is QueueState.FINISHED
    assert not queue.begin(entry_id, 1, 0)


def test_an_experiment_that_kills_its_drivers_fails_and_one_that_makes_progress_does_not(queue):
    bad, good = submit(queue, "bad"), submit(queue, "good")
    for epoch in range(MOST_DEATHS):
        assert queue.begin(bad, epoch, 0)
        assert queue.begin(good, epoch, epoch)
    assert not queue.begin(bad, MOST_DEATHS, 0)
    assert queue.begin(good, MOST_DEATHS, MOST_DEATHS)
    assert queue.find("bad").state is QueueState.FAILED
    assert "drivers died" in queue.find("bad").reason


def test_starts_that_cannot_be_read_are_no_deaths_and_hide_none(queue):
    entry_id = submit(queue)
    for epoch in range(MOST_DEATHS):
        assert queue.begin(entry_id, epoch, 5)
    # Left by drivers that died while they wrote it, and by a disk that lost its content.
    queue.storage.write_bytes(f"{entry_id}/starts/.tmp-1", b"")
    queue.storage.write_bytes(f"{entry_id}/starts/000000003.json", b"")
    assert queue.begin(entry_id, MOST_DEATHS, 5)
    assert queue.begin(entry_id, MOST_DEATHS + 1, None)
    assert not queue.begin(entry_id, MOST_DEATHS + 2, 5)


def test_an_orderly_end_is_no_death_and_says_why(queue):
    entry_id = submit(queue)
    for epoch in range(2 * MOST_DEATHS):
        assert queue.begin(entry_id, epoch, 0)
        queue.give_back(entry_id, epoch, "the cluster is away")
    assert queue.status(entry_id).reason == "the cluster is away"


def test_failures_of_one_kind_count_until_there_is_a_new_result(queue):
    entry_id = submit(queue)
    kinds = [("a", 0), ("b", 0), ("a", 0), ("a", 7), ("a", None), ("a", 7)]
    counts = [queue.add_failure(entry_id, n, kind, results) for n, (kind, results) in enumerate(kinds)]
    assert counts == [1, 1, 2, 1, 1, 2]
    # A repeated write counts once, and a damaged record not at all.
    assert queue.add_failure(entry_id, 5, "a", 7) == 2
    queue.storage.write_bytes(f"{entry_id}/failures/000000003.json", b"")
    assert queue.add_failure(entry_id, 6, "a", 7) == 2


@pytest.mark.parametrize("name", ["entry.json", "end.json", "directory.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b'{"kind": 1}', b'{"a": NaN}'])
def test_a_damaged_experiment_hides_no_other_one_and_does_not_start(queue, name, content):
    damaged, sound = submit(queue, "damaged"), submit(queue, "sound")
    queue.storage.write_bytes(f"{damaged}/{name}", content)
    states = {one.entry_id: one.state for one in queue.statuses()}
    assert states[sound] is QueueState.QUEUED
    harmless = name == "directory.json" and content == b'{"kind": 1}'
    assert states[damaged] is (QueueState.QUEUED if harmless else QueueState.FAILED)


@pytest.mark.parametrize("name", ["entry.json", "end.json", "directory.json"])
def test_an_experiment_that_cannot_be_read_now_has_not_failed(queue, name):
    class StaleStorage(Storage):
        def read_bytes(self, *parts: str) -> bytes:
            if parts == (f"{lost}/{name}",):
                raise OSError(errno.ESTALE, "stale file handle")
            return super().read_bytes(*parts)

    lost, sound = submit(queue, "lost"), submit(queue, "sound")
    queue.set_directory(lost, "somewhere")
    queue.end(lost, QueueState.FINISHED)
    states = {one.entry_id: one for one in ExperimentQueue(StaleStorage(queue.storage.url)).statuses()}
    assert states[lost].state is QueueState.UNKNOWN
    assert not states[lost].state.is_over
    assert "stale file handle" in states[lost].reason
    assert states[sound].state is QueueState.QUEUED
    assert queue.status(lost).state is QueueState.FINISHED


@pytest.mark.parametrize("outcome", ["queued", "unknown", "other", None])
def test_an_end_that_is_none_is_damaged(queue, outcome):
    entry_id = submit(queue)
    queue.storage.write_bytes(f"{entry_id}/end.json", json.dumps({"outcome": outcome}).encode())
    with pytest.raises(StorageError, match="damaged"):
        queue.status(entry_id)


def test_other_files_in_the_queue_are_no_experiments(queue):
    entry_id = submit(queue)
    queue.storage.write_bytes("README", b"mine")
    assert [one.entry_id for one in queue.statuses()] == [entry_id]


def test_no_pickle_is_read_that_other_users_can_change(queue):
    entry_id = submit(queue)
    assert queue.pickled(entry_id) == b"tuner"
    os.chmod(queue.storage.path(entry_id), 0o777)
    with pytest.raises(StorageError, match="only you can change"):
        queue.pickled(entry_id)


def test_an_experiment_is_found_by_its_id_and_the_newest_one_by_its_name(queue):
    first = submit(queue)
    later = queue.add("run", b"", priority=0, weight=1.0, submitted=2e9)
    assert queue.find(first).entry_id == first
    assert queue.find("run").entry_id == later
    with pytest.raises(ConfigError, match="the ID or the name"):
        queue.find("other")
    with pytest.raises(ConfigError, match="one of the queue"):
        queue.status("../run")
