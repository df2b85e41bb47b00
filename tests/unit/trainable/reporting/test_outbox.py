from __future__ import annotations

import functools
import logging
import threading

import pytest

from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.outbox import Outbox, Urgency
from dasktune.trainable.reporting.trial_messages import Ended, Reported, Started


def collected(outbox, ack, have):
    return [decode(*entry) for entry in outbox.collect(ack, have)]


def quiet(urgency):
    pass


def put(outbox, **kwargs):
    outbox.put(lambda seq: Started(seq=seq), **kwargs)


def put_bytes(outbox, size, **kwargs):
    outbox.put(lambda seq: Reported(seq=seq, metrics={"blob": bytes(size)}), **kwargs)


def test_messages_are_numbered_from_one_and_kept_until_they_are_acknowledged():
    outbox = Outbox(quiet)
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
    outbox = Outbox(rings.append)
    put(outbox)
    put(outbox)
    assert len(rings) == 1
    outbox.collect(0, 0)
    put(outbox)
    assert len(rings) == 2


def test_messages_of_another_outbox_keep_their_numbers_and_ring():
    rings = []
    outbox, child = Outbox(rings.append), Outbox(lambda urgency: None)
    put(child)
    put(child)
    outbox.extend(child.collect(0, 0), urgent=False)
    outbox.put(lambda seq: Ended(seq=seq))
    assert rings == [Urgency.LAZY, Urgency.NOW]
    assert [m.seq for m in collected(outbox, 0, 0)] == [1, 2, 3]
    put(child)
    outbox.collect(3, 3)
    outbox.extend(child.collect(2, 2), urgent=True)
    assert rings[2:] == [Urgency.NOW]


def test_the_bell_rings_again_only_for_what_is_more_urgent():
    rings = []
    outbox = Outbox(rings.append)
    put(outbox, urgent=False)
    put(outbox, urgent=False)
    put(outbox)
    put(outbox)
    put(outbox, urgent=False)
    assert rings == [Urgency.LAZY, Urgency.NOW]


def test_the_bell_rings_once_more_when_the_outbox_is_half_full():
    rings = []
    outbox = Outbox(rings.append, max_messages=4)
    for _ in range(4):
        put(outbox)
    assert rings == [Urgency.NOW, Urgency.RETRY]
    outbox.collect(0, 4)
    # The driver has all of it and is about to acknowledge it: no reason to hurry.
    put(outbox, urgent=False)
    assert rings[2:] == [Urgency.LAZY]


def test_half_full_means_bytes_too():
    rings = []
    outbox = Outbox(rings.append, max_bytes=1000)
    put_bytes(outbox, 600, urgent=False)
    assert rings == [Urgency.RETRY]


def test_a_broken_bell_costs_no_message(caplog):
    def broken(urgency):
        raise OSError("no route")

    outbox = Outbox(broken)
    with caplog.at_level(logging.WARNING):
        put(outbox)
    assert len(outbox.collect(0, 0)) == 1
    assert "could not notify the driver" in caplog.text


def fill_beyond_the_bound(outbox, put=put):
    """Put one message more than fits, in a thread that stands still before it."""
    put(outbox, bounded=True)
    through = threading.Event()

    def report():
        put(outbox, bounded=True)
        through.set()

    threading.Thread(target=report, daemon=True).start()
    assert not through.wait(0.02)
    return through


def test_a_bounded_put_waits_until_the_driver_has_caught_up():
    outbox = Outbox(quiet, max_messages=1)
    through = fill_beyond_the_bound(outbox)
    outbox.collect(0, 1)
    assert not through.is_set()
    outbox.collect(1, 1)
    assert through.wait(30)


def test_the_bound_counts_bytes_too():
    outbox = Outbox(quiet, max_bytes=1000)
    through = fill_beyond_the_bound(outbox, lambda box, **how: put_bytes(box, 1000, **how))
    outbox.collect(0, 1)
    assert not through.is_set()
    outbox.collect(1, 1)
    assert through.wait(30)


def test_a_message_larger_than_the_bound_passes_an_empty_outbox():
    outbox = Outbox(quiet, max_bytes=1000)
    put_bytes(outbox, 5000, bounded=True)
    assert len(outbox.collect(0, 0)) == 1
    outbox.collect(1, 1)
    put_bytes(outbox, 5000, bounded=True)
    assert [seq for seq, _ in outbox.collect(1, 1)] == [2]


