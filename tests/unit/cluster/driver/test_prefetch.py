from __future__ import annotations

from dasktune.cluster.driver.prefetch import PrefetchDepth


def after(*seconds: float) -> int:
    pace = PrefetchDepth()
    for one in seconds:
        pace.observe(one)
    return pace.depth


def test_nothing_is_prefetched_before_a_trial_has_ended():
    assert PrefetchDepth().depth == 1


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
    pace = PrefetchDepth()
    pace.observe(0.001)
    pace.pause()
    depths = []
    for _ in range(40):
        depths.append(pace.depth)
        pace.observe(0.001)
    assert depths[:10] == [1] * 10
    assert pace.depth > 10
