"""The worker's handle of a child process, whatever the order of the child's last acts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
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
    # More than fits into the connection: nobody reads it before this process has died.
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
