"""What the pages and the report say of an experiment: header, table, details, failures."""

from __future__ import annotations

import gzip
import json
import re
import time
from dataclasses import replace

import pytest
from bokeh.document import Document
from bokeh.models import Column, CustomJS, DataTable, PreText, Tabs, TextInput
from markupsafe import escape
from projection_kit import (
    PAYLOADS,
    about,
    action,
    asha_journal,
    hostile_projection,
    projection_of,
    restarted,
    result,
    saved,
    started,
    suggested,
)

from dasktune.dashboard.figures.best_so_far import best_so_far
from dasktune.dashboard.figures.learning_curves import learning_curves
from dasktune.dashboard.model.objectives import density_of, with_objective
from dasktune.dashboard.model.parameter_axis import parameter_names
from dasktune.dashboard.model.trial_projection import MAX_CHECKPOINTS
from dasktune.dashboard.report import to_html
from dasktune.dashboard.report.failed_trials import MOST_ERRORS, failures_spec
from dasktune.dashboard.report.header import header_html
from dasktune.dashboard.report.html_report import report_layout
from dasktune.dashboard.report.trial_detail import trial_text
from dasktune.dashboard.report.trial_table import table_spec, trial_table
from dasktune.dashboard.server.diff import RenderedFigure
from dasktune.dashboard.server.feed import DriverFeed
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.page_stream import Broadcast
from dasktune.dashboard.server.pages import experiment_pages, trial_section
from dasktune.dashboard.server.viewer import PLACEHOLDER, Viewer
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.text.formatting import format_duration


def failing(trial_id, time, message="no", status="ERROR"):
    error = {"message": message, "traceback": f"Traceback\n{message}"}
    return about("TrialFailed", trial_id, time, status=status, error=error)


def seen(html):
    """Return what a reader sees, with what the page shows once nothing is heard in brackets."""
    html = re.sub(r'<span class="dt-lost">((?:<span[^>]*>[^<]*</span>|[^<])*)</span>', r"[\1]", html)
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_content_of_the_report_is_its_main_landmark():
    # Screen readers jump to it.
    page = to_html(projection_of(suggested("a", x=1)))
    assert re.findall("</?main>", page[page.index("<body") :]) == ["<main>", "</main>"]


# The table's parameters


def many_parameters(count, **late):
    constants = {f"c{i}": i for i in range(9)}
    trials = [suggested(f"t{i}", **constants, lr=0.1 * (i + 1)) for i in range(count)]
    return projection_of(*trials, suggested("late", **constants, lr=0.1, **late))


def titles_of(root):
    return [one.title for one in root.select_one({"type": DataTable}).columns]


def filter_of(root):
    """Return by which names the filter knows columns, and which values."""
    box = root.select_one({"type": TextInput})
    [script] = box.js_property_callbacks["change:value"]
    assert isinstance(script, CustomJS)
    return dict(script.args["names"]), dict(script.args["fixed"])


@pytest.mark.parametrize("live", [True, False])
def test_parameters_in_which_trials_differ_come_first_and_the_filter_knows_all(live):
    root = trial_table(many_parameters(60, momentum=0.9), live=live)
    titles = titles_of(root)
    assert {"lr", "momentum"} <= set(titles)
    names, fixed = filter_of(root)
    data = root.select_one({"type": DataTable}).source.data
    assert data[names["lr"]][0] == 0.1
    assert data[names["momentum"]][-1] == 0.9
    if live:
        assert {*names, *fixed} >= {f"c{i}" for i in range(9)}
        assert fixed["c8"] == "8"


def test_more_varying_parameters_than_columns_are_still_fields_of_the_filter():
    trials = [suggested(f"t{i}", **{f"v{k}": i + k for k in range(20)}) for i in range(3)]
    root = trial_table(projection_of(*trials), live=True)
    assert sum(title.startswith("v") for title in titles_of(root)) == 8
    names, _ = filter_of(root)
    table = root.select_one({"type": DataTable})
    assert table.source.data[names["v19"]].tolist() == [19.0, 20.0, 21.0]


