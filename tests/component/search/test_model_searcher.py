"""What the searchers with a model have in common: limits, adopted answers, points, state."""

from __future__ import annotations

import json
import pickle
from math import inf, nan

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import GaussianProcessSearch, TuneBOHB, WarmStart
from dasktune.space import uniform

SPACE = {"x": uniform(0, 1), "y": uniform(0, 1)}
PAST = [({"x": number / 20, "y": 0.5}, float(number)) for number in range(20)]


@pytest.fixture(params=["bohb", "gp", "warm"])
def made(request):
    def make(**arguments):
        arguments = {"metric": "loss", "mode": "min", "seed": 0, **arguments}
        if request.param == "warm":
            return WarmStart([PAST], SPACE, **arguments)
        return {"bohb": TuneBOHB, "gp": GaussianProcessSearch}[request.param](SPACE, **arguments)

    return make


def test_a_limit_counts_unfinished_trials_that_are_not_paused(made):
    searcher = made(max_concurrent=1)
    assert searcher.suggest("a")
    assert searcher.suggest("b") is None
    searcher.on_pause("a")
    searcher.on_pause("unknown")
    assert searcher.suggest("b")
    searcher.on_unpause("a")
    searcher.on_trial_complete("b", {"loss": 1.0, "training_iteration": 1})
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a", None)
    assert searcher.suggest("c")


def test_the_limit_of_an_experiment_is_its_own(made):
    searcher = made()
    assert searcher.max_concurrent == 0
    assert searcher.set_max_concurrency(2)
    assert [searcher.suggest(name) is None for name in "abc"] == [False, False, True]
    with pytest.raises(ConfigError, match="max_concurrent must be"):
        made(max_concurrent=-1)


def test_an_adopted_answer_counts_once(made):
    presets = [{"x": 0.25, "y": 0.25}, {"x": 0.5, "y": 0.5}, {"x": 0.75, "y": 0.75}]
    # The searcher that is resumed has a smaller limit than the saved one.
    searcher = made(points_to_evaluate=presets, max_concurrent=1)
    assert searcher.suggest("a") == presets[0]
    searcher.adopt("a", {"x": 0.125, "y": 0.125})
    assert searcher.suggest("b") is None
    searcher.adopt("b", presets[1])
    assert searcher.state_dict()["count"] == 2
    searcher.set_max_concurrency(3)
    assert searcher.suggest("c") == presets[2]
    searcher.adopt("c", None)
    assert list(searcher.state_dict()["open"]) == ["a", "b"]
    # The answer of "c" was not used, so it is the next one.
    assert searcher.suggest("d") == presets[2]
    assert searcher.state_dict()["count"] == 3


def test_a_configuration_outside_the_space_is_run_and_not_learnt(made):
    searcher = made(points_to_evaluate=[{"x": 7.0}, {"x": 8.0}])
    searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))
    before = searcher.state_dict()
    assert [searcher.suggest(name)["x"] for name in "ab"] == [7.0, 8.0]
    searcher.on_trial_complete("a", None, error=True)
    searcher.on_trial_complete("b", {"loss": 0.5, "training_iteration": 1})
    # A trial that has ended before is ignored.
    searcher.on_trial_complete("b", {"loss": 0.5, "training_iteration": 1})
    assert searcher.state_dict() == {**before, "count": 2}


def test_points_that_are_added_before_the_space_are_checked_with_it(made):
    early = made()
    early.add_evaluated_point({"x": 0.5, "y": 0.5}, 1.0)
    late = made()
    for searcher in (early, late):
        searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))
    late.add_evaluated_point({"x": 0.5, "y": 0.5}, 1.0)
    assert early.state_dict() == late.state_dict()
    with pytest.raises(ConfigError, match="parameters must be a point of the search space"):
        late.add_evaluated_point({"x": 5.0, "y": 0.5}, 1.0)
    wrong = made()
    wrong.add_evaluated_point({"x": 5.0, "y": 0.5}, 1.0)
    with pytest.raises(ConfigError, match="parameters must be a point of the search space"):
        wrong.set_search_properties(None, None, {}, seed=SeedSequence(0))


def test_a_value_for_each_of_several_metrics_is_refused(made):
    searcher = made()
    with pytest.raises(ConfigError, match=r"value must be one number, got \[1.0, 2.0\]. .* one metric"):
        searcher.add_evaluated_point({"x": 0.5, "y": 0.5}, [1.0, 2.0])


def test_the_trials_of_an_interrupted_experiment_do_not_count_in_the_next_one(made):
    searcher = made(max_concurrent=1)
    searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))
    assert searcher.suggest("a")
    assert searcher.suggest("b") is None
    searcher.set_search_properties(None, None, {}, seed=SeedSequence(1))
    assert searcher.suggest("c")


def test_a_state_goes_through_json_and_a_pickle_keeps_waiting_points(made):
    first = made(max_concurrent=5)
    first.add_evaluated_point({"x": 0.5, "y": 0.5}, 1.0)
    first = pickle.loads(pickle.dumps(first))
    for name in "abcde":
        first.suggest(name)
    first.on_trial_complete("a", {"loss": nan, "training_iteration": 1})
    first.on_trial_complete("b", None, error=True)
    first.on_trial_complete("c", {"loss": inf, "training_iteration": 2})
    first.on_pause("d")
    second = made(max_concurrent=5)
    second.set_search_properties(None, None, {}, seed=SeedSequence(0))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert json.dumps(second.state_dict()) == json.dumps(first.state_dict())
    for searcher in (first, second):
        searcher.on_trial_complete("e", {"loss": 0.5, "training_iteration": 1})
    assert second.suggest("f") == first.suggest("f")
    assert second.state_dict() == first.state_dict()
