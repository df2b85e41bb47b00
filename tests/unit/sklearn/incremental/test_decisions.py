"""How incremental searches decide."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("sklearn")

from dasktune.sklearn.incremental.decisions import (
    best_models,
    bracket_sizes,
    check_patience,
    inverse_decay,
    simulated_brackets,
    simulated_halving,
    stopped_on_plateau,
)


def records(*scores):
    return [{"partial_fit_calls": n, "score": score} for n, score in enumerate(scores, 1)]


@pytest.mark.parametrize(
    ("max_iter", "models", "calls"),
    [
        (1, 1, 1),
        (9, 17, 69),
        (15, 17, 101),
        (20, 17, 144),
        (27, 49, 357),
        (30, 49, 379),
        (81, 143, 1581),
    ],
)
def test_hyperband_makes_as_many_models_and_calls_as_that_of_dask_ml(max_iter, models, calls):
    brackets = simulated_brackets(max_iter, 3)
    assert sum(bracket["n_models"] for bracket in brackets) == models
    assert sum(bracket["partial_fit_calls"] for bracket in brackets) == calls


def test_the_brackets_are_those_of_the_paper():
    assert bracket_sizes(81, 3) == {4: (81, 1), 3: (34, 3), 2: (15, 9), 1: (8, 27), 0: (5, 81)}


def test_halving_ends_with_one_model_or_at_its_longest():
    assert simulated_halving(9, 2, 3) == {"total_calls": 6 * 2 + 2 * 6 + 18, "max_iter": 18}
    assert simulated_halving(9, 2, 3, max_iter=6) == {"total_calls": 6 * 2 + 3 * 6, "max_iter": 6}


def test_a_score_that_is_no_number_is_the_worst_and_of_equals_the_first_is_better():
    info = {0: records(math.nan), 1: records(0.5), 2: records(-9.0), 3: records(0.5)}
    assert best_models(info, 4) == [1, 3, 2, 0]


def test_a_model_that_does_not_get_better_is_trained_no_further():
    info = {0: records(1, 1, 1), 1: records(1, 1, 2), 2: records(1, 2)}
    calls = dict.fromkeys(info, 1)
    rule = {"max_iter": None, "patience": 3}
    assert stopped_on_plateau(calls, info, **rule, tol=0.5) == {0: 0, 1: 1, 2: 1}
    for never in (None, math.nan):
        assert stopped_on_plateau(calls, info, **rule, tol=never) == calls


def test_a_model_that_was_trained_long_enough_is_trained_no_further():
    info = {0: records(1, 2), 1: records(1, 2, 3)}
    rule = {"max_iter": 3, "patience": 0, "tol": 0.0}
    assert stopped_on_plateau({0: 1, 1: 1}, info, **rule) == {0: 1, 1: 0}


def test_inverse_decay_looks_as_far_ahead_as_the_number_of_models_stays():
    info = {number: records(number / 10) for number in range(10)}
    rule = {"patience": 0, "fits_per_score": 1}
    # After three calls of ten models two are left, and after two of them three.
    assert inverse_decay(info, start=10, decay_rate=1.0, **rule) == {9: 1, 8: 1}
    info = {number: records(*[number / 10] * 5) for number in (7, 8, 9)}
    assert inverse_decay(info, start=10, decay_rate=1.0, **rule) == {9: 0}
    assert inverse_decay(info, start=10, decay_rate=0.0, patience=3, fits_per_score=2) == {
        9: 2,
        8: 2,
        7: 2,
    }


def test_inverse_decay_of_less_than_one_model_ends():
    rule = {"patience": 0, "fits_per_score": 1}
    assert inverse_decay({0: records(0.5)}, start=1, decay_rate=1.0, **rule) == {0: 0}
    info = {number: records(number / 20) for number in range(20)}
    assert inverse_decay(info, start=20, decay_rate=3.0, **rule) == {19: 0}


@pytest.mark.parametrize("patience", [False, 0, 2])
def test_patience_may_be_none_or_more_than_one(patience):
    check_patience(patience)


@pytest.mark.parametrize(("patience", "text"), [(1, "patience >= 2"), (2.0, "patience must be an integer")])
def test_patience_that_sees_a_plateau_in_everything_is_refused(patience, text):
    with pytest.raises(ValueError, match=text):
        check_patience(patience)
