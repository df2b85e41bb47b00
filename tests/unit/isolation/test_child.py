"""The child's side of the link, in this process: a worker's words in, a trial's words out."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from process_run_kit import PATIENCE, make_spec

import dasktune as tune
from dasktune.isolation.child import ChildServer
from dasktune.isolation.process_messages import (
    Acknowledge,
    AnswerTrial,
    AskCommit,
    ChildFinished,
    ChildMessages,
    CommitAllowed,
    FromChild,
    InitChild,
    Interrupt,
    RunTrial,
    StopChild,
    ToChild,
)
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    Failed,
    Reported,
    Started,
    StopAnswer,
    Stopped,
)


class Worker:
    """The worker's end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.gone = threading.Event()
        self.link: Connection
        self.link, self.theirs = Pipe()
        self.thread = threading.Thread(target=ChildServer(self.theirs, self.gone.set).serve, daemon=True)
        self.thread.start()

    def begin(self, trainable: Any, *, again: bool = False, **spec: Any) -> None:
        payload = None if again else cloudpickle.dumps({"trainable": trainable})
        config = cloudpickle.dumps({"config": {"x": 1}})
        self.post(
            RunTrial(
                spec=make_spec(self.place, **spec),
                payload=ChildPayload(code=payload, config=config),
            )
        )

    def post(self, message: ToChild) -> None:
        self.link.send(message)

    def receive(self) -> FromChild:
        assert self.link.poll(PATIENCE)
        message: FromChild = pickle.loads(self.link.recv_bytes())
        return message

    def listen(self) -> tuple[list[Any], ChildFinished]:
        """Return what the trial reports, and its end."""
        said: list[Any] = []
        while not isinstance(message := self.receive(), ChildFinished):
            if isinstance(message, ChildMessages):
                said += [decode(*entry) for entry in message.messages]
        return said, message


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    if worker.thread.is_alive():
        worker.post(StopChild())
        worker.thread.join(PATIENCE)
    worker.link.close()
    worker.theirs.close()


def report_once(config: dict[str, Any]) -> None:
    tune.report(config)


def test_a_trial_comes_message_by_message_and_its_last_word_alone(worker: Worker) -> None:
    worker.begin(report_once)
    said, over = worker.listen()
    assert [type(message) for message in said] == [Started, Reported]
    assert said[1].metrics["x"] == 1
    assert pickle.loads(over.terminal) == Ended(seq=3)
    assert over.changes == ""


class Opened:
    """Stands for code that counts how often it is unpickled."""

    times = 0

    def __reduce__(self) -> Any:
        return open_code, ()


def open_code() -> Any:
    Opened.times += 1
    return report_once


def test_the_code_is_opened_once_for_all_trials(worker: Worker) -> None:
    before = Opened.times
    for again in (False, True):
        worker.begin(Opened(), again=again)
        said, _ = worker.listen()
        assert said[1].metrics["x"] == 1
    assert Opened.times == before + 1


def test_what_is_acknowledged_is_not_said_again(worker: Worker) -> None:
    gate = threading.Event()
    known[0] = gate
    worker.begin(report_after_event)
    assert isinstance(worker.receive(), ChildMessages)
    worker.post(Acknowledge(ack=1))
    gate.set()
    said, _ = worker.listen()
    assert [message.seq for message in said] == [2]


#: What a trial in this process may see of its test.
known: dict[int, threading.Event] = {}


def report_after_event(config: dict[str, Any]) -> None:
    assert known[0].wait(PATIENCE)
    tune.report(config)


def report_for_ever(config: dict[str, Any]) -> None:
    while True:
        tune.report(config)


def loop(config: dict[str, Any]) -> None:
    while True:
        pass


def test_an_answer_reaches_the_trial_that_it_follows(worker: Worker) -> None:
    worker.begin(report_for_ever)
    worker.post(AnswerTrial(answer=StopAnswer()))
    _, over = worker.listen()
    assert isinstance(pickle.loads(over.terminal), Stopped)


def test_an_interrupt_ends_user_code(worker: Worker) -> None:
    worker.begin(loop)
    worker.post(Interrupt())
    _, over = worker.listen()
    assert isinstance(pickle.loads(over.terminal), Stopped)


def save(config: dict[str, Any]) -> None:
    tune.report(config, checkpoint=tune.Checkpoint.from_dict({"x": 1}))


@pytest.mark.parametrize("refusal", [None, "no driver"])
def test_a_checkpoint_waits_for_the_verdict(worker: Worker, refusal: str | None) -> None:
    worker.begin(save)
    # The worker is asked before the first file is written, and when all are.
    for verdict in (None, refusal):
        while not isinstance(worker.receive(), AskCommit):
            pass
        assert not list(worker.place.rglob("*manifest*"))
        worker.post(CommitAllowed(refusal=verdict))
    said, over = worker.listen()
    last = pickle.loads(over.terminal)
    if refusal is None:
        assert said[0].checkpoint is not None
        assert isinstance(last, Ended)
    else:
        assert isinstance(last, Failed)
        assert "no driver" in last.error.message


def leave_thread(config: dict[str, Any]) -> None:
    threading.Thread(target=known[0].wait, name="left").start()


def test_what_a_trial_leaves_behind_is_named(worker: Worker) -> None:
    known[0] = threading.Event()
    worker.begin(leave_thread)
    _, over = worker.listen()
    known[0].set()
    assert over.changes == "thread left"


def test_the_end_of_the_worker_is_noticed(worker: Worker) -> None:
    worker.link.close()
    assert worker.gone.wait(PATIENCE)
    # For the fixture, which says goodbye to those that live.
    worker.thread = threading.Thread()


def test_what_is_not_meant_for_a_trial_is_a_bug(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda raised: errors.put(raised.exc_value))
    # Nothing is to be acknowledged before there is a trial.
    worker.post(Acknowledge(ack=1))
    worker.begin(report_once)
    worker.post(InitChild(parent=1, crash_file=2))
    error = errors.get(timeout=PATIENCE)
    assert isinstance(error, TypeError)
    assert "a bug in dasktune" in str(error)
    # The trial is not touched, and ends before its link does.
    said, _ = worker.listen()
    assert [type(message) for message in said] == [Started, Reported]
    # For the fixture: no thread listens any more.
    worker.thread = threading.Thread()
