"""Search spaces of scikit-learn's users."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from scipy import stats

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.sklearn.steps.candidate_space import CandidateQueue, CandidateSpace, sample_candidates


def test_distributions_that_searchers_know_are_searched_as_such():
    space = CandidateSpace(
        {
            "a": stats.uniform(1, 2),
            "b": stats.loguniform(0.1, 10),
            "c": stats.randint(2, 5),
            "d": tune.uniform(0, 1),
            "e": [True, None, "x"],
        }
    ).space
    assert space == {
        "a": tune.uniform(1.0, 3.0),
        "b": tune.loguniform(0.1, 10.0),
        "c": tune.randint(2, 5),
        "d": tune.uniform(0, 1),
        "e": tune.choice([True, None, "x"]),
    }


def test_other_distributions_are_searched_by_their_quantiles():
    space = CandidateSpace({"a": stats.norm(5, 1), "n": stats.poisson(3)})
    assert space.params({"a": 0.5, "n": 0.5}) == {"a": pytest.approx(5.0), "n": 3}
    assert isinstance(space.params({"a": 0.5, "n": 0.5})["n"], int)


def test_one_of_several_dicts_is_a_choice_of_its_own():
    space = CandidateSpace([{"a": [1, 2]}, {"b": [(1,), (2,)]}])
    assert space.space["which"] == tune.choice([0, 1])
    assert space.params({"which": 0, "0": {"a": 2}, "1": {"b": 0}}) == {"a": 2}
    assert space.params({"which": 1, "0": {"a": 2}, "1": {"b": 1}}) == {"b": (2,)}


def test_what_no_searcher_can_search_is_refused():
    class OnlyDraws:
        def rvs(self, random_state=None):
            return 1

    for odd, match in [(OnlyDraws(), "scipy.stats"), (1.0, "a list"), ("abc", "a list")]:
        with pytest.raises(ConfigError, match=match):
            CandidateSpace({"a": odd})


def test_domains_are_drawn_like_distributions():
    candidates = sample_candidates({"a": tune.uniform(0, 1), "b": [1, 2]}, 3, 0)
    assert candidates == sample_candidates({"a": tune.uniform(0, 1), "b": [1, 2]}, 3, 0)
    assert all(0 <= one["a"] <= 1 for one in candidates)
    assert len({one["a"] for one in candidates}) == 3


def test_the_distributions_of_optuna_are_known():
    distributions = pytest.importorskip("optuna.distributions")
    space = CandidateSpace(
        {
            "a": distributions.FloatDistribution(0.1, 1.0, log=True),
            "b": distributions.FloatDistribution(0.0, 1.0),
            "c": distributions.FloatDistribution(0.0, 1.0, step=0.5),
            "d": distributions.IntDistribution(1, 9),
            "e": distributions.IntDistribution(1, 9, log=True),
            "f": distributions.IntDistribution(1, 9, step=4),
            "g": distributions.CategoricalDistribution(["x", "y"]),
        }
    ).space
    assert space == {
        "a": tune.loguniform(0.1, 1.0),
        "b": tune.uniform(0.0, 1.0),
        "c": tune.choice([0.0, 0.5, 1.0]),
        "d": tune.randint(1, 10),
        "e": tune.lograndint(1, 10),
        "f": tune.choice([1, 5, 9]),
        "g": tune.choice(["x", "y"]),
    }


def test_a_queue_resumes_where_it_was():
    candidates = [{"a": 1}, {"a": 2}]
    first, second = CandidateQueue(candidates), CandidateQueue(candidates)
    assert first.next_trial("t0").config == {"a": 1}
    second.load_state_dict(first.state_dict())
    assert second.next_trial("t1").config == {"a": 2}
    assert second.next_trial("t2").finished
    assert second.total_samples == 2
