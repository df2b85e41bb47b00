"""Results: what is kept, who is shown them, what is decided."""

from __future__ import annotations

import pytest
from experiment_kit import Lab, bring, committed, continues, kinds

from dasktune.errors import StorageError
from dasktune.experiment.trial_index import TrialIndex
from dasktune.experiment.trial_state import trial_from_state, trial_state
from dasktune.schedulers.decision import Continue, Pause, Stop
from dasktune.search import STOPPED_EARLY
from dasktune.stopper import CriteriaStopper
from dasktune.trial.actions import DeleteCheckpoint, PauseTrial, SaveTrial, StopTrial
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import (
    ResultReported,
    TrialEnded,
    TrialPaused,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.retention import Retention
from dasktune.trial.rows.trial_history import BLOCK_ROWS, History
from dasktune.trial.status import TrialStatus

NAN = float("nan")


def test_a_result_is_kept_and_shown_to_everyone_once():
    lab = Lab()
    trial = lab.running()
    actions = lab.result(trial, 1, loss=0.5)
    assert continues(actions, trial)
    assert actions[0].seq == 2
    assert actions[0].milestones == EVERY_RESULT
    assert trial.history == [{"training_iteration": 1, "loss": 0.5}]
    assert lab.scheduler.calls[-1] == ("result 1", trial.trial_id)
    assert lab.search.results == lab.stopper.shown == [(trial.trial_id, 1)]


def test_a_worker_that_does_not_wait_gets_no_answer():
    lab = Lab()
    trial = lab.running()
    assert lab.result(trial, 1, awaits=False) == []
    assert lab.scheduler.calls[-1] == ("result 1", trial.trial_id)


def test_a_repeated_result_is_ignored():
    lab = Lab()
    trial = lab.running()
    event = lab.event(trial, ResultReported, metrics={"training_iteration": 1})
    assert continues(lab.handle(event), trial)
    assert lab.handle(event) == []
    assert len(trial.history) == len(lab.search.results) == 1


def test_a_message_that_arrives_after_its_successor_is_ignored():
    lab = Lab()
    trial = lab.running()
    late = lab.event(trial, ResultReported, metrics={"training_iteration": 1})
    lab.result(trial, 2)
    assert lab.handle(late) == []
    assert [row["training_iteration"] for row in trial.history] == [2]


def test_a_lost_message_costs_its_row_only():
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 1)
    lab.event(trial, ResultReported, metrics={"training_iteration": 2})
    assert continues(lab.result(trial, 3), trial)
    assert [row["training_iteration"] for row in trial.history] == [1, 3]


def test_what_a_past_incarnation_still_says_is_ignored():
    lab = Lab()
    trial = lab.running()
    ghost = lab.event(trial, ResultReported, metrics={"training_iteration": 9})
    lab.lose(trial)
    assert lab.handle(ghost) == []
    lab.start(trial)
    assert lab.handle(ghost) == []
    assert trial.history == []


def test_what_comes_after_the_end_is_ignored():
    lab = Lab()
    trial = lab.running()
    late = [
        lab.event(trial, ResultReported, metrics={"training_iteration": 1}),
        lab.event(trial, TrialEnded),
        lab.event(trial, TrialStopped),
    ]
    lab.tell(trial, TrialEnded)
    assert [lab.handle(event) for event in late] == [[], [], []]
    assert lab.seen_once(trial, "complete")


def test_a_paused_trial_ignores_its_old_worker():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSED)
    assert lab.lose(trial) == []
    assert lab.result(trial, 7) == []
    assert trial.status is TrialStatus.PAUSED


def test_an_undefined_metric_is_kept_as_it_is():
    lab = Lab()
    trial = lab.running()
    assert continues(lab.result(trial, 1, loss=NAN), trial)
    assert trial.history[0]["loss"] != trial.history[0]["loss"]


# Decisions


def test_a_scheduler_may_stop_a_trial_at_its_result():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Stop("too bad")
    assert lab.result(trial, 1) == [
        StopTrial(trial_id=trial.trial_id, incarnation=1, reason="too bad", early=True)
    ]
    assert lab.search.results == []
    lab.tell(trial, TrialStopped)
    assert (trial.status, trial.reason) == (TrialStatus.TERMINATED, "too bad")
    last = {"training_iteration": 1, STOPPED_EARLY: True}
    assert lab.search.ends == [(trial.trial_id, last, False)]
    assert lab.seen_once(trial, "complete")


