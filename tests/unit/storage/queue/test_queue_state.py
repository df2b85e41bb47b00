"""States of queued experiments, and the order in which they start."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.storage.queue.queue_state import (
    QueueState,
    QueueStatus,
    count_deaths,
    start_order,
    state_of,
)

OVER = [one for one in QueueState if one.is_over]

entries = st.lists(
    st.builds(
        QueueStatus,
        entry_id=st.text("abc", min_size=8, max_size=8),
        name=st.just("run"),
        priority=st.sampled_from([-1.0, 0.0, 1.0]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        submitted=st.floats(0, 100),
        state=st.sampled_from(QueueState),
    ),
    max_size=12,
    unique_by=lambda one: one.entry_id,
)


def test_a_recorded_end_stands_whatever_else_is_there():
    for outcome, is_driven, is_cancelled in product(OVER, (True, False), (True, False)):
        assert state_of(outcome, is_driven=is_driven, is_cancelled=is_cancelled) is outcome


def test_without_an_end_the_driver_decides_and_then_the_user():
    table = {
        (True, True): QueueState.RUNNING,
        (True, False): QueueState.RUNNING,
        (False, True): QueueState.CANCELLED,
        (False, False): QueueState.QUEUED,
    }
    for (is_driven, is_cancelled), state in table.items():
        assert state_of(None, is_driven=is_driven, is_cancelled=is_cancelled) is state


@settings(max_examples=30)
@given(entries, st.floats(0, 200))
def test_each_queued_experiment_starts_once_and_no_lower_class_before_a_higher_one(found, now):
    ordered = start_order(found, now)
    queued = [one.entry_id for one in found if one.state is QueueState.QUEUED]
    assert sorted(one.entry_id for one in ordered) == sorted(queued)
    assert [one.priority for one in ordered] == sorted((one.priority for one in ordered), reverse=True)


@settings(max_examples=30)
@given(entries, st.floats(0, 200))
def test_an_older_experiment_of_the_same_weight_and_class_starts_first(found, now):
    ordered = start_order(found, now)
    for at, one in enumerate(ordered):
        for later in ordered[at + 1 :]:
            if (later.priority, later.weight) == (one.priority, one.weight):
                assert one.submitted <= later.submitted


@settings(max_examples=30)
@given(entries)
def test_each_experiment_is_the_first_of_its_class_at_some_time(found):
    waiting = [one for one in found if one.state is QueueState.QUEUED and one.priority == 0]
    heavy = QueueStatus(entry_id="new", name="new", weight=4.0, submitted=1e9)
    if waiting:
        # An unlimited stream of heavy experiments passes no old one for ever.
        assert start_order([*waiting, heavy], now=1e9 + 1)[0] is not heavy


def test_deaths_count_only_while_there_is_no_new_result():
    assert count_deaths([5]) == 0
    assert count_deaths([0, 0, 0]) == 2
    assert count_deaths([0, 0, 3]) == 0
    assert count_deaths([3, 3, 0, 3, 3]) == 1
    assert count_deaths([3, None, 3, 3]) == 2
    assert count_deaths([3, 3, None]) == 0
