"""The scheduler of the searches block by block keeps the contract of all schedulers."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("sklearn")

from dasktune.schedulers.decision import Continue, Pause
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.sklearn.incremental.decisions import best_models
from dasktune.sklearn.incremental.synchronous_scheduler import Bracket, SynchronousScheduler
from dasktune.testing import SchedulerContract
from dasktune.testing.scheduler_drill import SchedulerDrill
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial


def halved(info, most=16):
    """Continue the better half of the models, each time for twice as many calls."""
    calls = max(records[-1]["partial_fit_calls"] for records in info.values())
    if len(info) == 1 or 2 * calls > most:
        return dict.fromkeys(info, 0)
    return dict.fromkeys(best_models(info, len(info) // 2), calls)


def noon():
    return 12.0


def brackets_of(sizes):
    return [
        Bracket([{"x": n} for n in range(size)], partial(halved, most=16), float("nan")) for size in sizes
    ]


class TestBatches(SchedulerContract):
    sizes = (9, 7)

    def make_scheduler(self):
        return SynchronousScheduler(brackets_of(self.sizes), timer=noon)


class TestOneBracket(TestBatches):
    sizes = (16,)
    metric, mode = "accuracy", "max"


class TestModelsThatEndByThemselves(TestBatches):
    longest = 3


class TestManySmallBrackets(TestBatches):
    sizes = (1, 2, 3, 4, 5, 1)


def test_a_search_resumes_with_the_records_and_the_time_that_it_had():
    class Watch:
        now = 100.0

        def __call__(self):
            return self.now

    watch, first, second = Watch(), brackets_of((9, 7)), brackets_of((9, 7))
    scheduler = SynchronousScheduler(first, timer=watch)
    scheduler.set_search_properties("loss", "min")
    drill = SchedulerDrill(scheduler)
    watch.now = 103.5
    drill.run(events=40)
    watch.now = 110.0
    state = drill.scheduler.state_dict()
    later = SynchronousScheduler(second, timer=lambda: 5000.0)
    later.load_state_dict(state)
    assert later.state_dict() == state
    assert state["elapsed"] == 6.5
    for one, other in zip(first, second, strict=True):
        assert other.info == one.info
        # Who decides may leave notes in the records, which both lists share.
        assert all(record in other.history for rows in other.info.values() for record in rows)


def made_to(most_calls, done, target):
    """Return a bracket with one model that is to be trained on so far."""
    bracket = Bracket([{"x": 0}], partial(halved, most=16), 0.0, most_calls)
    bracket.trials[0], bracket.targets[0], bracket.ready["t"] = "t", target, 0
    bracket.info[0] = [{"partial_fit_calls": done}] if done else []
    return bracket


def test_batches_that_much_waits_for_go_before_long_ones_that_nothing_waits_for():
    last_leg = made_to(100, done=1, target=100)
    long_leg = made_to(100, done=1, target=25)
    short_leg = made_to(96, done=1, target=6)
    first = made_to(64, done=0, target=1)
    unused = made_to(100, done=0, target=1)
    unused.ready.clear()
    brackets = [unused, last_leg, long_leg, short_leg, first]
    assert sorted(brackets, key=lambda one: one.urgency) == brackets


def figures(iteration):
    return {
        "training_iteration": iteration,
        "partial_fit_time": 0.0,
        "score": 1.0,
        "score_time": 0.0,
    }


@pytest.mark.parametrize(("others_calls", "kind"), [(100, Pause), (0, Continue)])
def test_the_last_of_a_batch_keeps_its_place_unless_others_are_more_urgent(others_calls, kind):
    def to_the_end(info):
        return {n: 8 - rows[-1]["partial_fit_calls"] for n, rows in info.items()}

    own = Bracket([{"x": 0}], to_the_end, 0.0, 8)
    others = Bracket([{"x": 0}, {"x": 1}], to_the_end, 0.0, others_calls)
    scheduler = SynchronousScheduler([own, others], timer=noon)
    cpu = PlacementGroupFactory([{"CPU": 1}])
    trials = [Trial(trial_id=name, config={}, resources=cpu) for name in "abc"]
    for trial in trials:
        scheduler.on_trial_add(trial)
    scheduler.on_trial_start(trials[0])
    assert isinstance(scheduler.on_trial_result(trials[0], figures(1)), kind)
    waiting = Waiting(
        pending={"b": trials[1], "c": trials[2]}, paused={"a": trials[0]} if kind is Pause else {}
    )
    assert scheduler.choose_trial_to_run(waiting) is trials[1]
    for trial in trials[1:]:
        scheduler.on_trial_start(trial)
    if kind is Pause:
        waiting = Waiting(pending={}, paused={"a": trials[0]})
        assert scheduler.choose_trial_to_run(waiting) is trials[0]


def once_more(info):
    return dict.fromkeys(info, 1)


def added(scheduler, names):
    cpu = PlacementGroupFactory([{"CPU": 1}])
    trials = {name: Trial(trial_id=name, config={}, resources=cpu) for name in names}
    for trial in trials.values():
        scheduler.on_trial_add(trial)
    return trials


def begin(scheduler, trial):
    trial.incarnation += 1
    scheduler.on_trial_start(trial)


def test_the_most_urgent_goes_first_among_those_that_continue_but_after_lost_ones():
    def to_the_end(info):
        return {n: 8 - rows[-1]["partial_fit_calls"] for n, rows in info.items()}

    last = Bracket([{"x": 0}, {"x": 1}], to_the_end, 0.0, 8)
    urgent = Bracket([{"x": 0}, {"x": 1}], once_more, 0.0, 8)
    scheduler = SynchronousScheduler([last, urgent], timer=noon)
    trials = added(scheduler, "abcd")
    for name in "abcd":
        begin(scheduler, trials[name])
    for name in "abcd":
        scheduler.on_trial_result(trials[name], figures(1))
    # In the order in which the scheduler continued them.
    pending = {name: trials[name] for name in "abc"}
    assert scheduler.choose_trial_to_run(Waiting(pending=pending, paused={})) is trials["c"]
    begin(scheduler, trials["b"])
    pending = {name: trials[name] for name in "bac"}  # it was lost, and so goes first
    assert scheduler.choose_trial_to_run(Waiting(pending=pending, paused={})) is trials["b"]