def test_columns_stay_where_they_are_while_trials_differ_in_the_same_parameters():
    records = asha_journal()
    projection = projection_of(*records[:60])
    before = RenderedFigure(table_spec(projection, live=True))
    projection.extend(records[60:])
    assert before.updated(table_spec(projection, live=True)) is not None


def test_names_are_worked_out_of_what_changes_alone():
    projection = projection_of(suggested("a", x=1, y=[1, 2]), suggested("b", x=1, y=[1, 2]))
    assert parameter_names(projection) == (["x", "y"], {"x": 1, "y": [1, 2]})
    projection.add(suggested("c", x=1))
    assert parameter_names(projection) == (["x", "y"], {"x": 1})
    projection.add(
        about(
            "TimePassed",
            "b",
            1.0,
            actions=[action("ExploitTrial", "b", donor="a", config={"x": 2}, reason="", checkpoint=None)],
        )
    )
    projection.add(suggested("d", x=1, z=0))
    assert parameter_names(projection) == (["x", "y", "z"], {})


def test_a_parameter_that_is_called_like_a_field_has_another_name():
    root = trial_table(projection_of(suggested("a", best=1, x=1), suggested("b", best=2, x=2)))
    names, _ = filter_of(root)
    assert names["best"] == "best"
    assert root.select_one({"type": DataTable}).source.data[names["config/best"]].tolist() == [1, 2]
    assert (names["loss"], names["best loss"]) == ("last", "best")


# Failures


def many_failures(count):
    trials = [f"t{i:03}" for i in range(count)]
    # The first trial is the last one that fails.
    order = [*trials[1:], trials[0]]
    return projection_of(*map(suggested, trials), *(failing(one, float(i)) for i, one in enumerate(order)))


def texts_of(root):
    """Return the failures as they are seen."""
    texts = [one for one in root.select({"type": PreText}) if one.visible]
    return [one.text for one in sorted(texts, key=lambda one: int(one.styles["order"]))]


def test_the_newest_failures_are_shown_first_and_the_others_are_counted():
    projection = many_failures(MOST_ERRORS + 60)
    root = failures_spec(projection).build()
    texts = texts_of(root)
    assert len(texts) == MOST_ERRORS
    assert [text.split(":")[0] for text in texts[:3]] == ["t000", "t259", "t258"]
    assert root.select_one({"name": "failures"}).text.endswith("The 60 oldest are left out.")
    page = to_html(projection)
    assert f"Errors ({MOST_ERRORS + 60})" in page
    assert f"t000: ERROR, {format_duration(MOST_ERRORS + 59.0)} after the experiment began" in page


def test_a_new_failure_is_sent_alone():
    projection = many_failures(MOST_ERRORS)
    before = RenderedFigure(failures_spec(projection))
    projection.extend([suggested("new"), failing("new", 1e4, "later")])
    after = before.updated(failures_spec(projection))
    changes = after.changes_from(before)
    texts = [step for step in changes.steps if step.name == "text"]
    assert len(texts) == 2  # the failure, and how many there are
    changes.apply(before.models)
    assert texts_of(before.models[0])[0].startswith("new: ERROR, ")
    # And again, if it fails once more.
    again = action("ReopenTrial", "t007", fresh=False)
    projection.extend([restarted("t007", 1e4, again), failing("t007", 2e4)])
    changes = after.updated(failures_spec(projection)).changes_from(after)
    changes.apply(before.models)
    assert [text.split(":")[0] for text in texts_of(before.models[0])[:2]] == ["t007", "new"]


