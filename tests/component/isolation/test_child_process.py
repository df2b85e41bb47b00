"""The worker's handle of a child process, whatever the order of the child's last acts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import process_run_kit
import psutil
import pytest
from process_run_kit import PATIENCE, make_spec

import dasktune as tune
from dasktune.isolation.process import ChildDied, ChildProcess
from dasktune.isolation.process_messages import ChildMessages, RunTrial
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.trial_messages import Reported, Started

Make = Callable[..., ChildProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that starts a trial in a child, which is killed after the test."""
    children: list[ChildProcess] = []

    def start(train: Any, kind: type[ChildProcess] = ChildProcess) -> ChildProcess:
        child = kind({})
        children.append(child)
        payload = ChildPayload(
            code=cloudpickle.dumps({"trainable": train}),
            config=cloudpickle.dumps({"config": {"place": str(tmp_path)}}),
        )
        child.post(RunTrial(spec=make_spec(tmp_path), payload=payload))
        return child

    yield start
    for child in children:
        child.kill()


def messages(child: ChildProcess) -> list[Any]:
    received = child.receive()
    assert isinstance(received, ChildMessages)
    return [decode(*entry) for entry in received.messages]


def wait_until(condition: Callable[[], Any]) -> None:
    ready = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        ready.wait(0.01)
    raise AssertionError("it has not come about")


def report_and_die(config: dict[str, Any]) -> None:
    import time

    while not Path(config["place"], "go").exists():
        time.sleep(0.005)
    tune.report({"x": 1})
    os._exit(3)


class DiesInBetween(ChildProcess):
    """Its child reports and dies after nothing was readable, and before somebody looks at it."""

    place: Path

    @property
    def is_alive(self) -> bool:
        (self.place / "go").touch()
        wait_until(lambda: not ChildProcess.is_alive.__get__(self))
        return False


def test_the_last_message_of_a_child_that_dies_after_the_poll_is_received(make: Make, tmp_path: Path) -> None:
    DiesInBetween.place = tmp_path
    child = make(report_and_die, DiesInBetween)
    assert [type(message) for message in messages(child)] == [Started]
    assert [type(message) for message in messages(child)] == [Reported]
    with pytest.raises(ChildDied) as death:
        child.receive()
    assert "exited with code 3" in death.value.error.message


def wait_for_ever(config: dict[str, Any]) -> None:
    import time

    time.sleep(3600)


def test_a_look_at_a_dead_child_does_not_free_its_process_id(make: Make) -> None:
    child = make(wait_for_ever)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_alive)
    # If it was free, `kill` could hit another process.
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    child.kill()
    child.stop()
    assert child.finished
    assert not child.is_alive
    assert not psutil.pid_exists(child.pid)


def report_for_ever(config: dict[str, Any]) -> None:
    import time

    while True:
        tune.report({"x": 1})
        time.sleep(0.05)


def test_a_child_that_never_falls_silent_is_stopped(make: Make) -> None:
    child = make(report_for_ever)
    messages(child)
    stopping = threading.Thread(target=child.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE / 4)
    assert not stopping.is_alive()
    assert child.finished


def die_in_the_middle_of_a_message(config: dict[str, Any]) -> None:
    import sys
    import threading
    import time

    # It keeps the connection open, and lives on.
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)

    def is_sending() -> bool:
        return any(frame.f_code.co_name == "_send" for frame in sys._current_frames().values())

    def die() -> None:
        while not (Path(config["place"], "go").exists() and is_sending()):
            time.sleep(0.005)
        os._exit(3)

    threading.Thread(target=die, daemon=True).start()
    tune.report({"ready": True})
    # More than fits into the connection: it is not read before this process has died.
    tune.report({"text": "x" * (8 << 20)})


def test_a_child_that_dies_in_the_middle_of_a_message_does_not_hold_up_its_worker(
    make: Make, tmp_path: Path
) -> None:
    child = make(die_in_the_middle_of_a_message)
    while not any(isinstance(message, Reported) for message in messages(child)):
        pass
    (tmp_path / "go").touch()
    wait_until(lambda: not child.is_alive)
    raised: list[BaseException] = []

    def receive() -> None:
        try:
            child.receive()
        except ChildDied as death:
            raised.append(death)

    receiving = threading.Thread(target=receive, daemon=True)
    receiving.start()
    receiving.join(PATIENCE / 4)
    assert [type(error) for error in raised] == [ChildDied]


