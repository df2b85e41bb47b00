"""Importance of parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter, Range1d

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.sketch import Sketch, drawing, nothing
from dasktune.dashboard.figures.theme import CONTRAST, Figure, goal_name, hover, new_figure
from dasktune.dashboard.importances import FEWEST, importances
from dasktune.dashboard.parameters import fair_iteration, parameters_of, values_at
from dasktune.dashboard.text import shown

__all__ = ["Ranked", "importance", "importance_sketch", "ranked_parameters", "ranking_task"]

_MOST: Final = 20
#: Trials that are compared: more make the forest slower, and hardly another one.
_MOST_TRIALS: Final = 2_000


#: Names and shares, the method, the iteration, and how many trials were compared.
Ranked: TypeAlias = tuple[list[tuple[str, float]], str, int, int]


def ranked_parameters(chronicle: Chronicle, iteration: int | None = None) -> Ranked:
    """Return the parameters with their importance, the most important one first.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    iteration : int, optional
        At which ``training_iteration`` trials are compared; by default the highest that half of
        them have come to.

    Returns
    -------
    list of tuple, str, int, int
        Names and shares of the variance; the method; the iteration; how many trials were compared.
        Nothing, if they are too few or alike.
    """
    return ranking_task(chronicle, iteration)()


def ranking_task(chronicle: Chronicle, iteration: int | None = None) -> Callable[[], Ranked]:
    """Return what works out :func:`ranked_parameters`, and needs the chronicle no more.

    Parameters
    ----------
    chronicle, iteration
        The same.
    """
    at = fair_iteration(chronicle) if iteration is None else iteration
    those = [log for log in chronicle.trials if log.iteration and log.iteration >= at]
    those = those[:: max(1, -(-len(those) // _MOST_TRIALS))]
    pairs = [(values_at(log, at, chronicle.mode), log) for log in those]
    pairs = [(value, log) for value, log in pairs if np.isfinite(value)]
    columns = parameters_of(chronicle, [log for _, log in pairs])
    scores = np.array([value for value, _ in pairs])

    def work() -> Ranked:
        if len(scores) < FEWEST or not columns:
            return [], "", at, len(scores)
        shares, method = importances([one.units for one in columns], scores)
        order = np.argsort(-shares, kind="stable")
        return [(columns[i].name, float(shares[i])) for i in order], method, at, len(scores)

    return work


def importance(
    chronicle: Chronicle,
    *,
    iteration: int | None = None,
    height: int = 340,
    ranked: Ranked | None = None,
) -> Figure:
    """Show how much of what trials come to is due to each parameter alone.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    iteration : int, optional
        At which ``training_iteration`` trials are compared; by default the highest that half of
        them have come to. The best values of trials that were ended early cannot be compared with
        those of others.
    height : int, default=340
        Pixels.
    ranked : tuple, optional
        What :func:`ranked_parameters` has returned, if that is known.

    Notes
    -----
    If scikit-learn is installed: the main effects of Hutter et al., "An Efficient Approach for
    Assessing Hyperparameter Importance" (fANOVA), ICML 2014, on ranks. Otherwise the share of the
    variance of the ranks that lies between eight bins of each parameter. Of more than 2,000 trials
    every second, third, ... is compared.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     yield {"loss": config["x"] * config["y"]}, 1.0
    >>> space = {"x": {"grid_search": [1, 2]}, "y": {"grid_search": [3, 4]}}
    >>> results = simulate(train, param_space=space)
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> importance(chronicle, height=200).height
    200
    """
    return importance_sketch(chronicle, iteration=iteration, height=height, ranked=ranked).drawn()


def importance_sketch(
    chronicle: Chronicle,
    *,
    iteration: int | None = None,
    height: int = 340,
    ranked: Ranked | None = None,
) -> Sketch:
    """Return what :func:`importance` shows, with the same parameters."""
    title = f"Importance of parameters for {goal_name(chronicle)}"
    shares, method, at, count = ranked or ranked_parameters(chronicle, iteration)
    if not shares:
        why = "no results yet"
        if count:
            why = f"{count} trials at iteration {at} are too few, or too alike; {FEWEST} are needed"
        return nothing(title, why, height)
    title = f"{title}: {method}, {count} trials at iteration {at}"
    return drawing(partial(_draw, title, shares[:_MOST][::-1], height))


def _draw(title: str, rows: list[tuple[str, float]], height: int) -> Figure:
    source = ColumnDataSource(
        {
            "y": list(range(len(rows))),
            "share": [share for _, share in rows],
            "name": [shown(name, 80) for name, _ in rows],
            "text": [f"{share:.0%}" for _, share in rows],
        }
    )
    made = new_figure(
        title,
        "share of the variance of their ranks due to it alone",
        "",
        height=height,
        tools="save",
        x_range=Range1d(0, 1.12 * max(0.05, *(share for _, share in rows))),
        y_range=Range1d(-0.6, len(rows) - 0.4),
    )
    bars = made.hbar("y", right="share", height=0.66, source=source, color=CONTRAST[0])
    made.text(
        "share",
        "y",
        "text",
        source=source,
        x_offset=4,
        text_baseline="middle",
        text_font_size="12px",
    )
    made.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    made.yaxis.major_label_overrides = {i: shown(name, 24) for i, (name, _) in enumerate(rows)}
    made.xaxis.formatter = NumeralTickFormatter(format="0%")
    made.ygrid.visible = False
    made.add_tools(hover([("parameter", "@name"), ("share", "@share{0.0%}")], [bars]))
    return made