def test_a_failure_says_how_long_the_trial_ran_and_when_it_failed():
    records = [suggested("early", 0.0), suggested("late", 0.0), started("late", 96.0)]
    first = failing("late", 96.1, status="PENDING")
    projection = projection_of(*records, first, restarted("late", 96.1), failing("late", 96.1))
    [text] = texts_of(failures_spec(projection).build())
    assert text.startswith(
        "late: ERROR, 2 failures, failed after it ran for 0.1 s, 96.1 s after the experiment began\n"
    )


def test_without_failures_the_page_says_so():
    root = failures_spec(projection_of(suggested("a"))).build()
    assert root.select_one({"name": "failures"}).text == "No trial has failed."


def test_the_table_keeps_the_failures_that_came_last():
    projection = many_failures(100)
    projection.extend([suggested(f"ok{i}") for i in range(100)])
    root = trial_table(projection, live=True, most=40)
    trials = root.select_one({"type": DataTable}).source.data["trial"]
    assert {"t000", "t099", "t098", "t095"} <= set(trials)
    assert "t001" not in trials


# The details of a trial


def two_trials():
    stored = [saved("b_1", i, i + 1) for i in range(3)]
    gone = action("DeleteCheckpoint", "b", checkpoint=stored[0])
    return projection_of(
        suggested("a", lr=0.1, opt="adam"),
        suggested("b", lr=0.2, opt="adam", momentum=0.9),
        started("a", 1.0),
        result("a", 1, 2.0, loss=0.25, size=9.0),
        started("b", 1.0, worker="tcp://w1:1"),
        result("b", 1, 3.0, loss=0.5, size=4.0, checkpoint=stored[0]),
        about("TrialLost", "b", 4.0, status="PENDING", reason="gone"),
        restarted("b", 5.0),
        started("b", 5.0, worker="tcp://w2:2"),
        result("b", 2, 6.0, loss=0.75, size=5.0, checkpoint=stored[1]),
        about("CheckpointCommitted", "b", 7.0, checkpoint=stored[2], actions=[gone]),
        metric=["loss", "size"],
        mode=["min", "min"],
    )


def test_the_details_tell_where_it_ran_how_it_compares_and_what_is_stored():
    projection = two_trials()
    text = trial_text(projection, projection.find("b"))
    for line in (
        "loss: best 0.5 at iteration 1, last 0.75; the best trial, a, has 0.25",
        "size: best 4 at iteration 1, last 5; no trial was better",
        "on workers for 5 s",
        "  tcp://w1:1: lost, 3 s, began after 1 s",
        "  tcp://w2:2: running, 2 s, began after 5 s",
        "  iteration 3: trials/b_1/checkpoint_000002_i01",
        "  iteration 2: trials/b_1/checkpoint_000001_i01",
        "configuration (that of the best trial, a)",
        "  lr = 0.2  (0.1)",
        "  opt = adam",
        "  momentum = 0.9  (none)",
    ):
        assert f"\n{line}\n" in f"\n{text}\n"
    assert "checkpoint_000000" not in text


def test_of_checkpoints_the_newest_are_kept():
    checkpoints = [saved("a", i, i) for i in range(3 * MAX_CHECKPOINTS)]
    paths = [one["path"] for one in checkpoints]
    commits = [about("CheckpointCommitted", "a", 1.0, checkpoint=one) for one in checkpoints]
    projection = projection_of(suggested("a"), *commits)
    assert list(projection.trials[0].stored_checkpoints) == paths[-MAX_CHECKPOINTS:]
    assert projection.trials[0].checkpoints == len(paths)
    gone = action("DeleteCheckpoint", "a", checkpoint=checkpoints[-1])
    projection.add({"event": "TimePassed", "time": 2.0, "actions": [gone]})
    assert paths[-1] not in projection.trials[0].stored_checkpoints


def test_the_details_of_the_best_trial_compare_it_with_none():
    projection = two_trials()
    text = trial_text(projection, projection.find("a"))
    assert "\nconfiguration\n  lr = 0.1\n" in text


# Several goals


