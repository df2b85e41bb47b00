"""The dashboard's buttons: two clicks, and what they do."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from bokeh.document import Document
from bokeh.events import ButtonClick
from bokeh.models import Button

from dasktune.dashboard.server.controls import ControlBar
from dasktune.errors import ControlError


class Commander:
    """Records the commands, and answers when the test says so."""

    def __init__(self):
        self.calls = []
        self.issuers = []
        self.future = Future()

    def __getattr__(self, name):
        def command(*arguments, by):
            self.calls.append((name, *arguments))
            self.issuers.append(by)
            return self.future

        return command


class Bar:
    def __init__(self, selected=""):
        self.commander = Commander()
        self.document = Document()
        self.bar = ControlBar(lambda: self.commander, self.document, lambda: selected)
        self.document.add_root(self.bar.root)

    def press(self, label, *, visible=True):
        [button] = [one for one in self.bar.root.children if getattr(one, "label", "") == label]
        assert isinstance(button, Button)
        assert button.visible == visible
        self.document.callbacks.trigger_event(ButtonClick(button))

    @property
    def told(self):
        message = self.bar.root.children[-1]
        assert message.render_as_text  # so the browser takes nothing in it for HTML
        return message.text

    def hear(self):
        """Let the document do what was put off to its next tick."""
        for callback in list(self.document.session_callbacks):
            callback.callback()


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("Hold new trials", ("hold",)),
        ("Release", ("release",)),
        ("Pause trial", ("pause_trial", "a<b")),
        ("Resume trial", ("unpause_trial", "a<b")),
        ("Stop trial", ("stop_trial", "a<b")),
        ("Stop experiment", ("stop",)),
        ("Cancel", ("cancel",)),
    ],
)
def test_a_button_does_nothing_until_it_is_confirmed(label, call):
    bar = Bar(selected="a<b")
    bar.press(label)
    assert bar.commander.calls == []
    assert bar.told.endswith("?")
    bar.press("Confirm")
    assert bar.commander.calls == [call]
    assert bar.commander.issuers == ["viewer of the dashboard at an unknown address"]
    bar.commander.future.set_result(SimpleNamespace(message="<b>done</b>"))
    bar.hear()
    assert bar.told == "<b>done</b>"


def test_who_goes_back_has_done_nothing():
    bar = Bar()
    bar.press("Stop experiment")
    bar.press("Back")
    assert (bar.told, bar.commander.calls) == ("", [])
    # A second click, sent before the browser has hidden the button.
    bar.press("Confirm", visible=False)
    assert bar.commander.calls == []


def test_another_button_takes_the_place_of_the_first():
    bar = Bar()
    bar.press("Stop experiment")
    bar.press("Hold new trials")
    bar.press("Confirm")
    assert bar.commander.calls == [("hold",)]


def test_a_trial_must_be_selected_to_be_stopped():
    bar = Bar()
    bar.press("Stop experiment")
    bar.press("Stop trial")
    assert "select a trial" in bar.told
    # A second click, sent before the browser has hidden the button.
    bar.press("Confirm", visible=False)
    assert bar.commander.calls == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ControlError("trial a is over already", "over"), "trial a is over already"),
        (ZeroDivisionError("x"), "the command failed: ZeroDivisionError"),
    ],
)
def test_a_refusal_is_shown(error, told):
    bar = Bar()
    bar.press("Hold new trials")
    bar.press("Confirm")
    bar.commander.future.set_exception(error)
    bar.hear()
    assert bar.told == told


def test_a_command_that_comes_before_the_run_is_not_done():
    bar = Bar()
    bar.commander = None
    bar.press("Hold new trials")
    bar.press("Confirm")
    assert bar.told == "the experiment is not running yet"
