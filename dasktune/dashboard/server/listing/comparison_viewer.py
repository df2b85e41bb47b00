"""A browser's view that compares experiments: figures of their best values, and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet

from dasktune.dashboard.figures.comparison import comparison_spec
from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import config_label, label, value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.report.style import CARD, colour
from dasktune.dashboard.server.listing.small_viewer import SmallViewer
from dasktune.dashboard.server.listing.spec_view import SpecView
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.text.formatting import format_duration
from dasktune.text.html_template import render_html

#: Largest number of experiments in one comparison.
MOST_COMPARED: Final = 12

#: A table that is wider than a narrow window scrolls.
_SCROLLED: Final = ":host { overflow-x: auto; }"
_NO_UPDATE: Final = "the comparison could not be updated"

#: In a narrow window headings break, and the columns of configurations and states.
_HTML: Final = """
<table style="border-spacing:12px 6px;text-align:left;font-size:13px">
<tr>{% for cell in head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}
<td{% if loop.index0 not in (4, 9) %} style="white-space:nowrap"{% endif %}>{{ cell }}</td>
{% endfor %}</tr>{% endfor %}
</table>
"""


class ComparisonViewer(SmallViewer):
    """Shows a comparison of experiments in the Bokeh document of a session, and updates it.

    All its methods run in the server's loop.

    Parameters
    ----------
    lives : sequence of LiveExperiment
        The experiments.
    document : Document
        The document of the session.
    """

    def __init__(self, lives: Sequence[LiveExperiment], document: Document) -> None:
        super().__init__(document)
        self.lives = tuple(lives)
        #: The state of each experiment that the page shows.
        self._shown: object = None
        self._table = Div(
            text="",
            disable_math=True,
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=_SCROLLED)],
            # The keyboard can scroll the table, and a screen reader names it.
            html_attributes={"tabindex": "0", "role": "region", "aria-label": "Compared experiments"},
        )
        self._figures = [SpecView(partial(self._spec, x)) for x in ("time", "results")]
        title = Div(
            text='<div style="font-size:22px;font-weight:700" role="heading" aria-level="1">Comparison</div>'
            f'<a style="color:{colour("link")}" href="?">all experiments</a>',
            name="title",
        )
        cards = [column(self._table, sizing_mode="stretch_width", styles=CARD)]
        cards += [one.card for one in self._figures]
        self.attach("comparison", column(title, *cards, sizing_mode="stretch_width"), self._table)

    def update(self) -> None:
        """Update the page, unless another thread holds the lock of an experiment."""
        with self._locked() as free:
            self.needs_update = not free
            state = [live.state_key for live in self.lives]
            if not free or state == self._shown:
                return
            try:
                self.document.hold("collect")
                self._table.text = comparison_html(self.lives)
                for one in self._figures:
                    one.update()
                self._shown = state
            except Exception as error:
                self.errors.failed(_NO_UPDATE, error)
            else:
                self.errors.succeeded(_NO_UPDATE)
            finally:
                self.document.unhold()

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Acquire the locks of all experiments if all are free; yield whether they were.

        It never waits for a lock, so two comparisons that list the experiments in different orders
        cannot deadlock. All locks that it has acquired are released at the end in both cases.
        """
        with ExitStack() as stack:
            free = True
            for live in self.lives:
                free = free and live.lock.acquire(blocking=False)
                if free:
                    stack.callback(live.lock.release)
            yield free

    def _spec(self, x: Any) -> FigureSpec:
        return comparison_spec([live.projection for live in self.lives], x=x)


def comparison_html(lives: Sequence[LiveExperiment]) -> str:
    """Return a table of experiments as HTML in which all user text is escaped.

    Parameters
    ----------
    lives : sequence of LiveExperiment
        The experiments.
    """
    head = ["#", "name", "goal", "best", "configuration of the best", "trials done", "failed"]
    head += ["results", "elapsed", "state"]
    return render_html(_HTML, head=head, rows=[_cells(index, live) for index, live in enumerate(lives)])


def _cells(index: int, live: LiveExperiment) -> list[str]:
    one: ExperimentProjection = live.projection
    best = one.best
    return [
        str(index + 1),
        label(one.name or "experiment", 80),
        f"{label(one.metric or 'no metric')} {one.mode or ''}",
        value_label(one.best_value),
        "" if best is None else config_label(best.config, 160),
        f"{one.num_finished:,} of {one.total or len(one.trials):,}",
        f"{one.counts['ERROR']:,}",
        f"{one.num_results:,}",
        format_duration(one.elapsed),
        label(live.state if live.has_caught_up else "reading the journal", 60),
    ]