def test_the_table_has_columns_for_each_goal():
    root = trial_table(two_trials())
    assert {"best loss", "last loss", "best size", "last size"} <= set(titles_of(root))
    data = root.select_one({"type": DataTable}).source.data
    names, _ = filter_of(root)
    assert data[names["best size"]].tolist() == [9.0, 4.0]
    assert data[names["size"]].tolist() == [9.0, 5.0]


def test_a_goal_is_seen_as_if_it_were_the_only_one():
    records = asha_journal()
    both = projection_of(*records, metric=["other", "loss"], mode=["max", "min"])
    alone = projection_of(*records)
    seen_alone = with_objective(both, 1)
    assert with_objective(both, 0) is both
    assert with_objective(both, 1) is seen_alone
    assert seen_alone.improvements == alone.improvements
    assert seen_alone.best.trial_id == alone.best.trial_id
    assert seen_alone.best_value == alone.best_value
    assert [one.trial_id for one in seen_alone.ranked()] == [one.trial_id for one in alone.ranked()]
    for draw in (best_so_far, learning_curves):
        one, other = draw(seen_alone), draw(alone)
        assert one.title.text == other.title.text
        ends = [(figure.y_range.start, figure.y_range.end) for figure in (one, other)]
        assert ends[0] == ends[1]
    density = density_of(seen_alone)
    assert density.update(seen_alone)
    assert density_of(seen_alone) is density


def test_the_overview_has_figures_for_each_goal():
    overview = report_layout(two_trials()).select_one({"type": Tabs}).tabs[0]
    figures = [card.children[0] for card in overview.child.children]
    assert overview.title == "Overview"
    assert [one.title.text.split(":")[0] for one in figures] == [
        "Best loss so far",
        "Learning curves of loss",
        "Best size so far",
        "Learning curves of size",
    ]


# The header


def test_the_header_has_the_best_value_of_each_goal_and_the_best_configuration():
    text = seen(header_html(two_trials()))
    assert "best loss 0.25 a" in text
    assert "best size 4 b" in text
    assert "best configuration for loss, a: lr=0.1, opt=adam" in text
    hostile = header_html(hostile_projection())
    assert not any(evil in hostile for evil in PAYLOADS if "<" in evil)


def test_the_header_says_what_differs_first():
    records = [suggested(one, same=1, lr=x) for one, x in (("a", 0.1), ("b", 0.2))]
    projection = projection_of(*records, result("b", 1, 1.0, loss=1.0))
    assert "b: lr=0.2, same=1" in seen(header_html(projection))


def half_done():
    return projection_of(
        suggested("a"),
        started("a", 0.0),
        result("a", 1, 1.0, loss=1.0),
        about("TrialEnded", "a", 2.0, status="TERMINATED"),
        suggested("b", 2.0),
        started("b", 2.0),
        result("b", 1, 4.0, loss=1.0),
        total=4,
    )


RED, YELLOW, GREEN, GREY = "#CF222E", "#FFD33D", "#2DA44E", "#57606A"


@pytest.mark.parametrize(
    ("state", "colour", "is_live"),
    [
        ("driver is running", GREEN, True),
        ("driver is running, no new records for 2 min", YELLOW, True),
        ("no new records for 2 min", YELLOW, True),
        ("driver is lost, last sign of life 4 min ago", RED, False),
        ("driver has ended", GREY, False),
        ("experiment has ended", GREY, False),
        ("the journal cannot be read: no", RED, False),
    ],
)
def test_a_chip_says_the_driver_s_status(state, colour, is_live):
    html = header_html(half_done(), state)
    chip = html[: html.index(state)].rpartition("<span")[2]
    assert f"background:{colour};" in chip
    text = seen(html)
    # Unless the run is live, nothing is said to run, and no time is left.
    assert ("1 running" in text) == is_live
    assert ("left" in text) == is_live
    assert ("1 was running" in text.replace("[1 was running]", "")) != is_live
    # A page whose server is gone says so, unless nothing was to be expected any more.
    assert ("[driver is lost" in " ".join(text.replace("[ ", "[").split())) == is_live


