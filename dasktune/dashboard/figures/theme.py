"""The common look of all figures, and the empty figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from bokeh.models import (
    BasicTickFormatter,
    CustomAction,
    CustomJS,
    HoverTool,
    InlineStyleSheet,
    Label,
    LogScale,
    Range1d,
    Title,
)
from bokeh.palettes import Cividis256, Purples256
from bokeh.plotting import figure

from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection

#: A figure of Bokeh, whose types mypy cannot check.
Figure: TypeAlias = Any

#: Okabe and Ito's colours, which people with any colour vision can tell apart.
CONTRAST: Final = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)

#: Colours of statuses, of outcomes of attempts, and of outcomes at rungs.
COLOURS: Final = {
    "PENDING": "#B0B7BF",
    "RUNNING": "#56B4E9",
    "PAUSED": "#CC79A7",
    "TERMINATED": "#0072B2",
    "STOPPED": "#E69F00",
    "ERROR": "#D55E00",
    "running": "#56B4E9",
    "ended": "#0072B2",
    "stopped": "#E69F00",
    "paused": "#CC79A7",
    "failed": "#D55E00",
    "lost": "#000000",
    "continued": "#0072B2",
    "waiting": "#CC79A7",
    "cloned": "#009E73",
}

#: Colours from bad to good values: the best are darkest. The palest end is left out, because it is
#: invisible on white.
SCALE: Final = tuple(Cividis256[:236][::-1])
#: Colours from the first to the last, for an order in which no end is better.
ORDER: Final = tuple(Purples256[:150][::-1])

#: Left margin of figures by worker, in pixels: wide enough for addresses, and the same for all, so
#: that figures below each other are aligned.
WORKERS_LEFT: Final = 136

INK: Final = "#24292F"
_FAINT: Final = "#57606A"
_GRID: Final = "#EAEEF2"
#: What most empty figures say: what is awaited. It is true of an ended experiment as well.
AWAITS_RESULT: Final = "no trial has reported a result"

FONT: Final = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

#: Style of a figure. Its canvas has light colours; a dark page sets the variable to a filter that
#: inverts the brightness and keeps the hues, and another one to the way to lay it over the card.
_STYLE: Final = ":host { filter: var(--dt-figure, none); mix-blend-mode: var(--dt-blend, normal); }"


def new_figure(
    title: str, x_label: str, y_label: str, *, height: int = 340, tools: str = "", **changes: Any
) -> Figure:
    """Return an empty figure in the common look.

    Parameters
    ----------
    title, x_label, y_label : str
        Texts; user text in them must be a :func:`~dasktune.dashboard.labels.label`.
    height : int, default=340
        Height in pixels. The width is the width of the page.
    tools : str, optional
        Bokeh's names of tools; by default pan, zoom, reset and save.
    **changes
        Other arguments of Bokeh's `figure`.
    """
    made = figure(
        height=height,
        sizing_mode="stretch_width",
        x_axis_label=x_label,
        y_axis_label=y_label,
        tools=tools or "pan,wheel_zoom,box_zoom,reset,save",
        stylesheets=[InlineStyleSheet(css=_STYLE)],
        # A screen reader cannot read a canvas.
        html_attributes={"role": "figure", "aria-label": _spoken(title, x_label, y_label)},
        **changes,
    )
    made.title = Title(
        name="title",
        text=title,
        text_font=FONT,
        text_font_size="14px",
        text_color=INK,
        text_font_style="bold",
    )
    made.toolbar.logo = None
    made.toolbar.autohide = True
    made.background_fill_color = made.border_fill_color = "#FFFFFF"
    made.outline_line_color = None
    made.min_border_right = 24
    made.grid.grid_line_color = _GRID
    made.axis.axis_line_color = made.axis.major_tick_line_color = "#D0D7DE"
    made.axis.minor_tick_line_color = None
    made.axis.major_label_text_color = "#57606A"
    made.axis.major_label_text_font = made.axis.axis_label_text_font = FONT
    made.axis.major_label_text_font_size = "12px"
    made.axis.axis_label_text_color = INK
    made.axis.axis_label_text_font_size = "12px"
    made.axis.axis_label_text_font_style = "normal"
    for axis in made.axis:
        if isinstance(axis.formatter, BasicTickFormatter):
            # By default 120000 is 1.200e+5.
            axis.formatter.power_limit_high = 6
    return made


def _spoken(title: str, x_label: str, y_label: str) -> str:
    """Return a figure's name for a screen reader; it does not depend on the numbers shown."""
    return f"{y_label} over {x_label}" if x_label and y_label else title.partition(":")[0]


