from __future__ import annotations

import re
from importlib import import_module
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from bokeh.core.validation import check_integrity
from bokeh.document import Document
from bokeh.models import (
    Axis,
    ColumnDataSource,
    CustomAction,
    DataTable,
    Div,
    GlyphRenderer,
    HoverTool,
    HTMLTemplateFormatter,
    Image,
    ImageRGBA,
    LogScale,
    MultiLine,
    NoOverlap,
    PreText,
    Step,
    TableColumn,
    Tabs,
    Title,
)
from projection_kit import (
    PAYLOADS,
    about,
    action,
    asha_journal,
    hostile_projection,
    pbt_journal,
    projection_of,
    result,
    saved,
    started,
    suggested,
)

from dasktune.dashboard.figures import KINDS, plot
from dasktune.dashboard.figures.best_so_far import best_spec
from dasktune.dashboard.figures.theme import ORDER, SCALE
from dasktune.dashboard.labels import label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.parameter_axis import (
    axis_ticks,
    fair_iteration,
    parameter_axes,
    value_at,
)
from dasktune.dashboard.report import to_html
from dasktune.dashboard.report.html_report import report_layout
from dasktune.errors import ConfigError


@pytest.fixture(scope="module")
def asha():
    return projection_of(*asha_journal(), scales={"x": "linear", "lr": "log"})


@pytest.fixture(scope="module")
def goals():
    records = []
    for i in range(6):
        records += [suggested(f"t{i}", x=float(i)), started(f"t{i}", float(i))]
        records.append(result(f"t{i}", 1, i + 1.0, loss=float(i), cost=float(5 - i) ** 2))
    records += [suggested("bad", x=2.5), result("bad", 1, 9.0, loss=5.0, cost=30.0)]
    return projection_of(*records, metric=["loss", "cost"], mode=["min", "min"])


def sources(model):
    return [one.data for one in model.select({"type": ColumnDataSource})]


def columns_of(model, name):
    return [value for data in sources(model) if name in data for value in data[name]]


@pytest.mark.parametrize("kind", KINDS)
def test_each_figure_is_complete_whatever_there_is(kind, asha, goals):
    single = projection_of(suggested("a", x=1), started("a", 0.0), result("a", 1, 1.0, loss=0.5))
    undefined = projection_of(
        suggested("a", x=nan),
        suggested("b", x=inf),
        result("a", 1, 1.0, loss=nan),
        result("b", 1, 1.0, loss=inf),
    )
    huge = projection_of(
        *(suggested(f"t{i}", x=10.0**i) for i in range(12)),
        *(result(f"t{i}", 1, 1.0, loss=10.0 ** (25 * i)) for i in range(12)),
    )
    empty = ExperimentProjection(metric="loss", mode="min")
    unknown = ExperimentProjection()
    many = [single, undefined, huge, empty, unknown, asha, goals, projection_of(suggested("a"))]
    for projection in many:
        document = Document()
        document.add_root(plot(projection, kind))
        [root] = document.roots
        assert check_integrity(root.references()).error == []
        document.to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_of_nothing_says_so(kind):
    figure = plot(ExperimentProjection(metric="loss", mode="min"), kind)
    [label] = figure.center[-1:]
    assert label.text
    assert not figure.renderers


def test_an_unknown_kind_is_answered_with_those_that_are_known(asha):
    with pytest.raises(ConfigError, match=r"kind must be one of 'best_so_far', .*got 'pie'"):
        plot(asha, "pie")
    with pytest.raises(TypeError, match="colour"):
        plot(asha, "rungs", colour="red")


def test_best_so_far_steps_where_the_best_changes(asha):
    [step] = [
        line.data_source.data
        for line in plot(asha, "best_so_far").select(type=GlyphRenderer)
        if isinstance(line.glyph, Step)
    ]
    assert step["value"].tolist() == [*(one[1] for one in asha.improvements), asha.best_value]
    assert step["x"][-1] == pytest.approx(asha.elapsed)
    by_trial = plot(asha, "best_so_far", x="trials")
    assert by_trial.xaxis.axis_label == "trial"