def test_what_is_said_of_other_states_has_no_chip():
    text = seen(header_html(half_done(), "reading the journal: 7 records"))
    assert "reading the journal: 7 records" in text
    assert "lost" not in text


def test_the_header_says_that_new_trials_are_held_until_they_are_released():
    projection = half_done()
    assert "on hold" not in header_html(projection)
    projection.add({"event": "HoldRequested", "time": 5.0})
    assert "on hold" in header_html(projection, "driver is running")
    assert "on hold" not in header_html(projection, "driver has ended")
    projection.add({"event": "ReleaseRequested", "time": 6.0})
    assert "on hold" not in header_html(projection, "driver is running")
    projection.add({"event": "HoldRequested", "time": 7.0})
    projection.add({"event": "StopRequested", "reason": "enough", "time": 8.0})
    assert "on hold" not in header_html(projection)


class Feed:
    state, always_follow, now, read_share = "driver is running", False, None, None

    def poll(self):
        return False, iter(())


def test_pages_of_a_server_show_what_there_is_of_each_goal_and_of_a_trial():
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    overview = experiment_pages(live)[0]
    assert [part.name for part in overview.sections] == [
        "best",
        "curves",
        "best 1",
        "curves 1",
        "shares",
    ]
    document = Document()
    viewer = Viewer(live, document)
    cards = document.select_one({"type": Tabs}).tabs[0].child.children
    for _ in cards:
        viewer.update()
    # No other experiment is known to share the cluster.
    assert [card.visible for card in cards] == [True, True, True, True, False]
    titles = [card.children[0].title.text.split(":")[0] for card in cards if card.visible]
    assert titles[2:] == ["Best size so far", "Learning curves of size"]
    detail = trial_section(live, [1]).make()
    curves = detail.children[1].children
    assert [one.yaxis[0].axis_label for one in curves] == ["loss", "size"]


def test_the_columns_of_ranks_scroll_in_the_whole_width_instead_of_breaking():
    ranks = [["tcp://h1:1", ["0"]], ["tcp://h2:1", ["0"]]]
    begins = about("TrialStarted", "a", 0.5, status="RUNNING", worker="tcp://h1:1", ranks=ranks)
    projection = projection_of(suggested("a"), begins, result("a", 1, 2.0, loss=1.0))
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    for root in (trial_section(live, [0]).make(), trial_table(projection)):
        text = root.select_one({"name": "detail"})
        [around] = [one for one in root.select({"type": Column}) if text in one.children]
        assert len(around.children) == 2
        assert any("overflow-x: auto" in sheet.css for sheet in text.stylesheets)


def test_several_trials_stand_side_by_side_with_their_differences_first():
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    detail = trial_section(live, [0, 1]).make()
    lines = [" ".join(line.split()) for line in detail.children[0].text.splitlines()]
    assert lines[0] == "a b"
    for line in (
        "best loss 0.25 0.5",
        "last size 9 5",
        "configuration: 2 differences",
        "lr 0.1 0.2",
        "momentum none 0.9",
        "opt = adam",
    ):
        assert line in lines
    assert lines.index("lr 0.1 0.2") < lines.index("the same in all") < lines.index("opt = adam")
    curves = detail.children[1].children
    assert [one.title.text for one in curves] == ["loss of a, b", "size of a, b"]
    # Each trial has a colour and an entry of its own.
    legend = [item.label.value for item in curves[0].above[-1].items]
    assert legend == ["a (the best)", "b"]


