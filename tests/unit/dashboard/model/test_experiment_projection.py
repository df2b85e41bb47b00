from __future__ import annotations

import pickle
from math import inf, isnan, nan
from typing import Any

import pytest
from projection_kit import (
    about,
    action,
    asha_journal,
    pbt_journal,
    projection_of,
    result,
    saved,
    started,
    suggested,
)

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.errors import ConfigError
from dasktune.testing import MemoryStore


def test_nothing_has_happened_at_first():
    projection = ExperimentProjection(metric="loss", mode="min")
    assert (projection.best, projection.elapsed, projection.remaining) == (None, 0.0, None)
    assert isnan(projection.best_value)
    assert projection.saved_share == 0.0
    assert list(projection.changed_since(0)) == []
    assert projection.ranked() == []


def test_goals_are_checked():
    with pytest.raises(ConfigError, match="mode must be"):
        ExperimentProjection(metric="loss", mode="low")


def test_a_trial_is_made_of_its_records():
    projection = projection_of(
        suggested("a", 1.0, net={"lr": 0.1}),
        started("a", 2.0),
        result("a", 1, 3.0, loss=0.5, checkpoint=saved("a", 0, 1)),
        result("a", 2, 4.0, loss=0.7),
        about("TrialEnded", "a", 5.0, status="TERMINATED"),
    )
    [trial] = projection.trials
    assert trial.config == {"net/lr": 0.1}
    assert (trial.status, trial.outcome, trial.iteration) == ("TERMINATED", "TERMINATED", 2)
    assert (trial.best[0], trial.last_value()) == ((1, 0.5), 0.7)
    assert (trial.checkpoints, trial.checkpoint) == (1, "trials/a/checkpoint_000000_i01")
    assert [(one.start, one.end, one.outcome) for one in trial.attempts] == [(2.0, 5.0, "ended")]
    assert trial.runtime(now=9.0) == 3.0
    assert projection.workers == {"tcp://w1:1": 0}
    assert projection.counts["TERMINATED"] == projection.num_finished == 1
    assert (projection.num_results, projection.elapsed) == (2, 4.0)


def test_the_best_so_far_is_noted_when_it_changes_and_never_undefined():
    projection = projection_of(
        suggested("a"),
        suggested("b"),
        result("a", 1, 1.0, loss=nan),
        result("a", 2, 2.0, loss=0.5),
        result("b", 1, 3.0, loss=-inf),
        result("b", 2, 4.0, loss=0.6),
        result("b", 3, 5.0, loss=0.1),
    )
    assert [(time, value) for time, value, *_ in projection.improvements] == [
        (2.0, 0.5),
        (5.0, 0.1),
    ]
    assert projection.best.trial_id == "b"
    assert [trial.trial_id for trial in projection.ranked()] == ["b", "a"]


def test_what_is_more_can_be_what_is_better():
    records = [suggested("a"), result("a", 1, 1.0, loss=1.0), result("a", 2, 2.0, loss=2.0)]
    assert projection_of(*records, mode="max").best_value == 2.0


def test_without_a_metric_the_first_number_that_a_user_reports_is_followed():
    projection = projection_of(
        suggested("a"), result("a", 1, 1.0, pid=7, note="x", acc=0.5), metric=None, mode=None
    )
    assert (projection.metrics, projection.modes) == (["acc"], [None])
    assert projection.trials[0].last_value() == 0.5
    assert projection.improvements == []


def test_a_metric_that_is_missing_or_no_number_leaves_a_gap():
    projection = projection_of(
        suggested("a"),
        result("a", 1, 1.0),
        result("a", 2, 2.0, loss="low"),
        result("a", 3, 3.0, loss=1),
    )
    values = projection.trials[0].curves[0].values
    assert [isnan(value) for value in values] == [True, True, False]


def test_results_that_are_computed_again_replace_the_first_ones_and_do_not_count():
    projection = projection_of(
        suggested("a"),
        result("a", 1, 1.0, loss=0.5),
        result("a", 2, 2.0, loss=0.25),
        about("TrialLost", "a", 3.0, status="PENDING", reason="its worker died"),
    )
    [trial] = projection.trials
    assert (trial.losses, trial.reason) == (1, "its worker died")
    start = action("StartTrial", "a")
    projection.add(about("ResourcesGranted", "a", 3.0, status="PENDING", actions=[start]))
    projection.add(started("a", 3.0))
    projection.add(result("a", 2, 4.0, loss=0.75))
    assert projection.num_results == 2
    assert (trial.best[0], trial.reason) == ((1, 0.5), "")


