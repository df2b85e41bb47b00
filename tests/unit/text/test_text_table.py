from __future__ import annotations

import pytest

from dasktune.text.text_table import fields_text, html_table, narrow, table_text

HOSTILE = "a\x1b[2J\r\nb\x9b31m\u202ec\x07"


def test_a_table_aligns_numbers_to_the_right_and_what_is_wide_by_what_a_terminal_shows():
    text = table_text(["name", "n"], [["日本", 1.5], ["abc", None], ["x", 22]])
    assert text.splitlines() == ["name    n", "日本  1.5", "abc", "x      22"]


def test_a_table_that_is_too_wide_leaves_out_its_last_columns_and_says_which():
    rows = [["t1", "x" * 50, 3.0, 4.0]]
    text = table_text(["trial", "text", "loss", "lr"], rows, width=55)
    *lines, last = text.splitlines()
    assert max(map(len, lines)) <= 55
    assert lines[1].startswith("t1     xxxxx")
    assert "…" in lines[1]
    assert last == "(not shown: lr)"
    assert table_text(["trial"], [["y" * 90]], width=10).splitlines()[1] == "y" * 9 + "…"


def test_a_table_for_a_pipe_is_as_wide_as_it_is():
    assert "x" * 500 in table_text(["a"], [["x" * 500]])


@pytest.mark.parametrize("show", [lambda t: table_text([t], [[t]]), lambda t: fields_text({t: t})])
def test_nothing_that_a_terminal_would_obey_gets_out(show):
    text = show(HOSTILE)
    assert "a?[2J b?31m?c?" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_table_that_is_narrowed_keeps_its_numbers():
    head = ["trial", "status", "worker", "optimiser", "lr", "loss"]
    row = ["a1b2c_00001", "TERMINATED", "tcp://127.0.0.1:41", "adam_with_decay", "3.587e-05", "0.5"]
    assert narrow([head, row], None, [2, 4, 3]) == [head, row]
    short = narrow([head, row], 66, [2, 4, 3])
    assert short[1] == ["a1b2c_00001", "TERMINA…", "tcp://1…", "adam_wi…", "3.587e-05", "0.5"]
    assert narrow([head, row], 50, [2, 4, 3])[0] == ["trial", "status", "optimis…", "lr", "loss"]
    assert narrow([head, row], 38, [2, 4, 3])[1] == ["a1b2c_00001", "TERMINA…", "adam_wi…", "0.5"]
    assert narrow([head, row], 12, [2, 4, 3]) == [["trial"], ["a1b2c_00001"]]


def test_html_is_escaped():
    assert "&lt;b&gt;" in html_table([["<b>"], ["<i>"]])
    assert html_table([]) == ""
