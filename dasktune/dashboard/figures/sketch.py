"""What a figure shows, apart from the models that draw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from bokeh.models import ColumnDataSource, Range1d

from dasktune.dashboard.figures.theme import empty

__all__ = ["Sketch", "drawing", "nothing"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sketch:
    """A figure before it is drawn.

    To work out what a figure shows costs little, to make Bokeh's models of it costs thirty times as
    much. So who has the models of one sketch shows another one of the same form with them.
    """

    #: Makes the models.
    draw: Callable[[Sketch], Any]
    #: All on which it depends what models there are and how they look.
    form: tuple[Any, ...]
    #: Columns, by the names of the models that hold them.
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Other values, by the name of a model and that of its property.
    settings: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def drawn(self) -> Any:
        """Return new models."""
        return self.draw(self)

    def source(self, name: str) -> Any:
        """Return a new data source, with columns of its own: Bokeh changes them in their place."""
        columns = {key: copy(column) for key, column in self.sources[name].items()}
        return ColumnDataSource(columns, name=name)

    def range(self, name: str) -> Any:
        """Return a new range, whose ends are settings."""
        start, end = self.settings[name, "start"], self.settings[name, "end"]
        return Range1d(start, end, name=name)


def drawing(draw: Callable[[], Any]) -> Sketch:
    """Return the sketch of what is drawn anew each time, from values that do not change.

    Parameters
    ----------
    draw : callable
        Makes the models, by what it holds alone, so in any thread.
    """
    return Sketch(draw=lambda _: draw(), form=(object(),))


def nothing(title: str, why: str = "no results yet", height: int = 340) -> Sketch:
    """Return what says why there is nothing to show.

    Parameters
    ----------
    title, why, height
        As for :func:`~dasktune.dashboard.figures.theme.empty`.
    """
    return Sketch(draw=lambda _: empty(title, why, height), form=(title, why, height))
