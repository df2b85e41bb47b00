"""When a trial, or everything, has trained enough."""

from __future__ import annotations

import functools
import json
import logging
import pickle
import time
from datetime import timedelta
from math import inf, nan

import numpy as np
import pytest

from dasktune.errors import ConfigError
from dasktune.stopper import (
    CombinedStopper,
    CriteriaStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    as_stopper,
)


class Spy(Stopper):
    """Says what it was told to say, and writes down what it is asked."""

    def __init__(self, stop=False, everything=False):
        self.stop = stop
        self.everything = everything
        self.seen = []

    def __call__(self, trial_id, result):
        self.seen.append((trial_id, result))
        return self.stop

    def stop_all(self):
        return self.everything

    def on_time(self, now):
        self.seen.append(now)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


class TestContract:
    def test_a_stopper_needs_one_method_and_gets_sound_defaults(self):
        class Minimal(Stopper):
            def __call__(self, trial_id, result):
                return True

        stopper = Minimal()
        stopper.on_time(1.0)
        stopper.load_state_dict(stopper.state_dict())
        assert stopper.state_dict() == {}
        assert stopper.stop_all() is False
        assert stopper.reason("a", {}) == stopper.stop_all_reason() == "Minimal said so"
        with pytest.raises(TypeError, match="abstract"):
            Stopper()

    def test_the_noop_stopper_never_stops(self):
        assert NoopStopper()("a", {"done": True}) is False
        assert NoopStopper().stop_all() is False


class TestFunction:
    @pytest.mark.parametrize(
        ("answer", "stops"),
        [
            (True, True),
            (False, False),
            (None, False),
            (np.bool_(True), True),
            (1, True),
            ("", False),
        ],
    )
    def test_an_answer_is_taken_by_its_truth(self, answer, stops):
        assert FunctionStopper(lambda trial_id, result: answer)("a", {}) is stops

    def test_the_function_sees_the_trial_and_its_result(self):
        stopper = FunctionStopper(lambda trial_id, result: (trial_id, result["x"]) == ("a", 1))
        assert stopper("a", {"x": 1})
        assert not stopper("b", {"x": 1})
        assert not stopper.stop_all()

    def test_the_reason_names_the_function(self):
        def diverged(trial_id, result):
            return True

        named = FunctionStopper(diverged)
        bound = FunctionStopper(functools.partial(lambda limit, trial_id, result: True, 3))
        assert named.reason("a", {}) == "diverged(trial_id, result) is true"
        assert bound.reason("a", {}) == "partial(trial_id, result) is true"

    def test_methods_and_more_arguments_with_defaults_will_do(self):
        class Limits:
            def reached(self, trial_id, result, limit=1):
                return result["x"] > limit

        assert FunctionStopper(Limits().reached)("a", {"x": 2})
        assert FunctionStopper(lambda *arguments: True)("a", {})

    def test_a_function_without_a_signature_is_believed(self):
        assert FunctionStopper(functools.partial(min, key=str))("a", {})

    @pytest.mark.parametrize(
        "function",
        [
            lambda: True,
            lambda result: True,
            lambda trial_id, result, more: True,
            lambda *, trial_id, result: True,
            MaximumIterationStopper,
            CombinedStopper,
            3,
        ],
    )
    def test_what_cannot_be_asked_so_is_refused_at_once(self, function):
        with pytest.raises(ConfigError, match=r"stop must be a function of \(trial_id, result\)"):
            FunctionStopper(function)

    def test_functions_whose_answer_is_always_true_are_refused(self):
        def generator(trial_id, result):
            yield True

        async def coroutine(trial_id, result):
            return True

        async def stream(trial_id, result):
            yield True

        for function in (generator, coroutine, stream):
            with pytest.raises(ConfigError, match="that returns a bool"):
                FunctionStopper(function)


class TestMaximumIteration:
    def test_each_trial_has_its_own_count(self):
        stopper = MaximumIterationStopper(2)
        assert [stopper(name, {}) for name in "abab"] == [False, False, True, True]
        assert stopper("a", {})
        assert stopper.reason("a", {}) == "max_iter=2 results are in"

    def test_counts_survive_a_restart(self):
        stopper, restored = MaximumIterationStopper(2), MaximumIterationStopper(2)
        stopper("a", {})
        restored.load_state_dict(json.loads(json.dumps(stopper.state_dict())))
        assert restored("a", {})

    @pytest.mark.parametrize("max_iter", [0, -1, 1.5, "3", None, True])
    def test_the_limit_is_a_whole_number(self, max_iter):
        with pytest.raises(ConfigError, match="max_iter must be an int, at least 1, got"):
            MaximumIterationStopper(max_iter)


