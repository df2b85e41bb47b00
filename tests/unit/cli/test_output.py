from __future__ import annotations

import io
import json
from math import inf, nan

import pytest

from dasktune.cli.output import fields_text, table_text, terminal_width, write_csv, write_json

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
    assert terminal_width() is None


@pytest.mark.parametrize("show", [lambda t: table_text([t], [[t]]), lambda t: fields_text({t: t})])
def test_nothing_that_a_terminal_would_obey_gets_out(show):
    text = show(HOSTILE)
    assert "a?[2J? b?31m?c?" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_json_has_null_for_what_is_no_finite_number_and_no_raw_control_character(capsys):
    write_json({"loss": nan, "more": [inf, 1.5], "name": f"{HOSTILE}\x7f"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"loss": None, "more": [None, 1.5], "name": f"{HOSTILE}\x7f"}
    assert all(char.isprintable() or char == "\n" for char in out)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_csv_keeps_values_as_they_are_for_programs_and_makes_them_safe_for_people(monkeypatch):
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        monkeypatch.setattr("sys.stdout", stream)
        write_csv(["name", "layers"], [[HOSTILE, [1, 2]], [None, nan]])
    assert HOSTILE in pipe.getvalue()
    assert '"[1, 2]"' in pipe.getvalue()
    assert "\x1b" not in terminal.getvalue()
    assert terminal.getvalue().splitlines()[2] == ",nan"
