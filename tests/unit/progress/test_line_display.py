from __future__ import annotations

import io
import logging
import os
import sys

import pytest
from progress_kit import pseudo_terminal

from dasktune.progress import PlainLines, Progress, ProgressLine, background_stream
from dasktune.progress import line_display as module
from dasktune.progress.background_stream import BackgroundStream, print_promptly
from dasktune.progress.choose import open_display
from dasktune.text.formatting import column_width
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


def rows(stream):
    """Return the rows of a terminal after what was written to it."""
    found = []
    for text in stream.getvalue().split("\n"):
        row = ""
        for part in text.split("\r"):
            row = part + row[len(part) :]
        found.append(row.rstrip())
    return found


def progress(running=0, done=0, **more):
    return Progress(counts={_S.RUNNING: running, _S.TERMINATED: done}, **more)


def test_a_file_gets_a_line_every_thirty_seconds():
    stream = io.StringIO()
    lines = PlainLines(stream)
    for second in range(61):
        if lines.is_due(100.0 + second, False):
            lines.update(progress(done=second, total=99), None, 100.0 + second)
    lines.end(progress(done=99, total=99), None, ["the end"])
    shown = [text.split(" trials")[0] for text in stream.getvalue().splitlines()]
    assert shown == [*(f"[dasktune] {n}/99" for n in (0, 30, 60, 99)), "the end"]


def test_better_values_bring_lines_that_are_five_seconds_apart():
    stream = io.StringIO()
    lines = PlainLines(stream)
    shown = []
    for second in range(12):
        if lines.is_due(float(second), improved=second > 0):
            lines.update(progress(), None, float(second))
            shown.append(second)
    assert shown == [0, 5, 10]


def test_a_terminal_has_its_line_rewritten():
    stream = Terminal()
    line = ProgressLine(stream)
    line.update(progress(running=100), None, 0.0)
    assert not line.is_due(0.05, True)
    assert line.is_due(0.1, False)
    line.update(progress(running=1), None, 0.1)
    line.end(progress(running=1), None, ["the end"])
    _, first, second, last = stream.getvalue().split("\r")
    assert first == "0 trials done · 100 running · 0 errors · 00:00"
    assert second.rstrip() == "0 trials done · 1 running · 0 errors · 00:00"
    assert len(second) == len(first)
    assert last.splitlines() == [second.rstrip(), "the end"]


def test_what_is_said_stands_above_the_line():
    stream = Terminal()
    line = ProgressLine(stream)
    line.show(progress(running=1), None)
    line.print_line("a_00001 ended")
    line.close()
    assert rows(stream) == ["a_00001 ended", "0 trials done · 1 running · 0 errors · 00:00", ""]


