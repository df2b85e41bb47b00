from __future__ import annotations

from bokeh.core.validation import check_integrity
from bokeh.models import ColumnDataSource, Segment

from dasktune.dashboard.figures import what_if
from dasktune.dashboard.figures.scheduler_costs import what_if_spec
from dasktune.forecast.what_if import Interval, WhatIf, WhatIfRow


def row(name, share, kept):
    return WhatIfRow(
        scheduler=name,
        iterations=Interval(share - 0.1, share, share + 0.1),
        time=Interval(share, share, share),
        hours=Interval(1, 2.0, 3),
        kept=Interval(kept - 0.05, kept, kept + 0.02),
        regret=Interval(0, 0.01, 0.02),
    )


def found(**facts):
    rows = (row("FIFOScheduler", 1.0, 1.0), row("quick", 0.2, 0.4), row("<b>good</b>", 0.3, 0.97))
    about = {"metric": "loss", "mode": "min", "num_curves": 30, "max_t": 9, "orders": 20, "workers": 4}
    return WhatIf(**{"rows": rows, **about, "min_kept": 0.9, **facts})


def test_each_scheduler_has_a_dot_with_both_intervals():
    made = what_if(found(), height=300)
    sources = {one.name: one.data for one in made.select({"type": ColumnDataSource})}
    assert sources["recommended"]["scheduler"] == ["<b>good</b>"]
    assert sources["others"]["scheduler"] == ["FIFOScheduler", "quick"]
    assert sources["others"]["x"] == [1.0, 0.2]
    assert sources["others"]["y"] == [1.0, 0.4]
    assert sources["others"]["x_high"][1] == 0.2 + 0.1
    assert sources["others"]["duration"] == ["2 h", "2 h"]
    assert len(list(made.select({"type": Segment}))) >= 4
    assert made.height == 300
    # Full training may have cost more than the share of its own median.
    assert made.x_range.end > 1.1


def test_labels_of_schedulers_that_keep_the_best_alike_are_not_written_over_each_other():
    rows = tuple(row(f"ASHAScheduler(grace_period={i})", 0.2 + 0.05 * i, 1.0) for i in range(5))
    full = row("FIFOScheduler", 1.0, 1.0)
    made = what_if(found(rows=(full, *rows, row("far", 0.1, 0.3))))
    data = [one.data for one in made.select({"type": ColumnDataSource})]
    places = {
        name: (align, y)
        for one in data
        for name, align, y in zip(one["scheduler"], one["align"], one["label_y"], strict=True)
    }
    heights = [places[one.scheduler][1] for one in rows]
    assert len(set(heights)) == len(rows)
    assert min(abs(one - other) for one in heights for other in heights if one != other) >= 13
    # There is no room right of full training, and nothing beside the label of the last one.
    assert places["FIFOScheduler"] == ("right", -4.0)
    assert places["far"] == ("left", -4.0)


def test_bokeh_finds_no_error_in_the_figure():
    # It would log the error of each figure that it shows.
    assert check_integrity(what_if(found()).references()).error == []


def test_the_models_of_one_forecast_fit_another_one():
    one, other = what_if_spec(found()), what_if_spec(found(min_kept=0.3))
    assert one.structure == other.structure
    assert {name: list(columns) for name, columns in one.sources.items()} == {
        name: list(columns) for name, columns in other.sources.items()
    }
    assert one.sources != other.sources
