"""Any optimiser that is asked and told."""

from __future__ import annotations

import json
from math import inf, nan

import numpy as np
import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import FINISHED, AskTell, AskTellSearch, SearchGenerator
from dasktune.search.search_algorithm import SearchSpec
from dasktune.space import choice, grid_search, randint, sample_from, uniform

SPACE = {"x": uniform(0, 9), "m": {"k": randint(0, 9)}, "constant": 5}


class Listed(AskTell):
    """Answers what it was given, and writes down what it hears."""

    def __init__(self, answers=(), domains=None, seed=None):
        self.answers = list(answers)
        self.domains = domains
        self.seed = seed
        self.heard = []

    def ask(self):
        return self.answers.pop(0) if self.answers else FINISHED

    def tell(self, params, loss):
        self.heard.append((params, loss))


def point(x, k=1):
    return {"x": x, "m/k": k}


def made(answers, space=SPACE, **arguments):
    made = []

    def make(domains, seed):
        made.append(Listed(answers, domains, seed))
        return made[-1]

    goals = {"metric": "loss", "mode": "min"}
    searcher = AskTellSearch(make, **arguments)
    taken = searcher.set_search_properties(
        goals["metric"] if searcher.metric is None else None,
        goals["mode"] if searcher.mode is None else None,
        space,
        seed=SeedSequence(0),
    )
    assert taken
    return searcher, made


def test_it_knows_the_space_by_path_and_its_answers_are_nested():
    searcher, [optimizer] = made([point(0.5)])
    assert sorted(optimizer.domains) == ["m/k", "x"]
    assert isinstance(optimizer.seed, int)
    assert searcher.suggest("a") == {"x": 0.5, "m": {"k": 1}}


def test_functions_are_not_its_business():
    space = {"x": uniform(0, 1), "twice": sample_from(lambda config: 2 * config["x"])}
    searcher, [optimizer] = made([{"x": 0.5}], space)
    assert list(optimizer.domains) == ["x"]
    assert searcher.suggest("a") == {"x": 0.5, "twice": 1.0}


def test_an_optimizer_may_have_its_own_space():
    searcher, [optimizer] = made([{"y": 3}], {"constant": 5})
    assert optimizer.domains == {}
    assert searcher.suggest("a") == {"y": 3}
    searcher.adopt("a", {"y": 4, "constant": 5})
    searcher.on_trial_complete("a", {"loss": 1.0})
    assert optimizer.heard == [({"y": 3}, None), ({"y": 4, "constant": 5}, 1.0)]


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        ({"loss": 0.5}, 0.5),
        ({"loss": np.float64(0.5)}, 0.5),
        ({"loss": nan}, None),
        ({"loss": inf}, None),
        ({"loss": "low"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_it_gets_what_its_own_point_reached(result, loss):
    answer = point(0.5)
    searcher, [optimizer] = made([answer])
    searcher.suggest("a")
    searcher.on_trial_complete("a", result)
    searcher.on_trial_complete("a", result)
    assert optimizer.heard == [(answer, loss)]
    assert optimizer.heard[0][0] is answer


def test_a_failure_has_no_value_whatever_it_reported():
    searcher, [optimizer] = made([point(0.5)])
    searcher.suggest("a")
    searcher.on_trial_complete("a", {"loss": 0.1}, error=True)
    assert optimizer.heard == [(point(0.5), None)]


def test_lower_is_better_for_it():
    searcher, [optimizer] = made([point(0.5)], metric="acc", mode="max")
    searcher.suggest("a")
    searcher.on_trial_complete("a", {"acc": 0.9})
    assert optimizer.heard == [(point(0.5), -0.9)]


def test_several_goals_are_a_list_of_which_all_must_be_there():
    goals = {"metric": ["loss", "acc"], "mode": ["min", "max"]}
    searcher, [optimizer] = made([point(1), point(2)], **goals)
    searcher.suggest("a")
    searcher.suggest("b")
    searcher.on_trial_complete("a", {"loss": 0.1, "acc": 0.9})
    searcher.on_trial_complete("b", {"loss": 0.1})
    assert optimizer.heard == [(point(1), [0.1, -0.9]), (point(2), None)]


def test_it_may_wait_and_it_may_end():
    searcher, _ = made([None, point(1)])
    assert searcher.suggest("a") is None
    assert searcher.suggest("a") == {"x": 1, "m": {"k": 1}}
    assert searcher.suggest("b") is FINISHED


def test_it_gets_presets_and_what_was_evaluated_elsewhere():
    optimizers = []

    def make(domains, seed):
        optimizers.append(Listed())
        return optimizers[-1]

    preset = {"x": 1.0, "m": {"k": 2}}
    searcher = AskTellSearch(make, metric="loss", mode="min", points_to_evaluate=[preset])
    searcher.add_evaluated_point({**preset, "constant": 5}, 7.0)
    searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))
    searcher.add_evaluated_point(preset, 8.0, error=True)
    assert searcher.suggest("a") == preset
    searcher.on_trial_complete("a", {"loss": 9.0})
    assert optimizers[0].heard == [(point(1.0, 2), told) for told in (7.0, None, 9.0)]
    with pytest.raises(ConfigError, match="a configuration must be a dict with a value at 'm/k'"):
        searcher.add_evaluated_point({"x": 1.0}, 7.0)