def test_a_trial_that_a_scheduler_lets_end_in_time_was_not_stopped_early():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Stop("has come to max_t", early=False)
    lab.result(trial, 1)
    lab.tell(trial, TrialStopped)
    assert lab.search.ends == [(trial.trial_id, {"training_iteration": 1}, False)]


def test_that_a_trial_was_stopped_early_is_part_of_the_state():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Stop("too bad")
    lab.result(trial, 1)
    assert not trial_from_state(trial_state(lab.running())).stopped_early
    assert trial_from_state(trial_state(trial)).stopped_early


def test_a_scheduler_may_pause_a_trial_and_it_resumes_from_its_checkpoint():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Pause("others first", save=False)
    assert lab.result(trial, 1) == [
        PauseTrial(trial_id=trial.trial_id, incarnation=1, save=False, reason="others first")
    ]
    lab.save(trial, 0, 1)
    lab.tell(trial, TrialPaused)
    assert trial.status is TrialStatus.PAUSED
    assert lab.experiment.next_trial() is trial
    action = lab.grant(trial)
    assert action.checkpoint == trial.checkpoint
    assert (action.incarnation, action.next_checkpoint) == (2, 1)
    assert trial.status is TrialStatus.RESTORING


def test_a_scheduler_may_ask_for_a_checkpoint():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Continue(save=True)
    assert kinds(lab.result(trial, 1)) == ["SaveTrial"]
    assert trial.status is TrialStatus.SAVING
    lab.save(trial, 0, 1)
    assert trial.status is TrialStatus.RUNNING
    (again,) = lab.result(trial, 2)
    assert again == SaveTrial(trial_id=trial.trial_id, incarnation=1, seq=4)
    # It had nothing to save: its next result says so.
    lab.scheduler.decide = lambda *_: Continue()
    assert continues(lab.result(trial, 3), trial)


def test_a_worker_that_does_not_wait_is_not_asked_for_a_checkpoint():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Continue(save=True)
    assert lab.result(trial, 1, awaits=False) == []


def test_a_trial_that_ends_while_it_saves_has_ended():
    lab = Lab()
    trial = bring(lab, TrialStatus.SAVING)
    lab.tell(trial, TrialEnded)
    assert lab.seen_once(trial, "complete")


@pytest.mark.parametrize("status", [TrialStatus.PAUSING, TrialStatus.STOPPING])
def test_what_crosses_an_order_to_leave_is_kept_but_decides_nothing(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    calls = list(lab.scheduler.calls)
    assert lab.result(trial, 2) == []
    assert lab.save(trial, 0, 2) == []
    assert trial.last_iteration == 2
    assert trial.checkpoint == committed(trial, 0, 2)
    assert lab.scheduler.calls == calls
    assert trial.status is status


def test_a_criterion_that_is_met_while_a_trial_leaves_ends_it_only_when_it_resumes():
    """Else a trial that was to be paused, or to be a clone, would have ended instead."""
    lab = Lab(criteria=CriteriaStopper({"acc": 0.9}))
    trial = bring(lab, TrialStatus.PAUSING)
    assert lab.result(trial, 2, acc=0.95) == []
    lab.tell(trial, TrialPaused)
    assert trial.status is TrialStatus.PAUSED
    lab.start(trial)
    [order] = lab.result(trial, 3, acc=0.95)
    assert isinstance(order, StopTrial)


def test_a_pausing_trial_may_end_instead():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSING)
    lab.tell(trial, TrialEnded)
    assert lab.seen_once(trial, "complete")


def test_a_start_may_arrive_after_the_stop_was_ordered():
    lab = Lab()
    trial = bring(lab, TrialStatus.STARTING)
    lab.stop()
    lab.tell(trial, TrialStarted, worker="w")
    assert trial.status is TrialStatus.STOPPING
    assert trial.worker == "w"
    lab.tell(trial, TrialStopped)
    assert lab.seen_once(trial, "complete")


