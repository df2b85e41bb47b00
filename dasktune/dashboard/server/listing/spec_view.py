"""A figure or table with a spec in one viewer, for pages that several viewers do not share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bokeh.layouts import column
from bokeh.model import collect_models

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.report.style import CARD
from dasktune.dashboard.server.diff import RenderedFigure


class SpecView:
    """A figure or table in one viewer.

    Parameters
    ----------
    make : callable
        Returns its spec as it should look now.

    Attributes
    ----------
    card : Model
        The layout that contains its models.
    """

    def __init__(self, make: Callable[[], FigureSpec]) -> None:
        self.card: Any = column(sizing_mode="stretch_width", styles=CARD)
        self._make = make
        self._rendered: RenderedFigure | None = None
        self._models: list[Any] = []

    def update(self) -> bool:
        """Bring the models up to date; return whether they were replaced."""
        spec = self._make()
        earlier = self._rendered
        rendered = None if earlier is None else earlier.updated(spec)
        rendered = rendered or RenderedFigure(spec)
        changes = None if earlier is None else rendered.changes_from(earlier)
        if changes is None:
            root = spec.build()
            self._models, self.card.children = collect_models(root), [root]
        else:
            changes.apply(self._models)
        self._rendered = rendered
        return changes is None
