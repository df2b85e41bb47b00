"""How all figures look, and what they do where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from bokeh.models import HoverTool, Label, Range1d, Title
from bokeh.palettes import Cividis256, Purples256
from bokeh.plotting import figure

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.text import shown

__all__ = [
    "COLOURS",
    "CONTRAST",
    "FONT",
    "INK",
    "ORDER",
    "SCALE",
    "WORKERS_LEFT",
    "Figure",
    "above",
    "empty",
    "goal_name",
    "hover",
    "in_order",
    "new_figure",
]

#: A figure of Bokeh's, which is not typed so that it could be checked.
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

#: Of statuses, of how trials end, and of what becomes of them at rungs.
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
    "went on": "#0072B2",
    "waits": "#CC79A7",
    "cloned": "#009E73",
}

#: From bad to good: the best stand out from the white ground. Its palest end cannot be seen there.
SCALE: Final = tuple(Cividis256[:236][::-1])
#: From the first to the last, which is neither bad nor good.
ORDER: Final = tuple(Purples256[:150][::-1])

#: Pixels left of what is shown by worker: addresses fit, and figures below each other agree.
WORKERS_LEFT: Final = 136

INK: Final = "#24292F"
_FAINT: Final = "#8C959F"
_GRID: Final = "#EAEEF2"
FONT: Final = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def new_figure(
    title: str, x_label: str, y_label: str, *, height: int = 340, tools: str = "", **changes: Any
) -> Figure:
    """Return a figure without anything on it.

    Parameters
    ----------
    title, x_label, y_label : str
        Texts; what users named in them must have been :func:`~dasktune.dashboard.text.shown`.
    height : int, default=340
        Pixels. It is as wide as there is room.
    tools : str, optional
        Bokeh's names; by default panning, zooming, going back and saving.
    **changes
        Other arguments of Bokeh's `figure`.
    """
    made = figure(
        height=height,
        sizing_mode="stretch_width",
        x_axis_label=x_label,
        y_axis_label=y_label,
        tools=tools or "pan,wheel_zoom,box_zoom,reset,save",
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
    return made


def above(made: Figure) -> None:
    """Let a figure's legend be in a row above the plot; what is clicked there is hidden."""
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


def in_order(words: Iterable[str]) -> list[str]:
    """Return each word once, in the order of :data:`COLOURS`: the same whoever comes first.

    Parameters
    ----------
    words : iterable of str
        Statuses and the like.
    """
    there = set(words)
    return [word for word in COLOURS if word in there]


def hover(tips: list[tuple[str, str]], renderers: list[Any], **changes: Any) -> HoverTool:
    """Return a tool that tells what is under the pointer.

    Parameters
    ----------
    tips : list of tuple
        Labels and templates. Both are ours, never a user's: of columns that hold what users named,
        Bokeh escapes the values.
    renderers : list
        Of whom it tells.
    **changes
        Other properties of the tool.
    """
    return HoverTool(tooltips=tips, renderers=renderers, **changes)


def empty(title: str, why: str = "no results yet", height: int = 340) -> Figure:
    """Return a figure that says why it shows nothing.

    Parameters
    ----------
    title : str
        As the figure would have it.
    why : str, default="no results yet"
        The reason; what users named in it must have been shown.
    height : int, default=340
        Pixels.
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


def goal_name(chronicle: Chronicle, goal: int = 0) -> str:
    """Return the name of a goal as an axis shows it."""
    names = chronicle.metrics
    return shown(names[goal]) if goal < len(names) else "metric"
