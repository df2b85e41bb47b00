"""The driver's link and a worker's endpoint, joined by a wire on which everything goes wrong."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import (
    JumpingLoop,
    Trial,
    is_open,
    play,
    trials,
)

from dasktune.trainable.reporting.trial_messages import PauseAnswer, StopAnswer
from dasktune.trial.events import (
    ResultReported,
    TrialEnded,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.milestone import EVERY_RESULT, Milestone

# What must hold.


def check(trial, *, died):
    *told, end = trial.events
    assert all(map(is_open, told)), "it ended twice, or something came after its end"
    expected = [TrialStarted, *[ResultReported] * (len(told) - 1)][: len(told)]
    assert [type(event) for event in told] == expected
    assert [event.seq for event in told] == [*range(1, len(told) + 1)]
    numbers = [event.metrics["number"] for event in told[1:]]
    assert numbers == [*range(1, len(numbers) + 1)]
    if end is None or isinstance(end, TrialLost):
        assert died or trial.plan.other_dies is not None
        assert trial.begun <= 1
        return
    assert end.seq == len(told) + 1
    assert trial.begun == bool(told)
    # All that user code has reported up to the order to leave, and nothing else.
    assert len(numbers) == trial.reports
    if trial.reports_when_ordered is not None:
        assert trial.reports <= trial.reports_when_ordered + 1
    kind = type(trial.plan.order)
    match end:
        case TrialReturned():
            assert not told
        case TrialEnded():
            assert not trial.plan.fails
            assert len(numbers) == len(trial.plan.pauses)
        case TrialFailed():
            assert trial.plan.fails
            assert trial.has_left or len(numbers) == len(trial.plan.pauses)
        case TrialStopped():
            assert kind is StopAnswer
        case TrialPaused():
            assert kind is PauseAnswer
        case _:
            raise AssertionError(end)


seconds = st.sampled_from([0.0, 0.01, 0.3, 2.0])
milestones = st.sampled_from([(), EVERY_RESULT, EVERY_RESULT, (Milestone("number", 2),)])
ways = st.sampled_from([0.001, 0.01, 0.3, 2.0])
fates = st.sampled_from(["arrives", "request lost", "reply lost", "repeated", "late", "late"])

trial_plans = st.builds(
    SimpleNamespace,
    at=st.sampled_from([0.0, 0.0, 0.02, 1.0]),
    actor=st.integers(0, 1),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3]), min_size=1, max_size=6),
    milestones=st.lists(milestones, min_size=1, max_size=3),
    think=seconds,
    order=st.sampled_from([None, None, StopAnswer(), PauseAnswer()]),
    order_after=st.sampled_from([100.0, 0.0, 0.1, 1.0]),
    order_at=st.integers(1, 3),
    other_dies=st.sampled_from([*[None] * 5, 0.1, 1.0]),
    is_stubborn=st.booleans(),
    fails=st.sampled_from([False, False, False, True]),
)

plans = st.builds(
    SimpleNamespace,
    trials=st.lists(trial_plans, min_size=3, max_size=8),
    fates=st.lists(st.tuples(fates, ways, ways), min_size=4, max_size=20),
    bells=st.lists(st.sampled_from([0.0, 0.0, 0.1, 3.0, None]), max_size=10),
    window=st.sampled_from([0.01, 0.05, 0.5]),
    ack_after=st.sampled_from([0.0, 0.01, 0.3]),
    room=st.sampled_from([2, 2, 3, 4096]),
    largest_reply=st.sampled_from([1, 500, 1 << 24]),
    dies=st.sampled_from([None, None, None, 0.05, 0.5, 3.0]),
)


def perform_and_check(plan):
    trials.clear()
    loop = JumpingLoop()
    try:
        trials.update({f"t{i}": Trial(f"t{i}", p, loop) for i, p in enumerate(plan.trials)})
        loop.run_until_complete(play(plan, loop))
    finally:
        for trial in trials.values():
            trial.abandon()
        loop.close()
    for trial in trials.values():
        check(trial, died=plan.dies is not None)


@given(plan=plans)
@settings(max_examples=100)
def test_whatever_the_wire_does_every_trial_is_reported_once_in_order_to_its_end(plan):
    perform_and_check(plan)


def test_a_trial_that_loses_another_worker_during_silence_does_not_end_the_link():
    quick = SimpleNamespace(
        at=0.0, actor=0, pauses=[0.01], milestones=[()], think=0.0, order=None, order_after=0.0,
        order_at=0, other_dies=0.1, is_stubborn=False, fails=False,
    )  # fmt: skip
    later = SimpleNamespace(**{**vars(quick), "at": 1.0, "other_dies": None})
    perform_and_check(
        SimpleNamespace(
            trials=[quick, later],
            fates=[("request lost", 0.5, 0.0)],
            bells=[],
            window=0.01,
            ack_after=0.0,
            room=3,
            largest_reply=1,
            dies=None,
        )
    )
    assert [type(trial.events[-1]) for trial in trials.values()] == [TrialLost, TrialEnded]
