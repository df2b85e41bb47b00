from __future__ import annotations

from functools import partial
from math import nan

import numpy as np
import pytest
from bokeh.model import collect_models
from bokeh.models import ColumnDataSource, Div, Range1d
from bokeh.plotting import figure
from projection_kit import (
    asha_journal,
    hostile_records,
    pbt_journal,
    projection_of,
    result,
    suggested,
)

from dasktune.dashboard.figures import KINDS
from dasktune.dashboard.figures.best_so_far import best_spec
from dasktune.dashboard.figures.learning_curves import curves_spec
from dasktune.dashboard.figures.timeline import timeline_spec
from dasktune.dashboard.report.trial_table import table_spec, trial_table
from dasktune.dashboard.server.diff import RenderedFigure

MAKERS = {**KINDS, "trials": lambda projection: trial_table(projection, live=True)}


def shown_values(models):
    """Return what the models say, without their names."""
    places = {id(model): place for place, model in enumerate(models)}

    def plain(value):
        if id(value) in places:
            return f"model {places[id(value)]}"
        if isinstance(value, np.ndarray):
            return plain(value.tolist())
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if hasattr(value, "transform") and hasattr(value, "__dict__"):
            return plain(vars(value))
        return "nan" if value != value else value

    values = [dict(one.properties_with_values(include_defaults=False)) for one in models]
    for one in values:
        if one.get("name") == "filter note":
            # The browser counts the rows that match.
            del one["text"]
    return plain(values)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_a_viewer_is_sent_makes_of_each_figure_the_one_that_it_ought_to_be(kind):
    records = pbt_journal() if kind == "lineage" else asha_journal()
    projection = projection_of(*records[: len(records) // 3])
    make = MAKERS[kind]
    earlier, live = RenderedFigure(make(projection)), collect_models(make(projection))
    replaced = 0
    for share in (0.5, 0.6, 1.0):
        for record in records[projection.version : int(share * len(records))]:
            projection.add(record)
        rendered = RenderedFigure(make(projection))
        changes = rendered.changes_from(earlier)
        if changes is None:
            replaced += 1
            live = collect_models(make(projection))
        else:
            changes.apply(live)
        assert shown_values(live) == shown_values(rendered.models)
        earlier = rendered
    # A figure that is replaced flickers, and forgets how far it was zoomed.
    assert replaced < 3


SPECS = {
    "best_so_far": best_spec,
    "learning_curves": curves_spec,
    "learning_curves of some": partial(curves_spec, max_lines=4),
    "timeline": timeline_spec,
    "trials": partial(table_spec, live=True),
}


@pytest.mark.parametrize(
    "kind", [kind if kind == "trials" else pytest.param(kind, marks=pytest.mark.slow) for kind in SPECS]
)
def test_models_are_kept_as_long_as_they_fit_and_show_what_new_ones_would(kind):
    records = asha_journal()
    projection = projection_of(*records[: len(records) // 4])
    spec = SPECS[kind]
    earlier = RenderedFigure(spec(projection))
    live = collect_models(earlier.spec.build())
    kept = 0
    for share in np.linspace(0.3, 1.0, 20):
        for record in records[projection.version : int(share * len(records))]:
            projection.add(record)
        renewed = earlier.updated(spec(projection))
        rendered = renewed or RenderedFigure(spec(projection))
        kept += renewed is not None
        changes = rendered.changes_from(earlier)
        if changes is None:
            live = collect_models(rendered.spec.build())
        else:
            changes.apply(live)
        assert shown_values(live) == shown_values(collect_models(rendered.spec.build()))
        earlier = rendered
    # In virtual time each trial has a worker of its own, and each new one needs another row there.
    assert kept >= (3 if kind == "timeline" else 9)


def test_what_one_viewer_is_sent_does_not_get_into_the_sketch_of_all():
    records = asha_journal()
    projection = projection_of(*records[: len(records) // 2])
    earlier = RenderedFigure(best_spec(projection))
    viewers = [collect_models(earlier.spec.build()) for _ in range(2)]
    for record in records[projection.version :]:
        projection.add(record)
    later = RenderedFigure(best_spec(projection))
    for viewer in viewers:
        later.changes_from(earlier).apply(viewer)
    assert shown_values(viewers[0]) == shown_values(viewers[1]) == shown_values(later.models)


def test_trials_that_have_ended_stay_in_their_rows():
    records = asha_journal()
    projection = projection_of(*records[: len(records) // 2])
    earlier = RenderedFigure(best_spec(projection))
    before = earlier.spec.sources["STOPPED"]["trial"]
    for record in records[projection.version :]:
        projection.add(record)
    after = best_spec(projection).sources["STOPPED"]["trial"]
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_in_a_table_that_is_full_a_trial_takes_the_row_of_another_one():
    projection = projection_of(
        *(suggested(f"t{i}") for i in range(11)),
        *(result(f"t{i}", 1, 1.0, loss=float(i)) for i in range(11)),
    )
    before = list(table_spec(projection, live=True, most=10).sources["trials"]["trial"])
    projection.add(suggested("new"))
    after = list(table_spec(projection, live=True, most=10).sources["trials"]["trial"])
    assert len(before) == len(after) == 10
    assert [new for old, new in zip(before, after, strict=True) if old != new] == ["new"]


def test_what_is_the_same_needs_no_change():
    projection = projection_of(*hostile_records(), metric=None, mode=None)
    for make in MAKERS.values():
        changes = RenderedFigure(make(projection)).changes_from(RenderedFigure(make(projection)))
        assert changes is not None
        assert changes.steps == []


def drawn(**columns):
    made = figure()
    made.x_range = Range1d(0, max(columns["x"]))
    made.scatter("x", "y", source=ColumnDataSource(columns))
    return made


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ({"x": [1], "y": [nan]}, {"x": [1, 2], "y": [nan, 3.0]}, "_Stream"),
        ({"x": [1] * 9, "y": [0] * 9}, {"x": [1] * 9, "y": [0] * 8 + [1]}, "_Patch"),
        ({"x": [0] * 9}, {"x": [0] * 8 + [1, 2]}, "_Patch _Stream"),
        ({"x": [0] * 9}, {"x": [1] * 10}, "_Columns"),
        ({"x": [1] * 9, "y": [0] * 9}, {"x": [1] * 9, "y": [2] * 9}, "_Columns"),
        ({"x": [1, 1], "y": [0, 0]}, {"x": [1], "y": [0]}, "_Columns"),
    ],
)
def test_as_little_is_sent_as_will_do(before, after, step):
    source, other = ColumnDataSource(before), ColumnDataSource(after)
    changes = RenderedFigure(other).changes_from(RenderedFigure(source))
    assert [type(one).__name__ for one in changes.steps] == step.split()
    live = ColumnDataSource({name: list(column) for name, column in before.items()})
    changes.apply([live])
    assert repr(dict(live.data)) == repr(after)


def test_patches_of_a_viewer_change_nothing_for_others():
    columns = {"x": np.zeros(9)}
    changed = {"x": np.array([*np.zeros(8), 1.0])}
    last = {"x": np.array([*np.zeros(8), 2.0])}
    first, second, third = (RenderedFigure(ColumnDataSource(one)) for one in (columns, changed, last))
    viewers = [ColumnDataSource({"x": np.zeros(9)}) for _ in range(2)]
    for viewer in viewers:
        second.changes_from(first).apply([viewer])
        third.changes_from(second).apply([viewer])
    assert [viewer.data["x"].tolist() for viewer in viewers] == [[0.0] * 8 + [2.0]] * 2
    assert second.models[0].data["x"][-1] == 1.0


def test_how_far_a_viewer_has_zoomed_stays():
    earlier, later = RenderedFigure(drawn(x=[1], y=[1])), RenderedFigure(drawn(x=[5], y=[1]))
    live, zoomed = collect_models(drawn(x=[1], y=[1])), collect_models(drawn(x=[1], y=[1]))
    [mine] = [one for one in zoomed if isinstance(one, Range1d)]
    mine.end = 0.5
    for models in (live, zoomed):
        later.changes_from(earlier).apply(models)
    assert mine.end == 0.5
    assert [one.end for one in live if isinstance(one, Range1d)] == [5]


def test_others_than_before_are_not_changed_but_replaced():
    assert RenderedFigure(Div(text="a")).changes_from(RenderedFigure(drawn(x=[1], y=[1]))) is None


def test_the_comparison_is_made_once_for_all_viewers():
    earlier, later = RenderedFigure(Div(text="a")), RenderedFigure(Div(text="b"))
    assert later.changes_from(earlier) is later.changes_from(earlier)
