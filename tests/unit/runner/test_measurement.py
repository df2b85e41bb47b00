"""The numbers that a runner gives about its experiment."""

from __future__ import annotations

import pytest
from runner_kit import FAIL, REPORT, SAVE, Bench

from dasktune.errors import ControlError
from dasktune.trial.status import PublicStatus


def test_a_run_is_measured_between_two_events():
    bench = Bench(script=(REPORT, SAVE, FAIL), num_samples=2)
    with bench.runner.running():
        first = bench.runner.commands.measure()
        bench.runner.step()
        begin = first.result(0)
        assert begin.trials == dict.fromkeys(PublicStatus, 0)
        assert (begin.total_trials, begin.results, begin.journal_queue) == (2, 0, 0)
        assert begin.loop_lag >= 0.0
        assert begin.seconds >= 0.0
        while not bench.experiment.finished:
            bench.runner.step()
    end = bench.runner.measure(loop_lag=0.5)
    assert end.trials == dict.fromkeys(PublicStatus, 0) | {PublicStatus.ERROR: 2}
    assert (end.results, end.saves, end.failures, end.losses, end.stopped_early) == (4, 2, 2, 0, 0)
    assert (begin.saving.count, end.saving.count, end.saving.seconds) == (0, 2, 1.0)
    assert end.journal_records == len(bench.journal)
    assert (end.journal_queue, end.loop_lag, end.on_hold) == (0, 0.5, False)


def test_each_kind_of_decision_is_counted():
    bench = Bench(
        script=(REPORT,) * 3,
        num_samples=2,
        scheduler="median_stopping_rule",
        metric="training_iteration",
        mode="max",
    )
    with bench.runner.running():
        while not bench.experiment.finished:
            bench.runner.step()
    counted = bench.runner.measure(loop_lag=0.0).decisions
    done = [action["do"] for record in bench.journal for action in record.get("actions", ())]
    assert counted["continue"] == done.count("ContinueTraining") > 0
    assert counted["stop"] == done.count("StopTrial")
    assert counted["pause"] == counted["exploit"] == 0


def test_records_that_are_not_durable_are_the_queue():
    bench = Bench(lag=3, num_samples=1)
    with bench.runner.running():
        while not bench.experiment.finished:
            bench.runner.step()
        assert bench.runner.measure(loop_lag=0.0).journal_queue == 3


def test_nothing_is_measured_after_the_end():
    bench = Bench(script=(REPORT,), num_samples=1).run()
    with pytest.raises(ControlError, match="does not run any more"):
        bench.runner.commands.measure().result(0)
