from __future__ import annotations

from progress_kit import Run

from dasktune.progress.progress_table import (
    best_line,
    failure_lines,
    progress_table,
)
from dasktune.text.formatting import column_width
from dasktune.text.text_table import drop_columns, table_lines
from dasktune.trial.events import TrialReopenRequested


def test_the_running_come_first_then_the_best():
    run = Run()
    trials = [run.start({"lr": n / 10, "net": {"depth": n}}) for n in range(4)]
    for n, trial_id in enumerate(trials):
        run.report(trial_id, 1, 4.0 - n)
        run.report(trial_id, 2, 5.0 - n)
    run.end(trials[2])
    run.end(trials[3])
    head, *rows = progress_table(run.trial_counts)
    assert head == ["", "trial", "iter", "loss", "best", "time", "lr", "net/depth"]
    assert [row[1] for row in rows] == [trials[n] for n in (1, 0, 3, 2)]
    assert rows[0] == ["▶", trials[1], "2", "4", "3", "02:00", "0.1", "1"]
    assert rows[2][0] == "✓"


def test_the_best_keep_three_rows_however_many_run():
    run = Run()
    trials = [run.start() for _ in range(30)]
    for n, trial_id in enumerate(trials):
        run.report(trial_id, 1, float(n))
    for trial_id in trials[20:]:
        run.end(trial_id)
    _, *rows = progress_table(run.trial_counts)
    assert [row[1] for row in rows] == [*trials[:7], *trials[20:23]]
    assert len(progress_table(run.trial_counts, limit=1)) == 2


def test_only_searched_parameters_have_columns_if_they_are_known():
    run = Run()
    run.start({"lr": 0.1, "epochs": 3})
    run.trial_counts.searched = ("lr",)
    assert progress_table(run.trial_counts)[0][-2:] == ["time", "lr"]


def test_without_a_metric_there_is_none_in_the_table():
    run = Run(metric=None, mode=None)
    run.start({})
    assert progress_table(run.trial_counts)[0] == ["", "trial", "iter", "time"]


def test_what_has_no_room_is_left_out_from_the_right():
    run = Run()
    run.start({f"parameter_{n:02}": "精度" * 20 for n in range(20)})
    for width in (20, 40, 80, 200):
        table = progress_table(run.trial_counts, width)
        assert max(column_width(line) for line in table_lines(table)) <= width
    assert len(progress_table(run.trial_counts, 200)[0]) > len(progress_table(run.trial_counts, 80)[0])
    assert drop_columns([["much too long", "b"]], 3) == [["much too long"]]


def test_escape_sequences_stay_out_of_tables():
    run = Run(metric="lo\x1b[31mss")
    run.start({"a\x1b]0;b\x07": "\x1b[2J\n"})
    assert all(cell.isprintable() for row in progress_table(run.trial_counts) for cell in row)


def test_the_best_trial_has_its_parameters():
    run = Run()
    assert best_line(run.trial_counts, "loss", ()) == ""
    trial_id = run.start({"lr": 0.1, "opt": "a\x1b[0m"})
    run.report(trial_id, 1, 0.0)
    assert best_line(run.trial_counts, "loss", ()) == f"Best: loss 0 in {trial_id} with lr=0.1, opt=a?[0m"
    assert best_line(run.trial_counts, "loss", ["lr"]).endswith(" with lr=0.1")
    assert best_line(run.trial_counts, None, ()) == ""


def test_failures_are_a_table_with_a_limit():
    run = Run()
    assert failure_lines(run.trial_counts) == []
    trials = [run.start() for _ in range(3)]
    for trial_id in trials[:2]:
        run.fail(trial_id, f"ValueError: {'no' * 100}\nmore")
    run.lose(trials[2], "its worker is gone")
    lines = failure_lines(run.trial_counts, 3)
    assert lines[0] == "3 trials failed:"
    assert lines[1].split() == ["trial", "failures", "error", "traceback"]
    assert lines[2].split()[:2] == [trials[0], "1"]
    assert "…" in lines[2]
    assert lines[2].endswith(f"/trials/{trials[0]}/error.txt")
    assert lines[4].split()[:2] == [trials[2], "0"]
    assert "error.txt" not in lines[4]
    assert "lost its worker 1 times" in lines[4]
    assert failure_lines(run.trial_counts, 1)[-1] == "  … 2 more"
    assert failure_lines(run.trial_counts, 0) == ["3 trials failed:", "  … 3 more"]


def test_the_headline_of_failures_says_which_of_them_are_permanent():
    run = Run()
    trials = [run.start() for _ in range(3)]
    for trial_id in trials:
        run.fail(trial_id, "ValueError: no")
    for trial_id in trials[:2]:
        run.tell(TrialReopenRequested(trial_id=trial_id, fresh=False, time=2.0))
    assert failure_lines(run.trial_counts)[0] == "3 trials failed, 1 of them permanently:"
    run.tell(TrialReopenRequested(trial_id=trials[2], fresh=False, time=2.0))
    # Their errors are kept, but nothing has failed in the end.
    assert failure_lines(run.trial_counts)[0] == "3 trials failed in an earlier attempt:"
    for trial_id in trials[:2]:
        run.tell(TrialReopenRequested(trial_id=trial_id, fresh=True, time=3.0))
    assert failure_lines(run.trial_counts)[0] == "1 trial failed in an earlier attempt:"


def test_failures_fit_the_terminal_as_far_as_they_can():
    run = Run(place="/results/run")
    trial_id = run.start()
    run.fail(trial_id, f"ValueError: {'no ' * 40}")
    wide = failure_lines(run.trial_counts, width=400)
    assert wide == failure_lines(run.trial_counts)
    assert f"memory://progress/trials/{trial_id}/error.txt" in wide[-1]
    for width in (80, 100):
        lines = failure_lines(run.trial_counts, width=width)
        assert max(map(column_width, lines)) <= width
        assert lines[1].split() == ["trial", "error", "traceback"]
        assert lines[2].endswith(f"…  trials/{trial_id}/error.txt")
    for width in (30, 40, 60):
        lines = failure_lines(run.trial_counts, width=width)
        assert max(map(column_width, lines)) <= width
        assert lines[2].startswith(f"  {trial_id}  ValueErro")
