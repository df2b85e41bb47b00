from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
from progress_kit import Printed, Run, pseudo_terminal

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.progress import PlainLines
from dasktune.progress.reporter import ProgressReporter
from dasktune.trial.status import PublicStatus


@pytest.fixture
def printed(capsys):
    return Printed(capsys)


def some(count=3, order="made", **more):
    run = Run(order=order)
    for n in range(count):
        trial_id = run.start({"lr": n / 8, "net": {"depth": n}})
        run.report(trial_id, 1, float(10 - n), **more)
    return run


def head_of(stream):
    return next(line for line in stream.getvalue().splitlines() if line.startswith("trial "))


def ready(reporter, **about):
    reporter.setup(**{"metric": "loss", "mode": "min", "total_samples": 40, **about})
    return reporter


def test_a_report_shows_all_there_is(printed):
    run = some()
    reporter = ready(tune.CLIReporter())
    run.fail(run.start({"lr": 1.0}), "ValueError: no")
    reporter.report(run.trial_counts, False, "what the scheduler thinks\nin two lines")
    lines = printed.getvalue().splitlines()
    last = run.trial_counts[2].trial_id
    assert lines[1:6] == [
        "Running for 00:00",
        "what the scheduler thinks",
        "in two lines",
        f"Best: loss 8 in {last} with lr=0.25, net/depth=2",
        "Trials: 4 of 40 (3 RUNNING, 1 ERROR)",
    ]
    head = "trial status worker lr net/depth iter total time (s) loss"
    assert lines[6].split() == head.split()
    assert lines[7].split() == [
        run.trial_counts[0].trial_id,
        *["RUNNING", "w", "0", "0", "1", "60", "10"],
    ]
    assert lines[11] == "1 trial failed:"
    assert lines[13].split()[1:4] == ["1", "ValueError:", "no"]


def test_columns_are_chosen_and_renamed(printed):
    run = some(acc=0.5, secret=1)
    reporter = tune.CLIReporter(metric_columns={"acc": "accuracy"}, parameter_columns={"net/depth": "depth"})
    ready(reporter).report(run.trial_counts, False)
    assert head_of(printed).split() == ["trial", "status", "worker", "depth", "accuracy"]
    printed.forget()
    reporter = tune.CLIReporter(metric_columns=["secret"], parameter_columns=["lr"])
    reporter.add_metric_column("acc")
    reporter.add_parameter_column("net/depth", "depth")
    ready(reporter).report(run.trial_counts, False)
    assert head_of(printed).split() == [*("trial", "status", "worker", "lr", "depth", "secret", "acc")]
    with pytest.raises(ConfigError, match="metric must be one that is not shown yet, got 'acc'"):
        reporter.add_metric_column("acc")
    with pytest.raises(ConfigError, match="parameter must be one that is not shown yet, got 'lr'"):
        reporter.add_parameter_column("lr")


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_metrics_that_are_there_are_shown_up_to_a_limit(printed, limit):
    run = some(a=1, b=2, words="no number", c=3, d=4)
    ready(tune.CLIReporter(infer_limit=limit)).report(run.trial_counts, False)
    assert head_of(printed).split()[10:] == ["a", "b", "c"][:limit]


def test_the_statuses_share_the_rows(printed):
    run = some(8)
    for trial in list(run.trial_counts)[:3]:
        run.end(trial.trial_id)
    ready(tune.CLIReporter(max_progress_rows=4)).report(run.trial_counts, False)
    rows = [line.split() for line in printed.getvalue().splitlines()]
    shown = [row[1] for row in rows if len(row) > 1 and row[1] in set(PublicStatus)]
    assert shown == ["RUNNING", "RUNNING", "TERMINATED", "TERMINATED"]
    assert "… 4 more trials (3 RUNNING, 1 TERMINATED)" in printed.getvalue()


@pytest.mark.parametrize("rows", [0, None])
def test_there_may_be_no_rows_or_no_limit(printed, rows):
    run = some(30)
    ready(tune.CLIReporter(max_progress_rows=rows)).report(run.trial_counts, False)
    assert ("more trials" in printed.getvalue()) == (rows == 0)
    assert printed.getvalue().count(" RUNNING ") == (0 if rows == 0 else 30)


@pytest.mark.parametrize("whole", [True, False])
def test_the_best_of_each_status_are_shown_if_that_is_asked_for(printed, whole):
    run = some(5, order="last")
    reporter = ready(tune.CLIReporter(sort_by_metric=True, max_progress_rows=2))
    assert reporter.ranking == ("loss", "min", "last")
    reporter.report(run.trial_counts if whole else list(run.trial_counts), False)
    text = printed.getvalue()
    at = [text.find(f"\n{trial.trial_id}") for trial in run.trial_counts]
    assert at[:3] == [-1, -1, -1]
    assert 0 < at[4] < at[3]


def test_a_reporter_may_compare_by_a_metric_of_its_own(printed):
    run = some(2, acc=0.5)
    reporter = ready(tune.CLIReporter(metric="acc", mode="max"))
    assert reporter.ranking == ("acc", "max", "made")
    reporter.report(run.trial_counts, False)
    assert "Best: acc 0.5 in" in printed.getvalue()


def test_failures_have_a_limit(printed):
    run = Run()
    for _ in range(5):
        run.fail(run.start(), "ValueError: no")
    ready(tune.CLIReporter(max_error_rows=2)).report(run.trial_counts, False)
    assert "5 trials failed, 3 of them not shown:" in printed.getvalue()
    assert printed.getvalue().count("error.txt") == 2


