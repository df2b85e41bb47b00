from __future__ import annotations

from math import nan

import pytest
from progress_kit import Run

from dasktune.placement import ClusterShares
from dasktune.progress import PlainLines
from dasktune.runner.ports import Observer
from dasktune.trial.events import (
    ResourcesGranted,
    SessionBegan,
    TimePassed,
    TrialEnded,
    TrialReopenRequested,
    TrialStarted,
)


class Always(PlainLines):
    interval_s = 0.0


@pytest.mark.parametrize(("mode", "best"), [("min", "1"), ("max", "3")])
def test_the_line_follows_the_experiment(mode, best):
    run = Run(mode=mode, display=Always)
    trial_id = run.start()
    for seq, loss in enumerate([2.0, nan, 3.0, 1.0, 2.0], start=1):
        run.report(trial_id, seq, loss)
    assert "0 trials done · 1 running · 0 errors" in run.last_line
    assert f"best loss {best} ({trial_id})" in run.last_line
    run.end(trial_id, time=62.0)
    assert "1 trial done · 0 running" in run.last_line
    assert run.last_line.endswith("01:02")


def test_without_a_metric_results_are_counted():
    run = Run(metric=None, mode=None, display=Always)
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.report(trial_id, 2, 0.5)
    assert " · 2 results · " in run.last_line


def test_a_resumed_experiment_remembers_its_best_and_its_ended_trials():
    run = Run(display=Always)
    first = run.start()
    run.report(first, 1, 0.5)
    run.end(first, time=2.0)
    run.watch(Always)
    second = run.start(time=100.0)
    run.report(second, 1, 0.7, time=110.0)
    assert f"best loss 0.5 ({first})" in run.last_line
    assert "1 trial done" in run.last_line
    # Nothing has ended since, so the time that is left is unknown.
    assert run.last_line.endswith("00:10")


def test_the_first_line_after_a_restore_counts_what_is_restarted_as_unfinished():
    run = Run(display=Always)
    run.experiment.search.total_samples = 3
    trials = [run.start() for _ in range(3)]
    run.end(trials[0])
    for trial_id in trials[1:]:
        run.fail(trial_id, "ValueError: no")
    assert "3/3 trials done · 0 running · 2 errors" in run.last_line
    run.watch(Always)
    before = len(run.lines)
    # The driver that takes over first applies what the user wants, then begins to run.
    run.tell(SessionBegan(time=100.0, number=2, total_samples=3))
    for trial_id in trials[1:]:
        run.tell(TrialReopenRequested(trial_id=trial_id, fresh=True, time=100.0))
    assert run.lines[before:] == []
    run.tell(TimePassed(time=100.0))
    [line] = run.lines[before:]
    assert "1/3 trials done · 0 running · 2 pending · 0 errors" in line
    run.tell(ResourcesGranted(trial_id=trials[1], time=110.0))
    incarnation = run.experiment.trials[trials[1]].incarnation
    run.tell(TrialStarted(trial_id=trials[1], incarnation=incarnation, time=110.0, worker="w"))
    run.tell(TrialEnded(trial_id=trials[1], incarnation=incarnation, time=110.0))
    # One has ended in ten seconds since, and one is left.
    assert "2/3 trials done" in run.last_line
    assert run.last_line.endswith("00:10 · 00:10 left")


def test_what_trials_hold_is_shown_against_what_the_cluster_has():
    run = Run(display=Always)
    trial_id = run.start()
    assert "CPU" not in run.last_line  # unknown
    run.offers = {"w": {"CPU": 2, "memory": 9}, "v": {"CPU": 2, "GPU": 1}}
    run.report(trial_id, 1, 0.5)
    assert " · 1 worker · 1/4 CPUs, 0/1 GPU · best " in run.last_line
    run.offers = {"w": {"CPU": 2}}  # a worker has left
    second = run.start(time=1.0)
    assert " · 2/2 CPUs · " in run.last_line
    run.end(trial_id)
    assert " · 1/2 CPUs · " in run.last_line
    run.fail(second, "ValueError: no")
    assert " · 0/2 CPUs · " in run.last_line
    run.observer.on_end(run.experiment)
    assert "2 trials done" in run.lines[-5]
    assert "CPU" not in run.lines[-5]


def test_trials_that_wait_for_the_share_of_the_cluster_say_so_until_the_end():
    run = Run(display=Always)
    trial_id = run.start()
    facts = {"weight": 1.0, "priority": 0.0, "due": 0.5, "waiting": 2, "waiting_s": 1.0}
    other = {"name": "E2", "held": {"CPU": 6}, "share": 0.75, **facts}
    own = {"name": "run", "held": {"CPU": 2}, "share": 0.25, **facts, "is_own": True}
    run.shares = ClusterShares.from_plain({"CPU": 8}, [other, own])
    run.report(trial_id, 1, 0.5)
    assert "waits for its share: experiment E2 holds 6 of 8 CPUs" in run.last_line
    run.observer.on_end(run.experiment)
    assert "waits" not in [line for line in run.lines if " done · " in line][-1]


def test_the_end_is_shown_with_the_best_and_where_results_are():
    run = Run(place="/results/run")
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.end(trial_id)
    run.observer.on_end(run.experiment)
    end = run.lines[-3:]
    assert "1 trial done" in end[0]
    assert end[1:] == [f"Best: loss 0.5 in {trial_id} with lr=0.1", "Results: /results/run"]


