"""Figure of what schedulers would have cost an experiment, and what they would have lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bokeh.core.properties import field, value
from bokeh.models import NumeralTickFormatter

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import label
from dasktune.forecast.what_if import WhatIf, WhatIfRow
from dasktune.text.formatting import format_duration

_KINDS: Final = ("others", "recommended")

#: Sizes by which labels are kept apart, for a figure of 800 pixels: the width of a character as a
#: share of full training, the height of a line and of the plot in pixels.
_CHARACTER: Final = 0.011
_LINE: Final = 13.0
_PLOT: Final = 270.0
#: Maximum number of lines between a dot and its label.
_MOST_LINES: Final = 16


def what_if(found: WhatIf, *, height: int = 380) -> theme.Figure:
    """Show the share of the iterations against the probability of keeping the best configuration.

    Each scheduler has a dot, and lines for its 90 % intervals. Schedulers at the top left cost
    little and lose nothing.

    Parameters
    ----------
    found : WhatIf
        What `dasktune.whatif` has returned.
    height : int, default=380
        Height in pixels.

    Examples
    --------
    >>> import dasktune as tune
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for epoch in range(1, 10):
    ...         yield {"loss": config["x"] + 1 / epoch}, 60.0
    >>> config = tune.TuneConfig(metric="loss", mode="min", num_samples=20, seed=0)
    >>> results = simulate(train, param_space={"x": tune.uniform(0, 1)}, tune_config=config)
    >>> what_if(tune.whatif(results, ["asha"], workers=4, orders=20), height=300).height
    300
    """
    return what_if_spec(found, height=height).build()


def what_if_spec(found: WhatIf, *, height: int = 380) -> FigureSpec:
    """Return the spec of :func:`what_if`; the parameters are the same."""
    chosen = found.recommended
    rows = {"recommended": [chosen], "others": [row for row in found.rows if row is not chosen]}
    places = _label_places(found.rows)
    return FigureSpec(
        draw=_draw,
        structure=(f"What schedulers would have cost, by {label(found.metric)}", height),
        sources={kind: _columns(rows[kind], places) for kind in _KINDS},
        settings={
            ("x", "start"): 0.0,
            ("x", "end"): max(1.05, *(1.05 * row.iterations.high for row in found.rows)),
            ("y", "start"): 0.0,
            # Room for a label above a dot at the top.
            ("y", "end"): 1.12,
        },
    )


def _label_places(rows: Sequence[WhatIfRow]) -> dict[str, tuple[bool, float]]:
    """Return for each scheduler whether its label is left of the dot, and how far below it.

    Many schedulers may keep the best configuration with the same probability: their labels would be
    written over each other.
    """
    taken: list[tuple[float, float, float]] = []
    places = {}
    for row in sorted(rows, key=lambda row: row.iterations.value):
        x, width = row.iterations.value, _CHARACTER * len(label(row.scheduler))
        is_left = x + width > 1.05 and x > width
        begin, end = (x - width, x) if is_left else (x, x + width)
        height = (1 - row.kept.value) * _PLOT
        # Above the dot, or below its lines.
        heights = [height - 4.0, *(height + line * _LINE + 5.0 for line in range(1, _MOST_LINES))]
        free = (
            at
            for at in heights
            if not any(
                begin < other_end and other_begin < end and abs(at - other) < _LINE
                for other_begin, other_end, other in taken
            )
        )
        at = next(free, heights[-1])
        taken.append((begin, end, at))
        places[row.scheduler] = is_left, at - height
    return places


def _columns(rows: list[WhatIfRow], places: Mapping[str, tuple[bool, float]]) -> dict[str, list[Any]]:
    is_left = [places[row.scheduler][0] for row in rows]
    return {
        "align": ["right" if one else "left" for one in is_left],
        "label_x": [-8.0 if one else 8.0 for one in is_left],
        "label_y": [places[row.scheduler][1] for row in rows],
        "scheduler": [label(row.scheduler) for row in rows],
        "x": [row.iterations.value for row in rows],
        "x_low": [row.iterations.low for row in rows],
        "x_high": [row.iterations.high for row in rows],
        "y": [row.kept.value for row in rows],
        "y_low": [row.kept.low for row in rows],
        "y_high": [row.kept.high for row in rows],
        "time": [row.time.value for row in rows],
        "duration": [format_duration(3600 * row.hours.value) for row in rows],
        "regret": [row.regret.value for row in rows],
    }


def _draw(spec: FigureSpec) -> theme.Figure:
    title, height = spec.structure
    made = theme.new_figure(
        title,
        "share of the iterations of full training",
        "probability that the best configuration is kept",
        height=height,
        x_range=spec.range("x"),
        y_range=spec.range("y"),
    )
    made.axis.formatter = NumeralTickFormatter(format="0 %")
    dots = []
    for kind, colour in zip(_KINDS, theme.CONTRAST, strict=False):
        source = spec.source(kind)
        style = {"source": source, "line_color": colour, "line_width": 2, "line_alpha": 0.5}
        made.segment("x_low", "y", "x_high", "y", **style)
        made.segment("x", "y_low", "x", "y_high", **style)
        dots.append(made.scatter("x", "y", source=source, size=10, color=colour, legend_label=kind))
        made.text(
            "x",
            "y",
            "scheduler",
            source=source,
            x_offset="label_x",
            y_offset="label_y",
            text_align=field("align"),
            # A plain text would name a column.
            text_font=value(theme.FONT),
            text_font_size="11px",
            text_color=theme.INK,
        )
    tips = [
        ("scheduler", "@scheduler"),
        ("iterations", "@x{0.0 %} (@x_low{0.0 %} to @x_high{0.0 %})"),
        ("time", "@time{0.0 %}, @duration"),
        ("best kept", "@y{0 %} (@y_low{0 %} to @y_high{0 %})"),
        ("regret", "@regret{0.000}"),
    ]
    made.add_tools(theme.hover(tips, dots))
    theme.legend_above(made)
    return made
