"""Which of the experiments that were found a search learns from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.errors import ConfigError, StorageError
from dasktune.search.warm.past_experiments import PastExperiment
from dasktune.search.warm.past_selection import (
    MOST_READ,
    MOST_TRIALS,
    FoundExperiment,
    PastSelection,
    WantedPast,
    select_past,
)
from dasktune.space import choice, grid_search, randn, sample_from, uniform

GOAL: Any = {"metric": "loss", "mode": "min"}
SPEC = {"format": 1, "trainable": "train", **GOAL}


def wanted(space: Any = None, code: str | None = None) -> WantedPast:
    return WantedPast.of(space or {"x": uniform(0, 1)}, trainable="train", code=code, **GOAL)


def found(name: str, created: float = 0.0, **changes: Any) -> FoundExperiment:
    return FoundExperiment(name, f"memory://place/{name}", {**SPEC, **changes}, created)


def trials(count: int, parameter: str = "x") -> list[Any]:
    return [({parameter: float(number)}, float(number)) for number in range(count)]


def selected(
    experiments: list[FoundExperiment], by_name: dict[str, Any] | None = None, **about: Any
) -> PastSelection:
    """Select from experiments of 20 trials each, but for those in `by_name`."""

    def read(one: FoundExperiment) -> PastExperiment:
        given = (by_name or {}).get(one.name, trials(20))
        if isinstance(given, Exception):
            raise given
        return PastExperiment.of(given, one.name)

    return select_past(experiments, wanted(**about), read)


def test_experiments_of_the_same_trainable_metric_and_mode_are_taken_newest_first():
    selection = selected([found("old", 1.0), found("new", 3.0), found("middle", 2.0)])
    assert list(selection.past) == ["new", "middle", "old"]
    assert selection.past["old"][3] == ({"x": 3.0}, 3.0)
    assert selection.left_out == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trainable": "other"}, "other trainable"),
        ({"trainable": None}, "other trainable"),
        ({"metric": "accuracy"}, "other metric"),
        ({"metric": ["loss", "size"], "mode": ["min", "min"]}, "other metric"),
        ({"mode": "max"}, "other mode"),
        ({"format": 2}, "cannot be read"),
    ],
)
def test_another_experiment_is_left_out_with_a_reason_and_is_not_read(changes: Any, reason: str):
    selection = selected([found("a", **changes)], {"a": AssertionError("it was read")})
    assert (selection.past, selection.left_out) == ({}, {reason: 1})


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        ("/home/ann/churn.py:train", "/srv/jobs/churn.py:train", True),
        ("/home/ann/churn.py:train", "models.churn:train", True),
        ("C:\\jobs\\churn.py:train", "churn:train", True),
        (None, "churn:train", True),
        ("churn:train", None, True),
        (7, "churn:train", True),
        ("mnist:train", "churn:train", False),
        ("churn:Model.train", "churn:train", False),
    ],
)
def test_a_trainable_is_the_same_if_nothing_known_says_otherwise(then: Any, now: Any, is_same: bool):
    selection = selected([found("a", code=then)], code=now)
    assert (list(selection.past) == ["a"]) is is_same


def test_what_cannot_be_read_or_helps_too_little_is_left_out():
    unreadable = FoundExperiment("u", "memory://place/u", None, 9.0)
    experiments = [unreadable, *(found(name) for name in "abcd")]
    by_name = {"a": StorageError("damaged"), "b": trials(9), "c": trials(20, "z")}
    selection = selected(experiments, by_name)
    assert list(selection.past) == ["d"]
    assert selection.left_out == {
        "cannot be read": 2,
        "fewer than 10 full trials": 1,
        "no parameter in common": 1,
    }


def test_only_full_trials_are_taken():
    row = {"loss": 1.0, "training_iteration": 1}
    cut = SimpleNamespace(config={"x": 1.0}, history=[row], error=None, stopped_early=True)
    assert len(selected([found("a")], {"a": [*trials(12), cut]}).past["a"]) == 12


def test_older_experiments_are_not_needed_when_there_are_many_trials():
    experiments = [found(name, -age) for age, name in enumerate("abcd")]
    by_name = {"a": trials(MOST_TRIALS - 20), "b": trials(200), "c": AssertionError("it was read")}
    selection = selected(experiments, by_name)
    assert [config["x"] for config, _ in selection.past["b"]] == [10.0 * step for step in range(20)]
    assert selection.left_out == {"older than needed": 2}


def test_only_so_many_journals_are_read():
    experiments = [found(f"e{age}", -age) for age in range(MOST_READ + 3)]
    selection = selected(experiments, {f"e{age}": trials(2) for age in range(MOST_READ)})
    assert selection.past == {}
    assert selection.left_out == {"fewer than 10 full trials": MOST_READ, "older than needed": 3}


def test_experiments_of_equal_names_in_two_places_are_both_taken():
    other = FoundExperiment("a", "memory://other/a", SPEC, -1.0)
    assert list(selected([found("a"), other]).past) == ["a", "memory://other/a"]


def test_only_what_is_searched_is_taken_of_a_configuration():
    space = {"x": uniform(0, 1), "model": {"depth": uniform(0, 1)}, "token": "other"}
    config = {"x": 1.0, "model": {"depth": 2.0, "kind": "a"}, "model/depth": 2.0, "token": "secret", "y": 3}
    selection = selected([found("a")], {"a": [(config, 0.0)] * 10}, space=space)
    kept = {"x": 1.0, "model": {"depth": 2.0, "kind": "a"}, "model/depth": 2.0}
    assert selection.past["a"] == [(kept, 0.0)] * 10


def test_names_of_experiments_have_no_password():
    urls = [f"ftp://{user}:hunter2@host/a" for user in ("ann", "bob")]
    others = [FoundExperiment("a", url, SPEC, -1.0) for url in urls]
    names = ["a", "ftp://***@host/a", "ftp://***@host/a (2)"]
    assert list(selected([found("a"), *others]).past) == names


def test_nested_and_conditional_parameters_may_be_what_is_common():
    space = {"model": {"kind": choice(["p", {"x": uniform(0, 1)}])}, "y": sample_from(lambda config: 1)}
    past = [({"model": {"kind": {"x": float(number)}}}, 0.0) for number in range(10)]
    assert len(selected([found("a")], {"a": past}, space=space).past["a"]) == 10
    assert selected([found("a")], {"a": trials(10, "y")}, space=space).past == {}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"x": grid_search([1, 2])}, "param_space must be without grid_search, got 'x'"),
        ({"x": randn()}, "param_space at 'x' must be a domain that WarmStart can search"),
        ({"x": 3}, "param_space must"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_before_anything_is_found(space: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        wanted(space)


def test_the_line_names_experiments_trials_and_what_is_left_out():
    past = {f"run {number}": trials(10) for number in range(7)}
    selection = PastSelection(past, {"other metric": 1, "cannot be read": 2})
    assert selection.text(["place"]) == (
        "learns from 7 experiments with 70 trials: run 0 (10), run 1 (10), run 2 (10), run 3 (10), "
        "run 4 (10), 2 more; 3 left out: cannot be read (2), other metric (1)"
    )
    assert PastSelection({"a": trials(11)}, {}).text(["place"]) == (
        "learns from 1 experiment with 11 trials: a (11)"
    )


def test_the_line_says_when_there_is_nothing_to_learn_from():
    assert PastSelection({}, {"other mode": 1}).text(["a", "b"]) == (
        "samples at random: a and b have no experiment to learn from; 1 left out: other mode (1)"
    )