def test_texts_of_this_process_stand_above_the_line(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", Terminal())
    before = sys.stderr, sys.stdout
    own, theirs = logging.getLogger("dasktune.above"), logging.StreamHandler()
    monkeypatch.setattr(own, "handlers", [theirs])
    line = ProgressLine(stream)
    line.show(progress(running=100), None)
    assert isinstance(open_display("line", BackgroundStream(sys.stderr)), PlainLines)
    assert sys.stdout.isatty()
    print_promptly(sys.stderr, "Dashboard: http://127.0.0.1:8787/dasktune\n")
    own.warning("trial a lost its worker")
    line.messages.writelines(["inter", "rupted\n"])
    sys.stderr.writelines(["a ", "row\n"])
    print("printed", end="", flush=True)
    line.show(progress(running=1), None)
    assert rows(stream)[-1] == "printed"
    print(" at last")
    assert rows(stream)[-1] == "0 trials done · 1 running · 0 errors · 00:00"
    print("half a row", end="")
    held = sys.stderr
    line.close()
    held.write("later\n")
    held.flush()
    assert rows(stream) == [
        "Dashboard: http://127.0.0.1:8787/dasktune",
        "trial a lost its worker",
        "interrupted",
        "a row",
        "printed at last",
        "half a row",
        "0 trials done · 1 running · 0 errors · 00:00",
        "later",
        "",
    ]
    assert (sys.stderr, sys.stdout, theirs.stream) == (*before, stream)


def test_a_fork_writes_to_the_terminal_itself(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal()
    line = ProgressLine(stream)
    line.show(progress(), None)
    written = len(stream.getvalue())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    flushed = []
    monkeypatch.setattr(stream, "flush", lambda: flushed.append(stream.getvalue()[written:]))
    print("text", end="", file=line.messages, flush=True)
    assert flushed == ["text"]


def test_a_line_that_a_file_gets_takes_no_texts_from_the_terminal(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "stdout", terminal)
    line = ProgressLine(sys.stderr)
    line.show(progress(), None)
    print("text")
    assert terminal.getvalue() == "text\n"
    line.close()


def test_what_is_flushed_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_stream, "_USUAL_S", 10.0)
    stream = Terminal()
    line = ProgressLine(BackgroundStream(stream))
    for count in range(100):
        line.show(progress(), None)
        print(f"text {count}", file=line.messages, flush=True)
        assert rows(stream)[count] == f"text {count}"


def test_streams_are_put_back_after_an_interrupt_and_the_next_line_may_open(monkeypatch: pytest.MonkeyPatch):
    def interrupt(stream: object) -> None:
        raise KeyboardInterrupt

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger("dasktune.above"), "handlers", [handler])
    line = ProgressLine(stream)
    line.show(progress(), None)
    held = sys.stderr
    handler.setStream = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        line.close()
    assert sys.stderr is stream
    # Something of the user has kept the one of a line that has ended.
    assert isinstance(open_display("line", held), ProgressLine)


def test_the_end_comes_once():
    stream = Terminal()
    line = ProgressLine(stream)
    line.show(progress(), None)
    for _ in range(3):
        line.close()
    assert stream.getvalue().count("\n") == 1


def test_a_line_fits_the_terminal():
    with pseudo_terminal(30) as stream:
        ProgressLine(stream).show(progress(running=3), None)
        assert stream.getvalue() == "\r0 trials done · 0 errors"


def test_the_width_is_that_of_the_terminal():
    with pseudo_terminal(43) as stream:
        assert module.terminal_width(stream) == 43


def test_what_only_looks_like_a_terminal_has_eighty_columns():
    assert module.terminal_width(Terminal()) == module.terminal_width(None) == 80


@pytest.mark.parametrize("kind", [PlainLines, ProgressLine])
def test_a_stream_that_cannot_be_written_to_is_closed(kind):
    display = kind(Broken())
    display.show(progress(), None)
    assert not display.stream.is_open
    display.print_line("more")
    display.end(progress(), None, ["the end"])
    kind(None).end(progress(), None, ["nowhere"])


def test_words_are_enough_of_a_stream():
    stream = WordsOnly()
    stream.flush = lambda: None
    PlainLines(stream).show(progress(), None)
    assert stream.text.startswith("[dasktune] 0 trials done")
    assert not module.is_terminal(stream)


def test_a_stream_of_few_characters_gets_what_it_can_show():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainLines(stream).print_line("精 · …")
    assert raw.getvalue() == b"[dasktune] ? - ~\n"


def test_a_closed_stream_is_no_terminal():
    stream = Terminal()
    assert module.is_terminal(stream)
    with open(os.devnull, "w") as closed:
        pass
    assert not module.is_terminal(closed)
    assert not module.is_terminal(None)


def test_wide_characters_are_wiped_by_the_line_that_follows():
    stream = Terminal()
    line = ProgressLine(stream)
    line.print_line("精度" * 10)
    line.show(progress(metric="精度" * 4, best_value=1.0), None)
    line.show(progress(), None)
    *_, before, last = stream.getvalue().split("\r")
    assert column_width(last) == column_width(before)
