"""Buttons that send commands to a running experiment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from bokeh.document import Document
from bokeh.layouts import row
from bokeh.models import Button, Div, InlineStyleSheet

from dasktune.dashboard.labels import label
from dasktune.dashboard.report.style import INPUT
from dasktune.errors import TuneError

logger = logging.getLogger(__name__)

#: Maximum length of the text of an answer, in columns.
_LONGEST = 200

#: What the buttons do with the selected trial, and the commander's method.
_TRIAL_COMMANDS: Final = {"Pause": "pause_trial", "Resume": "unpause_trial", "Stop": "stop_trial"}


class Commander(Protocol):
    """An object that takes commands from any thread; see `dasktune.runner.commands`."""

    def hold(self, *, by: str = "") -> Future[Any]:
        """Let no trial start."""

    def release(self, *, by: str = "") -> Future[Any]:
        """Let trials start again."""

    def stop_trial(self, trial_id: str, *, by: str = "") -> Future[Any]:
        """End a trial."""

    def pause_trial(self, trial_id: str, *, by: str = "") -> Future[Any]:
        """Pause a trial."""

    def unpause_trial(self, trial_id: str, *, by: str = "") -> Future[Any]:
        """End the pause of a trial."""

    def stop(self, *, by: str = "") -> Future[Any]:
        """End the experiment."""

    def cancel(self, *, by: str = "") -> Future[Any]:
        """End the run and leave its trials unfinished."""


class ControlBar:
    """A row of buttons for one viewer. Each command has to be confirmed.

    Parameters
    ----------
    commander : callable
        Returns the object that takes commands; None before the experiment runs.
    document : Document
        The viewer's document.
    selected : callable
        Returns the id of the selected trial; empty without one.

    Attributes
    ----------
    root : bokeh model
        The row of buttons.
    """

    def __init__(
        self, commander: Callable[[], Commander | None], document: Document, selected: Callable[[], str]
    ) -> None:
        self._commander, self._document, self._selected = commander, document, selected
        # The journal names the viewer: all viewers have one token.
        request: Any = getattr(document.session_context, "request", None)
        self._by = f"viewer of the dashboard at {getattr(request, 'remote_ip', None) or 'an unknown address'}"
        #: The command that waits for confirmation; None without one.
        self._armed: Callable[[Commander], Future[Any]] | None = None
        self._message = Div(text="", disable_math=True, render_as_text=True)
        commands: list[tuple[str, Callable[[], None]]] = [
            (
                "Hold new trials",
                partial(self._arm, "hold new trials", lambda commander: commander.hold(by=self._by)),
            ),
            (
                "Release",
                partial(self._arm, "let trials start", lambda commander: commander.release(by=self._by)),
            ),
            *(
                (f"{what} trial", partial(self._arm_for_trial, what.lower(), command))
                for what, command in _TRIAL_COMMANDS.items()
            ),
            (
                "Stop experiment",
                partial(self._arm, "stop all trials", lambda commander: commander.stop(by=self._by)),
            ),
            (
                "Cancel",
                partial(
                    self._arm, "end with trials unfinished", lambda commander: commander.cancel(by=self._by)
                ),
            ),
        ]
        self._buttons = [self._button(text, act) for text, act in commands]
        self._confirm = self._button("Confirm", self._execute, button_type="danger", visible=False)
        self._back = self._button("Back", self._disarm, visible=False)
        parts = [*self._buttons, self._confirm, self._back, self._message]
        # Several lines in a narrow window.
        self.root: Any = row(
            *parts, sizing_mode="stretch_width", name="controls", styles={"flex-wrap": "wrap", "gap": "4px"}
        )

    def _button(self, text: str, act: Callable[[], None], **more: Any) -> Any:
        style = [InlineStyleSheet(css=INPUT)]
        button = Button(label=text, name=f"control {text}", width=130, stylesheets=style, **more)
        button.on_click(lambda event: act())
        return button

    def _arm_for_trial(self, what: str, command: str) -> None:
        trial_id = self._selected()
        if not trial_id:
            self._disarm()
            self._show("select a trial in the table of the Trials page first")
            return
        self._arm(
            f"{what} trial {trial_id}", lambda commander: getattr(commander, command)(trial_id, by=self._by)
        )

    def _arm(self, what: str, act: Callable[[Commander], Future[Any]]) -> None:
        self._armed = act
        self._confirm.visible = self._back.visible = True
        self._show(f"{what}?")

    def _disarm(self) -> None:
        self._armed = None
        self._confirm.visible = self._back.visible = False
        self._show("")

    def _execute(self) -> None:
        act, commander = self._armed, self._commander()
        self._disarm()
        if act is None:
            return
        if commander is None:
            self._show("the experiment is not running yet")
            return
        self._show("...")
        act(commander).add_done_callback(self._show_result)

    def _show_result(self, done: Future[Any]) -> None:
        """Show the result of a command.

        The driver's thread calls this, or the server's loop if the command was answered at once. It
        only schedules the text, because no other method of a document is safe outside of the loop.
        """
        try:
            text = str(done.result().message)
        except TuneError as error:
            text = str(error)
        except BaseException as error:
            text = f"the command failed: {type(error).__name__}"
        try:
            self._document.add_next_tick_callback(partial(self._show, text))
        except Exception:  # the session may have ended
            logger.debug("the result of a command cannot be shown: its session has ended", exc_info=True)

    def _show(self, text: str) -> None:
        self._message.text = label(text, _LONGEST)
