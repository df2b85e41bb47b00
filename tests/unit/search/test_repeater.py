"""Suggestions that are evaluated several times."""

from __future__ import annotations

import logging
from math import inf, nan

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import FINISHED, ConcurrencyLimiter, Repeater, Searcher


class Telling(Searcher):
    """Suggests 0, 1, 2, ... and writes down what it hears."""

    def __init__(self, **goals):
        super().__init__(**({"metric": "loss", "mode": "min"} | goals))
        self.heard = []
        self.count = 0
        self.answer = None

    def suggest(self, trial_id):
        self.count += 1
        return self.answer or {"x": self.count - 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.heard.append((trial_id, result, error))

    def on_pause(self, trial_id):
        self.heard.append((trial_id, "pause"))

    def on_unpause(self, trial_id):
        self.heard.append((trial_id, "unpause"))

    def adopt(self, trial_id, config):
        self.heard.append((trial_id, "adopt", config))

    def add_evaluated_point(self, parameters, value, **how):
        self.heard.append((parameters, value))

    def set_search_properties(self, metric, mode, config, **spec):
        self.heard.append(spec["num_samples"])
        return True


class Stateful(Telling):
    """Keeps the state that it was given."""

    def load_state_dict(self, state):
        self.state = state


def suggested(repeater, names):
    return [repeater.suggest(name) for name in names]


def completed(values, repeat=3, **goals):
    searcher = Telling(**goals)
    repeater = Repeater(searcher, repeat=repeat)
    suggested(repeater, "abc"[: len(values)])
    for name, value in zip("abc", values, strict=False):
        repeater.on_trial_complete(name, value)
    return searcher.heard


def test_each_suggestion_is_repeated_so_many_times():
    configs = suggested(Repeater(Telling(), repeat=2), "abc")
    assert configs == [
        {"x": 0, "__trial_index__": 0},
        {"x": 0, "__trial_index__": 1},
        {"x": 1, "__trial_index__": 0},
    ]
    assert suggested(Repeater(Telling(), repeat=2, set_index=False), "ab") == [{"x": 0}, {"x": 0}]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, 2.0, 6.0], 3.0),
        ([1.0, nan, 3.0], 2.0),
        ([1.0, "low", None], 1.0),
        ([1.0, inf, 2.0], inf),
    ],
)
def test_the_searcher_gets_the_mean_of_what_is_defined(values, mean):
    results = [{"loss": value, "step": number} for number, value in enumerate(values)]
    assert completed(results) == [("a", {"loss": mean, "step": 2}, False)]


@pytest.mark.parametrize("values", [[nan, nan, nan], [inf, -inf, 1.0]])
def test_a_mean_that_is_none_is_left_out(values):
    assert completed([{"loss": value} for value in values]) == [("a", {}, False)]


def test_trials_that_never_reported_count_in_no_mean():
    assert completed([None, {"loss": 4.0}, None]) == [("a", {"loss": 4.0}, False)]
    assert completed([None, None, None]) == [("a", None, False)]


def test_several_metrics_have_a_mean_each():
    goals = {"metric": ["loss", "size"], "mode": ["min", "min"]}
    results = [{"loss": 1.0, "size": 2}, {"loss": 3.0}, {"loss": 5.0, "size": 4}]
    assert completed(results, **goals) == [("a", {"loss": 3.0, "size": 3.0}, False)]


def test_only_if_all_have_failed_has_the_suggestion_failed():
    searcher = Telling()
    repeater = Repeater(searcher, repeat=2)
    suggested(repeater, "abcd")
    repeater.on_trial_complete("a", {"loss": 9.0}, error=True)
    repeater.on_trial_complete("b", {"loss": 1.0})
    repeater.on_trial_complete("c", error=True)
    repeater.on_trial_complete("d", {"loss": 9.0}, error=True)
    assert searcher.heard == [("a", {"loss": 1.0}, False), ("c", {}, True)]


def test_it_gets_one_end_and_strangers_are_ignored():
    searcher = Telling()
    repeater = Repeater(searcher)
    repeater.suggest("a")
    repeater.on_trial_complete("a", {"loss": 1.0})
    repeater.on_trial_complete("a", {"loss": 2.0})
    repeater.on_trial_complete("stranger")
    repeater.on_pause("stranger")
    assert searcher.heard == [("a", {"loss": 1.0}, False)]


def test_the_last_suggestion_counts_although_it_is_cut_short(caplog):
    searcher = Telling()
    repeater = Repeater(searcher, repeat=2)
    with caplog.at_level(logging.WARNING):
        repeater.set_search_properties(None, None, {}, seed=SeedSequence(0), num_samples=3)
    assert "num_samples=3 is no multiple of repeat=2" in caplog.text
    suggested(repeater, "abc")
    for name in "abc":
        repeater.on_trial_complete(name, {"loss": 1.0})
    assert searcher.heard == [2, ("a", {"loss": 1.0}, False), ("c", {"loss": 1.0}, False)]


