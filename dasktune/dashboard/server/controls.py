"""Buttons by which whoever looks at a running experiment can command it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from html import escape
from typing import Any, Protocol

from bokeh.document import Document
from bokeh.layouts import row
from bokeh.models import Button, Div

from dasktune.dashboard.text import shown
from dasktune.errors import TuneError

__all__ = ["Commander", "ControlBar"]

logger = logging.getLogger(__name__)

#: How much of an answer is shown.
_LONGEST = 200


class Commander(Protocol):
    """What takes commands, in any thread; see `dasktune.runner.commands`."""

    def hold(self) -> Future[Any]:
        """Let no trial start."""

    def release(self) -> Future[Any]:
        """Let trials start again."""

    def stop_trial(self, trial_id: str) -> Future[Any]:
        """End a trial."""

    def stop(self) -> Future[Any]:
        """End the experiment."""

    def cancel(self) -> Future[Any]:
        """End the run, with trials unfinished."""


class ControlBar:
    """A row of buttons for one viewer. Each has to be pressed, and then confirmed.

    Parameters
    ----------
    commander : callable
        Returns who takes the commands; None before the experiment runs.
    document : Document
        The viewer's.
    selected : callable
        Returns the trial that the viewer has selected; empty if none.

    Attributes
    ----------
    root : bokeh model
        What is shown.
    """

    def __init__(
        self,
        commander: Callable[[], Commander | None],
        document: Document,
        selected: Callable[[], str],
    ) -> None:
        self._commander, self._document, self._selected = commander, document, selected
        #: What is done when it is confirmed; None if nothing waits for that.
        self._armed: Callable[[Commander], Future[Any]] | None = None
        self._told = Div(text="", disable_math=True)
        wishes: list[tuple[str, Callable[[], None]]] = [
            ("Hold new trials", partial(self._arm, "hold new trials", lambda who: who.hold())),
            ("Release", partial(self._arm, "let trials start", lambda who: who.release())),
            ("Stop trial", self._arm_for_trial),
            ("Stop experiment", partial(self._arm, "stop all trials", lambda who: who.stop())),
            ("Cancel", partial(self._arm, "end with trials unfinished", lambda who: who.cancel())),
        ]
        self._buttons = [self._button(label, act) for label, act in wishes]
        self._confirm = self._button("Confirm", self._go, button_type="danger", visible=False)
        self._back = self._button("Back", self._disarm, visible=False)
        parts = [*self._buttons, self._confirm, self._back, self._told]
        self.root: Any = row(*parts, sizing_mode="stretch_width", name="controls")

    def _button(self, label: str, act: Callable[[], None], **more: Any) -> Any:
        button = Button(label=label, name=f"control {label}", width=130, **more)
        button.on_click(lambda event: act())
        return button

    def _arm_for_trial(self) -> None:
        trial_id = self._selected()
        if not trial_id:
            self._disarm()
            self._tell("select a trial in the table of the page Trials first")
            return
        self._arm(f"stop trial {trial_id}", lambda who: who.stop_trial(trial_id))

    def _arm(self, what: str, act: Callable[[Commander], Future[Any]]) -> None:
        self._armed = act
        self._confirm.visible = self._back.visible = True
        self._tell(f"{what}?")

    def _disarm(self) -> None:
        self._armed = None
        self._confirm.visible = self._back.visible = False
        self._tell("")

    def _go(self) -> None:
        act, commander = self._armed, self._commander()
        self._disarm()
        if act is None:
            return
        if commander is None:
            self._tell("the experiment does not run yet")
            return
        self._tell("...")
        act(commander).add_done_callback(self._hear)

    def _hear(self, done: Future[Any]) -> None:
        """Show what came of it; called in the thread that runs the experiment."""
        try:
            text = str(done.result().message)
        except TuneError as error:
            text = str(error)
        except BaseException as error:
            text = f"it was not done: {type(error).__name__}"
        try:
            self._document.add_next_tick_callback(partial(self._tell, text))
        except Exception:  # whoever asked may be gone
            logger.debug("there is nobody to tell what came of a command", exc_info=True)

    def _tell(self, text: str) -> None:
        self._told.text = escape(shown(text, _LONGEST))