def test_the_last_update_draws_all_pages_and_says_how_to_look_on():
    projection = two_trials()
    projection.add(failing("a", 9.0, "too high"))
    command = "dasktune dashboard '/tmp/a <b>'"
    live = LiveExperiment(
        lambda: projection, Feed(), find_dask=lambda: "http://127.0.0.1:8787/status", command=command
    )
    live.poll()
    document = Document()
    viewer = Viewer(live, document, commander=lambda: None)
    assert not document.config.notify_connection_status
    tabs = document.select_one({"type": Tabs}).tabs
    drawn = [tab.child.children[0].children[0].name != PLACEHOLDER for tab in tabs]
    assert drawn == [True] + [False] * (len(tabs) - 1)
    for _ in viewer.show_end(time.monotonic() + 600):
        pass
    for tab in tabs:
        for card in tab.child.children:
            assert card.children[0].name != PLACEHOLDER or not card.visible, tab.title
    html = header_of(document)
    assert "The server of this page has ended" in seen(html)
    assert escape(command) in html
    assert "a <b>" not in html
    assert not document.select_one({"name": "controls"}).visible
    # What a lost driver's page shows says it, too, although no server can send it any more.
    text = header_html(half_done(), "driver is running", command=command)
    assert '<div class="dt-lost" role="status"' in text
    assert escape(command) in text


def test_the_header_shows_the_last_error_if_all_trials_have_failed():
    projection = projection_of(suggested("a", x=1), suggested("b", x=2), total=2)
    assert "failed" not in seen(header_html(projection))
    projection.extend([started("a", 0.0), failing("a", 1.0, "no data at <data>")])
    assert "The only trial that has ended failed. The last error: no data" in seen(header_html(projection))
    projection.extend([started("b", 1.0), failing("b", 3.0, "no <data> at all")])
    html = header_html(projection)
    assert "All 2 trials that have ended failed. The last error: no &lt;data&gt; at all" in html
    # One result, or one trial that has not failed, and the figures show something.
    projection = two_trials()
    projection.add(failing("a", 9.0))
    assert "The last error" not in header_html(projection)


LAST = "This is the last state."


def drawn_pages(document):
    """Return the titles of the pages of which each visible section is drawn."""
    return [
        tab.title
        for tab in document.select_one({"type": Tabs}).tabs
        if all(card.children[0].name != PLACEHOLDER for card in tab.child.children if card.visible)
    ]


def header_of(document):
    """Return the header of a page as HTML."""
    return document.select_one({"name": "header"}).text


def named_pages(document):
    """Return the titles of the pages that the header names as not drawn."""
    found = re.search(r"before it had drawn the last state of ([^.]*)[.]", seen(header_of(document)))
    return found[1].split(", ") if found else []


def test_at_each_step_of_the_end_the_page_says_which_pages_lack_the_last_state():
    projection = two_trials()
    projection.add(failing("a", 9.0, "too high"))
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document)
    titles = [tab.title for tab in document.select_one({"type": Tabs}).tabs]
    steps = viewer.show_end(time.monotonic() + 600)
    next(steps)
    assert named_pages(document) == titles
    for number, _ in enumerate(steps):
        # A regular update between two steps changes nothing: the process may end at any time.
        viewer.update()
        if LAST not in seen(header_of(document)):
            assert named_pages(document) == titles, number
    assert number >= len(titles)
    assert LAST in seen(header_of(document))
    assert drawn_pages(document) == titles


def test_the_last_update_ends_in_time_and_names_the_pages_that_it_has_not_drawn():
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document)
    titles = [tab.title for tab in document.select_one({"type": Tabs}).tabs]
    for _ in viewer.show_end(time.monotonic() - 1):
        pass
    assert "The server of this page has ended" in seen(header_of(document))
    # The first page has been drawn, but not for the last time.
    assert named_pages(document) == titles
    assert LAST not in seen(header_of(document))
    texts = [tab.child.children[0].children[0].text for tab in document.select_one({"type": Tabs}).tabs[1:]]
    assert set(texts) == {"The server ended before this figure was drawn."}


