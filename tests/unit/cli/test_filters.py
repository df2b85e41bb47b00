from __future__ import annotations

from math import nan

import pytest

from dasktune.cli.filters import parse_condition
from dasktune.errors import ConfigError

ROW = {
    "loss": 0.05,
    "lr": 1e-3,
    "opt": "adam",
    "name": "Big Model",
    "flag": True,
    "off": False,
    "bad": nan,
    "net/depth": 3,
    "odd name": 1,
    "seed": 2**60 + 1,
    "layers": [1, 2],
}


def holds(text: str) -> bool:
    return parse_condition(text).holds(ROW.get)


@pytest.mark.parametrize(
    "text",
    [
        "loss < 0.1",
        "loss<0.1 and lr>1e-4",
        "loss > 1 or lr > 1e-4",
        "not loss > 1",
        "not (loss > 1 or lr > 1)",
        "loss > 1 and lr > 1 or opt == 'adam'",
        "opt == 'adam' or loss > 1 and lr > 1",
        "0 < loss <= 0.05 < 1",
        "0.05 == loss",
        "loss = 5e-2",
        "loss != -.5",
        "opt in ['sgd', \"adam\"]",
        "opt not in ('sgd', 'lion')",
        "net/depth >= 3",
        "`odd name` == 1",
        "name ~ 'big'",
        "flag",
        "flag == true and not off",
        "opt > 'a'",
        "missing == null",
        "missing != 3",
        "bad != bad",
        "loss < inf and loss > -inf",
        "seed == 1152921504606846977",
        "seed != 1152921504606846976",
        "LOSS == null AND loss < 1_000",
    ],
)
def test_a_condition_that_is_met_holds(text):
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "loss > 0.1",
        "missing < 1",
        "not missing",  # see below
        "missing > 1",
        "bad < 1",
        "bad >= 1",
        "bad == nan",
        "flag == 1",
        "flag > 0",
        "opt < 3",
        "opt",
        "layers == 1",
        "loss ~ '0'",
        "0 < loss < 0.01",
    ],
)
def test_a_condition_that_is_not_met_does_not_hold(text):
    assert holds(text) is (text == "not missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a column, a number or a text at character 1, got 'the end'"),
        ("loss <", "a column, a number or a text at character 7"),
        ("loss < 0.1 lr", "'and', 'or' or the end at character 12, got 'lr'"),
        ("(loss < 0.1", r"have '\)'"),
        ("loss in 3", r"a list such as \['a', 'b'\] after 'in'"),
        ("loss in [3", "',' or ']'"),
        ("loss not 3", "'in' after 'not'"),
        ("loss < 'x", '"\'x" is none'),
        ("__import__('os').system('true')", "must be a condition, got .* is none"),
        ("loss + 1 > 2", "is none"),
        ("and", "a column, a number or a text"),
        ("(" * 60 + "loss" + ")" * 60, "nested at most 50 deep"),
        ("not " * 60 + "loss", "nested at most 50 deep"),
        ("a" * 20_000, "at most 10000 characters, got 20000"),
        ("3x < 1", "is none"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_condition(text)


def test_a_condition_tells_of_which_columns_it_speaks_by_their_full_names():
    condition = parse_condition("a < b and a > 1", lambda name: f"config/{name}")
    assert condition.names == ("config/a", "config/b")
    assert condition.holds({"config/a": 2, "config/b": 3}.get)
