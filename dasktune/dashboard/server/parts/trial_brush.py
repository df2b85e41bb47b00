"""Brushing: a box in a figure chooses trials, and the table and the figures show only these.

All of it happens in the browser: the server is sent the ids of the trials, so that new versions of
figures show the same ones, and does no work for it. The chosen trials are the tags of one model of
each viewer, which has the name `NAME`; without tags all trials are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bokeh.events import SelectionGeometry
from bokeh.layouts import row
from bokeh.models import (
    BoxSelectTool,
    Button,
    CDSView,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    GlyphRenderer,
    InlineStyleSheet,
    Paragraph,
    Plot,
)

from dasktune.dashboard.report.style import INPUT, colour
from dasktune.dashboard.report.table_scripts import BRUSH_NAME

#: The column that names the trial of each point or line.
_COLUMN: Final = "trial"
#: Columns with the places of points, and of the corners of lines.
_PLACES: Final = (("x", "y"), ("xs", "ys"))
#: Sections in which a box chooses trials, and those that also show only the chosen ones.
_BRUSHED: Final = ("parallel", "slices", "front", "contour")
_FOLLOWING: Final = (*_BRUSHED, "curves")

#: Which points or lines of a source are shown. Arguments: `brush`; Bokeh adds `source`.
_IS_CHOSEN: Final = """
if (!brush.tags.length) return null
const chosen = new Set(brush.tags)
return Array.from(source.data.trial, (one) => chosen.has(one))
"""

#: Chooses the trials in a box among those that are shown: a second box narrows the choice. A point
#: must lie in the box; a line must cross each axis inside the box that the box covers.
#: Arguments: `brush`; `sources`; Bokeh adds `cb_obj`, the event.
_CHOOSE: Final = """
const {geometry, final} = cb_obj
if (final === false || geometry.type !== "rect") return
const {x0, x1, y0, y1} = geometry
const before = brush.tags.length ? new Set(brush.tags) : null
const found = new Set()
const isInside = (x, y) => x >= Math.min(x0, x1) && x <= Math.max(x0, x1)
  && y >= Math.min(y0, y1) && y <= Math.max(y0, y1)
for (const {data} of sources) {
  data.trial.forEach((trial, i) => {
    if (before && !before.has(trial)) return
    if (!data.xs) {
      if (isInside(data.x[i], data.y[i])) found.add(trial)
      return
    }
    const covered = Array.from(data.xs[i], (x, k) => k).filter(
      (k) => data.xs[i][k] >= Math.min(x0, x1) && data.xs[i][k] <= Math.max(x0, x1))
    if (covered.length && covered.every((k) => isInside(data.xs[i][k], data.ys[i][k]))) found.add(trial)
  })
}
if (found.size) brush.tags = [...found]
"""

#: Maximum number of characters of the chosen trials' ids together. The server ends the connection
#: of a browser that sends a longer message than 1 MiB; a character may take three bytes.
_MOST_CHARACTERS: Final = 300_000

#: Chooses the trials that the table's filter leaves. Arguments: `brush`, `bar`, `source`, `view`,
#: `most`.
_CHOOSE_FILTERED: Final = """
const {filter} = view
const rows = filter.type === "IndexFilter" ? filter.indices : null
const {trial} = source.data
const chosen = rows === null || rows.length === trial.length ? [] : rows.map((i) => trial[i])
if (JSON.stringify(chosen).length <= most) {
  brush.tags = chosen
} else {
  brush.text = `${chosen.length} trials are too many to be shown alone. Narrow the filter of the table.`
  bar.visible = true
}
"""

#: Shows another choice. Arguments: `brush`, `bar`.
_SHOW: Final = """
const count = brush.tags.length
bar.visible = count > 0
brush.text = `Only ${count} chosen ${count === 1 ? "trial is" : "trials are"} shown in the table, the `
  + "curves and the figures of parameters. Another box narrows the choice."
for (const model of brush.document?._all_models.values() ?? []) {
  if (model.type === "CustomJSFilter" && model.name === "brush filter") model.change.emit()
  // The filter of the table runs again.
  if (model.type === "DataTable") model.source.properties.data.change.emit()
}
"""

#: Shows all trials, and hides a note that they were too many. Arguments: `brush`, `bar`.
_CLEAR: Final = "brush.tags = []; bar.visible = false"


class TrialBrush:
    """The choice of trials of one viewer, and the bar that names and clears it.

    Parameters
    ----------
    most_characters : int, default=300_000
        Maximum number of characters of the ids of all chosen trials together.

    Attributes
    ----------
    root : bokeh model
        The bar, invisible while all trials are shown.
    """

    def __init__(self, *, most_characters: int = _MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        style = [InlineStyleSheet(css=INPUT)]
        self._brush: Any = Paragraph(text="", disable_math=True, name=BRUSH_NAME)
        clear = Button(label="Show all trials", width=130, name="clear brush", stylesheets=style)
        self.root: Any = row(
            self._brush,
            clear,
            visible=False,
            name="brush bar",
            sizing_mode="stretch_width",
            styles={"background": colour("chosen"), "border-radius": "8px", "padding": "2px 10px"},
        )
        shown = {"brush": self._brush, "bar": self.root}
        clear.js_on_click(CustomJS(args=shown, code=_CLEAR))
        self._brush.js_on_change("tags", CustomJS(args=shown, code=_SHOW))

    def attach(self, name: str, models: Sequence[Any]) -> None:
        """Let a box in the figures of a section choose trials, and the figures follow the choice.

        Parameters
        ----------
        name : str
            The name of the section.
        models : sequence of Model
            Its models, which belong to this viewer alone.
        """
        # The curves of a second goal are in the section "curves 1".
        kind = name.partition(" ")[0]
        if kind not in _FOLLOWING:
            return
        for plot in models:
            if not isinstance(plot, Plot):
                continue
            drawn = [one for one in plot.renderers if _is_of_trials(one)]
            for one in drawn:
                choice = CustomJSFilter(args={"brush": self._brush}, code=_IS_CHOSEN, name="brush filter")
                one.view = CDSView(filter=choice)
            if drawn and kind in _BRUSHED:
                self._listen(plot, [one.data_source for one in drawn])

    def _listen(self, plot: Any, sources: Sequence[Any]) -> None:
        box = BoxSelectTool(renderers=[], description="Draw a box to show only the trials in it")
        plot.add_tools(box)
        plot.toolbar.active_drag = box
        arguments = {"brush": self._brush, "sources": list(sources)}
        plot.js_on_event(SelectionGeometry, CustomJS(args=arguments, code=_CHOOSE))

    def button(self, table: Any) -> Any:
        """Return a button that chooses the trials that the filter of a table leaves.

        It is how a keyboard chooses trials.

        Parameters
        ----------
        table : Model
            The table of trials.
        """
        made = Button(
            label="Show only these trials in all figures",
            width=260,
            name="brush filtered",
            stylesheets=[InlineStyleSheet(css=INPUT)],
        )
        of_table = {"source": table.source, "view": table.view, "most": self._most_characters}
        arguments = {"brush": self._brush, "bar": self.root, **of_table}
        made.js_on_click(CustomJS(args=arguments, code=_CHOOSE_FILTERED))
        return made


def _is_of_trials(renderer: Any) -> bool:
    """Whether a renderer draws one point or line for each trial."""
    if not isinstance(renderer, GlyphRenderer) or not isinstance(renderer.data_source, ColumnDataSource):
        return False
    data = renderer.data_source.data
    return _COLUMN in data and any(x in data and y in data for x, y in _PLACES)
