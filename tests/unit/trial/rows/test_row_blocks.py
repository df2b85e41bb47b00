from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.trial.rows.row_blocks import pack_rows, unpack_rows

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.tuples(st.integers()),
    st.lists(st.floats(), max_size=2),
)


def same(one: Any, other: Any) -> bool:
    # As text, because NaN is not equal to itself, True is equal to 1, and 0.0 to -0.0.
    return repr(one) == repr(other) and list(map(type, one)) == list(map(type, other))


def unpack(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    again, unreadable = unpack_rows(pack_rows(rows))
    assert unreadable == []
    return again


@given(columns=st.dictionaries(st.text(max_size=2), st.lists(VALUES, min_size=5, max_size=5), max_size=3))
def test_every_value_comes_back_with_its_type_and_its_place(columns: Any):
    rows = [{name: column[at] for name, column in columns.items()} for at in range(5)]
    assert same(unpack(rows), rows)


@pytest.mark.parametrize(
    "column",
    [
        [0.0, -0.0, 0.0],
        [-0.0, -0.0, -0.0],
        [1, True, 1.0],
        [1, 1, 1],
        [3, 2, 1],
        [5, 5, 6],
        [2**63 - 1, -(2**63), 0],
        [2**63, 1, 7],
        [math.nan, math.inf, -math.inf],
        ["a", "a", "a"],
        ["a", "b", "a"],
        [None, None, None],
        [np.float64(1), np.float64(1), np.float64(1)],
        [(1, 2), (1, 2), (1, 2)],
    ],
)
def test_columns_that_are_nearly_alike_are_not_confused(column: list[Any]):
    rows = [{"x": value, "step": at} for at, value in enumerate(column)]
    again = unpack(rows)
    assert same(again, rows)
    assert [type(row["x"]) for row in again] == list(map(type, column))


def test_rows_with_different_fields_keep_them():
    rows = [{"loss": 1.0}, {"loss": 2.0, "acc": 3.0}, {}]
    assert unpack(rows) == rows
    assert unpack([{}, {}]) == [{}, {}]
    mixed = [{"loss": 1.0, "shape": [1, 2]}, {"shape": (3, 4), "loss": 2.0}, {"loss": 3.0}]
    assert [list(row.items()) for row in unpack(mixed)] == [list(row.items()) for row in mixed]


def test_a_row_of_a_real_trial_takes_less_than_sixty_bytes():
    rng = np.random.default_rng(0)
    rows = [
        {
            "loss": rng.random(),
            "accuracy": rng.random(),
            "training_iteration": step + 1,
            "time_this_iter_s": rng.random(),
            "time_total_s": step + rng.random(),
            "time_since_restore": step + rng.random(),
            "iterations_since_restore": step + 1,
            "timestamp": 1_700_000_000 + step // 10,
            "date": "2026-11-24_15-00-00",
            "pid": 4711,
            "hostname": "node-17",
            "node_ip": "10.0.3.17",
            "done": False,
            "should_checkpoint": False,
        }
        for step in range(64)
    ]
    assert len(pack_rows(rows)) < 60 * len(rows)


def test_rows_that_cannot_be_pickled_are_not_packed():
    assert pack_rows([{"model": lambda: None}]) is None


class Lost:
    """Its objects can be pickled, and not be made again without an argument."""

    def __new__(cls, name: str) -> Lost:
        return super().__new__(cls)


def test_rows_that_cannot_be_unpickled_are_not_packed():
    rows = [{"step": step, "model": Lost("net")} for step in range(3)]
    assert pickle.dumps(rows)
    assert pack_rows(rows) is None
    assert pack_rows([{"model": [Lost("net")]}]) is None
    assert pack_rows([{"model": [1]}]) is not None


def test_rows_of_plain_values_are_not_unpickled_to_check_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(pickle, "loads")
    assert pack_rows([{"a": 1, "b": 1.0, "c": "x", "d": None, "e": True}, {"a": "y"}]) is not None


class Fragile:
    """Its objects can be unpickled as long as `intact` is true."""

    intact = True

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: dict[str, Any]) -> None:
        if not Fragile.intact:
            raise ValueError("the device is gone")
        self.__dict__.update(state)


@pytest.mark.parametrize("others", [{}, {"more": 1}])
def test_a_value_that_can_no_longer_be_unpickled_costs_no_other_value(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    rows: list[dict[str, Any]] = [
        {"step": 1, "net": Fragile("a"), "sizes": [1]},
        {"step": 2, "net": None, "sizes": [2], **others},
    ]
    block = pack_rows(rows)
    (first, _), unreadable = unpack_rows(block)
    assert (first["net"].name, unreadable) == ("a", [])
    monkeypatch.setattr(Fragile, "intact", False)
    again, unreadable = unpack_rows(block)
    assert unreadable == [0]
    assert repr(again[0]["net"]) == "UnreadableValue('ValueError: the device is gone')"
    assert again == [{**rows[0], "net": again[0]["net"]}, rows[1]]
    # What replaces it can be packed, and is recognised.
    assert unpack_rows(pack_rows(again))[1] == [0]
