"""Figure of learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
from bokeh.models import BasicTicker, LinearColorMapper

from dasktune.dashboard.figures import theme
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.figures.inline_array import InlineArray
from dasktune.dashboard.labels import config_label, label
from dasktune.dashboard.model.density import Density, robust_range
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError

#: Largest number of characters of a metric and of several trials in a title.
_MOST_TITLE: Final = 30
#: Maximum number of points of a line.
_POINTS: Final = 200
#: Colours of cells: first without curves, then with few to many curves.
_SHADES: Final = ("#8C97A000", *(f"#8C97A0{alpha:02X}" for alpha in range(30, 200, 2)))


def learning_curves(
    projection: ExperimentProjection,
    *,
    max_lines: int = 60,
    trials: Sequence[str] | None = None,
    density: Density | None = None,
    height: int = 340,
) -> theme.Figure:
    """Show the first goal over the iterations.

    With more trials than `max_lines`, a grey density shows all trials, and only the best and the
    running trials are lines.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    max_lines : int, default=60
        Maximum number of lines.
    trials : sequence of str, optional
        Ids of the trials to draw as lines; by default the best and the running ones.
    density : Density, optional
        The density of this projection, so that only new results have to be added.
    height : int, default=340
        Height in pixels.

    Raises
    ------
    ConfigError
        If an id is unknown.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> learning_curves(projection, height=300).height
    300
    """
    return curves_spec(projection, max_lines=max_lines, trials=trials, density=density, height=height).build()


def curves_spec(
    projection: ExperimentProjection,
    *,
    max_lines: int = 60,
    trials: Sequence[str] | None = None,
    density: Density | None = None,
    height: int = 340,
) -> FigureSpec:
    """Return the spec of :func:`learning_curves`; the parameters are the same."""
    name = theme.goal_name(projection)
    title = f"Learning curves of {name}"
    if trials is not None:
        names = ", ".join(label(one, 30) for one in trials)
        # More would not fit beside the details of the trials, and the legend has the names.
        fits = len(trials) == 1 or len(name) + len(names) <= _MOST_TITLE
        title = f"{name} of {names if fits else f'{len(trials)} trials'}"
    if not projection.num_results or not projection.metrics:
        return empty_spec(title, height=height)
    lines = _chosen(projection, max_lines) if trials is None else _named(projection, trials)
    groups = _by_outcome(projection, lines) if trials is None else _by_trial(projection, lines)
    sources = _columns_of(groups)
    parts = tuple(group for group, _ in groups)
    density = density or Density()
    if len(projection.trials) > len(lines):
        density.update(projection)
    shadowed = density.num_curves > len(lines)
    if shadowed:
        y_range = density.y_range
        # The figure of chosen trials may be narrow, so this is a line of its own.
        chosen = "\n" if trials else f": {len(lines)} as lines, "
        title += f"{chosen}the grey shadow is all {density.num_curves:,} trials"
        longest = density.longest
        sources["shadow"] = _shadow(density)
    else:
        longest = max(trial.iteration for trial in lines)
        y_range = robust_range(np.concatenate([trial.curves[0].values for trial in lines]))
    right = max(longest * 1.02, 1.0)
    return FigureSpec(
        draw=_draw,
        structure=(name, height, parts, shadowed),
        sources=sources,
        settings={
            ("title", "text"): title,
            ("x", "start"): 0.0,
            ("x", "end"): right,
            ("y", "start"): y_range[0],
            ("y", "end"): y_range[1],
        },
    )


def _draw(spec: FigureSpec) -> theme.Figure:
    name, height, parts, shadowed = spec.structure
    made = theme.new_figure(
        spec.settings["title", "text"],
        "training iteration",
        name,
        height=height,
        x_range=spec.range("x"),
        y_range=spec.range("y"),
    )
    # There are no parts of an iteration.
    made.xaxis.ticker = BasicTicker(min_interval=1)
    if shadowed:
        made.image(
            source=spec.source("shadow"),
            color_mapper=LinearColorMapper(palette=_SHADES, low=0, high=len(_SHADES)),
        )
    for place, part in enumerate(parts):
        _draw_lines(made, spec, place, part)
    theme.legend_above(made)
    return made


def _chosen(projection: ExperimentProjection, most: int) -> list[TrialProjection]:
    """Return the trials to draw: half the best, half the running ones that changed last."""
    if len(projection.trials) <= most:
        return [trial for trial in projection.trials if trial.iteration]
    running = (trial for trial in projection.changed_since(0) if trial.status == "RUNNING")
    # The last ones to change come first, so the search ends early if it knows how many there are.
    newest = islice(running, min(most // 2, projection.counts["RUNNING"]))
    best = projection.ranked()[:most]
    some = dict.fromkeys([*best[: most // 2], *newest, *best])
    return list(some)[:most]


def _named(projection: ExperimentProjection, trials: Sequence[str]) -> list[TrialProjection]:
    found = []
    for trial_id in trials:
        trial = projection.find(trial_id)
        if trial is None:
            raise ConfigError(f"trials must be ids of trials of this experiment, got {trial_id!r}")
        found.append(trial)
    return found


@dataclass(frozen=True, slots=True)
class _LineGroup:
    """Lines of one colour, with one entry in the legend."""

    legend: str
    colour: str
    width: float


_LineGroups = list[tuple[_LineGroup, list[TrialProjection]]]


def _by_outcome(projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> _LineGroups:
    """Return the trials by outcome; the best one is a group of its own, on top."""
    best = projection.best
    groups = [
        (
            _LineGroup(outcome.lower(), theme.COLOURS[outcome], 1.3),
            [trial for trial in trials if trial.outcome == outcome and trial is not best],
        )
        for outcome in theme.sorted_outcomes(trial.outcome for trial in trials if trial is not best)
    ]
    if best is not None and best in trials and len(best.curves[0]):
        groups.append((_LineGroup("best trial", theme.COLOURS["ERROR"], 3.0), [best]))
    return groups


def _by_trial(projection: ExperimentProjection, trials: Sequence[TrialProjection]) -> _LineGroups:
    """Return each trial as a group with a colour of its own; the best one keeps its colour."""
    others = [colour for colour in theme.CONTRAST if colour != theme.COLOURS["ERROR"]]
    groups: _LineGroups = []
    for trial in trials:
        name = label(trial.trial_id, 30)
        if trial is projection.best:
            groups.append((_LineGroup(f"{name} (the best)", theme.COLOURS["ERROR"], 3.0), [trial]))
        else:
            groups.append((_LineGroup(name, others[len(groups) % len(others)], 2.0), [trial]))
    return groups


def _columns_of(groups: _LineGroups) -> dict[str, Any]:
    """Return the columns of the lines and of the dots of each group."""
    columns = {}
    for place, (_, members) in enumerate(groups):
        points = [_thinned(trial) for trial in members]
        columns[f"lines {place}"] = {
            "xs": [xs for xs, _ in points],
            "ys": [ys for _, ys in points],
            "trial": [label(trial.trial_id) for trial in members],
            "config": [config_label(trial.config, 120) for trial in members],
            "best": [trial.best_value() for trial in members],
        }
        # A curve with a single point is drawn as a dot.
        single = [(xs[0], ys[0]) for xs, ys in points if len(xs) == 1]
        dots = np.array(single, dtype=np.float64).reshape(len(single), 2)
        columns[f"dots {place}"] = {"x": dots[:, 0], "y": dots[:, 1]}
    return columns


def _draw_lines(made: theme.Figure, spec: FigureSpec, place: int, group: _LineGroup) -> None:
    style = {"color": group.colour, "legend_label": group.legend}
    lines = spec.source(f"lines {place}")
    line = made.multi_line("xs", "ys", source=lines, line_width=group.width, line_alpha=0.75, **style)
    made.scatter("x", "y", source=spec.source(f"dots {place}"), size=5, **style)
    tips = [("trial", "@trial"), ("best", "@best"), ("config", "@config")]
    made.add_tools(theme.hover(tips, [line], line_policy="nearest"))


def _thinned(trial: TrialProjection) -> tuple[InlineArray, InlineArray]:
    """Return at most `_POINTS` points to draw."""
    xs, ys = trial.curves[0].iterations, trial.curves[0].values
    step = -(-len(xs) // _POINTS) or 1
    keep = np.arange(len(xs))[::-step][::-1]
    xs, ys = xs[keep], ys[keep]
    # A clone continues from another trial's checkpoint: no line leads there.
    gaps = np.unique(np.searchsorted(xs, list(trial.jumps), side="right"))
    gaps = gaps[(gaps > 0) & (gaps < len(xs))]
    drawn = [np.insert(one.astype(np.float64), gaps, np.nan) for one in (xs, ys)]
    return InlineArray.of(drawn[0]), InlineArray.of(drawn[1])


def _shadow(density: Density) -> dict[str, Any]:
    """Return the image of the density, on a logarithmic scale."""
    counts = density.counts
    shade = np.log1p(counts) / np.log1p(max(1, int(counts.max())))
    picture = np.where(counts > 0, 1 + (len(_SHADES) - 2) * shade, 0).astype(np.uint8)
    (left, right), (low, high) = density.x_range, density.y_range
    return {"image": [picture], "x": [left], "y": [low], "dw": [right - left], "dh": [high - low]}
