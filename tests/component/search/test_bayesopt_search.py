"""Search with the package bayesian-optimization."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import FINISHED
from dasktune.search.bayesopt import BayesOptSearch
from dasktune.space import choice, grid_search, randint, randn, uniform

pytest.importorskip("bayes_opt")

SPACE = {"x": uniform(-1, 1)}


def made(space=SPACE, **arguments):
    searcher = BayesOptSearch(metric="loss", mode="min", **arguments)
    searcher.set_search_properties(None, None, space, seed=SeedSequence(0))
    return searcher


@pytest.mark.parametrize("kind", ["ucb", "ei", "poi"])
def test_it_finds_where_it_is_good(kind):
    # Without an xi, "poi" would look only beside the best one so far.
    utility = {"kind": kind, "kappa": 0.5, "xi": 0.1}
    searcher = made(random_search_steps=4, utility_kwargs=utility)
    found = []
    for number in range(12):
        config = searcher.suggest(f"t{number}")
        if config is FINISHED:
            break
        found.append(config["x"])
        searcher.on_trial_complete(f"t{number}", {"loss": (found[-1] - 0.5) ** 2})
    assert min(abs(x - 0.5) for x in found) < 0.1


def test_it_waits_for_others_and_finishes_if_everything_was_tried():
    searcher = made({"k": randint(0, 2)}, patience=20)
    assert {searcher.suggest("a")["k"], searcher.suggest("b")["k"]} == {0, 1}
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a", {"loss": 1.0})
    searcher.on_trial_complete("b", None, error=True)
    assert searcher.suggest("c") is FINISHED


def test_duplicates_may_be_wanted():
    searcher = made({"k": randint(0, 2)}, skip_duplicate=False)
    assert len([searcher.suggest(str(number)) for number in range(6)]) == 6


def test_a_restored_search_continues_with_the_same_suggestions():
    searcher, other = made(random_search_steps=3), made(random_search_steps=3)
    for number in range(5):
        config = searcher.suggest(f"t{number}")
        if number < 4:  # The last trial still runs.
            searcher.on_trial_complete(f"t{number}", {"loss": config["x"] ** 2})
    other.load_state_dict(json.loads(json.dumps(searcher.state_dict())))
    for one in (searcher, other):
        one.on_trial_complete("t4", {"loss": 0.5})
    assert [other.suggest(f"t{number}") for number in (5, 6)] == [
        searcher.suggest(f"t{number}") for number in (5, 6)
    ]


@pytest.mark.parametrize("verbose", [0, 1])
def test_what_it_expects_is_logged_if_verbose_asks_for_it(verbose, caplog):
    caplog.set_level(logging.INFO, logger="dasktune")
    searcher = made(random_search_steps=2, verbose=verbose)
    for number in range(3):
        config = searcher.suggest(f"t{number}")
        searcher.on_trial_complete(f"t{number}", {"loss": config["x"]})
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == verbose
    assert all(f"of 2 trials proposes {config}" in line for line in told)


def test_it_learns_from_what_was_evaluated_elsewhere():
    told = {"history": [{"loss": 0.1}], "error": None, "stopped_early": False}
    earlier = SimpleNamespace(config={"x": 0.5}, **told)
    searcher = made(analysis=[earlier])
    searcher.add_evaluated_point({"x": 5.0}, 0.2)  # outside of the space
    assert searcher.state_dict()["optimizer"]["known"] == [[[0.75], -0.1]]


@pytest.mark.parametrize(
    ("space", "arguments", "sentence"),
    [
        ({"x": grid_search([1])}, {}, "without grid_search"),
        ({"x": randn()}, {}, "must be a domain that BayesOptSearch can search"),
        ({"x": choice([1, 2])}, {}, "param_space must be made of ranges"),
        ({"x": 1}, {}, "param_space must be a dict with at least one domain"),
        (SPACE, {"utility_kwargs": {"kind": "pi"}}, "must be 'ucb', 'ei' or 'poi'"),
        (SPACE, {"utility_kwargs": {"kap": 1}}, "utility_kwargs must be a dict with some of"),
        (SPACE, {"utility_kwargs": {"xi": -1}}, r"utility_kwargs\['xi'\] must be at least 0"),
        (SPACE, {"patience": 0}, "patience must be"),
        (SPACE, {"verbose": -1}, "verbose must be"),
    ],
)
def test_what_it_cannot_search_is_refused(space, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(space, **arguments)


def test_several_metrics_are_refused():
    searcher = BayesOptSearch({"x": (0, 1)}, metric=["a", "b"], mode=["min", "max"])
    with pytest.raises(ConfigError, match="metric must be the name of one metric"):
        searcher.set_search_properties(None, None, {}, seed=SeedSequence(0))


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bayes_opt", None)
    with pytest.raises(ImportError, match="pip install 'bayesian-optimization>=3'"):
        BayesOptSearch()