def test_the_dots_of_trials_that_stop_at_the_same_moment_are_those_of_a_new_figure():
    names = [f"t{number}" for number in range(9)]
    records = [one for name in names for one in (suggested(name), started(name, 1.0))]
    records += [result(name, 1, 2.0, status="PAUSED", loss=float(at)) for at, name in enumerate(names)]
    projection = projection_of(*records)

    def dots(of):
        sources = best_spec(of, x="trials").sources
        return {
            outcome: list(zip(columns["x"], columns["value"], columns["trial"], strict=True))
            for outcome, columns in sources.items()
            if outcome != "best"
        }

    before = dots(projection)
    stops = [
        about("TrialStopped", name, 3.0, status="TERMINATED") for name in names if name not in ("t2", "t7")
    ]
    projection.extend(stops)
    after = dots(projection)
    assert after == dots(projection_of(*records, *stops))
    assert before.keys() != after.keys()
    assert [[trial for *_, trial in rows] for rows in after.values() if len(rows) == 2] == [["t2", "t7"]]


def test_best_so_far_needs_to_know_what_is_better():
    told = projection_of(suggested("a"), result("a", 1, 1.0, loss=1.0), metric="loss", mode=None)
    assert not plot(told, "best_so_far").renderers


def test_learning_curves_of_many_trials_are_a_shadow_and_some_lines(asha):
    figure = plot(asha, "learning_curves", max_lines=10)
    assert len([one for one in figure.renderers if isinstance(one.glyph, Image)]) == 1
    lines = [one for one in figure.renderers if isinstance(one.glyph, MultiLine)]
    drawn = [trial for one in lines for trial in one.data_source.data["trial"]]
    assert len(drawn) == 10
    assert label(asha.best.trial_id) in drawn
    few = plot(asha, "learning_curves", max_lines=100)
    assert not [one for one in few.renderers if isinstance(one.glyph, Image)]


def test_the_best_so_far_of_a_wide_metric_is_no_flat_line():
    values = [1e6, 30.0, 1.0, 0.01, 1e-4, 0.5, 2.0]
    records = [suggested(f"t{i}", x=i) for i in range(len(values))]
    records += [result(f"t{i}", 1, float(i), loss=value) for i, value in enumerate(values)]
    figure = plot(projection_of(*records), "best_so_far")
    assert isinstance(figure.y_scale, LogScale)
    assert figure.yaxis[0].axis_label == "loss (log)"
    assert figure.y_range.start < 1e-4
    [button] = [one for one in figure.tools if isinstance(one, CustomAction)]
    assert button.callback.args["range"] is figure.y_range
    assert {id(one) for one in button.callback.args["sources"]} == {
        id(one.data_source) for one in figure.renderers
    }
    # Where less than nothing occurs, the axis is linear, and leaves out what is far away.
    records = [suggested(f"t{i}", x=i) for i in range(len(values))]
    values = [-1e6, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9]
    records += [result(f"t{i}", 1, float(i), loss=value) for i, value in enumerate(values)]
    figure = plot(projection_of(*records, mode="max"), "best_so_far")
    assert not isinstance(figure.y_scale, LogScale)
    assert 0.0 < figure.y_range.start < 0.5
    assert "\n1 trial out of sight" in figure.title.text


def test_learning_curves_can_be_those_of_chosen_trials(asha):
    figure = plot(asha, "learning_curves", trials=[asha.trials[3].trial_id])
    assert set(columns_of(figure, "trial")) == {asha.trials[3].trial_id}
    # It stands beside the trial's details, where there is little room.
    assert figure.title.text == f"loss of {asha.trials[3].trial_id}\nthe grey shadow is all 30 trials"
    several = plot(asha, "learning_curves", trials=[one.trial_id for one in asha.trials[:4]])
    assert several.title.text == "loss of 4 trials\nthe grey shadow is all 30 trials"
    # There is no half of an iteration.
    assert figure.xaxis[0].ticker.min_interval == 1
    with pytest.raises(ConfigError, match="trials must be ids of trials of this experiment, got 'absent'"):
        plot(asha, "learning_curves", trials=["absent"])


