"""Figures of an experiment: each function makes one Bokeh figure from a projection.

Tables and texts are in ``dasktune.dashboard.report``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dasktune.dashboard.figures.best_so_far import best_so_far
from dasktune.dashboard.figures.contour import contour
from dasktune.dashboard.figures.importance import importance
from dasktune.dashboard.figures.learning_curves import learning_curves
from dasktune.dashboard.figures.lineage import lineage
from dasktune.dashboard.figures.parallel_coordinates import parallel_coordinates
from dasktune.dashboard.figures.pareto_front import hypervolume_over_time, objectives
from dasktune.dashboard.figures.resource_usage import resources
from dasktune.dashboard.figures.rung_figure import rungs
from dasktune.dashboard.figures.scheduler_costs import what_if
from dasktune.dashboard.figures.slice import slices
from dasktune.dashboard.figures.timeline import timeline
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
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
    "what_if",
]

#: The figures by name.
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


def plot(projection: ExperimentProjection, kind: str = "best_so_far", **options: Any) -> Any:
    """Return a figure by its name.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    kind : str, default="best_so_far"
        One of :data:`KINDS`.
    **options
        Options of the figure's function.

    Raises
    ------
    ConfigError
        If `kind` is unknown.
    TypeError
        If the figure does not have an option.

    Examples
    --------
    >>> from dasktune.dashboard.model.load import projection_of_results
    >>> from dasktune.testing import simulate
    >>> def train(config):
    ...     for step in (1, 2):
    ...         yield {"loss": config["x"] / step}, 1.0
    >>> results = simulate(train, param_space={"x": {"grid_search": [1, 2]}})
    >>> projection = projection_of_results(results, metric="loss", mode="min")
    >>> plot(projection, "timeline", height=300).height
    300
    """
    check(kind in KINDS, "kind", f"one of {', '.join(map(repr, KINDS))}", kind)
    return KINDS[kind](projection, **options)
