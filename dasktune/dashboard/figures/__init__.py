"""Figures of an experiment, made with Bokeh: one function each, from a chronicle to a figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.figures.best_so_far import best_so_far
from dasktune.dashboard.figures.contour import contour
from dasktune.dashboard.figures.importance import importance
from dasktune.dashboard.figures.learning_curves import learning_curves
from dasktune.dashboard.figures.lineage import lineage
from dasktune.dashboard.figures.objectives import hypervolume_over_time, objectives
from dasktune.dashboard.figures.parallel_coordinates import parallel_coordinates
from dasktune.dashboard.figures.resources import resources
from dasktune.dashboard.figures.rungs import rungs
from dasktune.dashboard.figures.slice import slices
from dasktune.dashboard.figures.timeline import timeline
from dasktune.errors import check

__all__ = [
    "KINDS",
    "best_so_far",
    "contour",
    "hypervolume_over_time",
    "importance",
    "learning_curves",
    "lineage",
    "objectives",
    "parallel_coordinates",
    "plot",
    "resources",
    "rungs",
    "slices",
    "timeline",
]

#: What can be asked for by name.
KINDS: Final[dict[str, Callable[..., Any]]] = {
    "best_so_far": best_so_far,
    "learning_curves": learning_curves,
    "parallel_coordinates": parallel_coordinates,
    "importance": importance,
    "slice": slices,
    "contour": contour,
    "timeline": timeline,
    "resources": resources,
    "rungs": rungs,
    "lineage": lineage,
    "objectives": objectives,
    "hypervolume": hypervolume_over_time,
}


def plot(chronicle: Chronicle, kind: str = "best_so_far", **options: Any) -> Any:
    """Return a figure by its name.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.
    kind : str, default="best_so_far"
        One of :data:`KINDS`.
    **options
        Those of the figure's function.

    Raises
    ------
    ConfigError
        If there is no such kind.
    TypeError
        If it has no such option.

    Examples
    --------
    >>> from dasktune.dashboard.sources import chronicle_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> chronicle = chronicle_of_results(results, metric="loss", mode="min")
    >>> plot(chronicle, "timeline", height=300).height
    300
    """
    check(kind in KINDS, "kind", f"one of {', '.join(map(repr, KINDS))}", kind)
    return KINDS[kind](chronicle, **options)