# Stoppers


def test_a_stop_criterion_ends_a_trial_and_every_other_stopper_still_sees_the_result():
    lab = Lab(criteria=CriteriaStopper({"acc": 0.9}))
    trial = lab.running()
    assert continues(lab.result(trial, 1, acc=0.8), trial)
    (action,) = lab.result(trial, 2, acc=0.95)
    assert action.reason == "acc >= 0.9"
    assert lab.stopper.shown == [(trial.trial_id, 1), (trial.trial_id, 2)]
    assert ("result 2", trial.trial_id) not in lab.scheduler.calls
    assert lab.search.results == [(trial.trial_id, 1)]


def test_a_stopper_ends_a_trial_before_the_scheduler_is_asked():
    lab = Lab()
    trial = lab.running()
    lab.stopper.stops_at = 1
    (action,) = lab.result(trial, 1)
    assert action.reason == "RecordingStopper said so"
    assert [what for what, _ in lab.scheduler.calls] == ["add", "start"]


def test_a_stopper_may_end_everything_at_a_result():
    lab = Lab()
    trial, other = lab.running(), lab.running()
    lab.stopper.everything = True
    actions = lab.result(trial, 1)
    assert kinds(actions) == ["EndExperiment", "StopTrial", "StopTrial"]
    assert [action.trial_id for action in actions[1:]] == [trial.trial_id, other.trial_id]
    assert lab.experiment.state.stop_reason == "RecordingStopper said so"
    assert not lab.experiment.wants_suggestion


def test_a_stopper_gets_the_time_of_each_event_of_a_trial():
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 1)
    assert lab.stopper.now == lab.now
    lab.tell(trial, TrialEnded)
    assert lab.stopper.now == lab.now
    lab.time_passes()
    assert lab.stopper.now == lab.now


def test_nothing_starts_in_the_place_of_a_trial_that_ends_after_the_time_is_up():
    lab = Lab()
    trial, waiting = lab.running(), lab.add()
    lab.stopper.everything = True
    assert kinds(lab.tell(trial, TrialEnded)) == ["EndExperiment", "FinishTrial"]
    assert waiting.status is TrialStatus.TERMINATED
    assert lab.experiment.finished


# Results that are computed again


def restarted(lab: Lab, *, iterations: int, checkpoint: int | None = None):
    """Return a trial that reported so many iterations and then lost its worker."""
    trial = lab.running()
    for iteration in range(1, iterations + 1):
        lab.result(trial, iteration, checkpoint=0 if iteration == checkpoint else None, loss=1.0)
    lab.lose(trial)
    lab.start(trial)
    return trial


def test_a_result_that_is_computed_again_replaces_its_row_and_is_shown_to_none():
    lab = Lab()
    trial = restarted(lab, iterations=3)
    calls, results, shown = (
        list(lab.scheduler.calls),
        list(lab.search.results),
        list(lab.stopper.shown),
    )
    lab.scheduler.decide = lambda *_: Stop("never asked")
    assert continues(lab.result(trial, 2, loss=0.5), trial)
    assert (lab.scheduler.calls, lab.search.results, lab.stopper.shown) == (calls, results, shown)
    assert [row["loss"] for row in trial.history] == [1.0, 0.5, 1.0]


def test_stop_criteria_are_tested_on_results_that_are_computed_again():
    lab = Lab(criteria=CriteriaStopper({"acc": 0.9}))
    trial = restarted(lab, iterations=3)
    assert kinds(lab.result(trial, 2, acc=0.95)) == ["StopTrial"]
    assert trial.reason == "acc >= 0.9"


def test_a_result_behind_the_newest_that_was_never_there_is_dropped():
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 2)
    lab.result(trial, 4)
    lab.lose(trial)
    lab.start(trial)
    assert continues(lab.result(trial, 3), trial)
    assert [row["training_iteration"] for row in trial.history] == [2, 4]


