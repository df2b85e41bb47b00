from __future__ import annotations

import math
import sys
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import StorageError
from dasktune.storage.journal.json_lines import MAX_ARRAY, MAX_REPR, decode, encode

_TEXT = st.text('a"$\\\n\r\x00\u2028\u00e4\U0001f600\ud800', max_size=6)
_KEYS = _TEXT | st.sampled_from(["$float", "$repr", "$", "$$float"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.dictionaries(_KEYS, _VALUES, max_size=4))
def test_every_record_comes_back(record: dict[str, Any]) -> None:
    line = encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert same(record, decode(line))
    assert encode(decode(line)) == line


class Colour(Enum):
    RED = "red"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.float64("inf"), math.inf),
        (np.array(2), 2),
        (np.arange(3), [0, 1, 2]),
        (np.array([1.0, -np.inf]), [1.0, -math.inf]),
        ((1, (2, math.inf)), [1, [2, math.inf]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (Colour.RED, "red"),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (b"x", {"$repr": "b'x'"}),
        (1j, {"$repr": "1j"}),
        (Rude(), {"$repr": "<Rude that has no repr>"}),
        pytest.param(10**5000, {"$repr": "<int that has no repr>"}, id="huge"),
        (np.longdouble(1) / 3, {"$repr": repr(np.longdouble(1) / 3)}),
    ],
)
def test_what_json_lacks_becomes_the_nearest_plain_value(value: Any, expected: Any) -> None:
    assert decode(encode({"v": value})) == {"v": expected}


@pytest.mark.parametrize("extra", [{}, {"z": math.nan}], ids=["fast", "slow"])
def test_keys_become_strings_the_same_way_on_both_paths(extra: dict[str, float]) -> None:
    found = decode(encode({1: "i", 2.5: "f", False: "b", None: "n", **extra}))
    found.pop("z", None)
    assert found == {"1": "i", "2.5": "f", "false": "b", "null": "n"}


def test_strange_keys_are_written_too() -> None:
    record = {Colour.RED: 1, (1, 2): 2, b"x": 3}
    assert decode(encode(record)) == {"red": 1, "(1, 2)": 2, "b'x'": 3}


def test_big_arrays_are_described() -> None:
    (found,) = decode(encode({"v": np.zeros(MAX_ARRAY + 1)})).values()
    assert list(found) == ["$repr"]
    assert len(found["$repr"]) <= MAX_REPR


def test_addresses_do_not_reach_the_journal() -> None:
    one, other = object(), object()  # both alive, or the second may get the first one's address
    assert encode({"v": one}) == encode({"v": other})


def test_a_value_that_holds_itself_is_written() -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = loop
    assert decode(encode(loop))["a"] == 1


def test_a_value_that_looks_marked_stays_text() -> None:
    record = {"v": "$float", "w": {"$float": "nan"}, "$$x": 1}
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "line", [b"{", b'{"a":NaN}', b'{"a":Infinity}', b'"\xff"', b"", b'{"a":{"$float":"x"}}']
)
def test_what_is_not_strict_json_is_refused(line: bytes) -> None:
    with pytest.raises(StorageError, match="not a line of strict JSON"):
        decode(line)


@pytest.mark.parametrize("text", ["9" * 10_000, "[-" + "9" * 10_000 + "]", " 1" + "0" * 4300])
def test_no_integer_is_read_that_takes_long_even_if_python_was_set_to(text: str) -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(StorageError, match=r"an integer of \d+ digits"):
            decode(f'{{"v":{text}}}'.encode())
        assert decode(f'{{"v":"{text}","w":7}}'.encode()) == {"v": text, "w": 7}
    finally:
        sys.set_int_max_str_digits(before)