def test_attempts_say_how_they_ended_and_from_where_they_resumed():
    restore = action("RestoreTrial", "a", checkpoint=saved("x", 0, 3), milestones=[])
    unpause = action("UnpauseTrial", "a")
    projection = projection_of(
        suggested("a"),
        started("a", 1.0, "w1"),
        about("TrialPaused", "a", 2.0, status="PAUSED"),
        about("ResourcesGranted", "a", 3.0, status="PENDING", actions=[unpause, restore]),
        started("a", 4.0, "w2"),
        about("TrialLost", "a", 5.0, status="PENDING", reason="gone"),
        about("ResourcesGranted", "a", 6.0, status="PENDING", actions=[restore]),
        started("a", 7.0, "w1"),
    )
    [trial] = projection.trials
    assert [(one.outcome, one.restored_from) for one in trial.attempts] == [
        ("paused", None),
        ("lost", 3),
        ("running", 3),
    ]
    assert (trial.starts, trial.restores, trial.pauses) == (3, 2, 1)
    assert trial.attempt is trial.attempts[-1]


def test_what_ran_under_a_driver_that_died_ends_at_its_last_record():
    projection = projection_of(
        suggested("a"),
        started("a", 1.0),
        result("a", 1, 5.0, loss=1.0),
        {"event": "SessionBegan", "time": 1_000.0},
    )
    assert projection.trials[0].attempts[0].end == 5.0


def test_an_error_is_kept_with_the_end_of_its_traceback():
    error = {"message": "ValueError: no", "traceback": "x" * 50_000 + "the end"}
    projection = projection_of(
        suggested("a"),
        started("a", 1.0),
        about("TrialFailed", "a", 2.0, status="ERROR", error=error),
    )
    [trial] = projection.trials
    assert (trial.status, trial.error, trial.failures) == ("ERROR", "ValueError: no", 1)
    assert trial.traceback.endswith("the end")
    assert len(trial.traceback) == 10_000


@pytest.mark.parametrize(
    ("early", "saved", "outcome"), [(True, (8, 1, 0.8), "STOPPED"), (False, (0, 0, 0.0), "TERMINATED")]
)
def test_work_is_saved_by_trials_that_their_scheduler_and_no_criterion_has_ended(early, saved, outcome):
    begin = action("StartTrial", "a", milestones=[["training_iteration", 10]])
    stop = action("StopTrial", "a", reason="poor", early=early)
    projection = projection_of(
        suggested("a"),
        about("ResourcesGranted", "a", 1.0, status="PENDING", actions=[begin]),
        started("a", 1.0),
        result("a", 1, 2.0, loss=1.0),
        result("a", 2, 3.0, loss=1.0, actions=[stop]),
        about("TrialStopped", "a", 4.0, status="TERMINATED"),
    )
    assert (projection.saved_iterations, projection.num_stopped_early, projection.saved_share) == saved
    assert projection.trials[0].outcome == outcome


def test_nothing_is_saved_by_the_user_who_ends_everything():
    stop = action("StopTrial", "a", reason="enough")
    projection = projection_of(
        suggested("a"),
        suggested("b"),
        result("a", 1, 1.0, loss=1.0),
        result("b", 9, 1.0, loss=1.0),
        {"event": "StopRequested", "reason": "enough", "time": 2.0, "actions": [stop]},
    )
    assert (projection.num_stopped_early, projection.stop_reason) == (0, "enough")


def test_a_new_share_of_the_cluster_changes_no_trial():
    share = {"do": "SetShare", "weight": 2.0, "priority": None}
    record = {"event": "ShareRequested", "weight": 2.0, "priority": None, "time": 2.0, "actions": [share]}
    projection = projection_of(suggested("a"), record)
    assert ([trial.status for trial in projection.trials], projection.now) == (["PENDING"], 2.0)


def test_actions_move_trials_that_the_event_is_not_about():
    records = [{**suggested(name), "actions": []} for name in "abcd"]
    orders = [
        action("FinishTrial", "a", reason="was not promoted"),
        action("GiveUp", "b", reason="lost too often"),
        action("UnpauseTrial", "c"),
        action("EndExperiment", "", reason="time is up"),
    ]
    projection = projection_of(*records, {"event": "TimePassed", "time": 2.0, "actions": orders})
    assert [trial.status for trial in projection.trials] == [
        "TERMINATED",
        "ERROR",
        "PENDING",
        "PENDING",
    ]
    assert projection.stop_reason == "time is up"
    again = action("ReopenTrial", "b", fresh=True)
    projection.add({"event": "TimePassed", "time": 3.0, "actions": [again]})
    assert projection.counts == {
        "PENDING": 3,
        "RUNNING": 0,
        "PAUSED": 0,
        "TERMINATED": 1,
        "ERROR": 0,
    }


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"event": "ResultReported"},
        about("ResultReported", "a", 1.0, metrics=[1]),
        about("ResultReported", "a", 1.0, metrics={"training_iteration": "x"}),
        about("TrialFailed", "a", 1.0, error=None),
        about("TrialEnded", "a", 1.0, status="ASLEEP"),
        {"event": "TimePassed", "time": 1.0, "actions": [7]},
        {"event": "Suggested", "trial_id": ["b"], "config": {}, "time": 1.0},
        {"event": "Suggested", "trial_id": "b", "config": 7, "time": 1.0},
    ],
)
def test_a_record_that_makes_no_sense_is_counted_and_skipped(record):
    projection = projection_of(suggested("a"))
    projection.add(record)
    projection.add(result("a", 1, 2.0, loss=0.5))
    assert projection.malformed == 1
    assert projection.best_value == 0.5