def test_the_first_new_result_after_a_restart_is_shown_to_everyone():
    lab = Lab()
    trial = restarted(lab, iterations=2, checkpoint=1)
    lab.result(trial, 2)
    lab.result(trial, 3)
    assert lab.search.results == lab.stopper.shown
    assert [iteration for _, iteration in lab.search.results] == [1, 2, 3]
    assert [row["training_iteration"] for row in trial.history] == [1, 2, 3]


@pytest.mark.parametrize("first", [0, -5])
def test_an_iteration_may_begin_anywhere(first: int):
    lab = Lab()
    trial = lab.running()
    lab.result(trial, first)
    lab.result(trial, first + 1)
    assert [row["training_iteration"] for row in trial.history] == [first, first + 1]
    assert len(lab.search.results) == 2


# Checkpoints


def test_retention_deletes_what_is_neither_among_the_best_nor_the_newest():
    keep = Retention(num_to_keep=1, score_attribute="acc")
    lab = Lab(retention=keep)
    trial = lab.running()
    deleted = []
    for iteration, acc in enumerate([0.5, 0.9, 0.7, 0.8], start=1):
        actions = lab.result(trial, iteration, checkpoint=iteration - 1, acc=acc)
        deleted += [action.checkpoint.index for action in actions if isinstance(action, DeleteCheckpoint)]
    assert deleted == [0, 2]
    assert [record.index for record in trial.checkpoints] == [1, 3]
    assert trial.next_checkpoint == 4


def test_a_trial_resumes_from_the_newest_checkpoint_with_the_next_number():
    lab = Lab(retention=Retention(num_to_keep=1, score_attribute="acc"))
    trial = lab.running(lr=0.1)
    lab.result(trial, 1, checkpoint=0, acc=0.9)
    lab.result(trial, 2, checkpoint=1, acc=0.1)
    lab.lose(trial)
    action = lab.grant(trial)
    assert action.checkpoint.index == 1
    assert action.next_checkpoint == 2
    assert action.config == {"lr": 0.1}
    assert trial.status is TrialStatus.RESTORING


def test_a_state_without_rows_has_their_number_and_the_last_one():
    lab = Lab()
    trial = lab.running()
    for iteration in (1, 2, 3):
        lab.result(trial, iteration, loss=iteration)
    state = trial_state(trial, rows=False)
    assert "history" not in state
    assert (state["num_results"], state["last_result"]) == (3, trial.last_result)
    again = trial_from_state(state, lambda trial_id: {trial.trial_id: trial.history}[trial_id])
    assert again.last_result == trial.last_result
    assert again.history == trial.history
    assert trial_state(lab.add(), rows=False)["history"] == []


@pytest.mark.parametrize("number", [0, -1, True, 2.0, "2", None])
def test_a_state_with_an_impossible_number_of_results_is_refused(number: object):
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 1)
    state = {**trial_state(trial, rows=False), "num_results": number}
    with pytest.raises(StorageError, match="num_results must be a whole number, at least 1, got"):
        trial_from_state(state, lambda trial_id: trial.history)


def test_a_state_has_the_results_that_a_clone_needs_and_reads_no_others():
    lab = Lab()
    trial = lab.running()
    for iteration in range(1, 301):
        lab.result(trial, iteration, loss=iteration)
    state = trial_state(trial, rows=False, since=290)
    assert [row["training_iteration"] for row in state["results_before_last"]] == list(range(290, 300))
    assert "results_before_last" not in trial_state(trial, rows=False, since=300)
    # No more than what is in memory as it came.
    assert len(trial_state(trial, rows=False, since=1)["results_before_last"]) < 2 * BLOCK_ROWS
    reads = []

    def read(trial_id: str) -> History:
        reads.append(trial_id)
        return History(trial.history)

    again = trial_from_state(state, read)
    again.history.cut_back(295)
    assert again.last_iteration == 295
    assert len(again.history) == 295
    assert not again.history.record({"training_iteration": 292, "loss": 0.0})
    assert reads == []
    assert [row["training_iteration"] for row in again.history] == list(range(1, 296))
    assert reads == [trial.trial_id]


