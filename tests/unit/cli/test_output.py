from __future__ import annotations

import io
import json
from math import inf, nan

from dasktune.cli.output import terminal_width, write_csv, write_json

HOSTILE = "a\x1b[2J\r\nb\x9b31m\u202ec\x07"


def test_a_pipe_has_no_width():
    assert terminal_width() is None


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
    # A carriage return would begin a new row in some readers.
    assert HOSTILE.replace("\r\n", "\n") in pipe.getvalue()
    assert '"[1, 2]"' in pipe.getvalue()
    assert "\x1b" not in terminal.getvalue()
    assert terminal.getvalue().splitlines()[2] == ",nan"
