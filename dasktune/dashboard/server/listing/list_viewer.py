"""A browser's view of a directory: a list of its experiments, from which some can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import nan
from typing import Any, Final

import numpy as np
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import (
    Button,
    CDSView,
    CustomJS,
    CustomJSFilter,
    DataTable,
    Div,
    HTMLTemplateFormatter,
    InlineStyleSheet,
    NumberFormatter,
    Paragraph,
    ScientificFormatter,
    StringFormatter,
    TableColumn,
    TextInput,
)

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import label
from dasktune.dashboard.report.style import INPUT, MUTED, TABLE
from dasktune.dashboard.report.table_scripts import (
    FILTER_TABLE,
    FILTER_WHILE_TYPING,
    FIRST_FILTER,
    KEEP_FOCUS,
    LABEL_BOXES,
)
from dasktune.dashboard.report.trial_table import frame_styles
from dasktune.dashboard.server.experiment_source import ExperimentSource
from dasktune.dashboard.server.listing.comparison_viewer import MOST_COMPARED
from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummary
from dasktune.dashboard.server.listing.small_viewer import SmallViewer
from dasktune.dashboard.server.listing.spec_view import SpecView
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.text.formatting import format_duration, plural
from dasktune.text.html_template import render_html

_MAX_TEXT: Final = 120
_NO_UPDATE: Final = "the list of experiments could not be updated"

#: Cells as HTML. `<%- %>` escapes the value.
_LINK_CELL: Final = (
    '<% if (state === "unreadable") { %><%- value %><% } else { %>'
    '<a href="?experiment=<%- encodeURIComponent(name) %>"><%- value %></a><% } %>'
)
_STATE_CELL: Final = '<span class="dt-status dt-<%- value %>"><%- value %></span>'
_LONG_CELL: Final = '<span title="<%- value %>"><%- value %></span>'

_TITLE: Final = """
<div style="font-size:22px;font-weight:700" role="heading" aria-level="1">Experiments</div>
<div style="color:{{ muted }}">{{ place }}: {{ count }}</div>
"""

#: The columns: name in the source, title, width in pixels.
_COLUMNS: Final = (
    ("shown", "experiment", 210),
    ("state", "state", 100),
    ("goal", "goal", 130),
    ("best", "best", 95),
    ("done", "trials done", 85),
    ("total", "of", 60),
    ("failed", "failed", 60),
    ("duration", "duration", 90),
    ("created", "created (UTC)", 150),
)

#: Names that a filter accepts, with the columns of the source.
_FIELDS: Final = (
    *(("name", "shown"), ("experiment", "shown"), ("state", "state"), ("goal", "goal"), ("best", "best")),
    *(("done", "done"), ("total", "total"), ("failed", "failed"), ("seconds", "seconds")),
    *(("created", "created"),),
)

#: Opens the comparison of the selected experiments. Arguments: `source`, `note`, `most`.
_COMPARE: Final = """
const {name, state} = source.data
const chosen = source.selected.indices.filter((i) => state[i] !== "unreadable")
if (chosen.length < 2 || chosen.length > most) {
  note.text = `Select 2 to ${most} experiments with the boxes at the left; ${chosen.length} selected.`
} else {
  window.location.search = "?" + chosen.map((i) => "compare=" + encodeURIComponent(name[i])).join("&")
}
"""

#: Says on the button how many experiments are selected. Arguments: `source`, `button`.
_COUNT: Final = """
const count = source.selected.indices.length
button.label = count ? `Compare ${count} selected` : "Compare selected"
"""


class ListViewer(SmallViewer):
    """Shows the experiments of a directory in the document of a session, and updates the list.

    All its methods run in the server's loop.

    Parameters
    ----------
    experiments : ExperimentSource
        The experiments.
    document : Document
        The document of the session.
    """

    def __init__(self, experiments: ExperimentSource, document: Document) -> None:
        super().__init__(document)
        self.lives: tuple[LiveExperiment, ...] = ()
        self._experiments = experiments
        #: Names in the order of the rows: an experiment keeps its row, so that it stays selected.
        self._names: dict[str, None] = {}
        self._shown: list[ExperimentSummary] | None = None
        self._note = ""
        self._title = Div(text="", name="title", disable_math=True, sizing_mode="stretch_width")
        self._list = SpecView(self._spec)
        root = column(self._title, self._list.card, sizing_mode="stretch_width")
        self.attach("experiments", root, self._title)

    @property
    def is_hidden(self) -> bool:
        """Whether no browser is connected."""
        session = getattr(self.document.session_context, "session", None)
        return session is not None and not session.connection_count

    def update(self) -> None:
        """Update the list."""
        found, note = self._experiments.summaries(), self._experiments.list_note
        if found is self._shown and note == self._note:
            return
        try:
            self.document.hold("collect")
            self._shown, self._note = found, note
            self._title.text = _title_html(self._experiments.place, found, note)
            for one in found:
                self._names.setdefault(one.name)
            self._list.update()
        except Exception as error:
            self._shown = None
            self.errors.failed(_NO_UPDATE, error)
        else:
            self.errors.succeeded(_NO_UPDATE)
        finally:
            self.document.unhold()

    def _spec(self) -> FigureSpec:
        by_name = {one.name: one for one in self._shown or ()}
        rows = [by_name.get(name) or ExperimentSummary(name=name, state="gone") for name in self._names]
        return FigureSpec(
            draw=_draw,
            structure=(),
            sources={"experiments": _columns_of(rows)},
            settings={("table frame", "styles"): frame_styles(len(rows))},
        )


def _title_html(place: str, found: Sequence[ExperimentSummary], note: str) -> str:
    unread = sum(one.state == "reading" for one in found)
    count = f"{len(found):,} {plural('experiment', len(found))}" if found else "reading the directory ..."
    count += f", reading {unread:,} of them ..." if unread else ""
    count += f", {label(note, 300)}" if note else ""
    return render_html(_TITLE, muted=MUTED, place=label(place, 120), count=count)


def _columns_of(rows: Sequence[ExperimentSummary]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": [one.name for one in rows],
        "shown": [label(one.name, 80) for one in rows],
        "state": [one.state for one in rows],
        "goal": [label(one.goal, _MAX_TEXT) for one in rows],
        "best": np.array([one.best for one in rows], dtype=np.float64),
        "done": np.array([one.done for one in rows], dtype=np.float64),
        "total": np.array([nan if one.total is None else one.total for one in rows], dtype=np.float64),
        "failed": np.array([one.failed for one in rows], dtype=np.float64),
        "seconds": np.array([one.elapsed_s for one in rows], dtype=np.float64),
        "duration": [format_duration(one.elapsed_s) if one.elapsed_s else "" for one in rows],
        "created": [label(one.created.replace("T", " "), 40) for one in rows],
    }
    parts = zip(data["shown"], data["state"], data["goal"], data["created"], strict=True)
    data["all"] = [" ".join(texts) for texts in parts]
    return data


def _draw(spec: FigureSpec) -> Any:
    source = spec.source("experiments")
    first: Any = CustomJSFilter(code=FIRST_FILTER)
    table = DataTable(
        source=source,
        view=CDSView(filter=first),
        columns=_table_columns(),
        index_position=None,
        autosize_mode="none",
        reorderable=False,
        selectable="checkbox",
        scroll_to_selection=False,
        sizing_mode="stretch_both",
        stylesheets=[InlineStyleSheet(css=TABLE)],
        name="experiments table",
    )
    first.args = {"table": table}
    frame = column(
        table, name="table frame", sizing_mode="stretch_width", styles=spec.settings["table frame", "styles"]
    )
    style = [InlineStyleSheet(css=INPUT)]
    note = Paragraph(text="", disable_math=True, name="filter note")
    box = TextInput(
        title="Search the experiments",
        placeholder='digits   state:finished   best < 0.1   created >= "2026-11"',
        sizing_mode="stretch_width",
        name="filter",
        stylesheets=style,
    )
    button = Button(
        label="Compare selected",
        button_type="primary",
        width=180,
        name="compare",
        align="end",
        stylesheets=style,
    )
    arguments = {"source": source, "table": table, "view": table.view, "box": box, "note": note}
    arguments |= {"names": [list(one) for one in _FIELDS], "fixed": [], "noun": "experiment"}
    arguments |= {"sort": ["created", False]}
    filtered = CustomJS(args=arguments, code=FILTER_TABLE)
    labelled = CustomJS(args={"table": table, "noun": "experiment"}, code=LABEL_BOXES)
    box.js_on_change("value", filtered)
    box.js_on_change("value_input", CustomJS(args=arguments, code=FILTER_WHILE_TYPING))
    for change in ("change:data", "patching", "streaming"):
        source.js_on_change(change, filtered, labelled)
    compare = {"source": source, "note": note, "most": MOST_COMPARED}
    button.js_on_click(CustomJS(args=compare, code=_COMPARE))
    source.selected.js_on_change("indices", CustomJS(args={"table": table}, code=KEEP_FOCUS))
    source.selected.js_on_change("indices", CustomJS(args={"source": source, "button": button}, code=_COUNT))
    head = row(box, button, sizing_mode="stretch_width")
    return column(head, note, frame, sizing_mode="stretch_width")


def _table_columns() -> list[Any]:
    whole = partial(NumberFormatter, format="0,0", nan_format="")
    formatters: dict[str, Any] = {
        "shown": HTMLTemplateFormatter(template=_LINK_CELL),
        "state": HTMLTemplateFormatter(template=_STATE_CELL),
        "goal": HTMLTemplateFormatter(template=_LONG_CELL),
        "best": ScientificFormatter(precision=5, power_limit_low=-4, power_limit_high=6, nan_format=""),
        "done": whole(),
        "total": whole(),
        "failed": whole(),
    }
    return [
        TableColumn(
            field=field, title=title, width=width, formatter=formatters.get(field) or StringFormatter()
        )
        for field, title, width in _COLUMNS
    ]
