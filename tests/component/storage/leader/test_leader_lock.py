from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_object_store import FakeObjectStore
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lease import LeaderLease, machine_id, process_identity
from dasktune.storage.leader.leader_lock import LeaderLock, LeaderStatus, leader_status

DRIVER = """
import sys
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.storage.fs.storage import Storage

def lost():
    print("lost", flush=True)

with LeaderLock(Storage(sys.argv[1]), ttl_s=float(sys.argv[2]), on_lost=lost) as lock:
    print("leads", lock.epoch, flush=True)
    sys.stdin.read()
"""

#: Seconds that a loaded machine may need for what takes an instant.
PATIENCE = 60.0


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0
        #: What happens elsewhere meanwhile.
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.slept += seconds
        self.meanwhile()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lock_of(storage: Storage, clock: Clock, **options: Any) -> LeaderLock:
    return LeaderLock(storage, clock=clock, sleep=clock.sleep, **options)


def lock_elsewhere(storage: Storage, clock: Clock, **options: Any) -> LeaderLock:
    """Return the lock of a driver on another machine, whose clock has nothing to do with ours."""
    return lock_of(storage, clock, machine="another machine", **options)


@contextlib.contextmanager
def driver(place: Path, ttl_s: float = 30.0) -> Iterator[subprocess.Popen[str]]:
    """Run a driver that leads in a process of its own."""
    command = [sys.executable, "-c", DRIVER, str(place), str(ttl_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads 1\n"
            yield process
        finally:
            process.kill()


def acquired(make: Callable[[], LeaderLock]) -> LeaderLock:
    """Try until the lead can be taken."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        lock = make()
        with contextlib.suppress(StorageError):
            lock.acquire()
            return lock
    raise AssertionError("the lead was never free")


def never(seconds: float) -> None:
    raise AssertionError(f"waited for {seconds} s")


# Real processes


def test_a_second_driver_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    with driver(tmp_path) as first:
        words = rf"another driver \(pid {first.pid} on host .+\) leads .*{tmp_path}: stop it, or"
        for _ in range(2):
            with pytest.raises(StorageError, match=words):
                LeaderLock(Storage(str(tmp_path)), sleep=never).acquire()
        first.communicate("")
        assert first.returncode == 0
        with LeaderLock(Storage(str(tmp_path)), sleep=never) as second:
            assert second.epoch == 2


def test_the_lead_of_a_killed_driver_is_free_at_once_on_a_disk(tmp_path: Path) -> None:
    with driver(tmp_path, ttl_s=3600) as first:
        first.kill()
        first.wait()
        with LeaderLock(Storage(str(tmp_path)), sleep=never) as second:
            assert second.epoch == 2
            assert not second.lost


def test_a_frozen_driver_loses_the_lead_and_learns_of_it_when_it_wakes_up(tmp_path: Path) -> None:
    with driver(tmp_path, ttl_s=0.5) as first:
        first.send_signal(signal.SIGSTOP)
        second = acquired(lambda: LeaderLock(Storage(str(tmp_path)), ttl_s=3600))
        assert second.epoch == 2
        first.send_signal(signal.SIGCONT)
        assert first.stdout is not None
        assert first.stdout.readline() == "lost\n"
        first.communicate("")
        assert not second.lost
        assert second.renew()
        with pytest.raises(StorageError, match=rf"another driver \(pid {os.getpid()} on"):
            LeaderLock(Storage(str(tmp_path)), sleep=never).acquire()
        second.close()


def test_of_many_processes_one_gets_the_lead(tmp_path: Path) -> None:
    with driver(tmp_path, ttl_s=3600) as first:
        first.kill()
        first.wait()
    outcomes: list[LeaderLock | StorageError] = []
    barrier = threading.Barrier(8)

    def take() -> None:
        # Each opens the lock file for itself, as processes do.
        lock = LeaderLock(Storage(str(tmp_path)))
        barrier.wait(PATIENCE)
        try:
            lock.acquire()
        except StorageError as refused:
            outcomes.append(refused)
        else:
            outcomes.append(lock)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    (leader,) = [one for one in outcomes if isinstance(one, LeaderLock)]
    assert len(outcomes) == 8
    assert leader.epoch == 2
    leader.close()


# Every kind of storage, in time that is made up


def test_the_lead_is_held_and_passed_on(storage: Storage, clock: Clock) -> None:
    with lock_of(storage, clock) as first:
        assert (first.epoch, first.lost) == (1, False)
        with pytest.raises(StorageError, match="another driver"):
            lock_of(storage, clock).acquire()
        clock.now += 20
        assert first.renew()
        clock.now += 20
        with pytest.raises(StorageError, match=r"not renewed its lease for 30 s"):
            lock_of(storage, clock).acquire()
    with lock_of(storage, clock) as second:
        assert second.epoch == 2
    assert clock.slept == 0
    assert not first.renew()


def test_a_lease_says_to_people_who_leads_and_until_when(storage: Storage, clock: Clock) -> None:
    with lock_of(storage, clock, ttl_s=12):
        told = json.loads(storage.read_bytes("driver/000001.json"))
    assert told["pid"] == os.getpid()
    assert told["ttl_s"] == 12
    assert told["host"]
    assert told["expires"] > "2024"
    assert json.loads(storage.read_bytes("driver/000001.json"))["released"]


def test_the_status_says_if_a_driver_lives_has_ended_or_is_lost(remote: Storage, clock: Clock) -> None:
    def told(**options: Any) -> LeaderStatus:
        return leader_status(remote, clock=clock, **options)

    assert told() == LeaderStatus("none")
    lock_of(remote, clock).acquire()
    clock.now += 10
    assert told() == LeaderStatus("alive", 10.0)
    # By the clock of the world there, which has hardly gone on.
    seen_elsewhere = told(machine="another machine")
    assert seen_elsewhere.word == "alive"
    assert 0 <= (seen_elsewhere.age_s or 0.0) < 30
    clock.now += 25
    assert told() == LeaderStatus("lost", 35.0)
    with lock_of(remote, clock):
        assert told() == LeaderStatus("alive", 0.0)
    assert told().word == "ended"


@pytest.mark.parametrize("here", [True, False])
def test_a_dead_driver_holds_no_longer_than_its_ttl(remote: Storage, clock: Clock, here: bool) -> None:
    # It is never closed nor renewed: its thread counts real seconds.
    dead = lock_of(remote, clock)
    dead.acquire()
    if here:
        clock.now += 29
        with pytest.raises(StorageError, match="another driver"):
            lock_of(remote, clock, ttl_s=1).acquire()
        clock.now += 1
        heir = lock_of(remote, clock)
        heir.acquire()
        assert clock.slept == 0
    else:
        heir = lock_elsewhere(remote, clock, ttl_s=1)
        heir.acquire()
        assert 30 <= clock.slept < 33
    assert heir.epoch == 2
    lost = dead.renew()
    assert not lost
    assert dead.lost
    dead.close()
    assert heir.renew()
    heir.close()


def test_a_lease_is_judged_by_whether_it_changes_and_not_by_clocks(storage: Storage, clock: Clock) -> None:
    """The other machine's clock and its locks mean nothing here."""
    far = lock_elsewhere(storage, Clock())
    far.acquire()
    looks = 0

    def beat() -> None:
        nonlocal looks
        looks += 1
        if looks % 10 == 0:
            far.renew()

    clock.now = 1e9
    clock.meanwhile = beat
    with pytest.raises(StorageError, match="another driver"):
        lock_of(storage, clock).acquire()
    assert looks == 10
    clock.meanwhile = lambda: None
    heir = lock_of(storage, clock)
    heir.acquire()
    assert heir.epoch == 2
    heir.close()
    far.close()
    assert json.loads(storage.read_bytes("driver/000002.json"))["released"]


def test_a_lease_that_is_released_while_it_is_watched_is_taken(storage: Storage, clock: Clock) -> None:
    far = lock_elsewhere(storage, Clock())
    far.acquire()
    clock.meanwhile = far.close
    with lock_of(storage, clock) as heir:
        assert heir.epoch == 2
    assert clock.slept == 1.0


def test_a_driver_that_leads_while_it_is_watched_is_watched(storage: Storage, clock: Clock) -> None:
    dead = lock_elsewhere(storage, Clock())
    dead.acquire()
    others: list[LeaderLock] = []

    def take() -> None:
        if clock.slept > 25 and not others:
            # On the machine of the dead one it is known at once that its lease has expired.
            later = Clock()
            later.now += 3600
            others.append(lock_elsewhere(storage, later))
            others[0].acquire()
            assert later.slept == 0

    clock.meanwhile = take
    heir = lock_of(storage, clock)
    heir.acquire()
    assert heir.epoch == 3
    assert clock.slept > 55
    for one in (dead, *others):
        assert not one.renew()
        one.close()
    heir.close()


def test_who_finds_the_next_lease_claimed_meanwhile_is_refused(remote: Storage, clock: Clock) -> None:
    faster = LeaderLease(
        owner="0" * 32, host="h", pid=1, ttl_s=5, machine=machine_id(), renewed=clock.now
    ).encode()

    def overtake(operation: str, path: str) -> None:
        if operation == "write":
            FakeObjectStore.before = None
            FakeObjectStore.objects[path] = faster

    # It has looked before there was a leader.
    FakeObjectStore.before = overtake
    lock = lock_of(remote, clock)
    with pytest.raises(StorageError, match="another driver"):
        lock.acquire()
    assert lock.epoch == 0
    lock.close()
    assert remote.read_bytes("driver/000001.json") == faster


def test_a_lease_that_was_locked_and_never_written_delays_a_driver_once(local: Storage, clock: Clock) -> None:
    """A process froze between the two."""
    os.makedirs(local.path("driver"))
    with open(local.path("driver", "000001.lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with lock_of(local, clock) as lock:
            assert lock.epoch == 1
        assert 30 <= clock.slept < 33


def test_a_disk_without_locks_is_judged_by_signs_of_life(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    dead = lock_of(local, clock)
    dead.acquire()
    assert not json.loads(local.read_bytes("driver/000001.json"))["flock"]
    with pytest.raises(StorageError, match="another driver"):
        lock_of(local, clock).acquire()
    clock.now += 30
    with lock_of(local, clock) as heir:
        assert heir.epoch == 2
    dead.close()


def test_old_leases_are_swept(storage: Storage, clock: Clock) -> None:
    storage.write_bytes("driver/notes.txt", b"mine")
    for _ in range(4):
        lock_of(storage, clock).__enter__().close()
    expected = {"000004.json", "notes.txt"} | ({"000004.lock"} if storage.is_local else set())
    assert set(storage.names("driver")) == expected


# On the machine of the leader


def lease_of(pid: int, process: str, **more: Any) -> bytes:
    """Return the lease of a driver on this machine that was renewed just now."""
    here = {"owner": "0" * 32, "host": "h", "ttl_s": 30.0, "machine": machine_id(), "renewed": 1000.0}
    return LeaderLease(pid=pid, process=process, **{**here, **more}).encode()


SPACE = process_identity(os.getpid()).partition("/")[0]


@contextlib.contextmanager
def dead_process(*, is_reaped: bool) -> Iterator[tuple[int, str]]:
    """Yield the id and the identity of a process that was killed."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1) as process:
        identity = process_identity(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            process.wait()
        yield process.pid, identity


@pytest.mark.parametrize("is_reaped", [True, False])
def test_the_lead_of_a_killed_driver_is_free_at_once_on_every_storage(
    storage: Storage, clock: Clock, is_reaped: bool
) -> None:
    with dead_process(is_reaped=is_reaped) as (pid, identity):
        storage.write_bytes("driver/000001.json", lease_of(pid, identity))
        assert leader_status(storage, clock=clock).word == "lost"
        with lock_of(storage, clock) as heir:
            assert heir.epoch == 2
    assert clock.slept == 0


def test_a_process_that_has_the_id_of_a_dead_one_is_another(storage: Storage, clock: Clock) -> None:
    storage.write_bytes("driver/000001.json", lease_of(os.getpid(), f"{SPACE}/1"))
    with lock_of(storage, clock) as heir:
        assert heir.epoch == 2
    assert clock.slept == 0


@pytest.mark.parametrize("process", ["", "pid:[1]/5", "nonsense"])
def test_a_process_of_which_nothing_is_known_counts_as_alive(
    storage: Storage, clock: Clock, process: str
) -> None:
    with dead_process(is_reaped=True) as (pid, _):
        storage.write_bytes("driver/000001.json", lease_of(pid, process))
        with pytest.raises(StorageError, match="another driver"):
            lock_of(storage, clock).acquire()


def test_a_damaged_lease_of_a_dead_driver_of_this_machine_costs_nothing(
    local: Storage, tmp_path: Path
) -> None:
    with driver(Path(local.path()), ttl_s=3600) as first:
        first.kill()
        first.wait()
    local.write_bytes("driver/000001.json", b"garbage")
    with LeaderLock(local, sleep=never) as second:
        assert second.epoch == 2


# What goes wrong


def test_a_lease_that_was_deleted_is_not_claimed_again(remote: Storage, clock: Clock) -> None:
    """This candidate is slow: others have had number 1, and the leader has deleted it."""
    leads = lease_of(1, "", ttl_s=5.0)

    def overtake(operation: str, path: str) -> None:
        if operation == "write":
            FakeObjectStore.before = None
            FakeObjectStore.objects["bucket/exp/driver/000002.json"] = leads

    FakeObjectStore.before = overtake
    lock = lock_of(remote, clock)
    with pytest.raises(StorageError, match="another driver"):
        lock.acquire()
    assert lock.epoch == 0
    assert remote.names("driver") == ["000002.json"]
    assert remote.read_bytes("driver/000002.json") == leads


def test_who_cannot_look_after_the_claim_does_not_lead(remote: Storage, clock: Clock) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "list" and FakeObjectStore.objects:
            raise OSError("reset")

    FakeObjectStore.before = fail
    with pytest.raises(StorageError, match=r"cannot take the lead of .*reset"):
        lock_of(remote, clock).acquire()
    assert FakeObjectStore.objects == {}


def test_a_lease_that_another_experiment_replaces_is_lost(storage: Storage, clock: Clock) -> None:
    """The directory was deleted, and a new driver has claimed the same number there."""
    lock = lock_of(storage, clock)
    lock.acquire()
    theirs = lease_of(1, "", ttl_s=5.0)
    storage.write_bytes("driver/000001.json", theirs)
    assert not lock.renew()
    assert "driver/000001.json of" in lock.loss
    assert "was replaced while the experiment ran" in lock.loss
    lock.close()
    assert storage.read_bytes("driver/000001.json") == theirs


def test_an_experiment_that_begins_anew_in_the_same_place_ends_the_lead_at_once(
    storage: Storage, clock: Clock
) -> None:
    """Its lease has a lower number: the records of this driver would count in its journal."""
    lock_of(storage, clock).__enter__().close()
    with lock_of(storage, clock) as lock:
        assert lock.epoch == 2
        storage.remove_tree()
        storage.write_bytes("driver/000001.json", lease_of(1, "", ttl_s=5.0))
        assert not lock.renew()
        assert "was replaced while the experiment ran" in lock.loss


def test_a_damaged_lease_is_written_again(storage: Storage, clock: Clock) -> None:
    with lock_of(storage, clock) as lock:
        storage.write_bytes("driver/000001.json", b"garbage")
        assert lock.renew()
        assert LeaderLease.decode(storage.read_bytes("driver/000001.json")) is not None


@pytest.mark.parametrize("method", ["renew", "confirm", "close"])
def test_a_lease_that_was_deleted_is_lost(storage: Storage, clock: Clock, method: str) -> None:
    lock = lock_of(storage, clock)
    lock.acquire()
    storage.remove_tree()
    if method != "close":
        for _ in range(3):
            clock.now += 10
            with pytest.raises(StorageError, match=r"was not found; it is looked for again for 30 s"):
                getattr(lock, method)()
        clock.now += 10
    assert not getattr(lock, method)()
    assert "was not found for 30 s while the experiment ran" in lock.loss
    lock.close()
    assert clock.slept == (30 if method == "close" else 0)
    assert storage.find() == []


def test_an_interrupt_while_the_end_looks_for_a_lease_leaves_no_lock(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    lock = lock_of(local, clock)
    lock.acquire()
    local.remove("driver/000001.json")
    monkeypatch.setattr(lock, "_sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock.close()
    with lock_of(local, clock) as later:
        assert later.epoch == 1
    assert clock.slept == 0


@pytest.mark.parametrize("operation", ["read", "list"])
def test_a_lease_that_is_found_again_within_30_s_is_no_loss(
    remote: Storage, clock: Clock, operation: str
) -> None:
    def answer(error: OSError) -> None:
        def fail(each: str, path: str) -> None:
            if each == operation:
                raise error

        FakeObjectStore.before = fail
        with pytest.raises(StorageError):
            lock.renew()
        FakeObjectStore.before = None

    with lock_of(remote, clock) as lock:
        # Either a look that finds it or a look without an answer ends the 30 s.
        for between in (lock.renew, lambda: answer(OSError("reset")), lock.renew):
            answer(FileNotFoundError(errno.ENOENT, "404"))
            clock.now += 29
            answer(FileNotFoundError(errno.ENOENT, "404"))
            clock.now += 29
            between()
        answer(FileNotFoundError(errno.ENOENT, "404"))
        remote.write_bytes("driver/000002.json", lease_of(1, ""))
        assert not lock.renew()
        assert "another driver leads" in lock.loss


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENOTDIR, errno.ESTALE])
def test_a_directory_that_a_network_disk_lacks_for_a_moment_is_no_loss(
    local: Storage, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail(path: object, **_: object) -> None:
        raise OSError(error, "not now")

    with lock_of(local, clock) as lock:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", fail)
            with pytest.raises(StorageError, match=rf"{local.path()} was not found; it is looked for"):
                lock.renew()
        clock.now += 29
        assert lock.renew()


@pytest.mark.parametrize("part", ["", "driver", "journal", "journal/000001-000000.jsonl", "trials"])
@pytest.mark.parametrize("act", ["delete", "rename", "replace", "link"])
def test_a_directory_on_a_disk_that_is_no_longer_the_same_is_lost(
    local: Storage, clock: Clock, tmp_path: Path, part: str, act: str
) -> None:
    with lock_of(local, clock) as lock:
        local.write_bytes("journal/000001-000000.jsonl", b"1\n")
        local.write_bytes("trials/a/params.json", b"{}")
        assert lock.renew()
        path, aside = Path(local.path(), part), tmp_path / "aside"
        os.rename(path, aside)
        if act == "replace":
            (shutil.copytree if aside.is_dir() else shutil.copy)(aside, path)
        elif act == "link" and part:
            path.symlink_to(aside)
        elif act == "delete":
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
            with pytest.raises(StorageError, match=f"{path} was not found"):
                lock.renew()
            clock.now += 30
        assert not lock.renew()
        assert f"{path} was " in lock.loss
        assert "Tuner.restore()" in lock.loss
        if act == "rename":
            assert f"was renamed to {aside} while" in lock.loss


def test_a_journal_that_changes_to_a_new_file_is_no_loss(local: Storage, clock: Clock) -> None:
    with lock_of(local, clock) as lock:
        for number in range(3):
            local.write_bytes(f"journal/000001-{number:06d}.jsonl", b"1\n")
            assert lock.renew()


def test_a_path_that_is_a_link_may_lead_to_the_experiment(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with lock_of(Storage(tmp_path / "link"), clock) as lock:  # type: ignore[arg-type]
        assert lock.renew()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        assert not lock.renew()
        assert "link was replaced while" in lock.loss


def test_a_superseded_driver_knows_it_within_a_second(remote: Storage, clock: Clock) -> None:
    lock = lock_of(remote, clock)
    lock.acquire()
    assert lock.confirm()
    remote.write_bytes("driver/000002.json", lease_of(1, ""))
    clock.now += 0.9
    assert lock.confirm()
    clock.now += 0.2
    assert not lock.confirm()
    assert lock.lost
    lock.close()


def test_who_leads_is_asked_once_a_second(remote: Storage, clock: Clock) -> None:
    requests: list[str] = []
    with lock_of(remote, clock) as lock:
        FakeObjectStore.before = lambda operation, path: requests.append(operation)
        for _ in range(100):
            clock.now += 0.1
            assert lock.confirm()
    FakeObjectStore.before = None
    assert 9 <= requests.count("list") <= 12


def test_without_an_answer_it_is_unknown_who_leads(remote: Storage, clock: Clock) -> None:
    def fail(operation: str, path: str) -> None:
        raise OSError("reset")

    with lock_of(remote, clock) as lock:
        clock.now += 5
        FakeObjectStore.before = fail
        with pytest.raises(StorageError, match="reset"):
            lock.confirm()
        FakeObjectStore.before = None
        assert lock.confirm()


#: Leads, and forks; the fork ends as Python ends, through the block of the lock.
FORKING = """
import json, os, sys
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock
storage = Storage(sys.argv[1])
with LeaderLock(storage) as lock:
    fork = os.fork()
    if fork == 0:
        assert not lock.renew()
        sys.exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    print(json.loads(storage.read_bytes("driver/000001.json"))["released"], lock.renew())
"""


def test_a_fork_does_not_release_the_lead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=PATIENCE) == "False True\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"kind":"dasktune driver","format":1}',
        b'{"kind":"dasktune driver","format":2}',
    ],
)
def test_a_damaged_lease_counts_until_it_was_seen_for_a_ttl(
    local: Storage, clock: Clock, content: bytes
) -> None:
    check_damaged_lease(local, clock, content)


def test_an_empty_lease_counts_until_it_was_seen_for_a_ttl_on_each_storage(
    storage: Storage, clock: Clock
) -> None:
    check_damaged_lease(storage, clock, b"")


def check_damaged_lease(storage: Storage, clock: Clock, content: bytes) -> None:
    storage.write_bytes("driver/000007.json", content)
    with lock_of(storage, clock) as lock:
        assert lock.epoch == 8
    assert 30 <= clock.slept < 33


def test_a_damaged_lease_that_changes_has_an_owner(storage: Storage, clock: Clock) -> None:
    storage.write_bytes("driver/000007.json", b"1")
    clock.meanwhile = lambda: storage.write_bytes("driver/000007.json", b"2")
    with pytest.raises(StorageError, match="another driver leads the experiment"):
        lock_of(storage, clock).acquire()


SOUND = json.loads(LeaderLease(owner="0" * 32, host="h", pid=1, ttl_s=5, machine="m").encode())


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "../../x"},
        {"owner": 3},
        {"host": "a\nb"},
        {"host": "a" * 1000},
        {"host": None},
        {"machine": 1},
        {"pid": -1},
        {"pid": 10**30},
        {"pid": True},
        {"ttl_s": 0},
        {"ttl_s": 1e9},
        {"ttl_s": "30"},
        {"ttl_s": True},
        {"renewed": 1e300},
        {"renewed": None},
        {"renewals": -1},
        {"flock": 1},
        {"released": "yes"},
        {"kind": "another"},
        {"format": 2},
    ],
)
def test_a_forged_lease_is_none(change: dict[str, Any]) -> None:
    assert LeaderLease.decode(json.dumps(SOUND).encode()) is not None
    assert LeaderLease.decode(json.dumps({**SOUND, **change}).encode()) is None
    key = next(iter(change))
    assert LeaderLease.decode(json.dumps({k: v for k, v in SOUND.items() if k != key}).encode()) is None


def test_a_lease_that_a_link_replaces_is_not_renewed(local: Storage, clock: Clock, tmp_path: Path) -> None:
    with lock_of(local, clock) as lock:
        os.rename(local.path("driver", "000001.json"), tmp_path / "moved")
        os.symlink(tmp_path / "moved", local.path("driver", "000001.json"))
        before = (tmp_path / "moved").read_bytes()
        with pytest.raises(StorageError, match="must be a plain file"):
            lock.renew()
    assert (tmp_path / "moved").read_bytes() == before


def test_old_leases_that_cannot_be_removed_do_no_harm(
    remote: Storage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lock_of(remote, clock).__enter__().close()
    FakeObjectStore.failures = [None, OSError("reset")]
    with lock_of(remote, clock) as lock:
        assert lock.epoch == 2
    assert "could not remove old leases" in caplog.text


def test_a_lease_that_is_removed_between_two_looks_is_looked_for_again(remote: Storage, clock: Clock) -> None:
    """A third driver took the lead, and swept."""
    remote.write_bytes("driver/000001.json", b"damaged")

    def take_over(operation: str, path: str) -> None:
        if operation == "read":
            FakeObjectStore.before = None
            del FakeObjectStore.objects["bucket/exp/driver/000001.json"]
            FakeObjectStore.objects["bucket/exp/driver/000002.json"] = json.dumps(SOUND).encode()

    FakeObjectStore.before = take_over
    with lock_of(remote, clock) as lock:
        assert lock.epoch == 3
    assert 5 <= clock.slept < 7


@given(st.binary(max_size=60))
def test_nothing_makes_the_reading_of_a_lease_fail(data: bytes) -> None:
    assert LeaderLease.decode(data) is None


def test_a_lease_of_the_future_does_not_hold_for_ever(storage: Storage, clock: Clock) -> None:
    lease = LeaderLease(
        owner="0" * 32, host="h", pid=1, ttl_s=5, machine=machine_id(), renewed=1e12, flock=True
    )
    storage.write_bytes("driver/000001.json", lease.encode())
    with lock_of(storage, clock) as lock:
        assert lock.epoch == 2
    assert 5 <= clock.slept < 6


def test_a_number_that_cannot_be_followed_raises(storage: Storage, clock: Clock) -> None:
    storage.write_bytes("driver/999999999.json", b"")
    with pytest.raises(StorageError, match=r"driver/999999999.json .* remove it"):
        lock_of(storage, clock).acquire()


def test_links_and_pipes_are_refused(local: Storage, clock: Clock, tmp_path: Path) -> None:
    os.makedirs(local.path("driver"))
    os.symlink(tmp_path / "elsewhere", local.path("driver", "000001.lock"))
    with pytest.raises(StorageError, match="must be a plain file"):
        lock_of(local, clock).acquire()
    assert not (tmp_path / "elsewhere").exists()
    os.unlink(local.path("driver", "000001.lock"))
    os.mkfifo(local.path("driver", "000001.json"))
    with pytest.raises(StorageError, match="must be a plain file"):
        lock_of(local, clock).acquire()


def test_a_directory_in_the_place_of_a_lease_raises(local: Storage, clock: Clock) -> None:
    os.makedirs(local.path("driver", "000001.json"))
    with pytest.raises(StorageError, match="cannot read driver in"):
        lock_of(local, clock).acquire()
    os.rmdir(local.path("driver", "000001.json"))
    os.makedirs(local.path("driver", "000001.lock"))
    with pytest.raises(StorageError, match="cannot take the lead"):
        lock_of(local, clock).acquire()


def test_a_store_that_fails_costs_a_warning_and_is_tried_again(
    remote: Storage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    FakeObjectStore.failures = [OSError("reset")]
    with pytest.raises(StorageError, match=r"cannot take the lead of .*reset"):
        lock_of(remote, clock).acquire()
    lock = lock_of(remote, clock, ttl_s=0.03)
    lock.acquire()
    before = len(caplog.records)
    FakeObjectStore.failures = [OSError("reset"), OSError("reset")]
    deadline = time.monotonic() + PATIENCE
    # Its thread counts real seconds; only the lease's content is of the made-up time.
    while json.loads(remote.read_bytes("driver/000001.json"))["renewals"] < 3:
        assert time.monotonic() < deadline
    assert len(caplog.records) - before == 1
    assert "after 0.03 s another driver may take the lead" in caplog.text
    FakeObjectStore.failures = [OSError("reset")] * 1000  # a renewal may come before the release
    lock.close()
    assert "could not release the lead" in caplog.text


def test_the_loss_is_reported_once(storage: Storage, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def lost() -> None:
        calls.append("lost")
        raise RuntimeError("cannot cope")

    first = lock_of(storage, clock, on_lost=lost)
    first.acquire()
    clock.now += 30
    second = lock_of(storage, clock)
    second.acquire()
    assert [first.renew(), first.renew()] == [False, False]
    assert first.lost
    assert calls == ["lost"]
    assert "cannot cope" in caplog.text
    first.close()
    first.close()
    assert second.renew()
    second.close()


def test_a_lock_may_be_closed_by_what_its_loss_calls(storage: Storage, clock: Clock) -> None:
    called = threading.Event()

    def lost() -> None:
        first.close()
        called.set()

    first = lock_of(storage, clock, ttl_s=0.03, on_lost=lost)
    first.acquire()
    # By this clock the lease has expired, however often its thread renews it.
    later = Clock()
    later.now += 3600
    second = lock_of(storage, later)
    second.acquire()
    assert called.wait(PATIENCE)
    assert second.renew()
    second.close()


@pytest.mark.parametrize("ttl_s", [0, -1, 3601, float("nan"), "30", None, True])
def test_a_ttl_is_a_number_of_seconds(local: Storage, ttl_s: Any) -> None:
    with pytest.raises(ConfigError, match="ttl_s must be a positive number of seconds"):
        LeaderLock(local, ttl_s=ttl_s)


def test_a_lock_is_acquired_once(storage: Storage) -> None:
    lock = LeaderLock(storage)
    lock.close()
    with lock, pytest.raises(ConfigError, match="acquired once"):
        lock.acquire()


def test_processes_of_a_machine_know_each_other() -> None:
    script = "from dasktune.storage.leader.leader_lock import machine_id; print(machine_id())"
    told = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert told.strip() == machine_id() != ""


def test_a_machine_without_proc_is_known_by_name_and_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", missing)
    assert "/" in machine_id.__wrapped__()


# Ctrl-C while the lead is taken


class Interrupted(Storage):
    """A storage in which Ctrl-C comes before or after a lease is written."""

    when = ""

    def claim(self, name: str, data: bytes, **options: Any) -> None:
        if self.when == "before":
            raise KeyboardInterrupt
        super().claim(name, data, **options)
        if self.when == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("has_led", [False, True])
@pytest.mark.parametrize("when", ["before", "after", "at the thread"])
def test_a_driver_that_is_interrupted_while_it_takes_the_lead_holds_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, has_led: bool
) -> None:
    storage = Interrupted(str(tmp_path / "exp"))
    if has_led:
        with LeaderLock(storage):
            pass
    storage.when = when
    lock = LeaderLock(storage)
    with monkeypatch.context() as patch:
        if when == "at the thread":

            def interrupt(thread: threading.Thread) -> None:
                raise KeyboardInterrupt

            patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    if not has_led:
        assert list(tmp_path.iterdir()) == []
    storage.when = ""
    with LeaderLock(storage, ttl_s=3_000.0) as successor:
        assert not successor.lost
    # A further release of the interrupted lock changes nothing.
    lock.close()
