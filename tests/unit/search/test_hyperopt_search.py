"""Search with Hyperopt."""

from __future__ import annotations

import json
import sys

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import SearchGenerator
from dasktune.search.hyperopt import HyperOptSearch
from dasktune.search.search_algorithm import SearchSpec
from dasktune.space import choice, grid_search, lograndint, loguniform, randint, randn, uniform

pytest.importorskip("hyperopt")

SPACE = {
    "x": uniform(-1, 1),
    "n": lograndint(1, 100),
    "opt": choice(["sgd", {"beta": loguniform(0.01, 1), "k": randint(0, 5)}]),
}


def made(space=SPACE, **arguments):
    searcher = HyperOptSearch(metric="loss", mode="min", **arguments)
    searcher.set_search_properties(None, None, space, seed=SeedSequence(0))
    return searcher


def test_it_learns_where_it_is_good():
    searcher = made(n_initial_points=10)
    found = []
    for number in range(30):
        config = searcher.suggest(f"t{number}")
        found.append(config["x"])
        searcher.on_trial_complete(f"t{number}", {"loss": abs(config["x"] - 0.5)})
    late = [abs(x - 0.5) for x in found[15:]]
    assert sum(late) / len(late) < 0.35


def test_failures_are_left_out_and_evaluated_points_are_learnt():
    searcher = made()
    searcher.suggest("a")
    searcher.on_trial_complete("a", None, error=True)
    searcher.add_evaluated_point({"x": 0.5, "n": 3, "opt": "sgd"}, 0.1)
    searcher.add_evaluated_point({"x": 5, "n": 3, "opt": "sgd"}, 0.1)  # outside of the space
    assert searcher.state_dict()["optimizer"]["trials"] == [[{"opt": 0, "n": 3, "x": 0.5}, 0.1]]


def test_expressions_of_its_own_are_searched():
    from hyperopt import hp

    space = {"deep": [hp.uniform("x", 0, 1)], "kind": hp.choice("kind", [1, 2])}
    presets = [{"x": 0.25, "kind": 1}]
    searcher = HyperOptSearch(space, metric="loss", mode="min", points_to_evaluate=presets)
    searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))
    first = searcher.suggest("a")
    assert first == {"deep": (0.25,), "kind": 2}
    searcher.on_trial_complete("a", {"loss": 1.0})
    searcher.add_evaluated_point({"deep": [0.5], "kind": 2}, 0.5)
    assert searcher.state_dict()["optimizer"]["trials"] == [[{"x": 0.25, "kind": 1}, 1.0]]
    spec = {"num_samples": 3, "metric": "loss", "mode": "min", "seed": SeedSequence(0)}
    with pytest.raises(ConfigError, match="HyperOptSearch has its own search space"):
        SearchGenerator(HyperOptSearch(space)).setup(SearchSpec(space=SPACE, **spec))
    for point, sentence in (({"y": 1}, "values by label"), ({"kind": 7}, "all labels")):
        with pytest.raises(ConfigError, match=sentence):
            HyperOptSearch(space, points_to_evaluate=[point])


@pytest.mark.parametrize(
    ("space", "arguments", "sentence"),
    [
        ({"x": grid_search([1])}, {}, "without grid_search"),
        ({"x": randn()}, {}, "param_space at 'x' must be a domain that Hyperopt can search"),
        ({"x": 1}, {}, "param_space must be a dict with at least one domain"),
        (SPACE, {"gamma": 0}, "gamma must be above 0"),
        (SPACE, {"n_initial_points": 0}, "n_initial_points must be"),
    ],
)
def test_what_it_cannot_search_is_refused(space, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(space, **arguments)


def test_several_metrics_are_refused():
    searcher = HyperOptSearch(metric=["a", "b"], mode=["min", "max"])
    with pytest.raises(ConfigError, match="metric must be the name of one metric"):
        searcher.set_search_properties(None, None, SPACE, seed=SeedSequence(0))


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "hyperopt", None)
    with pytest.raises(ImportError, match="pip install hyperopt"):
        HyperOptSearch()


def test_a_restored_searcher_suggests_what_the_first_one_would():
    searcher = made(n_initial_points=2)
    for number in range(4):
        config = searcher.suggest(f"t{number}")
        searcher.on_trial_complete(f"t{number}", {"loss": config["x"]})
    restored = made(n_initial_points=2)
    restored.load_state_dict(json.loads(json.dumps(searcher.state_dict())))
    assert restored.suggest("next") == searcher.suggest("next")
