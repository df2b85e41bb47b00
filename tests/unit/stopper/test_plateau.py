"""When a trial, or everything, no longer changes."""

from __future__ import annotations

import json
import logging
import random
from math import inf, nan

import numpy as np
import pytest

from dasktune.errors import ConfigError
from dasktune.stopper import ExperimentPlateauStopper, TrialPlateauStopper
from dasktune.trial.milestone import EVERY_RESULT, Milestone, reached


def answers(stopper, *values, trial_id="a", metric="loss"):
    return [stopper(trial_id, {metric: value}) for value in values]


class TestTrialPlateau:
    def test_a_trial_is_stopped_when_its_last_results_are_alike(self):
        stopper = TrialPlateauStopper("loss")
        values = 9.0, 5.0, 1.0, 1.0, 1.0, 1.001
        assert answers(stopper, *values) == [False] * 5 + [True]
        assert stopper.stop_all() is False
        told = "the standard deviation of the last 4 results of loss is 0.000433, below 0.01"
        assert stopper.reason("a", {}) == told

    def test_each_trial_has_its_own_results(self):
        stopper = TrialPlateauStopper("loss", num_results=2, grace_period=2)
        assert not stopper("a", {"loss": 1.0})
        assert not stopper("b", {"loss": 1.0})
        assert stopper("a", {"loss": 1.0})

    def test_the_grace_period_counts_results_with_and_without_the_metric(self):
        stopper = TrialPlateauStopper("loss", num_results=2, grace_period=4)
        assert answers(stopper, 1.0, None, 1.0, 1.0) == [False, False, False, True]

    def test_the_deviation_must_be_below_the_limit_and_not_equal_to_it(self):
        assert answers(TrialPlateauStopper("loss", 1.0, 2, 2), 1.0, 3.0) == [False, False]
        assert answers(TrialPlateauStopper("loss", 1.1, 2, 2), 1.0, 3.0) == [False, True]

    @pytest.mark.parametrize(
        ("mode", "early", "late"), [("min", 0.5, 0.0), ("max", -0.5, 0.0), ("min", 0.1, -0.1)]
    )
    def test_a_threshold_of_zero_holds_a_trial_like_any_other(self, mode, early, late):
        stopper = TrialPlateauStopper("loss", num_results=2, grace_period=0, metric_threshold=0, mode=mode)
        assert answers(stopper, early, early, late, late) == [False, False, False, True]

    def test_nested_metrics_are_found_by_their_path(self):
        stopper = TrialPlateauStopper("eval/loss", num_results=2, grace_period=2)
        assert not stopper("a", {"eval/loss": 1.0})
        assert stopper("a", {"eval": {"loss": np.float32(1.0)}})

    @pytest.mark.parametrize("odd", [nan, inf, -inf])
    def test_a_value_that_is_not_finite_is_no_plateau_until_it_is_forgotten(self, odd):
        stopper = TrialPlateauStopper("loss", num_results=2, grace_period=2)
        assert answers(stopper, 1.0, odd, 1.0, 1.0) == [False, False, False, True]
        assert not any(answers(stopper, odd, odd, odd))

    def test_values_at_the_end_of_the_range_raise_no_warning(self):
        assert not any(answers(TrialPlateauStopper("loss", 1.0, 2, 2), 1e308, -1e308, 1.5e308))

    @pytest.mark.parametrize("stopper", [TrialPlateauStopper("x"), ExperimentPlateauStopper("x")])
    def test_a_metric_that_is_missing_or_no_number_is_warned_of_once(self, caplog, stopper):
        with caplog.at_level(logging.WARNING):
            assert not stopper("a", {"loss": 1.0})
            assert not stopper("b", {"x": "high"})
        (warning,) = [record.message for record in caplog.records]
        assert "trial a reports no number 'x'" in warning

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"metric": ""}, "metric must be the name of a metric, got ''"),
            ({"std": 0}, "std must be a finite number, more than 0, got 0"),
            ({"std": nan}, "std must be"),
            ({"std": True}, "std must be"),
            ({"num_results": 1}, "num_results must be an int, at least 2, got 1"),
            ({"grace_period": -1}, "grace_period must be an int, at least 0, got -1"),
            ({"mode": "best"}, "mode must be 'min', 'max' or None, got 'best'"),
            ({"metric_threshold": 0}, "mode must be 'min' or 'max' with metric_threshold"),
            ({"metric_threshold": nan, "mode": "min"}, "metric_threshold must be a finite number"),
            ({"metric_threshold": True, "mode": "min"}, "metric_threshold must be"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, arguments, told):
        with pytest.raises(ConfigError, match=told):
            TrialPlateauStopper(**{"metric": "loss", **arguments})