def test_only_those_that_have_changed_are_looked_at():
    projection = projection_of(*(suggested(f"t{i}") for i in range(100)))
    version = projection.version
    projection.add(result("t7", 1, 1.0, loss=0.5))
    projection.add(result("t3", 1, 1.0, loss=0.5))
    projection.add(result("t7", 2, 1.0, loss=0.5))
    assert [trial.trial_id for trial in projection.changed_since(version)] == ["t7", "t3"]


def test_asha_says_what_trials_were_compared_with():
    projection = projection_of(*asha_journal())
    visits = [visit for trial in projection.trials for visit in trial.rungs]
    assert {visit.budget for visit in visits} == {1.0, 3.0, 9.0, 27.0}
    stopped = [one for one in visits if one.outcome == "stopped" and one.budget < 27]
    assert stopped
    assert all(one.value >= one.cutoff for one in stopped)  # it rounds to six digits
    assert all(one.cutoff is None for one in visits if one.outcome == "continued")
    assert projection.full_budget == 27
    assert projection.num_stopped_early == len(stopped)
    spent = sum(trial.iteration for trial in projection.trials)
    assert projection.saved_iterations == sum(27 - trial.iteration for trial in projection.trials)
    assert projection.num_results == spent


def test_population_based_training_names_the_donors():
    projection = projection_of(*pbt_journal())
    assert projection.exploits
    for one in projection.exploits:
        assert one.clone != one.donor
        assert one.resumed % 4 == 0
    last = {one.clone: one.donor for one in projection.exploits}
    assert {trial.index: trial.parent for trial in projection.trials if trial.parent >= 0} == last
    assert all(trial.iteration == 20 for trial in projection.trials)


def test_live_records_tell_the_same_as_the_journal():
    class Live(MemoryStore):
        def __init__(self):
            super().__init__()
            self.projection = ExperimentProjection(metric="loss", mode="min")

        def append(self, record):
            self.projection.add(record)
            return super().append(record)

    store = Live()
    journal = projection_of(*asha_journal(store))
    live = store.projection
    assert live.malformed == 0
    assert live.improvements == journal.improvements
    assert [(trial.attempts, trial.rungs) for trial in live.trials] == [
        (trial.attempts, trial.rungs) for trial in journal.trials
    ]


def test_memory_is_bounded_by_the_trials_whatever_they_report():
    projection = ExperimentProjection(metric="loss", mode="min", max_points=32)
    projection.add(suggested("a"))
    for iteration in range(1, 20_000):
        projection.add(result("a", iteration, float(iteration), loss=-float(iteration)))
    assert len(projection.trials[0].curves[0]) <= 32
    assert len(projection.improvements) <= 4_096
    assert projection.best_value == -19_999.0
    assert len(pickle.dumps(projection)) < 500_000


def test_the_trials_of_this_session_say_how_long_it_will_take():
    records = [suggested(f"t{i}") for i in range(4)]
    ends = [about("TrialEnded", f"t{i}", 10.0 * i, status="TERMINATED") for i in (1, 2)]
    assert projection_of(*records, *ends, total=4).remaining == 20.0
    assert projection_of(*records, *ends).remaining is None


def added(trial_id: str, time: float) -> dict[str, Any]:
    resources = {"bundles": [{"CPU": 1.0}], "strategy": "PACK"}
    return about("TrialAddRequested", trial_id, time, config={"x": 1}, resources=resources, status="PENDING")


def test_an_added_trial_counts_once_in_the_total():
    records = [suggested("a"), suggested("b"), added("c", 1.0), added("c", 2.0)]
    assert projection_of(*records, total=2).total == 3
    assert projection_of(*records).total is None


@pytest.mark.parametrize(("samples", "total"), [(5, 6), (1, 3), (None, None)])
def test_a_new_driver_may_have_another_total(samples: int | None, total: int | None):
    began = {"event": "SessionBegan", "time": 9.0, "number": 2, "total_samples": samples}
    projection = projection_of(suggested("a"), suggested("b"), added("c", 1.0), began, total=2)
    assert projection.total == total


def test_the_total_is_at_least_the_number_of_trials():
    began = {"event": "SessionBegan", "time": 9.0, "number": 2, "total_samples": 1}
    assert projection_of(suggested("a"), began, suggested("b"), total=1).total == 2
