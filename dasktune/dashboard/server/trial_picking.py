"""Clicks on the trials in a figure: each point, line or bar with a trial leads to its details."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bokeh.models import ColumnDataSource, GlyphRenderer, Plot, TapTool

#: The column that names the trial of each point.
_COLUMN = "trial"


def report_clicks(models: Sequence[Any], report: Callable[[str], None]) -> None:
    """Report each click on a trial in the figures among some models.

    Parameters
    ----------
    models : sequence of Model
        The models of one viewer.
    report : callable
        Receives the trial's id as figures label it.
    """
    for plot in models:
        if not isinstance(plot, Plot):
            continue
        drawn = [
            one
            for one in plot.renderers
            if isinstance(one, GlyphRenderer)
            and isinstance(one.data_source, ColumnDataSource)
            and _COLUMN in one.data_source.data
        ]
        if not drawn:
            continue
        plot.add_tools(TapTool(renderers=drawn, description="Click a trial to see its details"))
        for source in {id(one.data_source): one.data_source for one in drawn}.values():
            source.selected.on_change("indices", partial(_report, source, report))


def _report(
    source: Any, report: Callable[[str], None], name: str, old: Sequence[int], new: Sequence[int]
) -> None:
    trials = source.data[_COLUMN]
    if not new or new[0] >= len(trials):
        return
    # A selected point would fade the others, and could not be clicked again.
    source.selected.indices = []
    report(str(trials[new[0]]))
