"""Learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import Density, robust_range
from dasktune.dashboard.figures.theme import (
    COLOURS,
    Figure,
    above,
    empty,
    goal_name,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import configuration, shown
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import ConfigError

__all__ = ["learning_curves"]

#: Points of a line that are drawn.
_POINTS: Final = 200


def learning_curves(
    chronicle: Chronicle,
    *,
    max_lines: int = 60,
    trials: Sequence[str] | None = None,
    density: Density | None = None,
    height: int = 340,
) -> Figure:
    """Show the first goal over the iterations.

    With more trials than `max_lines` all of them are a shadow that is darker where more pass, and
    the best, and those that run, are lines.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    max_lines : int, default=60
        The most lines.
    trials : sequence of str, optional
        Which trials are lines; by default the best and those that run.
    density : Density, optional
        Of this chronicle, so that only what is new has to be drawn.
    height : int, default=340
        Pixels.

    Raises
    ------
    ConfigError
        If there is no trial of such a name.
    """
    name = goal_name(chronicle)
    title = f"Learning curves of {name}"
    if not chronicle.num_results:
        return empty(title, height=height)
    drawn = [log for log in chronicle.trials if log.curves and len(log.curves[0])]
    lines = _chosen(chronicle, max_lines) if trials is None else _named(chronicle, trials)
    values = np.concatenate([log.curves[0].values for log in drawn])
    shadowed = len(drawn) > len(lines)
    if shadowed:
        density = density or Density()
        density.update(chronicle)
        x_range, y_range = density.x_range, density.y_range
        title += f": all {len(drawn):,} trials in grey, {len(lines)} as lines"
    else:
        longest = max(log.iteration for log in drawn)
        x_range, y_range = (0.0, max(longest * 1.02, 1.0)), robust_range(values)
    made = new_figure(
        title,
        "training iteration",
        name,
        height=height,
        x_range=Range1d(*x_range),
        y_range=Range1d(*y_range),
    )
    if shadowed and density is not None:
        _draw_shadow(made, density)
    _draw_lines(made, chronicle, lines)
    above(made)
    return made


def _chosen(chronicle: Chronicle, most: int) -> list[TrialLog]:
    """Return whom to draw: half the best, half those that changed last and have not ended."""
    if len(chronicle.trials) <= most:
        return [log for log in chronicle.trials if log.iteration]
    running = (log for log in chronicle.changed_since(0) if log.status == "RUNNING")
    best = chronicle.ranked()[:most]
    some = dict.fromkeys([*best[: most // 2], *_first(running, most // 2), *best])
    return list(some)[:most]


def _first(logs: object, most: int) -> list[TrialLog]:
    return [log for log, _ in zip(logs, range(most), strict=False)]  # type: ignore[call-overload]


def _named(chronicle: Chronicle, trials: Sequence[str]) -> list[TrialLog]:
    found = []
    for trial_id in trials:
        log = chronicle.find(trial_id)
        if log is None:
            raise ConfigError(f"trials must be ids of trials, got {trial_id!r}")
        found.append(log)
    return found


def _draw_lines(made: Figure, chronicle: Chronicle, lines: Sequence[TrialLog]) -> None:
    best = chronicle.best
    for outcome in in_order(log.outcome for log in lines if log is not best):
        part = [log for log in lines if log.outcome == outcome and log is not best]
        _draw(made, part, COLOURS[outcome], 1.3, outcome.lower())
    if best is not None and best in lines and len(best.curves[0]):
        _draw(made, [best], COLOURS["ERROR"], 3.0, "best trial")


def _draw(made: Figure, logs: Sequence[TrialLog], colour: str, width: float, legend: str) -> None:
    points = [_thinned(log) for log in logs]
    source = ColumnDataSource(
        {
            "xs": [xs for xs, _ in points],
            "ys": [ys for _, ys in points],
            "trial": [shown(log.trial_id) for log in logs],
            "config": [configuration(log.config, 120) for log in logs],
            "best": [log.best_value() for log in logs],
        }
    )
    style = {"line_color": colour, "line_width": width, "line_alpha": 0.75}
    line = made.multi_line("xs", "ys", source=source, legend_label=legend, **style)
    # A curve of a single point is no line.
    single = [(xs[0], ys[0]) for xs, ys in points if len(xs) == 1]
    dots = ColumnDataSource({"x": [x for x, _ in single], "y": [y for _, y in single]})
    made.scatter("x", "y", source=dots, color=colour, size=5, legend_label=legend)
    tips = [("trial", "@trial"), ("best", "@best"), ("config", "@config")]
    made.add_tools(hover(tips, [line], line_policy="nearest"))


def _thinned(log: TrialLog) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    xs, ys = log.curves[0].iterations, log.curves[0].values
    step = -(-len(xs) // _POINTS) or 1
    keep = np.arange(len(xs))[::-step][::-1]
    return xs[keep], ys[keep]


def _draw_shadow(made: Figure, density: Density) -> None:
    """Draw how many pass where, the darker the more, on a logarithmic scale."""
    counts = density.counts
    shade = np.log1p(counts) / np.log1p(max(1, int(counts.max())))
    alpha = np.where(counts > 0, 30 + 170 * shade, 0).astype(np.uint32)
    # As Bokeh wants it: alpha, blue, green, red, from the highest byte to the lowest.
    picture = (alpha << 24) | np.uint32(0xA0978C)
    made.image_rgba(
        image=[picture],
        x=density.x_range[0],
        y=density.y_range[0],
        dw=density.x_range[1] - density.x_range[0],
        dh=density.y_range[1] - density.y_range[0],
    )
