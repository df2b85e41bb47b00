"""Learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from bokeh.models import LinearColorMapper
from numpy.typing import NDArray

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import Density, robust_range
from dasktune.dashboard.figures.sketch import Sketch, nothing
from dasktune.dashboard.figures.theme import (
    COLOURS,
    Figure,
    above,
    goal_name,
    hover,
    in_order,
    new_figure,
)
from dasktune.dashboard.text import configuration, shown
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import ConfigError

__all__ = ["curves_sketch", "learning_curves"]

#: Points of a line that are drawn.
_POINTS: Final = 200
#: Where nobody passes, and where few to many do.
_SHADES: Final = ("#8C97A000", *(f"#8C97A0{alpha:02X}" for alpha in range(30, 200, 2)))


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

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> learning_curves(chronicle, height=300).height
    300
    """
    return curves_sketch(
        chronicle, max_lines=max_lines, trials=trials, density=density, height=height
    ).drawn()


def curves_sketch(
    chronicle: Chronicle,
    *,
    max_lines: int = 60,
    trials: Sequence[str] | None = None,
    density: Density | None = None,
    height: int = 340,
) -> Sketch:
    """Return what :func:`learning_curves` shows, with the same parameters."""
    name = goal_name(chronicle)
    title = f"Learning curves of {name}" if trials is None else name
    if not chronicle.num_results or not chronicle.metrics:
        return nothing(title, height=height)
    lines = _chosen(chronicle, max_lines) if trials is None else _named(chronicle, trials)
    count = sum(len(log.curves[0]) > 0 for log in chronicle.trials if log.curves)
    sources = _lines(chronicle, lines)
    parts = tuple(sources)
    if count > len(lines):
        density = density or Density()
        density.update(chronicle)
        y_range = density.y_range
        chosen = "" if trials else f", {len(lines)} as lines"
        title += f": all {count:,} trials in grey{chosen}"
        longest = density.longest
        sources["shadow"] = _shadow(density)
    else:
        longest = max(log.iteration for log in lines)
        y_range = robust_range(np.concatenate([log.curves[0].values for log in lines]))
    right = max(longest * 1.02, 1.0)
    return Sketch(
        draw=_draw,
        form=(name, height, parts, count > len(lines)),
        sources=sources,
        settings={
            ("title", "text"): title,
            ("x", "start"): 0.0,
            ("x", "end"): right,
            ("y", "start"): y_range[0],
            ("y", "end"): y_range[1],
        },
    )


def _draw(sketch: Sketch) -> Figure:
    name, height, parts, shadowed = sketch.form
    made = new_figure(
        sketch.settings["title", "text"],
        "training iteration",
        name,
        height=height,
        x_range=sketch.range("x"),
        y_range=sketch.range("y"),
    )
    if shadowed:
        made.image(
            source=sketch.source("shadow"),
            color_mapper=LinearColorMapper(palette=_SHADES, low=0, high=len(_SHADES)),
        )
    for part in parts:
        if not part.startswith("dots"):
            _draw_lines(made, sketch, part)
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


def _lines(chronicle: Chronicle, logs: Sequence[TrialLog]) -> dict[str, Any]:
    """Return the columns of the lines and dots, by what became of the trials; the best is apart."""
    best = chronicle.best
    parts = {
        outcome: [log for log in logs if log.outcome == outcome and log is not best]
        for outcome in in_order(log.outcome for log in logs if log is not best)
    }
    if best is not None and best in logs and len(best.curves[0]):
        parts["best trial"] = [best]
    columns = {}
    for part, members in parts.items():
        points = [_thinned(log) for log in members]
        columns[part] = {
            "xs": [xs for xs, _ in points],
            "ys": [ys for _, ys in points],
            "trial": [shown(log.trial_id) for log in members],
            "config": [configuration(log.config, 120) for log in members],
            "best": [log.best_value() for log in members],
        }
        # A curve of a single point is no line.
        single = [(xs[0], ys[0]) for xs, ys in points if len(xs) == 1]
        dots = np.array(single, dtype=np.float64).reshape(len(single), 2)
        columns[f"dots {part}"] = {"x": dots[:, 0], "y": dots[:, 1]}
    return columns


def _draw_lines(made: Figure, sketch: Sketch, part: str) -> None:
    is_best = part == "best trial"
    style = {"color": COLOURS["ERROR" if is_best else part], "legend_label": part.lower()}
    line = made.multi_line(
        "xs",
        "ys",
        source=sketch.source(part),
        line_width=3.0 if is_best else 1.3,
        line_alpha=0.75,
        **style,
    )
    made.scatter("x", "y", source=sketch.source(f"dots {part}"), size=5, **style)
    tips = [("trial", "@trial"), ("best", "@best"), ("config", "@config")]
    made.add_tools(hover(tips, [line], line_policy="nearest"))


def _thinned(log: TrialLog) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the points that are drawn, as exactly as a screen shows them."""
    xs, ys = log.curves[0].iterations, log.curves[0].values
    step = -(-len(xs) // _POINTS) or 1
    keep = np.arange(len(xs))[::-step][::-1]
    xs, ys = xs[keep], ys[keep]
    # What a clone goes on from is another trial's: no line leads there.
    gaps = np.unique(np.searchsorted(xs, log.jumps, side="right"))
    gaps = gaps[(gaps > 0) & (gaps < len(xs))]
    with np.errstate(over="ignore"):
        return (
            np.insert(xs.astype(np.float32), gaps, np.nan),
            np.insert(ys.astype(np.float32), gaps, np.nan),
        )


def _shadow(density: Density) -> dict[str, Any]:
    """Return how many pass where, the darker the more, on a logarithmic scale."""
    counts = density.counts
    shade = np.log1p(counts) / np.log1p(max(1, int(counts.max())))
    picture = np.where(counts > 0, 1 + (len(_SHADES) - 2) * shade, 0).astype(np.uint8)
    (left, right), (low, high) = density.x_range, density.y_range
    return {"image": [picture], "x": [left], "y": [low], "dw": [right - left], "dh": [high - low]}