def test_an_answer_that_was_taken_back_counts_as_failed():
    searcher, [optimizer] = made([point(1)])
    searcher.suggest("a")
    searcher.adopt("a", None)
    searcher.on_trial_complete("a", {"loss": 1.0})
    assert optimizer.heard == [(point(1), None)]


def through_json(searcher):
    return json.loads(json.dumps(searcher.state_dict()))


def test_a_point_for_which_it_was_not_asked_comes_when_it_is_known():
    searcher, [optimizer] = made([])
    searcher.adopt("a", {"x": 1.0, "m": {"k": 2}, "constant": 5})
    searcher.on_trial_complete("a", {"loss": 0.5})
    assert optimizer.heard == [(point(1.0, 2), 0.5)]


def test_a_new_optimizer_is_asked_and_told_again():
    answers = [point(np.float64(1)), point(2), point(3)]
    searcher, _ = made(answers)
    searcher.suggest("a")
    searcher.suggest("b")
    searcher.on_trial_complete("a", {"loss": 1.0})
    searcher.adopt("b", {"x": 8, "m": {"k": 8}, "constant": 5})
    searcher.add_evaluated_point({"x": 9, "m": {"k": 9}}, 9.0)
    restored, optimizers = made(answers)
    restored.load_state_dict(through_json(searcher))
    assert through_json(restored) == through_json(searcher)
    told = [(point(1), 1.0), (point(2), None), (point(9, 9), 9.0)]
    assert optimizers[-1].heard == told
    assert optimizers[-1].heard[0][0] is answers[0]
    restored.on_trial_complete("b", {"loss": 2.0})
    assert optimizers[-1].heard[3:] == [(point(8, 8), 2.0)]
    assert restored.suggest("c")["x"] == 3


@pytest.mark.parametrize("now", [point(7), None])
def test_what_was_tried_is_what_it_gets_whatever_it_answers_now(now):
    searcher, _ = made([point(1)])
    searcher.suggest("a")
    searcher.on_trial_complete("a", {"loss": 1.0})
    restored, optimizers = made([now])
    restored.load_state_dict(through_json(searcher))
    assert optimizers[-1].heard == [(point(1), 1.0)]


def test_an_optimizer_with_a_state_is_not_asked_again():
    class Counting(AskTell):
        def __init__(self, domains, seed):
            self.count = 0
            self.heard = []

        def ask(self):
            self.count += 1
            return point(self.count)

        def tell(self, params, loss):
            self.heard.append((params, loss))

        def state_dict(self):
            return self.count

        def load_state_dict(self, state):
            self.count = state

    optimizers = []

    def make(domains, seed):
        optimizers.append(Counting(domains, seed))
        return optimizers[-1]

    def new():
        searcher = AskTellSearch(make, metric="loss", mode="min")
        searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))
        return searcher

    searcher = new()
    searcher.suggest("a")
    searcher.suggest("b")
    restored = new()
    restored.load_state_dict(through_json(searcher))
    restored.on_trial_complete("b", {"loss": 2.0})
    assert optimizers[-1].heard == [(point(2), 2.0)]
    assert restored.suggest("c")["x"] == 3


@pytest.mark.parametrize("answer", [{"x": 1}, {**point(1), "y": 2}, 3, [1, 2]])
def test_an_answer_that_is_no_point_is_refused(answer):
    searcher, _ = made([answer])
    with pytest.raises(ConfigError, match=r"Listed.ask\(\) must be a dict with a value for each"):
        searcher.suggest("a")


def test_what_makes_no_optimizer_is_refused():
    with pytest.raises(ConfigError, match="make must be callable as make"):
        AskTellSearch(3)
    searcher = AskTellSearch(lambda domains, seed: 3, metric="loss", mode="min")
    with pytest.raises(ConfigError, match=r"what make\(domains, seed\) returns must be an AskTell"):
        searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))


def test_it_must_be_said_what_is_optimised():
    searcher = AskTellSearch(lambda domains, seed: Listed())
    with pytest.raises(ConfigError, match="metric and mode must be set, got"):
        searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))


def test_a_grid_is_refused():
    searcher = AskTellSearch(lambda domains, seed: Listed(), metric="loss", mode="min")
    space = {"x": uniform(0, 1), "g": grid_search([1, 2])}
    with pytest.raises(ConfigError, match="param_space must be without grid_search, got 'g'"):
        searcher.set_search_properties(None, None, space, seed=SeedSequence(0))
    with pytest.raises(ConfigError, match=r"param_space\['g'\] must be a domain or a plain value"):
        SearchGenerator(searcher).setup(
            SearchSpec(space=space, num_samples=1, metric=None, mode=None, seed=SeedSequence(0))
        )


def test_a_choice_is_given_by_its_value():
    searcher, _ = made([{"act": "b"}], {"act": choice(["a", "b"])})
    assert searcher.suggest("a") == {"act": "b"}
