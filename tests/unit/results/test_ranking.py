from __future__ import annotations

import weakref
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.results.ranking import best_row, rank, summarize


def rows(*values):
    return [{} if value is None else {"loss": value} for value in values]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("last", 4.0), ("all", 1.0), ("avg", 3.0), ("last-5-avg", 3.0), ("last-10-avg", 3.0)],
)
def test_a_scope_condenses_the_rows_that_have_the_metric(scope, expected):
    history = rows(None, 5.0, 1.0, None, 2.0, 3.0, 4.0, None)
    assert summarize(history, "loss", "min", scope, finite=True) == expected


def test_a_window_averages_the_last_rows_only():
    history = rows(*range(20))
    assert summarize(history, "loss", "min", "last-5-avg", finite=True) == 17.0
    assert summarize(history, "loss", "min", "last-10-avg", finite=True) == 14.5


@pytest.mark.parametrize(("scope", "needed"), [("last", 2), ("last-5-avg", 7), ("last-10-avg", 14)])
def test_only_as_many_of_the_last_rows_are_read_as_the_scope_needs(scope, needed):
    values = [float(number) if number % 4 else None for number in range(101)]
    history = Backwards(rows(*values))
    numbers = [value for value in values if value is not None]
    size = {"last": 1, "last-5-avg": 5, "last-10-avg": 10}[scope]
    value = summarize(history, "loss", "min", scope, finite=True)
    assert value == pytest.approx(sum(numbers[-size:]) / size)
    assert history.read == needed


class Backwards(list):
    """Rows that count how many of them are read, and can be read only backwards."""

    read = 0

    def __iter__(self):
        raise AssertionError("all rows are read")

    def __reversed__(self):
        for row in super().__reversed__():
            self.read += 1
            yield row


@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg"])
def test_a_trial_without_the_metric_has_no_value(scope):
    assert summarize(rows(None, None), "loss", "min", scope, finite=False) is None
    assert summarize([], "loss", "min", scope, finite=True) is None


def test_a_diverged_end_counts_unless_the_best_row_is_asked_for():
    history = rows(1.0, nan)
    assert summarize(history, "loss", "min", "last", finite=True) is None
    assert summarize(history, "loss", "min", "avg", finite=True) is None
    assert summarize(history, "loss", "min", "all", finite=True) == 1.0
    assert isnan(summarize(history, "loss", "min", "last", finite=False))


def test_infinity_counts_only_if_it_may():
    history = rows(1.0, -inf)
    assert summarize(history, "loss", "min", "all", finite=True) == 1.0
    assert summarize(history, "loss", "min", "all", finite=False) == -inf


@pytest.mark.parametrize("values", [(inf, -inf), (1.7e308, 1.7e308)])
def test_a_mean_beyond_floats_is_undefined(values):
    assert summarize(rows(*values), "loss", "min", "avg", finite=True) is None
    assert isnan(summarize(rows(*values), "loss", "min", "avg", finite=False))


def test_an_unknown_scope_is_refused():
    with pytest.raises(ConfigError, match=r"scope must be one of 'last', 'all'.*got 'mean'"):
        summarize(rows(1.0), "loss", "min", "mean", finite=True)


@given(st.lists(st.floats(), min_size=1), st.sampled_from(["min", "max"]))
def test_nan_is_never_best_while_there_is_a_number(values, mode):
    best = max(values, key=lambda value: rank(value, mode))
    numbers = [value for value in values if not isnan(value)]
    if numbers:
        assert best == (max(numbers) if mode == "max" else min(numbers))


@pytest.mark.parametrize(("mode", "index"), [("min", 1), ("max", 2)])
def test_the_best_row_is_the_first_of_the_best(mode, index):
    history = [{"loss": v, "i": i} for i, v in enumerate([nan, 1.0, 2.0, 1.0, 2.0])]
    assert best_row(history, "loss", mode)["i"] == index


def test_only_the_best_row_so_far_is_kept_while_rows_are_read():
    class Row(dict):
        pass

    alive: weakref.WeakValueDictionary[int, Row] = weakref.WeakValueDictionary()
    held = []

    class Many(list):
        def __iter__(self):
            for number in range(100):
                alive[number] = row = Row(loss=float(number))
                yield row
                del row
                held.append(len(alive))

    assert best_row(Many(), "loss", "max") == {"loss": 99.0}
    assert max(held) <= 2


def test_without_a_value_the_last_row_stands_for_the_best():
    assert best_row([{"i": 0}, {"i": 1}], "loss", "min") == {"i": 1}
    assert best_row([], "loss", "min") == {}
