"""One who compares experiments: their best values in figures, and a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from html import escape
from typing import Any, Final

from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import Button, CheckboxGroup, CustomJS, Div

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.comparison import comparison_sketch
from dasktune.dashboard.figures.sketch import Sketch
from dasktune.dashboard.report.style import CARD
from dasktune.dashboard.server.draft import Draft, models_of
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.text import configuration, duration, shown, value_text

__all__ = ["MOST_COMPARED", "ComparisonViewer", "picker"]

logger = logging.getLogger(__name__)

#: Experiments that are compared at a time.
MOST_COMPARED: Final = 12

#: The column of configurations, and how the others are written.
_CONFIGURATION: Final = 4
_ONE_LINE: Final = ' style="white-space:nowrap"'
#: Milliseconds between two looks at what is new.
_PERIOD: Final = 1000

#: Opens the page that compares those that are chosen, by their places in the list.
_COMPARE: Final = """
const chosen = boxes.active.map((place) => "compare=" + encodeURIComponent(names[place]))
if (chosen.length > 1) window.location.search = "?" + chosen.join("&")
"""


def picker(names: Sequence[str]) -> Any:
    """Return boxes to choose experiments by, and a button that compares them.

    Parameters
    ----------
    names : sequence of str
        Of the experiments.
    """
    # Labels are texts to Bokeh, never HTML.
    boxes = CheckboxGroup(labels=[shown(name, 80) for name in names], active=[])
    button = Button(label="Compare the chosen ones", button_type="primary", width=240)
    told = {"boxes": boxes, "names": list(names)}
    button.js_on_click(CustomJS(args=told, code=_COMPARE))
    return column(Div(text="<b>Compare two or more</b>"), boxes, button, styles=CARD)


class ComparisonViewer:
    """Fills the document of a session, and keeps it up to date.

    Parameters
    ----------
    lives : sequence of Live
        The experiments.
    document : Document
        The session's.
    """

    def __init__(self, lives: Sequence[Live], document: Document) -> None:
        self.lives, self.document = tuple(lives), document
        #: Whether the last moment to be brought up to date was none.
        self.has_missed = False
        self._stage: object = None
        self._table = Div(text="", disable_math=True, sizing_mode="stretch_width")
        self._figures = [_Figure(partial(self._sketch, x)) for x in ("time", "results")]
        document.title = "comparison · dasktune"
        title = Div(
            text='<div style="font-size:22px;font-weight:700">Comparison</div>'
            '<a href="?">all experiments</a>'
        )
        cards = [column(self._table, sizing_mode="stretch_width", styles=CARD)]
        cards += [one.card for one in self._figures]
        document.add_root(column(title, *cards, sizing_mode="stretch_width"))
        document.add_periodic_callback(self.update, _PERIOD)
        self.update()

    def update(self) -> None:
        """Bring the page up to date, if nobody takes records in."""
        with self._held() as free:
            self.has_missed = not free
            stage = [live.stage for live in self.lives]
            if not free or stage == self._stage:
                return
            try:
                self.document.hold("collect")
                self._table.text = comparison_html(self.lives)
                for one in self._figures:
                    one.update()
                self._stage = stage
            except Exception:
                # A viewer is not to end for it, and the next moment may be better.
                logger.exception("the comparison could not be brought up to date")
            finally:
                self.document.unhold()

    @contextmanager
    def _held(self) -> Iterator[bool]:
        """Hold the locks of all, and tell whether they could be had at once."""
        with ExitStack() as stack:
            free = True
            for live in self.lives:
                free = free and live.lock.acquire(blocking=False)
                if free:
                    stack.callback(live.lock.release)
            yield free

    def _sketch(self, x: Any) -> Sketch:
        return comparison_sketch([live.chronicle for live in self.lives], x=x)


class _Figure:
    """A figure as one viewer sees it."""

    def __init__(self, make: Callable[[], Sketch]) -> None:
        self.card: Any = column(sizing_mode="stretch_width", styles=CARD)
        self._make = make
        self._draft: Draft | None = None
        self._models: list[Any] = []

    def update(self) -> None:
        """Make it look as it ought to."""
        sketch = self._make()
        earlier = self._draft
        draft = None if earlier is None else earlier.renewed(sketch)
        draft = draft or Draft(sketch)
        changes = None if earlier is None else draft.changes_from(earlier)
        if changes is None:
            root = sketch.drawn()
            self._models, self.card.children = models_of(root), [root]
        else:
            changes.carry_out(self._models)
        self._draft = draft


def comparison_html(lives: Sequence[Live]) -> str:
    """Return a table of experiments as HTML, in which everything that users named is escaped.

    Parameters
    ----------
    lives : sequence of Live
        The experiments.
    """
    head = ["", "name", "goal", "best", "configuration of the best", "trials done", "failed"]
    head += ["results", "elapsed", "state"]
    rows = [_cells(place, live) for place, live in enumerate(lives)]
    lines = [_line("th", head), *(_line("td", row) for row in rows)]
    return (
        '<table style="border-spacing:16px 6px;text-align:left;font-size:13px">'
        f"{''.join(lines)}</table>"
    )


def _line(kind: str, cells: Sequence[str]) -> str:
    # Configurations may be long; the other cells are short, and read better in one line.
    told = (
        f"<{kind}{'' if place == _CONFIGURATION else _ONE_LINE}>{escape(cell)}</{kind}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(told)}</tr>"


def _cells(place: int, live: Live) -> list[str]:
    one: Chronicle = live.chronicle
    best = one.best
    return [
        str(place + 1),
        shown(one.name or "experiment", 80),
        f"{shown(one.metric or 'no metric')} {one.mode or ''}",
        value_text(one.best_value),
        "" if best is None else configuration(best.config, 160),
        f"{one.num_over:,} of {one.total or len(one.trials):,}",
        f"{one.counts['ERROR']:,}",
        f"{one.num_results:,}",
        duration(one.elapsed),
        shown(live.state if live.has_caught_up else "is being read", 60),
    ]