def test_long_cells_are_cropped(printed):
    run = Run()
    run.start({"parameter_with_a_long_name": "x" * 50})
    ready(tune.CLIReporter(max_column_length=8)).report(run.trial_counts, False)
    assert "paramet…" in printed.getvalue()
    assert f"{'x' * 7}…" in printed.getvalue()
    assert "x" * 8 not in printed.getvalue().partition("trial ")[2]


def test_only_the_last_report_has_tables_if_the_others_are_to_have_none(printed):
    run = some()
    reporter = ready(tune.CLIReporter(print_intermediate_tables=False))
    reporter.report(run.trial_counts, False)
    assert "\ntrial " not in printed.getvalue()
    reporter.report(run.trial_counts, True)
    assert "\ntrial " in printed.getvalue()


def test_reports_keep_a_distance_but_for_the_last(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    reporter = tune.CLIReporter(max_report_frequency=10)
    asked = []
    for now[0] in (0.0, 9.0, 10.0, 11.0):
        asked.append(reporter.should_report([]))
    assert asked == [True, False, True, False]
    assert reporter.should_report([], done=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_progress_rows": -1},
        {"max_error_rows": 1.5},
        {"max_column_length": 0},
        {"max_report_frequency": -1},
        {"max_report_frequency": "often"},
        {"infer_limit": None},
        {"metric_columns": "loss"},
        {"parameter_columns": [1]},
        {"mode": "best"},
        {"sort_by_metric": 1},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    [name] = wrong
    with pytest.raises(ConfigError, match=f"{name} must be"):
        tune.CLIReporter(**wrong)
    with pytest.raises(ConfigError, match=f"{name} must be"):
        tune.JupyterNotebookReporter(True, **wrong)


@pytest.mark.parametrize("wrong", [tune.CLIReporter, "rich", 3])
def test_what_is_no_reporter_is_refused(wrong):
    with pytest.raises(ConfigError, match="progress_reporter must be an object of Progress"):
        tune.RunConfig(progress_reporter=wrong)


@pytest.mark.parametrize("metric", ["loss", "other"])
def test_a_report_never_shows_more_trials_than_the_total(metric, printed):
    run = Run(order="made")
    run.experiment.search.total_samples = 2
    reporter = ready(tune.CLIReporter(), total_samples=2, metric=metric)
    for _ in range(2):
        run.start()
    reporter.report(run.trial_counts, False)
    assert "Trials: 2 of 2 (2 RUNNING)" in printed.getvalue()
    run.add_for_the_user()
    run.watch(PlainLines)
    run.add_for_the_user()
    reporter.report(run.trial_counts, False)
    assert "Trials: 4 of 4 (2 RUNNING, 2 PENDING)" in printed.getvalue()


def test_a_report_without_a_known_total_shows_none(printed):
    run = some(2)
    reporter = tune.CLIReporter()
    reporter.setup(metric="loss", mode="min")
    reporter.report(run.trial_counts, False)
    assert "Trials: 2 (2 RUNNING)" in printed.getvalue()


def test_the_base_class_leaves_the_report_to_others():
    reporter = ProgressReporter()
    reporter.setup(total_samples=3)
    assert reporter.should_report([])
    with pytest.raises(NotImplementedError):
        reporter.report([], True)


def test_outside_of_notebooks_the_reporter_for_them_prints(printed):
    run = some()
    ready(tune.JupyterNotebookReporter()).report(run.trial_counts, False)
    assert "Trials: 3 of 40" in printed.getvalue()


def notebook(monkeypatch):
    """Let this process be a notebook's kernel; return the HTML of each output of its cells."""

    class ZMQInteractiveShell:
        pass

    outputs = []

    def display(html, display_id):
        assert display_id
        outputs.append([html])
        return SimpleNamespace(update=outputs[-1].append)

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, displays.HTML, displays.display = ZMQInteractiveShell, str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return outputs


@pytest.mark.parametrize("overwrite", [True, False])
def test_in_notebooks_reports_are_html(monkeypatch, overwrite):
    outputs = notebook(monkeypatch)
    run = Run()
    run.fail(run.start({"opt": "<script>"}), "ValueError: <b>")
    reporter = ready(tune.JupyterNotebookReporter(overwrite))
    for done in (False, True):
        reporter.report(run.trial_counts, done, "<i>")
    drawn = [html for output in outputs for html in output]
    assert (len(outputs), len(drawn)) == (1 if overwrite else 2, 2)
    for html in drawn:
        assert "&lt;script&gt;" in html
        assert "ValueError: &lt;b&gt;" in html
        assert not any(raw in html for raw in ("<script", "<b>", "<i>"))


def test_on_a_narrow_terminal_a_report_has_the_columns_that_matter_most(monkeypatch):
    run = some(2, a_metric_with_a_long_name=0.5)
    reporter, heads = ready(tune.CLIReporter()), []
    for width in (120, 60, 30):
        with pseudo_terminal(width) as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            reporter.report(run.trial_counts, False)
            heads += [line for line in stream.getvalue().splitlines() if line.startswith("trial ")]
    assert "worker" in heads[0]
    assert "net/depth" in heads[0]
    assert heads[1].split() == ["trial", "status", "lr", "iter", "total", "t…", "loss", "a_metri…"]
    assert heads[2].split() == ["trial", "status", "iter"]