class TestTimeout:
    def test_the_budget_counts_from_the_first_time_it_gets(self):
        stopper = TimeoutStopper(10)
        assert not stopper.stop_all()
        for now, over in ((100.0, False), (109.9, False), (110.0, True), (111.0, True)):
            stopper.on_time(now)
            assert stopper.stop_all() is over
        assert stopper("a", {}) is False
        assert stopper.stop_all_reason() == "the time budget of 10 s is used up"

    def test_downtime_does_not_count(self):
        first = TimeoutStopper(10)
        first.on_time(100.0)
        first.on_time(106.0)
        second = TimeoutStopper(10)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        second.on_time(5000.0)
        assert second.remaining == 4
        second.on_time(5004.0)
        assert second.stop_all()
        assert second.state_dict() == {"used": 10.0}

    def test_without_an_experiment_it_counts_from_its_first_question(self, monkeypatch):
        clock = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        stopper = TimeoutStopper(10)
        clock[0] = 150.0
        assert not stopper.stop_all()
        clock[0] = 159.0
        assert not stopper.stop_all()
        assert stopper.remaining == 1
        # The time between two processes does not count.
        later = pickle.loads(pickle.dumps(stopper))
        clock[0] = 5000.0
        assert not later.stop_all()
        clock[0] = 5001.0
        assert later.stop_all()
        # Once an experiment reports the time, the machine's clock is not read.
        stopper.on_time(7.0)
        clock[0] = 9000.0
        assert not stopper.stop_all()
        stopper.on_time(8.0)
        assert stopper.stop_all()

    def test_a_copy_begins_a_session_of_its_own(self):
        stopper = TimeoutStopper(10)
        stopper.on_time(100.0)
        stopper.on_time(106.0)
        copied = pickle.loads(pickle.dumps(stopper))
        copied.on_time(5.0)
        assert copied.remaining == stopper.remaining == 4

    def test_a_clock_that_is_set_back_gives_no_time_back(self):
        stopper = TimeoutStopper(10)
        for now in (100.0, 108.0, 50.0):
            stopper.on_time(now)
        assert stopper.remaining == 2

    @pytest.mark.parametrize("timeout", [timedelta(minutes=1), 60, 60.0, np.int64(60)])
    def test_seconds_and_timedeltas_are_accepted(self, timeout):
        assert TimeoutStopper(timeout).timeout == 60

    def test_an_endless_budget_never_ends(self):
        stopper = TimeoutStopper(inf)
        stopper.on_time(0.0)
        stopper.on_time(1e300)
        assert not stopper.stop_all()

    @pytest.mark.parametrize("timeout", [0, -1, nan, "60", None, True, timedelta(0)])
    def test_anything_else_is_refused(self, timeout):
        with pytest.raises(ConfigError, match="timeout must be seconds or a timedelta, more than"):
            TimeoutStopper(timeout)


class Wraps(Stopper):
    """A stopper as users of Ray Tune write it: it asks another one, and knows no `on_time`."""

    def __init__(self, inner):
        self.inner = inner
        self.name = "wraps"

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return self.inner.stop_all()


def test_a_stopper_in_a_stopper_gets_the_time():
    stopper = Wraps(Wraps(TimeoutStopper(10)))
    for now, over in ((100.0, False), (109.9, False), (110.0, True)):
        stopper.on_time(now)
        assert stopper.stop_all() is over


class TestCriteria:
    @pytest.mark.parametrize(("value", "stops"), [(9, False), (10, True), (11.5, True)])
    def test_a_trial_stops_when_a_metric_is_at_least_its_goal(self, value, stops):
        stopper = CriteriaStopper({"training_iteration": 10})
        assert stopper("a", {"training_iteration": value}) is stops

    def test_any_criterion_will_do_and_the_reason_names_all_that_are_met(self):
        stopper = CriteriaStopper({"time_total_s": 60, "acc": 0.9, "epoch": 3})
        result = {"time_total_s": 61.0, "acc": 0.5, "epoch": 3}
        assert stopper("a", result)
        assert stopper.reason("a", result) == "time_total_s >= 60 and epoch >= 3"
        assert stopper.criteria == {"time_total_s": 60, "acc": 0.9, "epoch": 3}

    def test_paths_are_found_flat_and_nested(self):
        stopper = CriteriaStopper({"eval/acc": 0.9})
        assert stopper("a", {"eval/acc": 0.95})
        assert stopper("a", {"eval": {"acc": np.float32(0.95)}})

    def test_done_is_a_number_too(self):
        stopper = CriteriaStopper({"done": True})
        assert stopper("a", {"done": True})
        assert not stopper("a", {"done": False})

    def test_nan_never_stops_and_infinity_does(self, caplog):
        stopper = CriteriaStopper({"acc": 0.9})
        with caplog.at_level(logging.WARNING):
            assert not stopper("a", {"acc": nan})
        assert stopper("a", {"acc": inf})
        assert not caplog.records

    def test_what_is_missing_is_warned_of_once_and_stops_nothing(self, caplog):
        stopper = CriteriaStopper({"acc": 0.9, "loss": 3})
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert not stopper("a", {"acc": "high"})
        assert [record.getMessage() for record in caplog.records] == [
            f"trial a reports no number {name!r}, so the stop criterion on it cannot be met; "
            "check its spelling"
            for name in ("acc", "loss")
        ]

    @pytest.mark.parametrize(
        ("criteria", "message"),
        [
            ({"acc": "0.9"}, r"stop\['acc'\] must be a number, got '0.9'"),
            ({"acc": None}, r"stop\['acc'\] must be a number, got None"),
            ({"acc": nan}, r"stop\['acc'\] must be a number, got nan"),
            ({3: 1}, "a metric in stop must be a string, got 3"),
            ([3], "stop must be a dict of metrics and numbers"),
        ],
    )
    def test_a_wrong_criterion_is_refused(self, criteria, message):
        with pytest.raises(ConfigError, match=message):
            CriteriaStopper(criteria)


