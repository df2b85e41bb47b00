from __future__ import annotations

import io
import os
from math import nan

import pytest

from dasktune.progress import ProgressLine
from dasktune.progress import line as module
from dasktune.trial.status import PublicStatus

_S = PublicStatus


class Terminal(io.StringIO):
    def isatty(self):
        return True


class WordsOnly:
    """What people put in place of sys.stderr: it can write, and that is all."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def counts(running=0, done=0):
    return {_S.RUNNING: running, _S.TERMINATED: done}


def test_a_file_gets_a_line_at_most_every_five_seconds_and_one_at_the_end():
    stream = io.StringIO()
    line = ProgressLine(stream, total=9)
    for second in range(9):
        line.update(counts(done=second), now=100.0 + second)
    line.finish()
    shown = [text.split(" trials")[0] for text in stream.getvalue().splitlines()]
    assert shown == ["0/9", "5/9", "8/9"]
    assert "\r" not in stream.getvalue()


def test_a_terminal_has_its_line_rewritten():
    stream = Terminal()
    line = ProgressLine(stream)
    line.update(counts(running=100), now=0.0)
    line.update(counts(running=50), now=0.05)
    line.update(counts(running=1), now=0.1)
    line.finish()
    _, first, second, last = stream.getvalue().split("\r")
    assert first == "0 trials done · 100 running · 0 errors · 00:00"
    assert second.rstrip() == "0 trials done · 1 running · 0 errors · 00:00"
    assert len(second) == len(first)
    assert last.rstrip(" ") == second.rstrip() + "\n"


def test_the_interval_is_the_users_choice():
    stream = io.StringIO()
    line = ProgressLine(stream, min_interval_s=0)
    for _ in range(3):
        line.update(counts(), now=0.0)
    assert stream.getvalue().count("\n") == 3


def test_time_starts_with_the_first_update():
    stream = io.StringIO()
    line = ProgressLine(stream, total=6)
    line.update(counts(done=2), now=1e9)
    line.update(counts(done=4), now=1e9 + 10)
    assert stream.getvalue().splitlines()[-1].endswith(" · 00:10 · 00:10 left")


@pytest.mark.parametrize(("mode", "best"), [("min", "1 (b)"), ("max", "3 (a)"), (None, "3 (a)")])
def test_the_better_value_is_kept(mode, best):
    stream = io.StringIO()
    line = ProgressLine(stream, metric="loss", mode=mode)
    for value, trial_id in [(nan, "x"), (3.0, "a"), (1.0, "b"), (2.0, "c"), (nan, "d")]:
        line.update(counts(), now=0.0, best_value=value, best_trial_id=trial_id)
    line.finish()
    assert f"best loss {best} · " in stream.getvalue().splitlines()[-1]


def test_the_counts_may_go_on_changing_after_an_update():
    stream = io.StringIO()
    line = ProgressLine(stream)
    live = counts(running=1)
    line.update(live, now=0.0)
    live[_S.RUNNING] = 7
    line.finish()
    assert "7" not in stream.getvalue()


def test_it_ends_once():
    stream = Terminal()
    line = ProgressLine(stream)
    line.update(counts(), now=0.0)
    line.finish()
    text = stream.getvalue()
    line.finish()
    line.update(counts(), now=9.0)
    assert stream.getvalue() == text
    assert text.endswith("\n")


def test_nothing_is_said_of_nothing():
    stream = Terminal()
    ProgressLine(stream).finish()
    assert stream.getvalue() == ""


def test_a_stream_without_utf8_gets_plain_characters():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    line = ProgressLine(stream, metric="größe")
    line.update(counts(), now=0.0, best_value=1.0)
    assert raw.getvalue() == b"0 trials done - 0 running - 0 errors - best gr??e 1 - 00:00\n"


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_stream_that_closes_is_given_up(kind):
    stream = kind()
    line = ProgressLine(stream, min_interval_s=0)
    line.update(counts(), now=0.0)
    stream.close()
    line.update(counts(), now=1.0)
    line.finish()


def test_a_closed_or_missing_stream_is_silence(monkeypatch):
    closed = io.StringIO()
    closed.close()
    line = ProgressLine(closed)
    line.update(counts(), now=0.0)
    line.finish()
    monkeypatch.setattr("sys.stderr", None)
    line = ProgressLine()
    line.update(counts(), now=0.0)
    line.finish()


def test_a_broken_pipe_is_given_up():
    line = ProgressLine(Broken())
    line.update(counts(), now=0.0)
    line.finish()


def test_what_can_only_write_is_written_to():
    stream = WordsOnly()
    ProgressLine(stream).update(counts(), now=0.0)
    assert stream.text.startswith("0 trials")


def test_standard_error_is_the_default(capsys):
    ProgressLine().update(counts(), now=0.0)
    assert capsys.readouterr().err.startswith("0 trials")


@pytest.mark.parametrize(("columns", "longest"), [(30, 29), (0, 79), (1, 1)])
def test_the_last_column_stays_free(monkeypatch, columns, longest):
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(module.os, "get_terminal_size", lambda descriptor: size)
    monkeypatch.setattr(Terminal, "fileno", lambda self: 2)
    stream = Terminal()
    line = ProgressLine(stream, metric="m" * 200)
    line.update(counts(running=1), now=0.0, best_value=1.0)
    assert 0 < len(stream.getvalue()) - 1 <= longest
