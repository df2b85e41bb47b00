from __future__ import annotations

import io
import sys
from types import ModuleType

import pytest

from dasktune.progress.choose import choose_mode, open_display
from dasktune.progress.line_display import PlainLines, ProgressLine


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def without_rich(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "rich":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "rich"),
        ({"TERM": "xterm"}, "rich"),
        ({"TERM": "dumb"}, "line"),
        ({"CI": "true"}, "plain"),
        ({"CI": "1", "TERM": "dumb"}, "plain"),
        ({"CI": "false"}, "rich"),
        ({"CI": ""}, "rich"),
        ({"CI": "1", "DASKTUNE_PROGRESS": "rich"}, "rich"),
        ({"DASKTUNE_PROGRESS": " Line "}, "line"),
        ({"DASKTUNE_PROGRESS": "none"}, "none"),
        ({"DASKTUNE_PROGRESS": "notebook"}, "notebook"),
        ({"DASKTUNE_PROGRESS": "auto", "CI": "1"}, "plain"),
    ],
)
def test_a_terminal_is_drawn_on_unless_the_environment_says_otherwise(environ, mode):
    pytest.importorskip("rich")
    assert choose_mode(Terminal(), environ) == mode


def test_without_rich_there_is_a_line(monkeypatch, caplog):
    without_rich(monkeypatch)
    assert choose_mode(Terminal(), {}) == "line"
    assert type(open_display("rich", Terminal())) is ProgressLine
    assert "pip install rich" in caplog.text


def test_a_terminal_of_few_characters_gets_a_line():
    stream = Terminal()
    stream.encoding = "latin-1"
    assert choose_mode(stream, {}) == "line"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_what_is_no_terminal_gets_lines(stream):
    assert choose_mode(stream, {}) == "plain"
    assert type(open_display("plain", stream)) is PlainLines


def test_a_mode_that_is_unknown_is_logged(caplog):
    assert choose_mode(None, {"DASKTUNE_PROGRESS": "fancy"}) == "plain"
    assert "must be one of auto, rich, line, plain, notebook, none, got 'fancy'" in caplog.text


def test_nothing_is_opened_for_nothing():
    assert open_display("none", Terminal()) is None


def test_a_notebook_is_known_by_its_shell(monkeypatch):
    class ZMQInteractiveShell:
        pass

    class ShellOfSomeCloud(ZMQInteractiveShell):
        pass

    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    ipython.get_ipython = ShellOfSomeCloud
    assert choose_mode(Terminal(), {}) == "notebook"
    ipython.get_ipython = lambda: None
    assert choose_mode(None, {}) == "plain"
