"""What trials hold of what the cluster has: from the records to the figure, and the links below."""

from __future__ import annotations

import pickle
from math import inf

import pytest
from bokeh.document import Document
from bokeh.model import collect_models
from bokeh.models import ColumnDataSource, Div, Plot
from projection_kit import (
    RecordFeed,
    about,
    action,
    projection_of,
    result,
    saved,
    started,
    suggested,
)

from dasktune.dashboard.figures import plot
from dasktune.dashboard.figures.resource_usage import resources_spec
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.dask_links import links_html
from dasktune.dashboard.server.diff import RenderedFigure
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import experiment_pages


def wants(trial_id, *bundles):
    resources = {"bundles": list(bundles), "strategy": "PACK"}
    start = action("StartTrial", trial_id, resources=resources)
    return {**suggested(trial_id), "resources": resources, "actions": [start]}


def capacity(time, workers=2, **resources):
    event = {"event": "CapacityChanged", "time": time, "num_workers": workers}
    return {**event, "capacity": resources}


def ended(trial_id, time):
    return about("TrialEnded", trial_id, time, status="TERMINATED")


def bars(figure, name):
    """Return where each bar of a resource begins and ends, and how high it is."""
    data = figure.select_one({"type": ColumnDataSource, "name": f"held {name}"}).data
    return [*zip(data["left"], data["right"], data["top"], strict=True)]


def line(figure, name):
    data = figure.select_one({"type": ColumnDataSource, "name": f"capacity {name}"}).data
    return [*zip(data["x"], data["y"], strict=True)]


def titles(figure):
    return sorted(one.title.text for one in figure.select({"type": Plot}))


def mixed():
    return [
        capacity(0.0, CPU=4.0, GPU=1.0, memory=2.0**34),
        wants("a", {"CPU": 1}, {"CPU": 2}),
        wants("b", {"CPU": 1, "GPU": 1}),
        started("a", 10.0),
        started("b", 20.0),
        capacity(25.0, CPU=8.0, GPU=1.0, memory=2.0**35),
        ended("a", 30.0),
        ended("b", 40.0),
    ]


def test_bars_are_what_trials_hold_and_the_line_what_there_is():
    figure = plot(projection_of(*mixed()), "resources")
    assert bars(figure, "CPU") == [(10, 20, 3), (20, 30, 4), (30, 40, 1), (40, 40, 0)]
    assert bars(figure, "GPU") == [(10, 20, 0), (20, 30, 1), (30, 40, 1), (40, 40, 0)]
    assert line(figure, "CPU") == [(10, 4), (25, 8), (40, 8)]
    # (30 + 40 + 10) of (15 * 4 + 15 * 8), and 20 of 30; no trial requested memory.
    assert titles(figure) == [
        "CPU held by trials: 44% of the capacity on average",
        "GPU held by trials: 67% of the capacity on average",
    ]


def test_the_time_after_the_last_trial_does_not_count():
    projection = projection_of(*mixed())
    before = titles(plot(projection, "resources"))
    projection.advance_time(100.0)
    figure = plot(projection, "resources")
    assert line(figure, "CPU")[-1] == (40, 8)
    assert titles(figure) == before


def test_a_scheduler_that_minds_the_cluster_records_each_worker():
    each = {"tcp://a:1": {"CPU": 2}, "tcp://b:1": {"CPU": 2, "memory": inf}}
    told = {"event": "ClusterChanged", "time": 0.0, "workers": each}
    figure = plot(projection_of(told, *mixed()[1:5]), "resources")
    assert line(figure, "CPU") == [(10, 4), (20, 4)]


