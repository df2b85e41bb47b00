from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.text.formatting import (
    column_width,
    format_cell,
    format_clock,
    one_line,
    pad,
    plural,
    printable,
    truncate,
)


@given(st.text(), st.integers(1, 40))
def test_a_truncated_text_fits_and_is_as_it_was_if_it_fitted(text, width):
    assert column_width(truncate(text, width)) <= width
    if column_width(text) <= width:
        assert truncate(text, width) == text


@given(st.text())
def test_nothing_printable_controls_a_terminal(text):
    assert printable(text).isprintable()


def test_wide_characters_take_two_columns_and_combining_ones_none():
    assert column_width("精度") == 4
    assert column_width("e\u0301") == 1
    assert truncate("精度精度", 5) == "精度…"
    assert pad("精", 4) == "精  "
    assert pad("精", 4, right=True) == "  精"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        (1e-7, "1e-07"),
        (123456789, "123456789"),
        (np.float32(0.5), "0.5"),
        (float("nan"), "nan"),
        (True, "True"),
        (None, ""),
        ("x" * 20, "x" * 13 + "…"),
        ("a\nb\x1b[0m", "a b?[0m"),
        ((64, 64), "(64, 64)"),
        (list(range(1000)), "[0, 1, 2, 3, …"),
    ],
)
def test_values_are_cells(value, shown):
    assert format_cell(value, 4, 14) == shown


def test_numbers_and_times_read_as_people_write():
    assert (plural("trial", 1), plural("trial", 2)) == ("trial", "trials")
    assert (format_clock(-1), format_clock(59.9), format_clock(3661)) == (
        "00:00",
        "00:59",
        "1:01:01",
    )


@given(st.text(), st.integers(1, 40), st.booleans())
def test_one_line_fits_and_controls_nothing(text, width, middle):
    line = one_line(text, width, middle=middle)
    assert line.isprintable()
    assert column_width(line) <= width


def test_a_long_text_is_cut_where_it_has_an_ellipsis():
    assert one_line("a" * 10**6, 5) == "aaaa…"
    assert one_line("a" * 10**6 + "b", 5, middle=True) == "aa…ab"
    assert one_line("精" * 20_000, 5, middle=True) == "精…精"
