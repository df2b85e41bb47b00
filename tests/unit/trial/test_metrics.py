"""Reading values out of results."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.trial.metrics import flatten, lookup, number, score

NAMES = st.sampled_from(["a", "b", "ab"])
LEVEL = st.dictionaries(NAMES, st.integers(), max_size=3)
TREES = st.dictionaries(NAMES, st.integers() | LEVEL | st.dictionaries(NAMES, LEVEL, max_size=2))


def test_nested_metrics_become_one_level():
    nested = {"loss": 1.0, "eval": {"acc": 0.5, "more": {"f1": 0.4}}}
    assert flatten(nested) == {"loss": 1.0, "eval/acc": 0.5, "eval/more/f1": 0.4}
    assert flatten(nested, "run/")["run/eval/acc"] == 0.5


def test_an_empty_dict_is_a_value():
    assert flatten({"config": {}, "a": {"b": {}}}) == {"config": {}, "a/b": {}}


@settings(max_examples=50)
@given(TREES)
def test_a_path_leads_to_the_same_value_flat_and_nested(tree):
    flat = flatten(tree)
    for name, value in flat.items():
        assert lookup(flat, name) == value
        assert lookup(tree, name) == value
    assert flatten(flat) == flat


@pytest.mark.parametrize("name", ["none", "eval/none", "loss/more", "eval/acc/more", ""])
def test_what_is_not_there_is_none(name):
    assert lookup({"loss": 1.0, "eval": {"acc": 0.5}}, name) is None


def test_a_name_with_a_slash_goes_before_a_path():
    assert lookup({"eval/acc": 1, "eval": {"acc": 2}}, "eval/acc") == 1
    assert lookup({"eval": {"acc": 2}}, "eval") == {"acc": 2}


@pytest.mark.parametrize(
    ("value", "real"),
    [
        (3, 3.0),
        (True, 1.0),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
        (Decimal("1e999"), inf),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array(2), 2.0),
        (inf, inf),
        (10**400, inf),
        (Fraction(-(10**400), 3), -inf),
    ],
)
def test_numbers_of_every_kind_are_floats(value, real):
    assert number(value) == real
    assert type(number(value)) is float


@pytest.mark.parametrize("value", [None, "3", [3], np.array([3]), np.array("3"), 3j, {}, np.float64])
def test_anything_else_is_no_number(value):
    assert number(value) is None


def test_a_score_is_higher_the_better():
    assert score({"eval": {"acc": 0.5}}, "eval/acc", "max") == 0.5
    assert score({"loss": 2}, "loss", "min") == -2.0
    assert score({"loss": inf}, "loss", "min") == -inf


@pytest.mark.parametrize("value", [None, nan, "low", np.float64("nan")])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_what_is_undefined_has_no_score(value, mode):
    assert score({"loss": value}, "loss", mode) is None
    assert score({}, "loss", mode) is None