class TestWhereATrialWaits:
    def test_a_trial_runs_freely_as_long_as_it_cannot_be_stopped(self):
        stopper = TrialPlateauStopper("loss", num_results=3, grace_period=5)
        waits = (Milestone("training_iteration", 5),)
        assert stopper.next_milestones("a") == waits
        answers(stopper, 1.0, 1.0, 1.0)
        assert stopper.next_milestones("a") == waits
        answers(stopper, 1.0)
        assert stopper.next_milestones("a") == EVERY_RESULT
        assert stopper.next_milestones("b") == waits

    def test_a_trial_runs_freely_below_a_threshold_that_it_reaches_from_below(self):
        stopper = TrialPlateauStopper("acc", num_results=2, grace_period=2, metric_threshold=0.9, mode="max")
        answers(stopper, 0.1, metric="acc")
        assert stopper.next_milestones("a") == (Milestone("acc", 0.9, required=False),)

    @pytest.mark.parametrize("mode", ["min", "max", None])
    def test_no_stop_is_said_between_two_milestones(self, mode):
        draw = random.Random(3)
        for _ in range(200):
            threshold = None if mode is None else draw.choice([0.0, 1.0])
            stopper = TrialPlateauStopper("x", 0.2, 2, draw.randrange(5), threshold, mode)
            waits = stopper.next_milestones("a")
            for iteration in range(1, 12):
                result = {"training_iteration": iteration, "x": draw.choice([0.0, 0.1, 1.0, nan])}
                stops = stopper("a", result)
                assert reached(waits, result) or not stops
                if reached(waits, result):
                    waits = stopper.next_milestones("a")


class TestExperimentPlateau:
    def test_everything_ends_when_the_best_results_are_alike(self):
        stopper = ExperimentPlateauStopper("loss", std=0.01, top=3)
        assert answers(stopper, 1.0, 9.0, 1.0) == [False, False, False]
        assert stopper("b", {"loss": 1.0})
        assert stopper.stop_all()
        told = "the standard deviation of the best 3 results of loss is 0, at most 0.01"
        assert stopper.stop_all_reason() == stopper.reason("b", {}) == told

    def test_the_best_are_the_highest_under_max(self):
        stopper = ExperimentPlateauStopper("acc", std=0.01, top=2, mode="max")
        values = 0.1, 0.1, 0.9, 0.9
        assert answers(stopper, *values, metric="acc") == [False, True, False, True]

    def test_patience_is_how_many_further_results_the_plateau_must_last(self):
        stopper = ExperimentPlateauStopper("loss", std=0.01, top=2, patience=2)
        assert answers(stopper, 1.0, 1.0, 5.0, 5.0) == [False, False, False, True]

    def test_a_better_result_restarts_the_wait(self):
        stopper = ExperimentPlateauStopper("loss", std=0.01, top=2, patience=1)
        assert answers(stopper, 1.0, 1.0, 0.0, 0.0, 9.0) == [False] * 4 + [True]

    def test_values_that_are_not_finite_change_nothing(self):
        stopper = ExperimentPlateauStopper("loss", std=0.01, top=2, patience=1)
        assert not any(answers(stopper, nan, -inf, 1.0, 1.0, nan, inf, -inf))
        assert stopper.has_plateaued()
        assert stopper("a", {"loss": 1.0})

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"metric": None}, "metric must be"),
            ({"std": -1.0}, "std must be"),
            ({"top": 1}, "top must be an int, at least 2, got 1"),
            ({"top": True}, "top must be"),
            ({"mode": None}, "mode must be 'min' or 'max', got None"),
            ({"patience": 0.5}, "patience must be an int, at least 0, got 0.5"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, arguments, told):
        with pytest.raises(ConfigError, match=told):
            ExperimentPlateauStopper(**{"metric": "loss", **arguments})


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrialPlateauStopper("loss", 0.3, 3),
        lambda: ExperimentPlateauStopper("loss", 0.01, top=4, patience=3),
    ],
    ids=["trial", "experiment"],
)
def test_its_state_travels_through_json_and_a_copy_answers_alike(make):
    draw = random.Random(5)
    results = [(draw.choice("abc"), {"loss": draw.choice([0.0, 0.1, 1.0])}) for _ in range(60)]
    whole = make()
    expected = [whole(*each) for each in results]
    assert True in expected
    assert False in expected
    for cut in range(0, 60, 7):
        first, second = make(), make()
        for each in results[:cut]:
            first(*each)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [second(*each) for each in results[cut:]] == expected[cut:]
        assert second.state_dict() == whole.state_dict()