def test_large_numbers_on_an_axis_are_written_out(asha):
    figure = plot(asha, "best_so_far")
    assert [axis.formatter.power_limit_high for axis in figure.axis] == [6, 6]


def test_parallel_coordinates_draw_the_best_last(asha):
    [data] = [one for one in sources(plot(asha, "parallel_coordinates")) if "quality" in one]
    assert data["trial"][-1] == asha.best.trial_id
    assert len(data["ys"][0]) == 3  # lr, x and the metric
    assert all(0 <= value <= 1 for line in data["ys"] for value in line)


def test_parallel_coordinates_name_their_sample_in_a_line_of_its_own(asha, monkeypatch):
    assert "\n" not in plot(asha, "parallel_coordinates").title.text
    # The module, not the function of the same name.
    module = import_module("dasktune.dashboard.figures.parallel_coordinates")
    monkeypatch.setattr(module, "_MOST", 10)
    assert plot(asha, "parallel_coordinates").title.text == (
        "Parallel coordinates; stronger colours are better\n10 trials: the best 5 and a sample of the others"
    )


def test_importance_tells_its_method_and_compares_at_one_iteration(asha):
    figure = plot(asha, "importance")
    at = fair_iteration(asha)
    assert f"iteration {at}" in figure.title.text
    assert columns_of(figure, "name")[-1] == "x"
    assert max(columns_of(figure, "share")) > 0.8


def test_the_screenshots_of_the_documentation_wait_for_titles_that_figures_have(asha):
    code = (Path(__file__).parents[4] / "docs/screenshots.py").read_text(encoding="utf-8")
    awaited = re.findall(r'_until_text\(driver, r"(.+)"\)', code)
    titles = (
        plot(asha, "importance").title.text,
        plot(asha, "learning_curves", trials=[asha.trials[0].trial_id]).title.text,
    )
    assert [[bool(re.search(one, title)) for title in titles] for one in awaited] == [
        [True, False],
        [False, True],
    ]


def test_trials_are_compared_by_what_they_had_reached_then(asha):
    trial = max(asha.trials, key=lambda one: one.iteration)
    assert value_at(trial, 1, "min") == trial.curves[0].values[0]
    assert np.isnan(value_at(trial, 1_000, "min"))


def test_scales_are_logarithmic_where_the_domain_is(asha):
    scales = {one.name: one.is_log for one in parameter_axes(asha, asha.trials)}
    assert scales == {"x": False, "lr": True}


def test_random_values_that_span_decades_are_not_logarithmic_by_themselves():
    values = [{"size": 1.0 + 30 * i, "rate": 10.0 ** -(i % 4)} for i in range(20)]
    told = projection_of(*(suggested(f"t{i}", **config) for i, config in enumerate(values)))
    # Four rates in all were listed by the user; the sizes may be uniform.
    assert {one.name: one.is_log for one in parameter_axes(told, told.trials)} == {
        "size": False,
        "rate": True,
    }
    told.scales["rate"] = "linear"
    assert not any(one.is_log for one in parameter_axes(told, told.trials))


def test_parameters_of_all_kinds_become_numbers():
    values = [{"a": 1, "b": "x"}, {"a": 2.5, "b": None}, {"b": [1, 2]}, {"a": True, "b": "x"}]
    told = projection_of(*(suggested(f"t{i}", **config) for i, config in enumerate(values)))
    a, b = parameter_axes(told, told.trials)
    assert a.categories == ("1", "2.5", "True")
    assert np.isnan(a.values[2])
    assert b.categories == ("None", "[1, 2]", "x")


def test_a_slice_for_each_parameter(asha):
    _, grid = plot(asha, "slice").children
    figures = [child for child, *_ in grid.children]
    assert [one.xaxis.axis_label for one in figures] == ["x", "lr (log)"]
    # In a narrow window powers of ten would touch each other.
    assert isinstance(figures[1].xaxis[0].major_label_policy, NoOverlap)
    assert len(columns_of(figures[0], "x")) == len(asha.trials)