def test_a_figure_that_cannot_be_drawn_at_the_end_costs_no_other_page(caplog):
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    document = Document()

    def fail():
        raise ZeroDivisionError("a bug of a figure")

    def pages_with_a_bug(live):
        *others, errors = experiment_pages(live)
        return [*others, replace(errors, sections=[replace(one, make=fail) for one in errors.sections])]

    viewer = Viewer(live, document, make_pages=pages_with_a_bug)
    for _ in viewer.show_end(time.monotonic() + 600):
        pass
    assert named_pages(document) == ["Errors"]
    assert "Errors" not in drawn_pages(document)
    assert len(drawn_pages(document)) == len(document.select_one({"type": Tabs}).tabs) - 1
    assert "a bug of a figure" in caplog.text


def test_the_end_waits_little_for_a_thread_that_holds_the_lock():
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document, commander=lambda: None)
    with live.lock:
        for _ in viewer.show_end(time.monotonic() + 600):
            pass
    assert LAST not in seen(header_of(document))
    assert not document.select_one({"name": "controls"}).visible
    texts = [tab.child.children[0].children[0].text for tab in document.select_one({"type": Tabs}).tabs[1:]]
    assert set(texts) == {"The server ended before this figure was drawn."}


def test_pages_are_there_before_the_first_trial_and_say_why_they_are_empty():
    live = LiveExperiment(lambda: projection_of(total=4), Feed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document)
    tabs = document.select_one({"type": Tabs})
    titles = [tab.title for tab in tabs.tabs]
    assert titles == ["Overview", "Trials", "Parameters", "Scheduler", "Workers", "Errors"]
    text = seen(header_of(document))
    assert "No trial has been created yet" in text
    assert "trials done 0 of 4" in text
    for number in range(len(titles)):
        tabs.active = number
    live.projection.extend([suggested("a", x=1), started("a", 0.0), result("a", 1, 1.0, loss=1.0)])
    tabs.active = 1
    until = time.monotonic() + 120
    # A render thread of the page Parameters may hold the lock, and a figure waits for its turn.
    while document.select_one({"type": DataTable}).source.data["trial"] != ["a"]:
        assert time.monotonic() < until
        viewer.update()
    assert "No trial has been created yet" not in header_of(document)


def test_the_page_in_dask_s_dashboard_calls_its_pages_as_the_driver_s_own_ones():
    projection = two_trials()
    live = LiveExperiment(lambda: projection, Feed())
    live.poll()
    own = [page.title for page in experiment_pages(live)]
    page = json.loads(gzip.decompress(Broadcast(live).update().page))
    other = [tab.title for tab in Document.from_json(page).select_one({"type": Tabs}).tabs]
    assert [title for title in own if title in other] == other


def test_a_driver_in_this_process_that_is_silent_is_shown(tmp_path):
    store = ExperimentStore(Storage(tmp_path / "exp"))
    store.create({"name": "exp"})
    store.begin()
    now = [0.0]
    feed = DriverFeed(JournalFollower(Storage(tmp_path / "exp")), lambda: 0.0, clock=lambda: now[0])
    live = LiveExperiment(projection_of, feed, find_dask=lambda: "http://127.0.0.1:8787/status")
    for seconds, state in ((10.0, ""), (200.0, ", no new records for 3 min")):
        now[0] = seconds
        live.poll()
        assert live.state == f"driver is running{state}"
    assert live.dask
    feed.end()
    live.poll()
    assert live.state == "driver has ended"
    # The cluster may end with the run: its links would lead nowhere.
    assert live.dask == ""
    store.close()


def test_a_trial_s_detail_counts_what_has_happened_to_it_and_nothing_else():
    projection = projection_of(suggested("a"), started("a", 0.0), result("a", 1, 1.0, loss=1.0))
    text = trial_text(projection, projection.trials[0])
    assert "\n1 start\n" in text
    projection.trials[0].starts, projection.trials[0].restores = 3, 2
    text = trial_text(projection, projection.trials[0])
    assert "\n3 starts, 2 restarts from a checkpoint\n" in text
