"""The searcher that learns from earlier experiments."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from copy import deepcopy
from functools import lru_cache
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError
from dasktune.search import STOPPED_EARLY, ConcurrencyLimiter, Repeater, WarmStart
from dasktune.search.warm.copula_prior import CopulaPrior
from dasktune.search.warm.warm_start import fitted_process, prior_weight
from dasktune.space import choice, loguniform, randn, uniform

SPACE = {"x": uniform(0, 1), "y": uniform(0, 1)}


def pairs(best=0.8, count=30, scale=1.0):
    """Return an experiment whose values are lowest at x = best."""
    points = default_rng(1).random((count, 2)).tolist()
    return [({"x": x, "y": y}, scale * (x - best) ** 2) for x, y in points]


@lru_cache
def template():
    """Return a searcher with a fitted regression, because fitting takes longer than most tests."""
    searcher = WarmStart([pairs()])
    searcher.set_search_properties("loss", "min", SPACE, seed=SeedSequence(0))
    state = searcher.state_dict()
    searcher.suggest("fit")
    searcher.load_state_dict(state)
    return searcher


def made(past=None, space=SPACE, **arguments):
    is_usual = past is None and not arguments
    searcher = deepcopy(template()) if is_usual else WarmStart(past or [pairs()], **arguments)
    searcher.set_search_properties("loss", "min", space, seed=SeedSequence(0))
    return searcher


def suggested(searcher, count, loss=None):
    """Suggest, and end each trial at once if there is a loss; return the values of x."""
    found = []
    for number in range(count):
        config = searcher.suggest(f"t{number}")
        found.append(config["x"])
        if loss is not None:
            result = {"loss": loss(config), "training_iteration": 1}
            searcher.on_trial_complete(f"t{number}", result)
    return found


def test_the_first_suggestions_are_near_what_was_good_before():
    found = suggested(made(), 20)
    assert np.mean([abs(x - 0.8) < 0.2 for x in found]) > 0.6


def test_values_of_earlier_experiments_count_by_their_rank_only():
    one, other = made([pairs()]), made([pairs(scale=1e6)])
    assert suggested(one, 3) == suggested(other, 3)


def test_the_other_mode_suggests_the_other_end():
    searcher = WarmStart([pairs()])
    searcher.set_search_properties("loss", "max", SPACE, seed=SeedSequence(0))
    assert np.mean([x < 0.4 for x in suggested(searcher, 20)]) > 0.6


def test_experiments_with_other_spaces_are_taken():
    wider = [({"x": 3 * config["x"] - 1, "depth": 3}, value) for config, value in pairs(0.6)]
    narrower = [({"y": config["y"]}, value) for config, value in pairs()]
    found = suggested(made([wider, narrower]), 20)
    assert np.mean([abs(x - 0.8) < 0.2 for x in found]) > 0.6


def test_without_a_guard_results_change_nothing():
    searcher = made(guard=False)
    found = [suggested(deepcopy(searcher), 8, loss) for loss in (None, lambda config: config["x"])]
    assert found[0] == found[1]


def test_with_a_guard_results_correct_a_wrong_prior():
    found = suggested(made(), 24, lambda config: (config["x"] - 0.1) ** 2)
    assert np.mean([x < 0.3 for x in found[-8:]]) >= 0.75


def test_the_order_of_results_does_not_matter():
    one, other = made(), made()
    configs = [(suggested(searcher, 6), searcher) for searcher in (one, other)]
    assert configs[0][0] == configs[1][0]
    for searcher, order in ((one, range(6)), (other, reversed(range(6)))):
        for number in order:
            searcher.on_trial_complete(f"t{number}", {"loss": number % 4})
    assert one.state_dict() == other.state_dict()
    assert one.suggest("next") == other.suggest("next")


def test_a_restored_searcher_suggests_like_the_saved():
    whole, cut = made(), made()
    for searcher in (whole, cut):
        suggested(searcher, 5, lambda config: config["y"])
        searcher.suggest("open")
    restored = made()
    restored.load_state_dict(json.loads(json.dumps(cut.state_dict())))
    for searcher in (whole, restored):
        searcher.on_trial_complete("open", {"loss": 0.5})
    assert restored.suggest("next") == whole.suggest("next")
    assert restored.state_dict() == whole.state_dict()


def test_the_state_does_not_have_the_earlier_experiments_and_the_pickle_has():
    searcher = WarmStart([pairs()], SPACE, metric="loss", mode="min", seed=3)
    copy = pickle.loads(pickle.dumps(searcher))
    assert copy.suggest("a") == searcher.suggest("a")
    assert len(json.dumps(searcher.state_dict())) < 300


def test_presets_come_first_and_seeds_are_honoured():
    first = [made(points_to_evaluate=[{"x": 0.25}], seed=seed).suggest("a") for seed in (4, 4, 5)]
    assert [config["x"] for config in first] == [0.25] * 3
    assert first[0]["y"] == first[1]["y"] != first[2]["y"]


def test_a_limit_counts_unfinished_trials_that_are_not_paused():
    searcher = made(max_concurrent=1)
    assert searcher.suggest("a")
    assert searcher.suggest("b") is None
    searcher.on_pause("a")
    searcher.on_pause("unknown")
    assert searcher.suggest("b")
    searcher.on_unpause("a")
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a")
    searcher.adopt("b", None)
    assert searcher.suggest("c")
    assert searcher.set_max_concurrency(5)
    assert searcher.suggest("d")


def own(searcher):
    return searcher.state_dict()["own"]["trials"]


def test_failures_are_the_worst_and_a_replaced_configuration_is_none():
    searcher = made()
    suggested(searcher, 6)
    searcher.on_trial_complete("t0", None, error=True)
    for number, value in enumerate([nan, -inf, "low"], 1):
        searcher.on_trial_complete(f"t{number}", {"loss": value})
    searcher.on_trial_complete("t4", None)
    searcher.on_trial_complete("t5", {"loss": 0.5, STOPPED_EARLY: True, "training_iteration": 3})
    searcher.on_trial_complete("unknown", {"loss": 0.5})
    assert [(number, loss, length) for number, _, loss, length in own(searcher)] == [
        *((number, inf, inf) for number in range(4)),
        (5, 0.5, 3),
    ]


def test_a_configuration_outside_the_space_is_not_learnt():
    searcher = made()
    searcher.suggest("a")
    searcher.adopt("a", {"x": 5.0, "y": 0.5})
    searcher.on_trial_complete("a", {"loss": 1.0})
    searcher.adopt("b", {"x": 0.5, "y": 0.25})
    searcher.on_trial_complete("b", {"loss": 1.0})
    [(_, point, _, _)] = own(searcher)
    assert point == pytest.approx([0.5, 0.25])


def test_saved_unfinished_trials_hold_back_no_new_one(tmp_path):
    first, second = (made(max_concurrent=1) for _ in range(2))
    first.suggest("a")
    path = str(tmp_path / "searcher.json")
    first.save(path)
    other = WarmStart([pairs()], SPACE, metric="loss", mode="min", max_concurrent=1)
    other.restore(path)
    other.set_search_properties(None, None, {}, seed=SeedSequence(0))
    assert other.suggest("b")
    second.load_state_dict(first.state_dict())
    assert second.suggest("b") is None


def test_evaluated_points_are_trials_of_the_new_experiment():
    searcher = WarmStart([pairs()])
    searcher.add_evaluated_point({"x": 0.5, "y": 0.5}, 2.0)
    searcher.set_search_properties("loss", "max", SPACE, seed=SeedSequence(0))
    searcher.add_evaluated_point({"x": 0.5, "y": 0.5}, nan, error=True)
    searcher.add_evaluated_point({"x": 0.5, "y": 0.5}, 3.0, pruned=True, intermediate_values=[1.0, 3.0])
    assert [(loss, length) for _, _, loss, length in own(searcher)] == [(-3.0, 2.0), (inf, inf), (-2.0, inf)]
    with pytest.raises(ConfigError, match=r"a point of the search space.*WarmStart\(past="):
        searcher.add_evaluated_point({"x": 7.0, "y": 0.5}, 1.0)


def test_paths_are_read_by_the_driver_also_through_wrappers():
    asked = []

    def read(path):
        asked.append(path)
        return SimpleNamespace(trials=pairs(), default_metric="loss", default_mode="min")

    inner = WarmStart(["s3://a/one", (Path("two"), "error"), pairs()], SPACE, metric="loss", mode="min")
    with pytest.raises(ConfigError, match=r"past must be read before suggest\(\), got .*s3://a/one"):
        inner.suggest("a")
    ConcurrencyLimiter(Repeater(inner, 2), 2).read_past(read)
    inner.read_past(read)
    assert asked == ["s3://a/one", "two"]
    assert suggested(inner, 1) != []


def test_what_is_learnt_is_logged(caplog):
    short = SimpleNamespace(config={"x": 1}, history=[], error=None, stopped_early=True)
    with caplog.at_level(logging.INFO, "dasktune"):
        made([pairs(), [*pairs(), short]])
        made([pairs()])
    assert [record.getMessage() for record in caplog.records] == [
        "learning from 60 full trials of 2 experiments; trials left out: 1",
        "learning from 30 full trials of 1 experiment",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"past": []}, "past must be a list of at least one experiment"),
        ({"past": "s3://a"}, "past must be a list .* A single experiment is a list of one"),
        ({"past": [pairs()], "method": "rgpe"}, "method must be 'copula'"),
        ({"past": [pairs()], "guard": 1}, "guard must be True or False"),
        ({"past": [pairs()], "max_concurrent": -1}, "max_concurrent must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        WarmStart(**arguments)


def test_experiments_that_cannot_help_are_refused_before_a_trial_runs():
    with pytest.raises(ConfigError, match=r"past must be experiments with at least one parameter"):
        made([[({"z": number}, number) for number in range(10)]])
    with pytest.raises(ConfigError, match=r"past\[0\] must be an experiment with at least 10"):
        made([pairs(count=9)])
    with pytest.raises(ConfigError, match=r"param_space at 'x' must be a domain that WarmStart can search"):
        made(space={"x": randn()})
    with pytest.raises(ConfigError, match="metric"):
        WarmStart([pairs()]).set_search_properties(["a", "b"], ["min", "min"], SPACE)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        WarmStart([pairs()])


def test_conditional_parameters_are_searched():
    space = {"lr": loguniform(1e-3, 1), "opt": choice(["sgd", {"beta": uniform(0, 1)}])}
    rng = default_rng(0)
    past = [
        ({"lr": 0.1, "opt": "sgd"}, 1.0)
        if rng.random() < 0.5
        else ({"opt": {"beta": float(rng.random())}}, 0.0)
        for _ in range(40)
    ]
    searcher = made([past], space)
    for number in range(8):
        config = searcher.suggest(f"t{number}")
        searcher.on_trial_complete(f"t{number}", {"loss": float(config["opt"] == "sgd")})
    late = [searcher.suggest(f"u{number}")["opt"] for number in range(8)]
    assert sum(option != "sgd" for option in late) >= 6


def test_a_prior_finds_its_own_error():
    x = default_rng(0).random((200, 1))
    noise = default_rng(1).standard_normal(200)
    prior = CopulaPrior(x, 2 * x[:, 0] + 0.5 * noise, np.array([False]))
    assert 0.45 < prior.deviation < 0.65
    assert prior.predict(np.array([[0.1]])) < prior.predict(np.array([[0.9]]))


def test_the_prior_counts_as_long_as_it_orders_trials_correctly():
    scores = np.arange(8.0)
    assert prior_weight(scores, scores) == 1
    assert prior_weight(-scores, scores) == -1
    noise = default_rng(0).standard_normal((50, 40))
    weights = [prior_weight(row, np.arange(40.0)) for row in noise]
    assert np.abs(np.mean(weights)) < 0.15


def test_a_pair_counts_the_more_the_further_apart_its_trials_are_expected():
    scores = np.arange(6.0)
    # In both, the first four are in the wrong order.
    near = np.array([0.3, 0.2, 0.1, 0.0, 4.0, 5.0])
    far = np.array([3.9, 2.0, 1.0, 0.0, 4.0, 5.0])
    assert prior_weight(near, scores) > prior_weight(far, scores)


def test_a_process_of_many_trials_uses_a_part_of_them():
    x = default_rng(0).random((200, 1))
    process = fitted_process(x, np.array([0]), 4 * (x[:, 0] - 0.5) ** 2)
    drawn = process.draw(np.array([[0.0], [0.5], [1.0]]), np.zeros(3), default_rng(1))
    assert int(np.argmin(drawn)) == 1