def test_contour_takes_the_parameters_that_are_asked_for(asha):
    figure = plot(asha, "contour", x="lr", y="x")
    assert (figure.xaxis.axis_label, figure.yaxis.axis_label) == ("lr (log)", "x")
    with pytest.raises(ConfigError, match=r"x must be one of \['x', 'lr'\], got 'z'"):
        plot(asha, "contour", x="z")
    with pytest.raises(ConfigError, match="y must be a parameter other than x"):
        plot(asha, "contour", x="x", y="x")


def test_the_timeline_has_each_stay_and_none_overlaps_another(asha):
    bars = [data for data in sources(plot(asha, "timeline")) if "left" in data]
    stays = sorted(
        (lane, left, right)
        for data in bars
        for lane, left, right in zip(data["top"], data["left"], data["right"], strict=True)
    )
    assert len(stays) == sum(trial.starts for trial in asha.trials)
    for (lane, _, end), (other, begin, _) in pairwise(stays):
        assert lane != other or end <= begin + 1e-9


def test_rungs_show_all_trials_that_came_and_what_was_asked_of_the_last(asha):
    figure = plot(asha, "rungs")
    came = [trial for data in sources(figure) if "reason" in data for trial in data["trial"]]
    assert len(came) == sum(len(trial.rungs) for trial in asha.trials)
    assert len(figure.xaxis.ticker.ticks) == 4
    cutoffs = [visit for trial in asha.trials for visit in trial.rungs if visit.cutoff and visit.budget == 1]
    drawn = [data["y0"] for data in sources(figure) if "y0" in data]
    assert max(cutoffs, key=lambda visit: visit.time).cutoff in drawn[0]