def test_no_end_of_samples_and_whole_multiples_warn_of_nothing(caplog):
    for samples in (-1, 4):
        searcher = Telling()
        repeater = Repeater(searcher, repeat=2)
        repeater.set_search_properties(None, None, {}, seed=SeedSequence(0), num_samples=samples)
        assert searcher.heard == [-1 if samples == -1 else 2]
    assert caplog.text == ""


def test_a_group_waits_when_all_that_is_left_of_it_waits():
    searcher = Telling()
    repeater = Repeater(searcher, repeat=3)
    suggested(repeater, "ab")
    repeater.on_pause("a")
    repeater.on_pause("b")
    assert searcher.heard == []  # one is still to come
    repeater.suggest("c")
    repeater.on_trial_complete("c", {"loss": 1.0})
    assert searcher.heard == [("a", "pause")]
    repeater.on_unpause("b")
    repeater.on_pause("b")
    repeater.on_trial_complete("a", {"loss": 1.0})
    assert searcher.heard[1:] == [("a", "unpause"), ("a", "pause")]
    repeater.on_trial_complete("b", {"loss": 1.0})
    assert searcher.heard[3:] == [("a", {"loss": 1.0}, False)]


def test_a_first_trial_that_never_was_takes_its_suggestion_along():
    searcher = Telling()
    repeater = Repeater(searcher, repeat=2)
    repeater.suggest("a")
    repeater.adopt("a", None)
    assert repeater.suggest("b")["x"] == 1
    assert searcher.heard == [("a", "adopt", None)]


def test_a_repeat_that_never_was_is_repeated_by_another():
    searcher = Telling()
    repeater = Repeater(searcher, repeat=2)
    suggested(repeater, "ab")
    repeater.adopt("b", None)
    assert repeater.suggest("c") == {"x": 0, "__trial_index__": 1}
    assert searcher.heard == []


def test_repeats_that_never_were_count_in_no_number_of_samples():
    repeater = Repeater(Telling(), repeat=2)
    repeater.set_search_properties(None, None, {}, seed=SeedSequence(0), num_samples=2)
    suggested(repeater, "ab")
    repeater.adopt("b", None)
    assert repeater.suggest("c") == {"x": 0, "__trial_index__": 1}


def test_another_configuration_is_repeated_from_then_on():
    searcher = Telling()
    repeater = Repeater(searcher, repeat=2)
    repeater.suggest("a")
    repeater.adopt("a", {"x": 7, "__trial_index__": 0})
    assert repeater.suggest("b") == {"x": 7, "__trial_index__": 1}
    repeater.adopt("b", {"x": 7, "__trial_index__": 1})
    assert searcher.heard == [("a", "adopt", {"x": 7})]


def test_a_configuration_from_nowhere_begins_a_group():
    searcher = Telling()
    searcher.answer = FINISHED
    repeater = Repeater(searcher, repeat=2)
    assert repeater.suggest("a") is FINISHED
    repeater.adopt("a", {"x": 7, "__trial_index__": 0})
    assert repeater.suggest("b") == {"x": 7, "__trial_index__": 1}
    repeater.adopt("never", None)
    assert searcher.heard == [("a", "adopt", {"x": 7}), ("never", "adopt", None)]


def test_evaluated_points_are_passed_on_without_a_number():
    searcher = Telling()
    Repeater(searcher).add_evaluated_point({"x": 1, "__trial_index__": 0}, 0.5)
    assert searcher.heard == [({"x": 1}, 0.5)]


def test_a_limit_may_count_trials_or_suggestions():
    trials = ConcurrencyLimiter(Repeater(Telling(), repeat=3), 2)
    assert [bool(trials.suggest(name)) for name in "abc"] == [True, True, False]
    suggestions = Repeater(ConcurrencyLimiter(Telling(), 1), repeat=2)
    assert [bool(suggestions.suggest(name)) for name in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "searcher must be a Searcher, got 3"),
        ((Telling(), 0), "repeat must be an integer >= 1, got 0"),
    ],
)
def test_a_repeater_that_is_none_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Repeater(*arguments)


def test_an_unfinished_group_is_completed_after_a_restore():
    repeater = Repeater(Telling(), repeat=2)
    [first] = suggested(repeater, "a")
    restored = Repeater(Stateful(), repeat=2)
    state = {**repeater.state_dict(), "searcher": {"told": 1}}
    restored.load_state_dict(state)
    assert restored.searcher.state == {"told": 1}
    assert suggested(restored, "b") == [{**first, "__trial_index__": 1}]