class TestCombined:
    def test_every_member_is_asked_every_time(self):
        spies = Spy(), Spy(stop=True), Spy()
        stopper = CombinedStopper(*spies)
        assert stopper("a", {"x": 1})
        stopper.on_time(7.0)
        assert all(spy.seen == [("a", {"x": 1}), 7.0] for spy in spies)

    def test_only_those_that_said_so_give_reasons(self):
        stopper = CombinedStopper(MaximumIterationStopper(2), CriteriaStopper({"acc": 0.9}), NoopStopper())
        assert not stopper("a", {"acc": 0.1})
        assert stopper("a", {"acc": 0.1})
        assert stopper.reason("a", {"acc": 0.1}) == "max_iter=2 results are in"
        assert stopper("a", {"acc": 0.9})
        assert stopper.reason("a", {"acc": 0.9}) == "max_iter=2 results are in and acc >= 0.9"

    def test_any_member_can_end_everything(self):
        assert not CombinedStopper(Spy(), Spy()).stop_all()
        stopper = CombinedStopper(Spy(), Spy(everything=True))
        assert stopper.stop_all()
        assert stopper.stop_all_reason() == "Spy said so"

    def test_states_go_back_to_their_members(self):
        stopper = CombinedStopper(MaximumIterationStopper(2), CombinedStopper(TimeoutStopper(10)))
        stopper("a", {})
        stopper.on_time(0.0)
        stopper.on_time(4.0)
        state = json.loads(json.dumps(stopper.state_dict()))
        inner = TimeoutStopper(10)
        restored = CombinedStopper(MaximumIterationStopper(2), CombinedStopper(inner))
        restored.load_state_dict(state)
        assert restored("a", {})
        assert inner.remaining == 6

    def test_the_state_of_other_members_is_refused(self):
        with pytest.raises(ConfigError, match="stop must be as long as the 1 stoppers"):
            CombinedStopper().load_state_dict(CombinedStopper(Spy()).state_dict())

    def test_members_are_stoppers(self):
        with pytest.raises(ConfigError, match=r"stoppers\[1\] must be a Stopper, got"):
            CombinedStopper(Spy(), lambda trial_id, result: True)


class TestAsStopper:
    def test_every_spelling_becomes_a_stopper(self):
        spy = Spy()
        assert as_stopper(spy) is spy
        assert type(as_stopper(None)) is NoopStopper
        assert type(as_stopper({"acc": 1})) is CriteriaStopper
        assert type(as_stopper(lambda trial_id, result: True)) is FunctionStopper
        several = as_stopper([{"acc": 1}, spy, (lambda trial_id, result: True, None)])
        assert isinstance(several, CombinedStopper)
        kinds = [type(stopper) for stopper in several.stoppers]
        assert kinds == [CriteriaStopper, Spy, CombinedStopper]

    def test_an_empty_list_or_dict_never_stops(self):
        assert not as_stopper([])("a", {"acc": 1})
        assert not as_stopper({})("a", {"acc": 1})

    @pytest.mark.parametrize("stop", [3, "training_iteration", {1, 2}])
    def test_anything_else_is_refused(self, stop):
        with pytest.raises(ConfigError, match="stop must be None, a dict, a function, a Stopper"):
            as_stopper(stop)

    def test_a_stopper_class_is_not_a_stopper(self):
        with pytest.raises(ConfigError, match="stop must be a function of"):
            as_stopper(NoopStopper)
