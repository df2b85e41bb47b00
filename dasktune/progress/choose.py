"""Choose the display of progress: for a terminal, a notebook, a log, or none."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, TextIO

from dasktune.progress.display import Display
from dasktune.progress.line_display import AboveLine, PlainLines, ProgressLine, is_terminal

logger = logging.getLogger(__name__)

#: The environment variable that selects a display.
VARIABLE: Final = "DASKTUNE_PROGRESS"

_MODES: Final = ("auto", "rich", "line", "plain", "notebook", "none")


def choose_mode(stream: TextIO | None, environ: Mapping[str, str] | None = None) -> str:
    """Return how to show an experiment: ``rich``, ``line``, ``plain``, ``notebook`` or ``none``.

    Parameters
    ----------
    stream : text stream or None
        The value of ``sys.stderr``.
    environ : mapping, optional
        Environment variables; by default the variables of this process.

    Examples
    --------
    >>> choose_mode(None, {}), choose_mode(None, {"DASKTUNE_PROGRESS": "line"})
    ('plain', 'line')
    """
    environ = os.environ if environ is None else environ
    wanted = environ.get(VARIABLE, "").strip().lower() or "auto"
    if wanted not in _MODES:
        known = ", ".join(_MODES)
        logger.warning("%s must be one of %s, got %r; using auto", VARIABLE, known, wanted)
        wanted = "auto"
    if wanted != "auto":
        return wanted
    if in_notebook():
        return "notebook"
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    if in_ci or not is_terminal(stream):
        return "plain"
    return "rich" if environ.get("TERM") != "dumb" and _can_draw(stream) else "line"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    # A notebook's kernel has imported IPython already, so do not import it here.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


def _can_draw(stream: TextIO | None) -> bool:
    encoding = getattr(stream, "encoding", None) or ""
    return encoding.lower().startswith("utf") and find_spec("rich") is not None


def open_display(mode: str, stream: TextIO | None) -> Display | None:
    """Return the display of a mode, or a simpler one if that display cannot work here.

    Parameters
    ----------
    mode : str
        The result of `choose_mode`.
    stream : text stream or None
        The value of ``sys.stderr``.

    Returns
    -------
    Display or None
        The display; None for the mode ``none``.
    """
    if mode == "none":
        return None
    if mode == "rich" and stream is not None:
        from dasktune.progress.rich_display import LiveTable

        try:
            return LiveTable(stream)
        except ImportError:
            logger.warning("rich is not installed: pip install rich")
            mode = "line"
        except RuntimeError as error:
            # Another live display owns the terminal: a line that is rewritten would damage it.
            logger.debug("%s; printing plain lines instead", error)
            mode = "plain"
    if mode == "notebook":
        from dasktune.progress.notebook import NotebookDisplay

        return NotebookDisplay(stream)
    original = getattr(stream, "original", stream)
    if mode == "line" and isinstance(original, AboveLine) and original.is_above:
        # Another progress line is open on the terminal.
        mode = "plain"
    return ProgressLine(stream) if mode == "line" else PlainLines(stream)