#: Starts a child whose trial forks and waits, and waits, too. Takes a directory.
WORKER = """
import os, sys, time
from pathlib import Path
import cloudpickle
from dasktune.isolation.process import ChildProcess
from dasktune.isolation.process_messages import RunTrial
from dasktune.trainable.data.child_payload import ChildPayload
sys.path[:0] = sys.argv[2:]
from process_run_kit import make_spec
place = sys.argv[1]
def train(config):
    import os, signal, subprocess
    from pathlib import Path
    child = os.fork()
    if child:
        other = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(config["place"], "pid.part").write_text(f"{child} {other.pid}")
        Path(config["place"], "pid.part").rename(Path(config["place"], "pid"))
    signal.pause()
child = ChildProcess({})
payload = ChildPayload(
    code=cloudpickle.dumps({"trainable": train}), config=cloudpickle.dumps({"config": {"place": place}})
)
child.post(RunTrial(spec=make_spec(Path(place)), payload=payload))
# A thread of the worker may fork, too, and that process may live longer.
other = os.fork()
if other:
    print(other, flush=True)
time.sleep(600)
"""


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_user_code_has_forked_dies_with_a_killed_worker(tmp_path: Path) -> None:
    kit = str(Path(process_run_kit.__file__).parent)
    command = [sys.executable, "-c", WORKER, str(tmp_path), kit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        other = int(worker.stdout.readline())
        try:
            wait_until((tmp_path / "pid").exists)
            forked, in_other_group = map(int, (tmp_path / "pid").read_text().split())
            assert lives(forked)
            assert lives(in_other_group)
            worker.kill()
            wait_until(lambda: not lives(forked) and not lives(in_other_group))
            assert lives(other)
        finally:
            worker.kill()
            os.kill(other, signal.SIGKILL)


def leave_the_group(config: dict[str, Any]) -> None:
    """Start a program and a daemon in process groups of their own, and a program without mark."""
    import subprocess

    command = ["sleep", "600"]
    program = subprocess.Popen(command, start_new_session=True)
    free = {name: value for name, value in os.environ.items() if name != "DASKTUNE_PROCESS_MARK"}
    spared = subprocess.Popen(command, start_new_session=True, env=free)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon:
            # Its parent ends, so nothing leads from the trial to it.
            os.write(writing, str(daemon).encode())
            os._exit(0)
        # As daemons do. It would hold the connection of the child open.
        os.closerange(3, 256)
        signal.pause()
    tune.report({"pids": [program.pid, int(os.read(reading, 20)), spared.pid]})
    signal.pause()


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not show environments")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_has_left_the_process_group_ends_before_the_child_counts_as_ended(make: Make, how: str) -> None:
    child = make(leave_the_group)
    results: list[Reported] = []
    while not results:
        results.extend(one for one in messages(child) if isinstance(one, Reported))
    program, daemon, spared = results[0].metrics["pids"]
    try:
        assert lives(program)
        assert lives(daemon)
        if how == "killed":
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(ChildDied):
                child.receive()
        else:
            child.stop()
        assert child.finished
        assert not lives(program)
        assert not lives(daemon)
        # Without the mark a process lives on, as it was meant to.
        assert lives(spared)
    finally:
        for pid in (program, daemon, spared):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def outlive(config: dict[str, Any]) -> None:
    import multiprocessing
    import time

    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    tune.report({"forked": forked.pid})
    while not Path(config["place"], "go").exists():
        time.sleep(0.005)
    forked.terminate()
    forked.join()
    tune.report({"forked": forked.exitcode})


def test_a_child_outlives_sigterm_and_what_it_forks_does_not(make: Make, tmp_path: Path) -> None:
    child = make(outlive)
    results: list[Any] = []

    def next_result() -> Any:
        while not results:
            results.extend(one for one in messages(child) if isinstance(one, Reported))
        return results.pop(0).metrics["forked"]

    forked = next_result()
    # A batch system sends it to all processes of a job; the worker gives notice.
    os.kill(child.pid, signal.SIGTERM)
    assert psutil.pid_exists(forked)
    (tmp_path / "go").touch()
    assert next_result() == -signal.SIGTERM
    child.stop()


def fork_and_terminate(config: dict[str, Any]) -> None:
    import multiprocessing
    import time

    context = multiprocessing.get_context("fork")
    codes = []
    for _ in range(3):
        forked = context.Process(target=time.sleep, args=(600,))
        forked.start()
        # Probably before the fork has run any Python code.
        forked.terminate()
        forked.join(PATIENCE)
        codes.append(forked.exitcode)
        forked.kill()
    tune.report({"codes": codes, "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()) != set()})


def test_a_fork_that_is_terminated_at_once_ends(make: Make) -> None:
    child = make(fork_and_terminate)
    results: list[Reported] = []
    while not results:
        results.extend(one for one in messages(child) if isinstance(one, Reported))
    [result] = results
    assert result.metrics["codes"] == [-signal.SIGTERM] * 3
    assert result.metrics["blocked"] is False
    child.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
def test_a_guard_that_has_ended_or_waits_holds_up_no_end(make: Make, how: signal.Signals) -> None:
    child = make(wait_for_ever)
    assert isinstance(messages(child)[0], Started)
    [guard] = [one for one in psutil.Process().children() if one.cmdline()[-1:] == [str(child.pid)]]
    os.kill(guard.pid, how)
    child.kill()

    def receive() -> None:
        with suppress(ChildDied):
            while True:
                child.receive()

    receiving = threading.Thread(target=receive, daemon=True)
    receiving.start()
    receiving.join(PATIENCE)
    assert not receiving.is_alive()
    assert child.finished
    assert not guard.is_running()


def report_mask(config: dict[str, Any]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # A program that user code starts ends by SIGTERM.
    with subprocess.Popen(["sleep", "60"]) as program:
        program.terminate()
        status = program.wait()
    tune.report({"blocked": signal.SIGTERM in blocked, "status": status})


def test_a_termination_while_the_child_starts_is_survived(make: Make) -> None:
    child = make(report_mask)
    # The child is still far from its own code: the interpreter starts.
    os.kill(child.pid, signal.SIGTERM)
    news = [*messages(child), *messages(child)]
    assert isinstance(news[0], Started)
    [reported] = [one for one in news if isinstance(one, Reported)]
    assert reported.metrics["blocked"] is False
    assert reported.metrics["status"] == -signal.SIGTERM