def test_a_trial_that_is_resized_holds_something_else_from_its_next_stay_on():
    four = {"bundles": [{"CPU": 4}], "strategy": "PACK"}
    more = action("ResizeTrial", "a", reason="more", resources=four)
    back = action("RestoreTrial", "a", checkpoint=saved("x", 0, 1), resources=four)
    records = [
        wants("a", {"CPU": 1}),
        started("a", 0.0),
        result("a", 1, 1.0, loss=1.0, awaits=True, actions=[more]),
        about("TrialPaused", "a", 2.0, status="PENDING", actions=[back]),
        started("a", 3.0),
        ended("a", 5.0),
    ]
    figure = plot(projection_of(*records), "resources")
    assert bars(figure, "CPU") == [(0, 2, 1), (2, 3, 0), (3, 5, 4), (5, 5, 0)]
    # No record says what there is.
    assert titles(figure) == ["CPU held by trials"]


def test_of_very_many_steps_the_means_are_drawn_and_nothing_is_lost():
    records = [capacity(0.0, CPU=1.0)]
    for i in range(2_000):
        records += [wants(f"t{i}", {"CPU": 1}), started(f"t{i}", float(i)), ended(f"t{i}", i + 0.5)]
    projection = projection_of(*records)
    drawn = bars(plot(projection, "resources"), "CPU")
    assert len(drawn) == 200
    assert sum((right - left) * top for left, right, top in drawn) * 60 == pytest.approx(1_000)
    assert len({id(one.holds) for one, _ in projection.attempts}) == 1


def test_a_journal_without_the_resources_has_a_figure_that_says_so():
    projection = projection_of(wants("a", {}), started("a", 0.0), ended("a", 2.0))
    figure = plot(projection, "resources")
    assert figure.center[-1].text == "the journal does not have the resources of the trials"


def test_memory_is_shown_if_trials_ask_for_it_in_units_for_people():
    records = [capacity(0.0, CPU=1.0, memory=2.0**31), wants("a", {"memory": 2**30})]
    figure = plot(projection_of(*records, started("a", 0.0), ended("a", 1.0)), "resources")
    assert bars(figure, "memory")[0] == (0, 1, 1)
    labels = {one.yaxis.axis_label for one in figure.select({"type": Plot})}
    assert labels == {"CPU", "memory (GiB)"}


def test_what_is_kept_of_a_cluster_that_changes_for_ever_is_bounded():
    projection, sizes = ExperimentProjection(), []
    for i in range(6_000):
        projection.add(capacity(float(i), CPU=float(i)))
        if i % 3_000 == 2_999:
            sizes.append(len(pickle.dumps(projection)))
    assert projection.malformed == 0
    assert len(projection.capacity) == 1_000
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_viewers_figure_follows_without_a_new_drawing(is_known):
    records = [one for one in mixed() if is_known or one["event"] != "CapacityChanged"]
    projection = projection_of(*records[:-2])
    first = RenderedFigure(resources_spec(projection))
    projection.extend(records[-2:])
    second = first.updated(resources_spec(projection))
    shown = first.take_models()
    Document().add_root(shown)
    changes = second.changes_from(first)
    changes.apply(collect_models(shown))
    assert bars(shown, "CPU") == bars(plot(projection, "resources"), "CPU")
    assert titles(shown) == titles(plot(projection, "resources"))


def test_links_lead_to_dasks_pages_wherever_they_are_and_to_nothing_else():
    assert links_html("https://hub/user/ann/proxy/8787/dasktune#5f").count(
        '<a href="https://hub/user/ann/proxy/8787/'
    ) == len(("status", "workers", "system"))
    for place in ("", "javascript:alert(1)", "inproc://1"):
        assert links_html(place) == ""
    assert '"><img' not in links_html('http://h/"><img src=x onerror=alert(1)>/dasktune')


def test_the_page_of_workers_has_the_links_once_it_is_known_where_they_lead():
    where = [""]
    live = LiveExperiment(ExperimentProjection, RecordFeed(mixed), find_dask=lambda: where[0])
    while live.poll():
        pass
    [page] = [one for one in experiment_pages(live) if one.title == "Workers"]
    part = next(one for one in page.sections if one.name == "resources")
    before = live.state_key
    assert not [*part.make().build().select({"type": Div})]
    where[0] = "http://localhost:8787/dasktune#5f"
    assert live.state_key != before
    [links] = part.make().build().select({"type": Div})
    assert "http://localhost:8787/system" in links.text
