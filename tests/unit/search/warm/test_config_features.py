"""Configurations of different spaces in one table."""

from __future__ import annotations

from math import inf, nan

import numpy as np

from dasktune.search.warm.config_features import ConfigFeatures
from dasktune.space import choice, lograndint, loguniform, randint, sample_from, uniform


def table(space, past, configs=None):
    features = ConfigFeatures(space, past)
    return features.table(past if configs is None else configs), features.is_category.tolist()


def same(found, expected):
    np.testing.assert_array_equal(found, np.array(expected, dtype=float))


def test_ranges_are_numbers_whatever_their_range_was():
    found, is_category = table(
        {"lr": loguniform(0.01, 1), "units": lograndint(4, 64)},
        [{"lr": 5.0, "units": 2}, {"lr": 1e-9, "units": 99}],
    )
    same(found, [[5, 2], [1e-9, 99]])
    assert is_category == [False, False]


def test_parameters_that_are_missing_are_nan_and_others_are_dropped():
    found, _ = table({"a": uniform(0, 1), "b": uniform(0, 1)}, [{"a": 0.5, "c": 7}, {"b": 0.25}])
    same(found, [[0.5, nan], [nan, 0.25]])


def test_a_parameter_that_no_past_configuration_has_is_no_column():
    found, _ = table({"a": uniform(0, 1), "new": uniform(0, 1), "kind": choice(["p", "q"])}, [{"a": 0.5}])
    assert found.shape == (1, 1)


def test_nested_parameters_are_found_by_path_and_by_keys():
    space = {"model/lr": uniform(0, 1), "model/betas/1": uniform(0, 1)}
    nested, flat = {"model": {"lr": 0.5, "betas": [0.1, 0.2]}}, {"model/lr": 0.75, "model/betas/1": 0.3}
    same(table(space, [nested, flat, {"model": {"betas": [0.1]}}])[0], [[0.5, 0.2], [0.75, 0.3], [nan, nan]])


def test_choices_are_categories_by_value_and_new_ones_are_their_own():
    past = [{"k": "relu"}, {"k": "elu"}, {"k": "tanh"}, {"k": True}, {"k": 1}, {"k": {"x": 1}}, {}]
    found, is_category = table({"k": choice(["tanh", "relu"])}, past)
    same(found, [[1], [2], [0], [3], [4], [5], [nan]])
    assert is_category == [True]
    features = ConfigFeatures({"k": choice(["tanh", "relu"])}, past)
    same(features.table([{"k": "never seen"}]), [[nan]])


def test_an_option_equals_the_text_that_a_journal_has_for_it():
    found, _ = table(
        {"k": choice([dict, list])}, [{"k": {"$repr": "<class 'list'>"}}, {"k": {"$repr": "<class 'dict'>"}}]
    )
    same(found, [[1], [0]])


def test_choices_of_numbers_are_numbers_and_none_is_a_missing_one():
    found, is_category = table(
        {"depth": choice([None, 4, 8])}, [{"depth": 5}, {"depth": None}, {"depth": "deep"}]
    )
    same(found, [[5], [nan], [nan]])
    assert is_category == [False]
    same(table({"x": uniform(0, 1)}, [{"x": inf}, {"x": True}, {"x": 1}])[0], [[nan], [nan], [1]])


def test_yes_and_no_are_categories():
    found, is_category = table({"flag": choice([False, True])}, [{"flag": True}, {"flag": False}])
    same(found, [[1], [0]])
    assert is_category == [True]


def test_conditional_parameters_are_missing_without_their_option():
    inner = {"name": "sgd", "momentum": uniform(0, 1), "half": sample_from(lambda config: 0.5)}
    space = {"opt": choice([inner, {"name": "adam", "betas": (0.9, uniform(0, 1))}])}
    past = [{"opt": {"name": "sgd", "momentum": 0.5}}, {"opt": {"name": "adam", "betas": [0.9, 0.3]}}]
    found, is_category = table(space, past)
    same(found, [[0, 0.5, nan, nan], [1, nan, 0.9, 0.3]])
    assert is_category == [True, False, False, False]


def test_a_range_beside_a_word_is_a_category():
    found, is_category = table({"k": choice(["auto", randint(1, 9)])}, [{"k": 3}, {"k": "auto"}, {"k": 3.0}])
    same(found, [[1], [0], [1]])
    assert is_category == [True]


def test_the_most_frequent_bins_are_never_exceeded():
    past = [{"k": f"name {number}"} for number in range(300)]
    found, _ = table({"k": choice(["a", "b"])}, past)
    assert np.nanmax(found) == 249
    assert np.isnan(found).sum() == 52


def test_an_integer_that_no_float_can_be_is_missing():
    found, _ = table(
        {"x": uniform(0, 1), "n": choice([1, 2])}, [{"x": 10**400, "n": 1}, {"x": 0.5, "n": 10**400}]
    )
    same(found, [[nan, 1], [0.5, nan]])
