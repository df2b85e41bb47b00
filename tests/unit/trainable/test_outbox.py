from __future__ import annotations

import logging
import pickle
import threading

from dasktune.trainable.messages import Ended, Reported, Started
from dasktune.trainable.outbox import Outbox


def collected(outbox, ack, have):
    return [pickle.loads(blob) for _, blob in outbox.collect(ack, have)]


def put(outbox, **kwargs):
    outbox.put(lambda seq: Started(seq=seq), **kwargs)


def test_messages_are_numbered_from_one_and_kept_until_they_are_acknowledged():
    outbox = Outbox(lambda: None)
    put(outbox)
    put(outbox)
    assert [m.seq for m in collected(outbox, 0, 0)] == [1, 2]
    assert [m.seq for m in collected(outbox, 0, 1)] == [2]
    assert [m.seq for m in collected(outbox, 1, 0)] == [2]
    assert collected(outbox, 2, 2) == []
    outbox.put(lambda seq: Ended(seq=seq))
    assert collected(outbox, 2, 2) == [Ended(seq=3)]


def test_the_bell_rings_again_only_after_a_collect():
    rings = []
    outbox = Outbox(lambda: rings.append(1))
    put(outbox)
    put(outbox)
    assert len(rings) == 1
    outbox.collect(0, 0)
    put(outbox)
    assert len(rings) == 2


def test_messages_of_another_outbox_keep_their_numbers_and_ring():
    rings, outbox = [], Outbox(lambda: rings.append(1))
    child = Outbox(lambda: None)
    put(child)
    put(child)
    outbox.extend(child.collect(0, 0))
    outbox.put(lambda seq: Ended(seq=seq))
    assert len(rings) == 1
    assert [m.seq for m in collected(outbox, 0, 0)] == [1, 2, 3]
    put(child)
    outbox.collect(3, 3)
    outbox.extend(child.collect(2, 2))
    assert len(rings) == 2


def test_a_broken_bell_costs_no_message(caplog):
    def broken():
        raise OSError("no route")

    outbox = Outbox(broken)
    with caplog.at_level(logging.WARNING):
        put(outbox)
    assert len(outbox.collect(0, 0)) == 1
    assert "doorbell" in caplog.text


def fill_beyond_the_bound(outbox):
    """Put one message more than fits, in a thread that stands still before it."""
    put(outbox, bounded=True)
    waits, through = threading.Event(), threading.Event()
    real = outbox._has_room

    def has_room():
        waits.set()
        return real()

    outbox._has_room = has_room

    def report():
        put(outbox, bounded=True)
        through.set()

    threading.Thread(target=report, daemon=True).start()
    assert waits.wait(30)
    assert not through.is_set()
    return through


def test_a_bounded_put_waits_until_the_driver_has_caught_up():
    outbox = Outbox(lambda: None, max_messages=1)
    through = fill_beyond_the_bound(outbox)
    outbox.collect(0, 1)
    assert not through.is_set()
    outbox.collect(1, 1)
    assert through.wait(30)


def test_a_trial_that_is_to_end_is_not_held_up_by_the_bound():
    outbox = Outbox(lambda: None, max_messages=1)
    through = fill_beyond_the_bound(outbox)
    outbox.lift_bound()
    assert through.wait(30)


def test_what_is_no_result_is_never_held_up():
    outbox = Outbox(lambda: None, max_messages=1)
    put(outbox, bounded=True)
    put(outbox)
    assert len(outbox.collect(0, 0)) == 2


def test_what_only_cloudpickle_can_pickle_travels_too():
    outbox = Outbox(lambda: None)
    outbox.put(lambda seq: Reported(seq=seq, metrics={"twice": lambda x: 2 * x}))
    [message] = collected(outbox, 0, 0)
    assert message.metrics["twice"](2) == 4
