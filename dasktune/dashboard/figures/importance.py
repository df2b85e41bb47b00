"""Figure of the importance of parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, Range1d

from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec, static_spec
from dasktune.dashboard.figures.theme import AWAITS_RESULT, CONTRAST, Figure, goal_name, hover, new_figure
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.importances import FEWEST, importances
from dasktune.dashboard.model.parameter_axis import fair_iteration, parameter_axes, value_at
from dasktune.text.formatting import plural

_MOST: Final = 20
#: Maximum number of trials. More would make the random forest slower, but hardly change it.
_MOST_TRIALS: Final = 2_000


#: Names and shares of parameters, the method, the iteration, the number of compared trials.
Ranked: TypeAlias = tuple[list[tuple[str, float]], str, int, int]


def ranked_parameters(projection: ExperimentProjection, iteration: int | None = None) -> Ranked:
    """Return the parameters with their importance, the most important one first.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    iteration : int, optional
        The ``training_iteration`` at which trials are compared; by default the highest that half of
        them have reached.

    Returns
    -------
    list of tuple, str, int, int
        Names and shares of the variance; the method; the iteration; the number of trials. The list
        is empty if there are too few trials or if they do not differ.
    """
    return ranking_task(projection, iteration)()


def ranking_task(projection: ExperimentProjection, iteration: int | None = None) -> Callable[[], Ranked]:
    """Return a function that computes :func:`ranked_parameters` without the projection.

    The data is copied first, so the function can run in a thread without a lock.

    Parameters
    ----------
    projection, iteration
        As for :func:`ranked_parameters`.
    """
    at = fair_iteration(projection) if iteration is None else iteration
    those = [trial for trial in projection.trials if trial.iteration and trial.iteration >= at]
    those = those[:: max(1, -(-len(those) // _MOST_TRIALS))]
    pairs = [(value_at(trial, at, projection.mode), trial) for trial in those]
    pairs = [(value, trial) for value, trial in pairs if np.isfinite(value)]
    columns = parameter_axes(projection, [trial for _, trial in pairs])
    scores = np.array([value for value, _ in pairs])

    def work() -> Ranked:
        if len(scores) < FEWEST or not columns:
            return [], "", at, len(scores)
        shares, method = importances([one.units for one in columns], scores)
        order = np.argsort(-shares, kind="stable")
        return [(columns[i].name, float(shares[i])) for i in order], method, at, len(scores)

    return work


def importance(
    projection: ExperimentProjection,
    *,
    iteration: int | None = None,
    height: int = 340,
    ranked: Ranked | None = None,
) -> Figure:
    """Show the share of the variance of the trials' values that is due to each parameter alone.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    iteration : int, optional
        The ``training_iteration`` at which trials are compared; by default the highest that half of
        them have reached. Trials that were stopped early have trained less than others, so their
        best values cannot be compared.
    height : int, default=340
        Height in pixels.
    ranked : tuple, optional
        The result of :func:`ranked_parameters`, if it is known.

    Notes
    -----
    If scikit-learn is installed: the main effects of Hutter et al., "An Efficient Approach for
    Assessing Hyperparameter Importance" (fANOVA), ICML 2014, on ranks. Otherwise the share of the
    variance of the ranks that lies between eight bins of each parameter. Of more than 2,000 trials
    every second, third, ... one is compared.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> importance(projection, height=200).height
    200
    """
    return importance_spec(projection, iteration=iteration, height=height, ranked=ranked).build()


def importance_spec(
    projection: ExperimentProjection,
    *,
    iteration: int | None = None,
    height: int = 340,
    ranked: Ranked | None = None,
) -> FigureSpec:
    """Return the spec of :func:`importance`; the parameters are the same."""
    title = f"Importance of parameters for {goal_name(projection)}"
    shares, method, at, count = ranked or ranked_parameters(projection, iteration)
    if not shares:
        why = AWAITS_RESULT
        if count:
            why = (
                f"{count} {plural('trial', count)} at iteration {at}: too few or too similar; "
                f"at least {FEWEST} are needed"
            )
        return empty_spec(title, why, height)
    title = f"{title}\n{method}, {count} trials at iteration {at}"
    return static_spec(partial(_draw, title, shares[:_MOST][::-1], height))


def _draw(title: str, rows: list[tuple[str, float]], height: int) -> Figure:
    source = ColumnDataSource(
        {
            "y": list(range(len(rows))),
            "share": [share for _, share in rows],
            "name": [label(name, 80) for name, _ in rows],
            "text": [f"{share:.0%}" for _, share in rows],
        }
    )
    made = new_figure(
        title,
        "share of the variance of ranks due to this parameter alone",
        "",
        height=height,
        tools="save",
        x_range=Range1d(0, 1.12 * max(0.05, *(share for _, share in rows))),
        y_range=Range1d(-0.6, len(rows) - 0.4),
    )
    bars = made.hbar("y", right="share", height=0.66, source=source, color=CONTRAST[0])
    made.text("share", "y", "text", source=source, x_offset=4, text_baseline="middle", text_font_size="12px")
    made.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    made.yaxis.major_label_overrides = {i: label(name, 24) for i, (name, _) in enumerate(rows)}
    made.xaxis.formatter = NumeralTickFormatter(format="0%")
    made.ygrid.visible = False
    made.add_tools(hover([("parameter", "@name"), ("share", "@share{0.0%}")], [bars]))
    return made
