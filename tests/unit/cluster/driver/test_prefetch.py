from __future__ import annotations

import pytest

from dasktune.cluster.driver.prefetch import PrefetchPolicy


def after(*seconds: float) -> int:
    pace = PrefetchPolicy()
    for one in seconds:
        pace.observe(one)
    return pace.depth


def test_nothing_is_prefetched_before_a_trial_has_ended():
    assert PrefetchPolicy().depth == 1


def test_the_shorter_trials_are_the_more_of_them_a_slot_is_given():
    assert after(0.001) == 16
    assert after(0.01) == 5
    assert after(0.03) == 1


def test_a_trial_that_takes_no_time_at_all_is_no_trouble():
    assert after(0.0, 0.0) == 16


def test_a_long_trial_ends_it_at_once_and_short_ones_bring_it_back():
    assert after(0.001, 5.0) == 1
    assert after(0.001, 5.0, *[0.001] * 40) == 16


def test_after_trouble_trials_run_one_by_one_for_a_while():
    pace = PrefetchPolicy()
    pace.observe(0.001)
    pace.pause()
    depths = []
    for _ in range(40):
        depths.append(pace.depth)
        pace.observe(0.001)
    assert depths[:10] == [1] * 10
    assert pace.depth > 10


def due_after(*seconds: float) -> float | None:
    policy = PrefetchPolicy()
    for one in seconds:
        policy.observe(one)
    return policy.next_due_s


def test_trials_of_one_length_get_their_successor_shortly_before_they_end() -> None:
    assert due_after() is None
    assert due_after(1.0) is None
    assert due_after(*[1.0] * 12) == pytest.approx(0.95)
    assert due_after(*[60.0] * 12) == pytest.approx(59.95)
    # They are too long to get several at once, and end before one could arrive.
    assert due_after(*[0.03] * 12) == 0.0
    # They get several at once.
    assert due_after(*[0.01] * 12) is None


def test_a_successor_is_sent_only_if_the_end_can_be_predicted() -> None:
    assert due_after(*[1.0, 1.06] * 20) is None
    assert due_after(*[1.0, 1.01] * 20) == pytest.approx(0.955, abs=0.002)
    assert due_after(*[1.0] * 20, 5.0) is None
    assert due_after(*[1.0] * 20, 5.0, *[1.0] * 12) == pytest.approx(0.95)


def test_after_trouble_no_successor_is_sent_for_a_while() -> None:
    policy = PrefetchPolicy()
    for _ in range(20):
        policy.observe(1.0)
    policy.pause()
    due = []
    for _ in range(12):
        due.append(policy.next_due_s)
        policy.observe(1.0)
    assert due[:8] == [None] * 8
    assert policy.next_due_s == pytest.approx(0.95)
