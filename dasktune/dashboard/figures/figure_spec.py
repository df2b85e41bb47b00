"""The specification of a figure: its data, apart from the Bokeh models that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from bokeh.models import ColumnDataSource, Range1d

from dasktune.dashboard.figures.theme import AWAITS_RESULT, empty_figure


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FigureSpec:
    """A figure before its models are built.

    Computing the data of a figure is cheap; building its models costs thirty times as much. So the
    models of one spec are reused for a later spec of the same structure.

    A spec holds copies of the data: its models can be built in any thread.
    """

    #: Builds the models.
    draw: Callable[[FigureSpec], Any]
    #: Everything that determines which models there are and how they look.
    structure: tuple[Any, ...]
    #: Columns of data sources, by the name of the data source.
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Other properties, by the name of the model and of the property.
    settings: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def build(self) -> Any:
        """Return new models."""
        return self.draw(self)

    def source(self, name: str) -> Any:
        """Return a new data source with copies of the columns: Bokeh changes them in place."""
        columns = {key: copy(column) for key, column in self.sources[name].items()}
        return ColumnDataSource(columns, name=name)

    def range(self, name: str) -> Any:
        """Return a new range from the settings."""
        start, end = self.settings[name, "start"], self.settings[name, "end"]
        return Range1d(start, end, name=name)


def static_spec(draw: Callable[[], Any]) -> FigureSpec:
    """Return the spec of a figure that is rebuilt for each update.

    Parameters
    ----------
    draw : callable
        Builds the models from values that it holds, in any thread.
    """
    return FigureSpec(draw=lambda _: draw(), structure=(object(),))


def empty_spec(title: str, why: str = AWAITS_RESULT, height: int = 340) -> FigureSpec:
    """Return the spec of an empty figure with a reason.

    Parameters
    ----------
    title, why, height
        As for :func:`~dasktune.dashboard.figures.theme.empty_figure`.
    """
    return FigureSpec(draw=lambda _: empty_figure(title, why, height), structure=(title, why, height))