@pytest.mark.parametrize("before", [None, {}, [{"training_iteration": 1}, {"training_iteration": 2}]])
def test_a_state_with_more_results_than_their_number_is_refused(before: object):
    lab = Lab()
    trial = lab.running()
    for iteration in (1, 2):
        lab.result(trial, iteration)
    state = {**trial_state(trial, rows=False), "results_before_last": before}
    with pytest.raises(StorageError, match="has more results than their number, 2"):
        trial_from_state(state, lambda trial_id: trial.history)


def test_the_results_that_clones_need_are_those_since_the_oldest_newest_checkpoint():
    lab = Lab()
    donor, clone, ended = lab.running(), lab.running(), lab.running()
    index = lab.experiment.trial_index
    for iteration in range(1, 11):
        for trial in (donor, clone, ended):
            lab.result(trial, iteration)
    records = [
        CheckpointRecord(path=f"d/{number}", index=number, iteration=iteration)
        for number, iteration in enumerate((2, 6, 8))
    ]
    first, second, third = records
    donor.checkpoints, clone.checkpoints, clone.memory = [first, second], [first], third

    def kept() -> list[int]:
        return [len(state.get("results_before_last", ())) for state in index.state_dict(rows=False)["trials"]]

    assert kept() == [0, 0, 0]
    clone.ancestry = (0,)
    assert kept() == [4, 4, 4]
    donor.checkpoints = []
    assert kept() == [2, 2, 2]
    ended.status = TrialStatus.TERMINATED
    ended.checkpoints = [first]
    assert kept() == [2, 2, 0]
    clone.checkpoints, clone.memory = [], None
    assert kept() == [0, 0, 0]


def test_a_scheduler_that_clones_needs_them_before_the_first_clone():
    lab = Lab()
    trial = lab.running()
    for iteration in range(1, 6):
        lab.result(trial, iteration)
    trial.checkpoints = [CheckpointRecord(path="d/1", index=1, iteration=3)]
    index = lab.experiment.trial_index
    [state] = index.state_dict(rows=False, clones=True)["trials"]
    assert [row["training_iteration"] for row in state["results_before_last"]] == [3, 4]


@pytest.mark.parametrize(("oldest", "is_short"), [(100, True), (250, False)])
def test_a_trial_whose_results_do_not_reach_back_to_the_clone_point_is_found(oldest: int, is_short: bool):
    lab = Lab()
    ahead, donor, ended = lab.running(), lab.running(), lab.running()
    for iteration in range(1, 301):
        lab.result(ahead, iteration)
        lab.result(ended, iteration)
        if iteration <= oldest:
            lab.result(donor, iteration)
    donor.checkpoints = [
        CheckpointRecord(path=f"trials/{donor.trial_id}/checkpoint_000001_i01", index=1, iteration=oldest)
    ]
    donor.next_checkpoint = 2
    index = lab.experiment.trial_index
    histories = {key: History(trial.history) for key, trial in index.trials.items()}
    assert index.cut_short() is None
    assert Lab().experiment.trial_index.cut_short() is None  # no trial has a checkpoint
    reads = []

    def read(trial_id: str) -> History:
        reads.append(trial_id)
        return histories[trial_id]

    state = index.state_dict(rows=False, clones=True)
    again = TrialIndex()
    again.load_state_dict(state, read)
    again.trials[ended.trial_id].status = TrialStatus.TERMINATED
    found = again.cut_short()
    assert (found is not None) == is_short
    assert reads == []
    if found is not None:
        assert found.trial_id == ahead.trial_id
        found.history.read_stored()
        histories[found.trial_id].read_stored()  # all of it is in memory
        assert reads == [ahead.trial_id]


def test_a_state_without_rows_needs_the_journal_that_it_belongs_to():
    lab = Lab()
    trial = lab.running()
    for iteration in (1, 2):
        lab.result(trial, iteration)
    state = trial_state(trial, rows=False)
    with pytest.raises(StorageError, match="nothing to read them from"):
        trial_from_state(state)
    other = trial_from_state(state, lambda trial_id: History([{"training_iteration": 1}]))
    with pytest.raises(StorageError, match="has 1 results in the journal and had 2"):
        list(other.history)


def test_without_streaming_a_trial_waits_at_every_result():
    lab = Lab(streaming=False)
    assert lab.grant(lab.add()).milestones == EVERY_RESULT
