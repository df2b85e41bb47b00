from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.progress.text import columns, crop, duration, pad, plural, printable, short


@given(st.text(), st.integers(1, 40))
def test_a_cropped_text_fits_and_is_as_it_was_if_it_fitted(text, width):
    assert columns(crop(text, width)) <= width
    if columns(text) <= width and len(text) <= 4 * width:
        assert crop(text, width) == text


@given(st.text())
def test_nothing_printable_controls_a_terminal(text):
    assert printable(text).isprintable()


def test_wide_characters_take_two_columns_and_combining_ones_none():
    assert columns("精度") == 4
    assert columns("e\u0301") == 1
    assert crop("精度精度", 5) == "精度…"
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
        ("a\nb\x1b[0m", "a?b?[0m"),
        ((64, 64), "(64, 64)"),
        (list(range(1000)), "[0, 1, 2, 3, …"),
    ],
)
def test_values_are_cells(value, shown):
    assert short(value) == shown


def test_numbers_and_times_are_told_as_people_do():
    assert (plural("trial", 1), plural("trial", 2)) == ("trial", "trials")
    assert (duration(-1), duration(59.9), duration(3661)) == ("00:00", "00:59", "1:01:01")
