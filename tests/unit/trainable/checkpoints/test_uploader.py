from __future__ import annotations

import threading
import time

import pytest
from trial_run_kit import PATIENCE

from dasktune.trainable.checkpoints.uploader import Uploader


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.001)


class Store:
    """Uploads that take until they are let through, and the failures that came of them."""

    def __init__(self):
        self.done, self.withdrawn = [], []
        self.gates = [threading.Event() for _ in range(5)]
        self.uploader = Uploader("upload", lambda: self.withdrawn.append(list(self.done)))

    def add(self, number, error=None):
        def work():
            assert self.gates[number].wait(PATIENCE)
            if error is not None:
                raise error
            self.done.append(number)

        self.uploader.upload(work)


def waits(call):
    """Call in a thread, return an event for its return, and see that it stands still first."""
    through, outcome = threading.Event(), []

    def run():
        try:
            call()
        except BaseException as error:
            outcome.append(error)
        through.set()

    threading.Thread(target=run, daemon=True).start()
    assert not through.wait(0.02)
    return through, outcome


def test_uploads_are_done_in_order_and_none_is_waited_for():
    store = Store()
    store.add(0)
    store.uploader.wait_for_room()
    store.add(1)
    assert store.done == []
    store.gates[1].set()
    store.gates[0].set()
    store.uploader.flush()
    assert store.done == [0, 1]
    store.uploader.close()


def test_the_third_upload_waits_for_the_first():
    store = Store()
    store.add(0)
    store.add(1)
    through, _ = waits(store.uploader.wait_for_room)
    store.gates[0].set()
    assert through.wait(PATIENCE)
    assert store.done == [0]
    store.gates[1].set()
    store.uploader.close()


def test_a_flush_waits_for_all():
    store = Store()
    store.add(0)
    store.add(1)
    through, _ = waits(store.uploader.flush)
    store.gates[0].set()
    until(lambda: store.done == [0])
    assert not through.is_set()
    store.gates[1].set()
    assert through.wait(PATIENCE)
    store.uploader.close()


def test_a_failure_drops_what_waits_behind_it_and_is_raised_everywhere():
    store, error = Store(), OSError("no such bucket")
    store.add(0)
    store.add(1, error)
    store.add(2)
    through, outcome = waits(store.uploader.flush)
    for gate in store.gates:
        gate.set()
    assert through.wait(PATIENCE)
    assert outcome == [error]
    assert store.withdrawn == [[0]]
    for call in (
        store.uploader.check,
        store.uploader.flush,
        store.uploader.wait_for_room,
        lambda: store.add(3),
        store.uploader.close,
    ):
        with pytest.raises(OSError, match="no such bucket"):
            call()
    assert store.done == [0]


def test_a_close_does_what_is_left_and_ends_the_thread():
    store, other = Store(), []
    store.uploader.do(lambda: other.append("swept"))
    store.add(0)
    store.gates[0].set()
    store.uploader.close()
    assert store.done == [0]
    assert other == ["swept"]
    assert "upload" not in [thread.name for thread in threading.enumerate()]


def test_none_waits_for_what_is_no_upload():
    store, gate = Store(), threading.Event()
    store.uploader.do(lambda: gate.wait(PATIENCE))
    store.uploader.flush()
    assert not gate.is_set()
    gate.set()
    store.uploader.close()


def test_without_work_there_is_no_thread():
    before = set(threading.enumerate())
    uploader = Uploader("upload", lambda: None)
    uploader.flush()
    # A thread of another test may end meanwhile.
    assert set(threading.enumerate()) <= before
    uploader.close()
