"""Search spaces as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.space import (
    Categorical,
    Float,
    Integer,
    choice,
    from_json,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    to_json,
    uniform,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["$tuple", "$domain"])
)
domains = st.sampled_from(
    [
        Float(0, 1),
        Float(None, None),
        Float(None, 3),
        Integer(-3, 4),
        Categorical(["a", 1]),
        uniform(-1, 1),
        quniform(0, 1, 0.1),
        loguniform(1e-5, 1),
        qloguniform(0.5, 8, 0.5),
        randn(1, 2),
        qrandn(0, 1, 0.25),
        randint(0, 9),
        qrandint(0, 9, 3),
        lograndint(1, 9),
        qlograndint(2, 10, 2),
        Float(0, 1).quantized(0.5),
    ]
)
keys = st.text(max_size=4) | st.sampled_from(["$dict", "$object", "grid_search"])
spaces = st.recursive(
    scalars | domains,
    lambda child: (
        st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
        | st.lists(child, min_size=1, max_size=3).map(choice)
        | st.lists(child, min_size=1, max_size=3).map(grid_search)
        | st.dictionaries(keys | st.integers() | st.tuples(st.integers()), child, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=60)
@given(spaces)
def test_a_space_comes_back_from_json_as_it_was(space):
    text = json.dumps(to_json(space), allow_nan=False)
    back = from_json(json.loads(text))
    assert back == space
    assert repr(back) == repr(space)


def test_the_form_can_be_read_by_people():
    space = {"lr": loguniform(1e-4, 1), "n": choice([1, (2, 3)]), "x": qrandn(0, 1, 0.5)}
    assert to_json(space) == {
        "lr": {"$domain": "loguniform", "lower": 1e-4, "upper": 1.0},
        "n": {"$domain": "choice", "categories": [1, {"$tuple": [2, 3]}]},
        "x": {"$domain": "qrandn", "mean": 0.0, "sd": 1.0, "q": 0.5},
    }


def test_nan_and_numpy_scalars_are_carried():
    assert math.isnan(from_json(to_json({"a": math.nan}))["a"])
    assert to_json([np.float64(1.5), np.int64(2), np.float32("inf")]) == [
        1.5,
        2,
        {"$float": "inf"},
    ]


def test_functions_and_objects_are_kept_as_text_and_refused_on_the_way_back():
    data = to_json({"a": [sample_from(max)], "b": {1}})
    assert data["a"] == [{"$object": "Function(func=<built-in function max>)"}]
    assert data["b"] == {"$object": "{1}"}
    with pytest.raises(ConfigError, match="the space at 'a/0' must be made of plain values"):
        from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"$domain": "no such"},
        {"$domain": 3},
        {"$tuple": 3},
        {"$tuple": [1], "more": 2},
        {"$float": "1.5"},
        {"$float": "nan", "more": 2},
        {"$dict": [[1]]},
        {"$dict": [3]},
        {"$dict": [], "more": 2},
        {"$new": 1},
    ],
)
def test_what_is_not_of_this_form_is_refused(data):
    with pytest.raises(ConfigError, match="the space at 'x/y' must be in the form"):
        from_json({"x": {"y": data}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"$domain": "uniform", "lower": 1, "upper": 0}, "uniform at 'x': lower must be less"),
        ({"$domain": "uniform", "lower": 1}, "uniform at 'x': "),
        ({"$domain": "choice", "categories": [{"$object": "f"}]}, "the space at 'x/0' must be"),
    ],
)
def test_a_domain_that_breaks_a_rule_names_the_path(data, message):
    with pytest.raises(ConfigError, match=message):
        from_json({"x": data})