def test_who_waits_for_room_rings_until_there_is_some():
    rings = threading.Semaphore(0)
    outbox = Outbox(lambda urgency: rings.release(), max_messages=1)
    through = fill_beyond_the_bound(outbox)
    while rings.acquire(blocking=False):
        pass
    # The driver comes and takes the message, but it does not stand in the journal yet.
    outbox.collect(0, 1)
    assert rings.acquire(timeout=30)
    assert not through.is_set()
    outbox.collect(1, 1)
    assert through.wait(30)


def test_a_trial_that_is_to_end_is_not_held_up_by_the_bound():
    outbox = Outbox(quiet, max_messages=1)
    through = fill_beyond_the_bound(outbox)
    outbox.lift_bound()
    assert through.wait(30)


def test_what_is_no_result_is_never_held_up():
    outbox = Outbox(quiet, max_messages=1)
    put(outbox, bounded=True)
    put(outbox)
    assert len(outbox.collect(0, 0)) == 2


def test_what_only_cloudpickle_can_pickle_travels_too():
    outbox = Outbox(quiet)
    outbox.put(lambda seq: Reported(seq=seq, metrics={"twice": lambda x: 2 * x}))
    [message] = collected(outbox, 0, 0)
    assert message.metrics["twice"](2) == 4


# What is held back.


def test_nothing_is_seen_from_a_held_message_on_until_it_is_released():
    outbox = Outbox(quiet)
    put(outbox)
    put(outbox, held=True)
    put(outbox)
    put(outbox, held=True)
    put(outbox)
    assert [seq for seq, _ in outbox.collect(0, 0)] == [1]
    outbox.release()
    assert [seq for seq, _ in outbox.collect(1, 1)] == [2, 3]
    outbox.release()
    assert [seq for seq, _ in outbox.collect(3, 3)] == [4, 5]
    put(outbox)
    assert [seq for seq, _ in outbox.collect(5, 5)] == [6]


def test_a_message_may_take_the_place_of_a_held_one_that_is_released():
    outbox = Outbox(quiet, max_bytes=100)
    put(outbox)
    put(outbox, held=True)
    put_bytes(outbox, 1)
    assert [seq for seq, _ in outbox.collect(0, 0)] == [1]
    outbox.collect(1, 1)  # the first message is gone
    outbox.release(Reported(seq=2, metrics={"blob": bytes(1000)}))
    second, third = collected(outbox, 1, 1)
    assert (second.seq, len(second.metrics["blob"]), third.seq) == (2, 1000, 3)
    # The size of the outbox is that of its messages.
    outbox.collect(3, 3)
    through = fill_beyond_the_bound(outbox, lambda box, **how: put_bytes(box, 100, **how))
    outbox.collect(4, 4)
    assert through.wait(30)


def test_the_bell_rings_for_what_is_held_when_it_is_released():
    rings = []
    outbox = Outbox(rings.append)
    put(outbox, urgent=False, held=True)
    put(outbox, held=True)
    assert rings == []
    outbox.release()
    assert rings == [Urgency.NOW]
    outbox.collect(0, 0)
    outbox.release()
    assert rings == [Urgency.NOW] * 2
    outbox.collect(1, 1)
    put(outbox, urgent=False)
    assert rings[2:] == [Urgency.LAZY]


def test_what_is_withdrawn_never_was():
    rings = []
    outbox = Outbox(rings.append, max_messages=3)
    put(outbox)
    put(outbox, held=True)
    put(outbox, held=True)
    outbox.withdraw()
    assert [seq for seq, _ in outbox.collect(0, 0)] == [1]
    outbox.put(lambda seq: Ended(seq=seq))
    assert collected(outbox, 1, 1) == [Ended(seq=2)]


def test_who_waits_for_room_behind_a_held_message_gets_it_when_that_is_withdrawn():
    outbox = Outbox(quiet, max_messages=1)
    held = functools.partial(put, held=True)
    through = fill_beyond_the_bound(outbox, held)
    outbox.withdraw()
    assert through.wait(30)
    assert outbox.collect(0, 0) == []


def test_a_message_that_cannot_be_made_is_none():
    outbox = Outbox(quiet)

    def fail(seq):
        raise OSError("the one before was withdrawn")

    with pytest.raises(OSError, match="withdrawn"):
        outbox.put(fail, held=True)
    put(outbox)
    assert [m.seq for m in collected(outbox, 0, 0)] == [1]
