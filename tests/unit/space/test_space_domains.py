"""Domains: what they are made of, what they draw, what they refuse."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from math import inf, log, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import RandomState, SeedSequence, default_rng

from dasktune.errors import ConfigError
from dasktune.space import (
    Categorical,
    Float,
    Function,
    Integer,
    LogUniform,
    Normal,
    Quantized,
    Uniform,
    choice,
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
    random_generator,
    sample_from,
    uniform,
)

bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9)).map(lambda t: (t[0], t[0] + t[1]))
seeds = st.integers(0, 2**32)


@given(bounds, seeds)
def test_uniform_draws_floats_from_lower_to_just_below_upper(limits, seed):
    lower, upper = limits
    if not lower < upper:
        return
    for value in uniform(lower, upper).sample(size=20, random_state=seed):
        assert type(value) is float
        assert lower <= value < upper


def test_uniform_excludes_upper_even_where_the_sum_rounds_up_to_it():
    lower, upper = 1.0, 1.0 + 2**-52
    assert set(uniform(lower, upper).sample(size=50, random_state=0)) == {lower}


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e6), seeds)
def test_loguniform_draws_floats_from_lower_to_just_below_upper(lower, factor, seed):
    upper = lower * factor
    values = loguniform(lower, upper).sample(size=20, random_state=seed)
    assert all(lower <= value < upper for value in values)


@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (loguniform, (1, 8)),
        (qloguniform, (1, 8, 1)),
        (lograndint, (1, 8)),
        (qlograndint, (1, 8, 2)),
    ],
)
def test_a_base_is_taken_and_makes_no_difference(function, bounds):
    with pytest.warns(DeprecationWarning, match="has no effect") as caught:
        with_base = function(*bounds, base=2)
    assert caught[0].filename == __file__
    assert with_base.sample(size=9, random_state=1) == function(*bounds).sample(size=9, random_state=1)


def test_loguniform_gives_every_decade_the_same_weight():
    values = loguniform(1e-4, 1.0).sample(size=4000, random_state=3)
    decades = Counter(int(-np.log10(value)) for value in values)
    # 1000 each, sd 27: five sd, false failure below one in a million, and the seed is fixed.
    assert all(abs(decades[decade] - 1000) < 137 for decade in range(4))


@given(st.integers(-50, 50), st.integers(1, 50), st.sampled_from([0.1, 0.25, 1, 3]), seeds)
def test_quniform_draws_multiples_within_both_bounds(first, count, q, seed):
    domain = quniform(first * q, (first + count) * q, q)
    for value in domain.sample(size=10, random_state=seed):
        assert type(value) is float
        assert domain.lower <= value <= domain.upper
        assert domain.is_valid(value)


def test_quantised_floats_reach_both_bounds_exactly():
    assert set(quniform(0, 0.3, 0.3).sample(size=50, random_state=0)) == {0.0, 0.3}
    assert max(quniform(0, 0.3, 0.1).sample(size=50, random_state=0)) == 0.3


def test_quniform_by_one_rounds_too():
    assert all(value.is_integer() for value in quniform(0, 9, 1).sample(size=20, random_state=0))


def test_qloguniform_draws_multiples_within_both_bounds():
    values = set(qloguniform(1, 4, 1).sample(size=200, random_state=0))
    assert values == {1.0, 2.0, 3.0, 4.0}


def test_normal_values_have_the_mean_and_deviation_that_were_asked_for():
    values = randn(10, 2).sample(size=4000, random_state=0)
    # Standard errors 0.032 and 0.022; more than five of each.
    assert abs(np.mean(values) - 10) < 0.17
    assert abs(np.std(values) - 2) < 0.12
    assert all(value % 0.5 == 0 for value in qrandn(10, 2, 0.5).sample(size=20, random_state=0))
    assert randn() == Float(None, None).normal(0, 1)


def test_randint_and_lograndint_exclude_upper():
    assert set(randint(-1, 3).sample(size=200, random_state=0)) == {-1, 0, 1, 2}
    assert set(lograndint(1, 4).sample(size=200, random_state=0)) == {1, 2, 3}


@pytest.mark.parametrize("make", [qrandint, qlograndint])
def test_quantised_integers_include_upper_unless_the_quantum_is_one(make):
    assert set(make(5, 20, 5).sample(size=300, random_state=0)) == {5, 10, 15, 20}
    assert set(make(3, 11, 5).sample(size=100, random_state=0)) == {5, 10}
    assert set(make(3, 7, 5).sample(size=10, random_state=0)) == {5}
    assert set(make(1, 4, 1).sample(size=200, random_state=0)) == {1, 2, 3}


def test_every_multiple_of_a_quantised_integer_has_the_same_weight():
    counts = Counter(qrandint(0, 30, 10).sample(size=4000, random_state=1))
    # 1000 each, sd 27: five sd.
    assert all(abs(counts[value] - 1000) < 137 for value in (0, 10, 20, 30))


def test_log_integers_have_weights_that_fall_like_one_over_k():
    counts = Counter(lograndint(1, 4).sample(size=4000, random_state=1))
    for value in (1, 2, 3):
        share = log((value + 1) / value) / log(4)
        # sd at most 0.008: five sd.
        assert abs(counts[value] / 4000 - share) < 0.04


def test_integers_work_up_to_the_edge_of_64_bits():
    edge = 2**63 - 1
    assert randint(edge - 1, edge).sample() == edge - 1
    assert lograndint(edge - 1, edge).sample() == edge - 1


def test_choice_draws_each_value_as_it_is():
    values = [1, "a", None, (1, 2), True]
    drawn = choice(values).sample(size=100, random_state=0)
    assert all(any(value is one for one in values) for value in drawn)
    assert len(choice(values)) == 5
    assert choice(values)[1] == "a"


def test_numpy_values_become_plain_python_values():
    assert type(choice(np.array([1.5, 2.5])).sample(random_state=0)) is float
    assert type(choice([np.int64(3)]).sample()) is int
    assert type(sample_from(lambda: np.float64(1)).sample()) is float
    assert type(grid_search(np.arange(3))["grid_search"][0]) is int
    assert uniform(np.float32(0), np.int64(1)) == uniform(0, 1)
    assert randint(np.int64(1), 1e3) == randint(1, 1000)


ALL = [
    uniform(0, 1),
    quniform(0, 1, 0.1),
    loguniform(1, 10),
    qloguniform(1, 10, 1),
    randn(),
    qrandn(0, 1, 0.1),
    randint(0, 9),
    qrandint(0, 9, 3),
    lograndint(1, 9),
    qlograndint(1, 9, 3),
    choice([1, 2]),
    Float(0, 1),
    Integer(0, 9),
    Categorical([1, 2]),
]


@pytest.mark.parametrize("domain", ALL, ids=str)
def test_a_domain_is_a_value(domain):
    copy = pickle.loads(pickle.dumps(domain))
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert repr(copy) == repr(domain)
    with pytest.raises(AttributeError):
        domain.sampler = None


@pytest.mark.parametrize("domain", ALL, ids=str)
def test_what_a_domain_draws_is_valid_and_cast_to_itself(domain):
    for value in domain.sample(size=30, random_state=5):
        assert domain.is_valid(value)
        assert domain.cast(value) == value


def test_domains_that_differ_in_bounds_sampler_or_kind_are_not_equal():
    different = [uniform(0, 1), uniform(0, 2), Float(0, 1), Integer(0, 1), randint(0, 1)]
    assert len(set(different)) == len(different)


def test_a_domain_without_sampler_is_drawn_from_uniformly():
    for bare, chosen in (
        (Float(0, 1), uniform(0, 1)),
        (Integer(0, 9), randint(0, 9)),
        (Categorical("ab"), choice("ab")),
    ):
        assert bare.sample(random_state=3) == chosen.sample(random_state=3)
        assert bare.get_sampler() == Uniform()


@pytest.mark.parametrize(
    "again",
    [
        lambda: Float(0, 1).uniform().uniform(),
        lambda: Float(1, 2).uniform().loguniform(),
        lambda: Float(None, None).normal().normal(),
        lambda: Float(0, 1).quantized(0.1).uniform(),
        lambda: Float(0, 1).quantized(0.1).quantized(0.1),
        lambda: Integer(0, 5).uniform().uniform(),
        lambda: Integer(1, 5).uniform().loguniform(),
        lambda: Integer(0, 5).quantized(2).quantized(2),
        lambda: Categorical([1]).uniform().uniform(),
    ],
)
def test_a_domain_takes_one_sampler(again):
    with pytest.raises(ValueError, match="sampler must be chosen once"):
        again()


def test_samplers_are_chained_and_leave_the_domain_as_it_was():
    plain = Float(0.5, 8)
    assert plain.loguniform().quantized(0.5).sampler == Quantized(LogUniform(), 0.5)
    assert plain.quantized(0.5).sampler == Quantized(Uniform(), 0.5)
    assert Integer(1, 9).loguniform().quantized(3) == qlograndint(1, 9, 3)
    assert plain.sampler is None


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: uniform(1, 0), "lower must be less than upper=0, got 1. Write uniform(0, 1)."),
    (lambda: quniform(1, 0, 0.5), "Write quniform(0, 1, 0.5)."),
    (lambda: loguniform(1, 0.1), "lower must be less than upper=0.1, got 1. Write loguniform(0.1, 1)."),
    (lambda: qloguniform(1, 0.5, 0.5), "Write qloguniform(0.5, 1, 0.5)."),
    (lambda: randint(3, 1), "Write randint(1, 3)."),
    (lambda: qrandint(8, 4, 2), "Write qrandint(4, 8, 2)."),
    (lambda: lograndint(3, 1), "Write lograndint(1, 3)."),
    (lambda: qlograndint(8, 4, 2), "Write qlograndint(4, 8, 2)."),
    (lambda: uniform(1, 1), "Write a constant as the value itself"),
    (lambda: uniform(nan, 1), "lower must be a number, got nan"),
    (lambda: uniform(0, inf), "lower and upper must be finite"),
    (lambda: uniform(-1.7e308, 1.7e308), "lower and upper must be finite"),
    (lambda: uniform("0", 1), "lower must be a number, got '0'"),
    (lambda: uniform(False, 1), "lower must be a number, got False"),
    (lambda: uniform(None, 1), "lower and upper must be finite"),
    (lambda: Float(None, None).sample(), "lower and upper must be finite"),
    (lambda: loguniform(0, 1), "lower must be > 0 on a log scale, got 0.0. Give the bounds"),
    (lambda: loguniform(1, inf), "lower and upper must be finite"),
    (lambda: quniform(0, 1, 0), "q must be finite and > 0, got 0"),
    (lambda: quniform(0, 1, inf), "q must be finite and > 0, got inf"),
    (lambda: quniform(0.05, 1, 0.1), "lower must be divisible by q=0.1, got 0.05"),
    (lambda: quniform(0, 1, 0.3), "upper must be divisible by q=0.3, got 1.0"),
    (lambda: quniform(0, 1, 5e-324), "upper must be divisible by q=5e-324"),
    (lambda: randn(sd=0), "sd must be finite and > 0, got 0.0"),
    (lambda: randn(mean=inf), "mean must be finite, got inf"),
    (lambda: Float(0, 1).normal(), "bounds must be None with a normal distribution"),
    (lambda: randint(3, 3), "lower must be less than upper=3, got 3"),
    (lambda: randint(0.5, 3), "lower must be an integer, got 0.5"),
    (lambda: randint(0, True), "upper must be an integer, got True"),
    (lambda: randint(0, 2**63), "lower and upper must be 64-bit integers"),
    (lambda: lograndint(0, 3), "lower must be > 0 on a log scale, got 0"),
    (lambda: qrandint(0, 9, 0), "q must be an integer >= 1, got 0"),
    (lambda: qlograndint(6, 9, 5), "lower and upper must be around a multiple of q=5, got (6, 9)"),
    (lambda: choice([]), "categories must be at least one value, got []"),
    (lambda: choice(3), "categories must be a list of values, got 3"),
    (lambda: choice(3), "Write [3]."),
    (lambda: choice(0.1, 0.2), "categories must be one list, got 0.1, 0.2. Write choice([0.1, 0.2])."),
    (lambda: grid_search(1, 2), "values must be one list, got 1, 2. Write grid_search([1, 2])."),
    (lambda: choice({1, 2}), "A set has no fixed order"),
    (lambda: grid_search([]), "grid_search must be at least one value, got []"),
    (lambda: sample_from(3), "func must be callable, got 3"),
    (lambda: sample_from(lambda a, b: 0), "Its signature is (a, b)"),
    (lambda: uniform(0, 1).sample(size=0), "size must be an integer >= 1, got 0"),
    (lambda: uniform(0, 1).sample(random_state=-1), "random_state must be an integer >= 0"),
    (lambda: uniform(0, 1).sample(random_state="x"), "random_state must be"),
    (lambda: Integer(0, 3, sampler=Normal()).sample(), "sampler must be uniform or log-uniform"),
    (lambda: sample_from(lambda c: c).sample([{}], size=2), "config must be one for each of"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_domain_says_which_argument_broke_which_rule(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_validity_is_what_could_be_drawn():
    assert uniform(0, 1).is_valid(1)
    assert not uniform(0, 1).is_valid(1.1)
    assert not uniform(0, 1).is_valid(nan)
    assert not uniform(0, 1).is_valid("0.5")
    assert not quniform(0, 1, 0.25).is_valid(0.3)
    assert not randint(0, 5).is_valid(5)
    assert not randint(0, 5).is_valid(2.5)
    assert qrandint(0, 6, 3).is_valid(6)
    assert not qrandint(0, 6, 3).is_valid(4)
    assert not choice("ab").is_valid("c")
    assert sample_from(lambda: 1).is_valid(object())


def test_domains_cast_to_their_type_and_name_their_range():
    assert (uniform(0, 1).cast(1), randint(0, 9).cast(3.7), choice("ab").cast("a")) == (1.0, 3, "a")
    assert uniform(0, 1).domain_str == "(0.0, 1.0)"
    assert randint(0, 9).domain_str == "(0, 9)"
    assert choice("ab").domain_str == "['a', 'b']"
    assert sample_from(max).domain_str == "<built-in function max>()"


def test_a_function_gets_what_its_signature_takes():
    assert sample_from(lambda: 1).sample() == 1
    assert sample_from(lambda config: config["x"]).sample({"x": 2}) == 2
    assert sample_from(lambda _: 3).sample() == 3
    assert sample_from(lambda spec: spec.config.a.b).sample({"a": {"b": 4}}) == 4
    assert sample_from(lambda it: it.config.a.b).sample({"a": {"b": 4}}) == 4
    assert sample_from(lambda it: it.config).sample({"config": 3}) == 3
    assert sample_from(lambda it: it.a["config"]).sample({"a": {"config": 3}}) == 3
    assert sample_from(lambda config, spec=5: spec).sample() == 5
    assert sample_from(lambda c: c["x"]).sample([{"x": 1}, {"x": 2}], size=2) == [1, 2]
    assert sample_from(lambda c: c["x"]).sample({"x": 1}, size=2) == [1, 1]


def test_a_function_that_tells_no_signature_is_called_without_arguments():
    assert sample_from(dict).sample() == {}


def test_functions_are_equal_if_they_call_the_same():
    assert Function(max) == sample_from(max)
    assert Function(max) != sample_from(min)


@pytest.mark.parametrize("source", [7, np.int64(7), SeedSequence(7)])
def test_a_seed_starts_the_same_stream_each_time(source):
    expected = uniform(0, 1).sample(random_state=default_rng(7))
    assert uniform(0, 1).sample(random_state=source) == expected
    assert uniform(0, 1).sample(random_state=source) == expected


@pytest.mark.parametrize("make", [default_rng, RandomState])
def test_a_generator_changes_from_draw_to_draw(make):
    mine, other = make(7), make(7)
    first, second = (uniform(0, 1).sample(random_state=mine) for _ in range(2))
    assert first != second
    assert uniform(0, 1).sample(size=2, random_state=other) == [first, second]


def test_the_global_generator_is_never_touched():
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - to see that no domain does
    for domain in ALL:
        domain.sample(size=3)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    assert random_generator(None) is not random_generator(None)