def test_the_end_shows_the_best_trials_with_their_parameters():
    run = Run(place="/results/run")
    first = run.start()
    second = run.start()
    run.report(first, 1, 0.5)
    run.report(second, 1, 0.25)
    for trial_id in (first, second):
        run.end(trial_id)
    run.observer.on_end(run.experiment)
    best, head, *rows, place = run.lines[-5:]
    assert best.startswith(f"Best: loss 0.25 in {second}")
    assert head.split() == ["trial", "iter", "loss", "best", "time", "lr"]
    assert [row.split()[1:4] for row in rows] == [[second, "1", "0.25"], [first, "1", "0.5"]]
    assert [row.split()[-1] for row in rows] == ["0.1", "0.1"]
    assert place == "Results: /results/run"


def test_failures_are_shown_as_they_happen_and_at_the_end():
    run = Run()
    trial_id = run.start()
    run.fail(trial_id, "ValueError: a\x1b[31m\nb")
    assert run.lines[-1] == f"[dasktune] {trial_id} failed: ValueError: a?[31m"
    run.observer.on_end(run.experiment)
    assert run.lines[-3] == "1 trial failed:"
    assert run.lines[-1].split() == [
        trial_id,
        "1",
        "ValueError:",
        "a?[31m",
        f"memory://progress/trials/{trial_id}/error.txt",
    ]


def test_many_failures_are_shown_by_their_number():
    run = Run()
    for _ in range(30):
        run.fail(run.start(), "ValueError: no")
    assert sum(" failed: " in line for line in run.lines) == 20
    run.observer.on_end(run.experiment)
    assert "30 trials failed:" in run.lines
    assert run.lines[-1] == "  … 10 more"


@pytest.mark.parametrize(("verbose", "results", "ends"), [(1, 0, 0), (2, 0, 1), (3, 2, 1)])
def test_more_verbosity_shows_trials_and_results(verbose, results, ends):
    run = Run(verbose=verbose)
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.report(trial_id, 1, 0.5)  # it was restarted, and tells the same again
    run.report(trial_id, 2, 0.25)
    run.end(trial_id)
    told = [line.removeprefix("[dasktune] ") for line in run.lines]
    assert told.count(f"{trial_id} reported loss 0.25 at iteration 2") == (results > 0)
    assert sum(" reported " in line for line in told) == results
    assert told.count(f"{trial_id} ended loss 0.25 at iteration 2") == ends


def test_more_verbosity_shows_trials_that_failed_permanently():
    run = Run(verbose=2)
    trial_id = run.start()
    run.lose(trial_id, "its worker is gone")
    assert any(f"{trial_id} failed permanently: " in line for line in run.lines)
    run.observer.on_end(run.experiment)
    assert "1 trial failed:" in run.lines


def test_an_experiment_without_events_ends_in_silence():
    run = Run()
    run.observer.on_end(run.experiment)
    assert run.stream.getvalue() == ""


def test_time_that_passes_is_shown():
    run = Run(display=Always)
    run.tell(TimePassed(time=0.0))
    run.tell(TimePassed(time=7.0))
    assert run.last_line.endswith("00:07")


@pytest.mark.parametrize("broken", ["show", "print_line", "end", "close"])
def test_a_display_that_raises_is_left_alone_and_the_experiment_runs_on(broken, caplog):
    calls = []

    class Crash(Always):
        pass

    def crash(*args, **kwargs):
        calls.append(broken)
        raise RuntimeError("the display is broken")

    setattr(Crash, broken, crash)
    run = Run(display=Crash, verbose=3)
    observer: Observer = run.observer
    trial_id = run.start()
    run.report(trial_id, 1, 0.5)
    run.tell(TrialEnded(trial_id=trial_id, incarnation=1, time=2.0))
    observer.on_end(run.experiment)
    # What is left of it is closed, whatever that does.
    assert calls == ([broken] if broken != "close" else ["close", "close"])
    assert "progress is no longer shown" in caplog.text


def test_a_metric_that_was_not_reported_is_named_at_the_end():
    run = Run()
    trial_id = run.start()
    run.report(trial_id, 1, "no number")
    run.end(trial_id)
    run.observer.on_end(run.experiment)
    assert run.last_line == "No trial has reported 'loss' as a number: report({'loss': ...})."


def test_the_total_includes_trials_that_the_user_adds():
    run = Run(display=Always)
    run.experiment.search.total_samples = 1
    run.end(run.start())
    assert "1/1 trial done" in run.last_line
    run.add_for_the_user()
    assert "1/2 trials done" in run.last_line
    # The next driver counts it, too.
    run.watch(Always)
    run.start()
    assert "1/3 trials done" in run.last_line, "three exist, although one was to be suggested"


def test_a_restarted_trial_loses_its_place_as_the_best():
    run = Run(display=Always)
    best, second = run.start(), run.start()
    run.report(best, 1, 0.25)
    run.report(second, 1, 0.5)
    run.fail(best, "ValueError: no")
    run.tell(TrialReopenRequested(trial_id=best, fresh=False, time=2.0))
    assert f"best loss 0.25 ({best})" in run.last_line, "its results are kept"
    run.tell(TrialReopenRequested(trial_id=best, fresh=True, time=3.0))
    assert f"best loss 0.5 ({second})" in run.last_line
    run.fail(second, "ValueError: no", time=3.0)
    run.tell(TrialReopenRequested(trial_id=second, fresh=True, time=4.0))
    assert "best loss" not in run.last_line
    assert run.trial_counts.best is None
