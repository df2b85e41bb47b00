"""What a searcher learns from an earlier experiment."""

from __future__ import annotations

from math import isnan, nan
from types import SimpleNamespace

import pytest

from dasktune.errors import ConfigError
from dasktune.search import Searcher


class Learning(Searcher):
    def __init__(self, **goals):
        super().__init__(**goals)
        self.points = []

    def suggest(self, trial_id):
        return {}

    def add_evaluated_point(self, parameters, value, **how):
        self.points.append((parameters, value, how))


def trial(*rows, error=None, stopped_early=False):
    return SimpleNamespace(config={"x": 1}, history=list(rows), error=error, stopped_early=stopped_early)


def learnt(*trials, then=None, **goals):
    searcher = Learning(**(goals or {"metric": "loss", "mode": "min"}))
    searcher.add_evaluated_trials(trials, then)
    return searcher.points


def test_a_trial_is_learnt_by_its_last_result():
    [(config, value, how)] = learnt(trial({"loss": 3.0}, {"lr": 1}, {"loss": 2}))
    assert (config, value) == ({"x": 1}, 2.0)
    assert how == {"error": False, "pruned": False, "intermediate_values": [3.0, 2.0]}


def test_a_trial_that_a_scheduler_has_stopped_early_was_pruned():
    [(_, _, how)] = learnt(trial({"loss": 3.0}, stopped_early=True))
    assert how["pruned"]


def test_failures_and_nan_are_failures():
    failures = trial({"loss": 3.0}, error="broke", stopped_early=True), trial(error="broke")
    points = learnt(*failures, trial({"loss": nan}))
    assert [how["error"] for _, _, how in points] == [True, True, True]
    assert not any(how["pruned"] for _, _, how in points)
    assert points[0][1] == 3.0
    assert all(isnan(value) for _, value, _ in points[1:])


def test_who_never_reported_the_metric_is_left_out():
    assert learnt(trial(), trial({"acc": 1.0}), trial({"loss": "low"})) == []


def test_several_metrics_are_learnt_together():
    goals = {"metric": ["loss", "size"], "mode": ["min", "min"]}
    [(_, value, how)] = learnt(trial({"loss": 1.0, "size": 3}), trial({"loss": 1.0}), **goals)
    assert value == [1.0, 3.0]
    assert how["intermediate_values"] is None


def test_the_metric_may_have_had_another_name_then():
    [(_, value, _)] = learnt(trial({"old": 4.0}), then="old")
    assert value == 4.0


def test_it_must_be_said_what_is_learnt():
    with pytest.raises(ConfigError, match=r"metric must be the name .* got None"):
        learnt(trial(), mode="min")


def test_one_trial_and_the_trials_of_an_analysis_are_learnt():
    one = trial({"loss": 3.0})
    searcher = Learning(metric="loss", mode="min")
    searcher.add_evaluated_trials(one)
    searcher.add_evaluated_trials(SimpleNamespace(trials=[one, one]), "loss")
    assert [value for _, value, _ in searcher.points] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("given", ["~/results/exp", {"x": 1}, 3, [{"x": 1}]])
def test_what_holds_no_trials_is_refused_with_what_to_pass(given):
    with pytest.raises(ConfigError, match=r"trials must be a Result, .*ExperimentAnalysis\(path\)"):
        Learning(metric="loss", mode="min").add_evaluated_trials(given)