def legend_above(made: Figure) -> None:
    """Move the legend above the plot, as a row; a click on an entry hides its glyphs."""
    if not made.legend:
        return
    legend = made.legend[0]
    legend.label_text_font, legend.label_text_font_size = FONT, "12px"
    legend.label_text_color = INK
    legend.border_line_color, legend.background_fill_alpha = None, 0.8
    legend.click_policy = "hide"
    legend.orientation, legend.location = "horizontal", "top_right"
    legend.padding, legend.margin, legend.spacing = 0, 0, 12
    made.add_layout(legend, "above")


#: Shows all values on the y axis; the figure's reset button shows the first range again.
_SHOW_ALL: Final = """
let low = Infinity, high = -Infinity
for (const source of sources) for (const value of source.data[column]) {
  if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)]
}
if (low > high) return
const grow = is_log ? (value, by) => value * 10 ** by : (value, by) => value + by
const length = is_log ? Math.log10(high / low) : high - low
const margin = 0.05 * length || 0.5
range.setv({start: grow(low, -margin), end: grow(high, margin)})
"""


def whole_range_button(made: Figure, sources: list[Any], column: str) -> None:
    """Add a button to the toolbar that shows all values on the y axis; keep the toolbar visible.

    Parameters
    ----------
    made : Figure
        The figure, whose y range is a `Range1d`.
    sources : list of ColumnDataSource
        The data sources of its glyphs.
    column : str
        The column with the values.
    """
    arguments = {
        "sources": sources,
        "column": column,
        "range": made.y_range,
        "is_log": isinstance(made.y_scale, LogScale),
    }
    made.add_tools(
        CustomAction(
            description="Show the whole range of values",
            icon="zoom_out",
            callback=CustomJS(args=arguments, code=_SHOW_ALL),
        )
    )
    made.toolbar.autohide = False


def sorted_outcomes(words: Iterable[str]) -> list[str]:
    """Return each word once, in the fixed order of :data:`COLOURS`.

    Parameters
    ----------
    words : iterable of str
        Statuses or outcomes.
    """
    there = set(words)
    return [word for word in COLOURS if word in there]


def hover(tips: list[tuple[str, str]], renderers: list[Any], **changes: Any) -> HoverTool:
    """Return a tool with tooltips.

    Parameters
    ----------
    tips : list of tuple
        Labels and templates. They must not contain user text: Bokeh escapes the values of columns,
        but not the templates.
    renderers : list
        The renderers with tooltips.
    **changes
        Other properties of the tool.
    """
    return HoverTool(tooltips=tips, renderers=renderers, **changes)


def empty_figure(title: str, why: str = AWAITS_RESULT, height: int = 340) -> Figure:
    """Return an empty figure that shows a reason.

    Parameters
    ----------
    title : str
        The title of the figure.
    why : str, default="no trial has reported a result"
        The reason; user text in it must be a label.
    height : int, default=340
        Height in pixels.
    """
    made = new_figure(title, "", "", height=height, x_range=Range1d(0, 1), y_range=Range1d(0, 1))
    made.axis.visible = made.grid.visible = False
    made.toolbar_location = None
    made.add_layout(
        Label(
            x=0.5,
            y=0.5,
            text=why,
            text_align="center",
            text_baseline="middle",
            text_color=_FAINT,
            text_font=FONT,
            text_font_size="14px",
        )
    )
    return made


def goal_name(projection: ExperimentProjection, goal: int = 0) -> str:
    """Return the name of a goal as an axis shows it."""
    names = projection.metrics
    return label(names[goal]) if goal < len(names) else "metric"