def exploited(trial_id, time, resumed, donor="a"):
    """Return the records of a trial that becomes a clone at iteration 4."""
    order = action(
        "ExploitTrial",
        trial_id,
        donor=donor,
        config={"x": 2},
        reason="clone",
        checkpoint=saved("x", 0, resumed),
    )
    wait = [["training_iteration", 4 * (resumed // 4 + 1)]]
    again = action("RestoreTrial", trial_id, milestones=wait, checkpoint=saved("x", 0, resumed))
    return [
        result(
            trial_id,
            4,
            time,
            loss=0.1,
            awaits=True,
            actions=[order, action("PauseTrial", trial_id, reason="")],
        ),
        {"event": "TimePassed", "time": time, "actions": [again]},
    ]


def test_rungs_count_trials_not_visits_and_mark_clones():
    begin = [["training_iteration", 4]]
    records = [suggested("a", x=1), suggested("b", x=3)]
    records += [started("a", 0.0), started("b", 0.0)]
    for name in "ab":
        records[-2 if name == "a" else -1]["actions"] = [action("StartTrial", name, milestones=begin)]
    order = action("ContinueTraining", "a", milestones=[["training_iteration", 8]])
    records.append(result("a", 4, 4.0, loss=0.1, awaits=True, actions=[order]))
    # Twice to the same place: each time from the donor's checkpoint before it.
    for time in (5.0, 6.0):
        records += exploited("b", time, resumed=0)
    figure = plot(projection_of(*records), "rungs")
    assert list(figure.xaxis.major_label_overrides.values()) == ["4\n2 reached it\n1 cloned"]
    assert figure.title.text == "Comparisons: which trials became clones, by loss"
    assert sorted(columns_of(figure, "trial")) == ["a", "b"]
    assert {one.label.value for one in figure.legend[0].items} == {"continued", "became a clone"}


def test_the_counts_of_rungs_fit_below_their_columns(asha):
    figure = plot(asha, "rungs")
    first, *_, last = figure.xaxis[0].major_label_overrides.values()
    assert re.fullmatch(r"1\n30 reached it\n\d+ continued", first)
    assert re.fullmatch(r"27\n\d+ reached it", last)
    # Many columns are narrow: the axis says once what the numbers are.
    figure = plot(projection_of(*asha_journal(reduction_factor=1.5)), "rungs")
    assert len(figure.xaxis[0].major_label_overrides) > 6
    first = next(iter(figure.xaxis[0].major_label_overrides.values()))
    assert re.fullmatch(r"1\n30\n\d+", first)
    assert figure.xaxis[0].axis_label.endswith("; trials that reached it, and that continued")


def test_rungs_of_population_based_training_have_no_more_trials_than_there_are():
    told = projection_of(*pbt_journal())
    texts = plot(told, "rungs").xaxis.major_label_overrides.values()
    counts = [[int(word) for word in text.split() if word.isdecimal()] for text in texts]
    assert all(came <= len(told.trials) for _, came, *_ in counts)
    assert sum(cloned for _, _, *rest in counts for cloned in rest) == len(told.exploits)


def test_a_curve_has_a_gap_where_a_trial_becomes_a_clone_of_one_that_was_further():
    records = [suggested("a", x=1), suggested("b", x=3), started("a", 0.0), started("b", 0.0)]
    records += [result("b", i, float(i), loss=1.0 / i) for i in (1, 2, 3)]
    records += exploited("b", 4.0, resumed=8)
    records += [result("b", i, float(i), loss=1.0 / i) for i in (9, 10)]
    projection = projection_of(*records)
    [xs] = columns_of(plot(projection, "learning_curves", trials=["b"]), "xs")
    assert np.array_equal(xs, [1, 2, 3, 4, nan, 9, 10], equal_nan=True)
    # Once more from where it has jumped to.
    again = exploited("b", 10.5, resumed=8)
    projection.extend([again[0] | result("b", 10, 10.5, loss=0.1), again[1]])
    projection.add(result("b", 11, 10.6, loss=0.1))
    [xs] = columns_of(plot(projection, "learning_curves", trials=["b"]), "xs")
    assert np.array_equal(xs, [1, 2, 3, 4, nan, 11], equal_nan=True)
    # From before the gap there is none.
    for record in exploited("b", 11.0, resumed=2):
        projection.add(record)
    projection.add(result("b", 3, 12.0, loss=0.3))
    [xs] = columns_of(plot(projection, "learning_curves", trials=["b"]), "xs")
    assert xs.tolist() == [1, 2, 3]


def test_lineage_draws_each_clone_where_its_donor_is():
    told = projection_of(*pbt_journal())
    figure = plot(told, "lineage")
    [links] = [data for data in sources(figure) if "reason" in data]
    assert len(links["x"]) == len(told.exploits)
    [lines] = [data for data in sources(figure) if "founder" in data]
    assert len(lines["x0"]) == len(told.exploits) + len(told.trials)
    assert set(lines["founder"]) <= {trial.trial_id for trial in told.trials}


def test_the_best_trial_is_on_top_of_the_lineage_even_if_it_is_a_clone_since():
    records = [suggested("a", x=1), suggested("b", x=3), started("a", 0.0), started("b", 0.0)]
    records += [result("a", 1, 1.0, loss=0.5), result("b", 1, 1.0, loss=0.01)]
    told = projection_of(*records, *exploited("b", 2.0, resumed=0), result("b", 1, 3.0, loss=0.6))
    assert told.best.trial_id == "b"
    assert plot(told, "lineage").yaxis.major_label_overrides == {0: "b", 1: "a"}


def test_objectives_show_what_is_not_dominated(goals):
    figure = plot(goals, "objectives")
    assert figure.title.text == "Pareto front: 6 of 7 trials are not dominated"
    assert "bad" in columns_of(figure, "trial")
    with pytest.raises(ConfigError, match="y must be one of"):
        plot(goals, "objectives", y="z")


def test_hypervolume_is_that_of_the_results_so_far(goals):
    figure = plot(goals, "hypervolume", reference_point=[6.0, 26.0])
    [data] = sources(figure)
    # Of the points (i, (5 - i)**2), sliced along the first goal.
    assert data["y"][-1] == sum(26 - (5 - i) ** 2 for i in range(6))
    assert list(data["y"]) == sorted(data["y"])
    with pytest.raises(ConfigError, match="reference_point must be a finite number for each"):
        plot(goals, "hypervolume", reference_point=[1.0])


# What users name is never taken for anything but text


def hostile_models():
    projection = hostile_projection()
    roots = [plot(projection, kind) for kind in KINDS]
    roots.append(report_layout(projection))
    document = Document()
    for root in roots:
        document.add_root(root)
    return document


def test_nothing_hostile_gets_to_where_it_would_be_interpreted():
    document = hostile_models()
    for tool in document.select({"type": HoverTool}):
        for heading, template in tool.tooltips:
            assert not any(evil[:8] in heading + template for evil in PAYLOADS)
            assert "safe" not in template
    templates = [one.template for one in document.select({"type": HTMLTemplateFormatter})]
    assert templates
    # `<%-` escapes the value; `<%=` does not.
    assert not any("<%=" in template or "safe" in template for template in templates)
    for one in document.select({"type": TableColumn}):
        assert "<" not in one.title
    assert all("<img" not in one.text for one in document.select({"type": Div}))
    assert list(document.select({"type": DataTable}))
    for one in document.select({"type": Title}):
        assert "$$" not in one.text
    for one in document.select({"type": Axis}):
        for text in (one.axis_label or "", *one.major_label_overrides.values()):
            assert "$$" not in text
    assert all(one.disable_math for one in document.select({"type": PreText}))


def test_the_header_escapes_what_users_named():
    page = to_html(hostile_projection())
    assert "<title>&lt;img" in page
    header = report_layout(hostile_projection()).children[0].text
    assert "&lt;img src=x" in header
    for raw in ("<img src=x", "<script>window", "</title><b>"):
        assert raw not in page
        assert raw not in header


@pytest.mark.parametrize("evil", PAYLOADS)
def test_what_is_shown_is_one_short_line(evil):
    line = label(evil)
    assert len(line) <= 42
    assert line.isprintable() or "\u2060" in line
    assert "$$" not in line


# The report


def test_the_report_has_a_page_for_what_there_is(asha, goals):
    def titles(projection):
        return [tab.title for tab in report_layout(projection).select_one({"type": Tabs}).tabs]

    assert titles(asha) == ["Overview", "Trials", "Parameters", "Scheduler", "Workers"]
    assert "Objectives" in titles(goals)
    error = {"message": "no", "traceback": "x"}
    failed = about("TrialFailed", "a", 1.0, status="ERROR", error=error)
    assert titles(projection_of(suggested("a"), failed))[-1] == "Errors (1)"
    assert "Scheduler" in titles(projection_of(*pbt_journal()))


def test_the_report_says_what_it_leaves_out():
    count = 2_500
    projection = projection_of(
        *(suggested(f"t{i}", x=float(i)) for i in range(count)),
        *(result(f"t{i}", 1, 1.0, loss=float(i)) for i in range(count)),
    )
    page = to_html(projection)
    assert "500 of 2,500 trials are left out" in page
    assert len(page) < 6_000_000


def test_a_report_of_nothing_is_a_report():
    assert "no trial has reported a result" in to_html(ExperimentProjection())


def test_a_trial_that_was_ended_early_differs_in_looks():
    stop = action("StopTrial", "a", reason="poor", early=True)
    told = projection_of(
        suggested("a"),
        suggested("b"),
        result("b", 9, 1.0, loss=1.0),
        result("a", 1, 1.0, loss=1.0, actions=[stop]),
        about("TrialStopped", "a", 2.0, status="TERMINATED"),
    )
    assert "1 stopped early" in to_html(told)


def test_the_colours_of_slices_have_a_key_and_mean_nothing_but_the_order(asha):
    heading, grid = plot(asha, "slice").children
    assert "loss over each parameter" in heading.text
    assert "first trial" in heading.text
    [dots] = grid.children[0][0].renderers
    palette = dots.glyph.fill_color.transform.palette
    assert not {*palette} & {*SCALE}
    assert all(shade in palette for shade in re.findall("#[0-9a-f]{6}", heading.text)[1:])
    evil = plot(hostile_projection(), "slice").children[0]
    assert "<img" not in evil.text


def contrast_with_white(colour):
    """Return the contrast as WCAG reckons it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 1.05 / (0.05 + float(np.dot(linear, (0.2126, 0.7152, 0.0722))))


def test_the_best_stand_out_from_the_ground_and_none_is_lost_in_it():
    assert contrast_with_white(SCALE[-1]) > 10
    assert min(map(contrast_with_white, SCALE)) > 1.3
    assert min(map(contrast_with_white, ORDER)) > 2


def test_axes_say_round_values_and_whole_ones_where_there_are_no_others():
    values = {
        "width": range(5, 63),
        "rate": np.geomspace(1e-5, 0.8, 58),
        "x": np.linspace(0, 1, 58),
    }
    records = []
    for i, row in enumerate(zip(*values.values(), strict=True)):
        records.append(suggested(f"t{i}", **dict(zip(values, row, strict=True))))
        records.append(result(f"t{i}", 1, 1.0, loss=float(i)))
    projection = projection_of(*records, scales={"rate": "log"})
    found = {one.name: one for one in parameter_axes(projection, projection.trials)}
    assert [*axis_ticks(found["width"]).values()] == ["10", "20", "30", "40", "50", "60"]
    assert [*axis_ticks(found["rate"]).values()] == ["1e-5", "0.0001", "0.001", "0.01", "0.1"]
    assert [*axis_ticks(found["x"]).values()] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    for parameter in found.values():
        for unit, text in axis_ticks(parameter).items():
            assert parameter.unit(float(text)) == pytest.approx(unit, abs=1e-6)
    few = projection_of(
        *(suggested(f"t{i}", depth=i) for i in range(9)),
        *(result(f"t{i}", 1, 1.0, loss=1.0) for i in range(9)),
    )
    [depth] = parameter_axes(few, few.trials)
    assert all("." not in text for text in axis_ticks(depth).values())


def test_a_contour_paints_nothing_between_two_categories():
    records = []
    for i in range(40):
        name = f"t{i:02}"
        records.append(suggested(name, opt=("adam", "lion", "sgd")[i % 3], lr=i / 40))
        # Each optimiser has a value of its own.
        records.append(result(name, 1, 1.0, loss=float(i % 3)))
    figure = plot(projection_of(*records), "contour", x="opt", y="lr")
    [picture] = [one for one in figure.renderers if isinstance(one.glyph, ImageRGBA)]
    [cells] = picture.data_source.data["image"]
    pixels = cells.view(np.uint8).reshape(*cells.shape, 4)
    width = cells.shape[1]
    opaque = pixels[..., 3].max(axis=0) > 0
    for category in (0.0, 0.5, 1.0):
        at = min(width - 1, int(category * width))
        assert opaque[at]
        # In its band each category has one colour: no value of another one is mixed in.
        seen = pixels[pixels[:, at, 3] > 0, at, :3]
        assert len(np.unique(seen, axis=0)) == 1
    for between in (0.25, 0.75):
        assert not opaque[int(between * width)]
    assert len({tuple(pixels[60, min(width - 1, int(one * width)), :3]) for one in (0.0, 0.5, 1.0)}) == 3


def test_a_contour_fades_where_no_trial_is_near(asha):
    figure = plot(asha, "contour")
    [picture] = [one for one in figure.renderers if isinstance(one.glyph, ImageRGBA)]
    [cells] = picture.data_source.data["image"]
    opacity = cells.view(np.uint8).reshape(*cells.shape, 4)[..., 3]
    assert len(np.unique(opacity)) > 20
    # No step of it can be seen.
    assert np.abs(np.diff(opacity.astype(int), axis=0)).max() < 40
