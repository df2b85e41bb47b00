"""What the user wants of a running experiment: rests, holds and trials of the user's own."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from experiment_kit import TWO_CPUS, WAYS, Lab, bring, kinds

from dasktune.schedulers.decision import (
    Continue,
    Exploit,
    ExploitOther,
    Pause,
    Resize,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.trial.actions import CheckpointTrial, RecallTrial, ResumeTrial, SetShare, SuspendTrial
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.events import (
    HoldRequested,
    ReleaseRequested,
    SessionBegan,
    ShareRequested,
    StartFailed,
    Suggested,
    SuggestionAsked,
    TrialCheckpointRequested,
    TrialEnded,
    TrialPaused,
    TrialReturned,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.status import PublicStatus, TrialStatus

S = TrialStatus

#: By status, what a pause by the user does: the action, the status once the trial has left its
#: worker, and the status after it is resumed.
RESTS = {
    S.PENDING: (SuspendTrial, S.SUSPENDED, S.PENDING),
    S.STARTING: (RecallTrial, S.SUSPENDED, S.PENDING),
    S.RESTORING: (RecallTrial, S.SUSPENDED, S.PENDING),
    S.RUNNING: (RecallTrial, S.SUSPENDED, S.PENDING),
    S.SAVING: (RecallTrial, S.SUSPENDED, S.PENDING),
    S.PAUSING: (SuspendTrial, S.SHELVED, S.PAUSED),
    S.PAUSED: (SuspendTrial, S.SHELVED, S.PAUSED),
    S.RESIZING: (SuspendTrial, S.SUSPENDED, S.PENDING),
    S.YIELDING: (RecallTrial, S.SUSPENDED, S.PENDING),
}


def deciding(lab: Lab, decision: Any) -> None:
    lab.scheduler.decide = lambda *_: decision


def resting(lab: Lab, status: TrialStatus = S.RUNNING) -> Any:
    """Return a trial that was somewhere, and rests now."""
    trial = bring(lab, status)
    lab.pause(trial)
    if trial.status.is_active:
        lab.tell(trial, TrialPaused)
    return trial


# Rests


@pytest.mark.parametrize("status", RESTS)
def test_a_trial_rests_wherever_it_is_and_comes_back_to_where_it_was(status: TrialStatus):
    order, rest, back = RESTS[status]
    lab = Lab()
    trial = bring(lab, status)
    [action] = lab.pause(trial)
    assert (type(action), trial.pause_reason) == (order, "a rest")
    if status.is_active:
        assert trial.public_status is PublicStatus.RUNNING
        assert lab.unpause(trial) == []
        lab.tell(trial, TrialPaused)
    assert (trial.status, trial.public_status) == (rest, PublicStatus.PAUSED)
    assert lab.pause(trial) == []
    assert lab.experiment.next_trial() is None
    [action] = lab.unpause(trial)
    assert isinstance(action, ResumeTrial)
    assert (trial.status, trial.pause_reason) == (back, "")
    assert lab.unpause(trial) == []


@pytest.mark.parametrize("status", [S.STOPPING, S.FAILING, S.TERMINATED, S.ERROR])
def test_a_trial_that_has_ended_or_is_about_to_cannot_rest(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    assert lab.pause(trial) == lab.unpause(trial) == []
    assert trial.status is status


def test_trials_of_the_user_count_beside_those_of_the_search_algorithm(monkeypatch):
    lab = Lab()
    assert lab.experiment.total_trials is None
    monkeypatch.setattr(type(lab.experiment.search), "total_samples", 2)
    for _ in range(2):
        lab.add()
    assert lab.experiment.total_trials == 2
    lab.add_for_the_user()
    assert lab.experiment.total_trials == 3
    later = Lab()
    later.experiment.load_state_dict(lab.experiment.state_dict())
    assert later.experiment.total_trials == 3


def test_there_are_never_fewer_trials_in_total_than_exist(monkeypatch):
    lab = Lab()
    monkeypatch.setattr(type(lab.experiment.search), "total_samples", 1)
    for _ in range(3):
        lab.add()
    assert lab.experiment.total_trials == 3


def test_what_is_saved_for_a_rest_goes_into_the_storage():
    lab = Lab()
    [action] = lab.pause(lab.running())
    assert (action.save, action.kind) == (True, CheckpointKind.PERSISTENT)


def test_a_trial_that_the_user_resumes_goes_first():
    lab = Lab()
    lab.search.lookahead = 9
    trials = [lab.add() for _ in range(3)]
    lab.pause(trials[2])
    lab.unpause(trials[2])
    assert lab.experiment.next_trial() is trials[2]


def test_one_that_rests_resumes_at_its_checkpoint():
    lab = Lab()
    trial = lab.running()
    lab.pause(trial)
    lab.save(trial, 0, 3)
    lab.tell(trial, TrialPaused)
    lab.unpause(trial)
    assert lab.grant(trial).checkpoint.iteration == 3


@pytest.mark.parametrize("kind", [StartFailed, TrialReturned])
def test_who_has_not_begun_rests_without_having_begun(kind: Any):
    lab = Lab()
    trial = bring(lab, S.STARTING)
    lab.pause(trial)
    lab.tell(trial, kind, **({"reason": "no room"} if kind is StartFailed else {}))
    assert trial.status is S.SUSPENDED


def test_messages_that_cross_the_order_to_rest_are_late_and_not_wrong():
    lab = Lab()
    for status in (S.STARTING, S.PAUSING):
        trial = bring(lab, status)
        lab.pause(trial)
        leaving = trial.status
        lab.tell(trial, TrialStarted, worker="w")
        lab.save(trial, 0, 1)
        lab.result(trial, 2, awaits=False)
        assert trial.status is leaving
        assert trial.checkpoints[-1].index == 0
        lab.tell(trial, TrialEnded)
        assert trial.status is S.TERMINATED


@pytest.mark.parametrize("status", [S.RUNNING, S.PAUSING, S.PAUSED])
def test_who_rests_or_is_about_to_can_be_stopped(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    lab.pause(trial)
    lab.stop("enough")
    if trial.status.is_active:
        lab.tell(trial, TrialStopped)
    assert (trial.status, trial.reason) == (S.TERMINATED, "enough")


@pytest.mark.parametrize("status", [S.RUNNING, S.PAUSING])
def test_a_worker_that_dies_meanwhile_makes_no_difference(status: TrialStatus):
    lab = Lab(max_worker_losses=5)
    trial = bring(lab, status)
    lab.pause(trial)
    lab.lose(trial)
    assert trial.status.is_paused_by_user
    assert lab.experiment.next_trial() is None


def test_one_with_too_many_lost_workers_fails_although_it_was_to_rest():
    lab = Lab(max_worker_losses=0)
    trial = lab.running()
    lab.pause(trial)
    assert kinds(lab.lose(trial)) == ["GiveUp"]
    assert trial.status is S.ERROR


@pytest.mark.parametrize("status", [S.RUNNING, S.PAUSING])
@pytest.mark.parametrize(("retries", "after"), [(1, S.SUSPENDED), (0, S.ERROR)])
def test_who_fails_meanwhile_tries_again_when_the_user_lets_it(
    status: TrialStatus, retries: int, after: TrialStatus
):
    lab = Lab(max_failures=retries)
    trial = bring(lab, status)
    lab.pause(trial)
    lab.fail(trial)
    assert trial.status is after


# Results on the way to a rest


def test_results_that_come_before_the_worker_gets_the_pause_are_judged():
    lab = Lab()
    trial = lab.running()
    lab.pause(trial)
    assert lab.result(trial, 1) == []
    assert ("result 1", trial.trial_id) in lab.scheduler.calls
    assert lab.search.results == [(trial.trial_id, 1)]
    assert trial.awaiting_seq == 0


@pytest.mark.parametrize(
    ("decision", "done", "after"),
    [
        (Continue(save=True), [], S.SUSPENDING),
        (Pause("not now"), ["PauseTrial"], S.SHELVING),
        (Resize(TWO_CPUS, "there is room"), ["ResizeTrial"], S.SUSPENDING),
        (Stop("bad"), ["StopTrial"], S.STOPPING),
    ],
)
def test_what_is_decided_on_them_is_done(decision: Any, done: list[str], after: TrialStatus):
    lab = Lab()
    trial = lab.running()
    lab.pause(trial)
    deciding(lab, decision)
    assert kinds(lab.result(trial, 1)) == done
    assert trial.status is after


def test_a_trial_becomes_a_clone_on_its_way_to_a_rest():
    lab = Lab()
    donor, trial = lab.running(), lab.running()
    lab.result(donor, 1, checkpoint=0)
    lab.pause(trial)
    deciding(lab, Exploit(donor.trial_id, {"lr": 2}, "bad"))
    assert kinds(lab.result(trial, 1)) == ["ExploitTrial"]
    lab.tell(trial, TrialPaused)
    assert (trial.status, trial.config) == (S.SUSPENDED, {"lr": 2})
    lab.unpause(trial)
    assert lab.grant(trial).checkpoint.path == donor.checkpoint.path


def test_a_stopper_that_raises_meanwhile_fails_the_trial():
    lab = Lab()
    trial = lab.running()
    lab.pause(trial)
    lab.stopper.breaks = True
    assert kinds(lab.result(trial, 1)) == ["FailTrial"]


# The scheduler and those who rest


def test_no_scheduler_can_wake_what_the_user_paused():
    lab = Lab()
    trial, other = resting(lab), lab.running()
    deciding(lab, Continue(commands=(Unpause(trial_id=trial.trial_id),)))
    assert kinds(lab.result(other, 1)) == ["ContinueTraining"]
    assert trial.status is S.SUSPENDED


def test_what_a_scheduler_resumes_waits_for_the_user_only():
    lab = Lab()
    trial = resting(lab, S.PAUSED)
    other = lab.running()
    deciding(lab, Continue(commands=(Unpause(trial_id=trial.trial_id),)))
    assert kinds(lab.result(other, 1)) == ["ContinueTraining", "UnpauseTrial"]
    assert trial.status is S.SUSPENDED
    lab.unpause(trial)
    assert trial.status is S.PENDING


@pytest.mark.parametrize("status", [S.RUNNING, S.PAUSED])
def test_a_scheduler_may_stop_or_replace_what_the_user_paused(status: TrialStatus):
    lab = Lab()
    donor = lab.running()
    lab.result(donor, 1, checkpoint=0)
    trial = resting(lab, status)
    rests = trial.status
    key = trial.trial_id
    wish = ExploitOther(trial_id=key, donor=donor.trial_id, config={"lr": 2}, reason="bad")
    deciding(lab, Continue(commands=(wish,)))
    lab.result(donor, 2)
    assert (trial.status, trial.config) == (rests, {"lr": 2})
    deciding(lab, Continue(commands=(StopOther(trial_id=key, reason="beaten"),)))
    lab.result(donor, 3)
    assert trial.status is S.TERMINATED


def test_a_standstill_waits_for_the_user_and_ends_none():
    lab = Lab()
    paused = bring(lab, S.PAUSED)
    rests = resting(lab)
    lab.no_more()
    lab.scheduler.strands = True
    for _ in range(3):
        assert lab.time_passes() == []
    assert not lab.experiment.finished
    assert (paused.status, rests.status) == (S.PAUSED, S.SUSPENDED)
    assert lab.experiment.waits_for_user
    # From here on it is the scheduler's again.
    lab.unpause(rests)
    assert kinds(lab.time_passes()) == ["FinishTrial", "FinishTrial"]
    assert lab.experiment.finished


def test_a_search_that_waits_is_not_asked_again_and_again_while_a_trial_is_suspended():
    lab = Lab()
    resting(lab)
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    lab.time_passes()
    assert not lab.experiment.wants_suggestion


# The search and those who rest


def test_who_rests_counts_in_no_limit_of_the_search():
    lab = Lab()
    trial = lab.running()
    key = trial.trial_id
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert not lab.experiment.wants_suggestion
    lab.pause(trial)
    assert lab.search.pauses == []
    lab.tell(trial, TrialPaused)
    assert lab.search.pauses == [("pause", key)]
    assert lab.experiment.wants_suggestion
    lab.unpause(trial)
    assert lab.search.pauses == [("pause", key), ("unpause", key)]


def test_who_has_not_begun_frees_its_place_at_once():
    lab = Lab()
    trial = lab.add()
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    lab.pause(trial)
    assert lab.search.pauses == [("pause", trial.trial_id)]
    assert lab.experiment.wants_suggestion


def test_the_search_gets_one_pause_of_a_trial_with_two_reasons_to_wait():
    lab = Lab()
    lab.scheduler.lets_others_come = True
    trial = bring(lab, S.PAUSED)
    lab.pause(trial)
    lab.unpause(trial)
    key = trial.trial_id
    assert lab.search.pauses == [("pause", key)]
    lab.pause(trial)
    lab.stop()
    assert lab.search.pauses == [("pause", key)]


# Holds


def test_nothing_starts_while_the_user_holds_it():
    lab = Lab()
    lab.search.lookahead = 2
    runs, waits = lab.running(), lab.add()
    assert lab.handle(HoldRequested(time=lab.tick())) == []
    assert not lab.experiment.wants_suggestion
    assert lab.experiment.next_trial() is None
    lab.result(runs, 1)
    lab.tell(runs, TrialEnded)
    for _ in range(3):
        assert lab.time_passes() == []
    assert waits.status is S.PENDING
    lab.handle(ReleaseRequested(time=lab.tick()))
    assert lab.experiment.wants_suggestion
    assert lab.experiment.next_trial() is waits


def test_a_suggestion_that_was_asked_for_before_the_hold_waits():
    lab = Lab()
    lab.handle(SuggestionAsked(trial_id=lab.experiment.next_trial_id, time=lab.tick()))
    lab.handle(HoldRequested(time=lab.tick()))
    assert lab.add().status is S.PENDING
    assert lab.experiment.next_trial() is None


def test_an_experiment_that_has_nothing_left_ends_although_it_is_held():
    lab = Lab()
    trial = lab.running()
    lab.no_more()
    lab.handle(HoldRequested(time=lab.tick()))
    lab.tell(trial, TrialEnded)
    assert lab.experiment.finished


def test_a_held_experiment_can_be_stopped():
    lab = Lab()
    lab.add()
    lab.handle(HoldRequested(time=lab.tick()))
    lab.stop()
    assert lab.experiment.finished


# The share of the cluster


def test_a_share_that_the_user_sets_reaches_the_executor():
    lab = Lab()
    [both] = lab.handle(ShareRequested(weight=2.0, priority=1.0, time=lab.tick()))
    [one] = lab.handle(ShareRequested(weight=None, priority=-1.0, time=lab.tick()))
    assert (both, one) == (SetShare(weight=2.0, priority=1.0), SetShare(weight=None, priority=-1.0))
    assert (lab.experiment.state.weight, lab.experiment.state.priority) == (2.0, -1.0)


def test_the_next_driver_gets_the_share_that_the_user_has_set_last():
    lab, other, untouched = Lab(), Lab(), Lab()
    lab.handle(ShareRequested(weight=2.0, priority=None, time=lab.tick()))
    lab.handle(ShareRequested(weight=0.5, priority=None, time=lab.tick()))
    other.experiment.load_state_dict(decode(encode(lab.experiment.state_dict())))
    assert other.handle(SessionBegan(time=other.tick())) == [SetShare(weight=0.5, priority=None)]
    lab.handle(ShareRequested(weight=None, priority=None, yields_after=inf, time=lab.tick()))
    last = Lab()
    last.experiment.load_state_dict(decode(encode(lab.experiment.state_dict())))
    [share] = last.handle(SessionBegan(time=last.tick()))
    assert share == SetShare(weight=0.5, priority=None, yields_after=inf)
    assert untouched.handle(SessionBegan(time=untouched.tick())) == []


# Trials of the user's own


def test_an_added_trial_goes_before_the_suggestions_but_not_before_trials_that_have_begun():
    lab = Lab(max_worker_losses=5)
    lab.search.lookahead = 9
    lost, suggested = lab.running(), lab.add()
    lab.lose(lost)
    first, second = lab.add_for_the_user(lr=1), lab.add_for_the_user(lr=2)
    order = list(lab.experiment.trial_index.pending.values())
    assert order == [lost, first, second, suggested]
    assert (first.config, first.tag, first.added) == ({"lr": 1}, "added", True)


def test_the_scheduler_gets_an_added_trial_and_the_search_never_does():
    lab = Lab()
    trial = lab.add_for_the_user(lr=1)
    assert ("add", trial.trial_id) in lab.scheduler.calls
    lab.start(trial)
    lab.result(trial, 1)
    lab.pause(trial)
    lab.tell(trial, TrialPaused)
    lab.unpause(trial)
    lab.start(trial)
    lab.tell(trial, TrialEnded)
    assert lab.scheduler.ends(trial) == ["complete"]
    assert not lab.search.knows(trial)


def test_an_added_trial_has_a_name_that_no_other_gets():
    lab = Lab()
    asked = lab.experiment.next_trial_id
    lab.handle(SuggestionAsked(trial_id=asked, time=lab.tick()))
    added = lab.add_for_the_user()
    assert lab.experiment.next_trial_id == asked != added.trial_id
    # The search has nothing to offer after all.
    lab.handle(Suggested(trial_id=asked, config=None, time=lab.tick()))
    later = lab.add()
    assert later.trial_id != added.trial_id


def test_a_trial_can_be_added_after_the_last_suggestion():
    lab = Lab()
    lab.running()
    lab.no_more()
    trial = lab.add_for_the_user()
    assert lab.experiment.next_trial() is trial


def test_who_is_added_after_the_stop_is_ended():
    lab = Lab()
    lab.stop("enough")
    assert lab.add_for_the_user().reason == "enough"


# Snapshots


def test_a_snapshot_has_the_suspended_the_added_and_the_held_trials():
    lab, other = Lab(), Lab()
    resting(lab), resting(lab, S.PAUSED), lab.add_for_the_user(lr=1)
    lab.handle(HoldRequested(time=lab.tick()))
    state = decode(encode(lab.experiment.state_dict()))
    other.experiment.load_state_dict(state)
    assert decode(encode(other.experiment.state_dict())) == state
    assert other.experiment.state.on_hold
    assert list(other.experiment.trial_index.paused_by_user) == list(
        lab.experiment.trial_index.paused_by_user
    )
    assert [one.added for one in other.experiment.trials.values()] == [False, False, True]


# Checkpoints


@pytest.mark.parametrize("status", WAYS)
def test_a_trial_saves_a_checkpoint_at_the_users_request_only_while_it_trains(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    for _ in range(2):
        actions = lab.handle(TrialCheckpointRequested(trial_id=trial.trial_id, time=lab.tick()))
        trains = status is S.RUNNING
        wanted = CheckpointTrial(trial_id=trial.trial_id, incarnation=trial.incarnation)
        assert actions == ([wanted] if trains else [])
        assert trial.status is status


def test_a_requested_checkpoint_comes_with_a_later_result_or_alone():
    lab = Lab()
    trial = lab.running()
    lab.handle(TrialCheckpointRequested(trial_id=trial.trial_id, time=lab.tick()))
    lab.result(trial, 1, checkpoint=0, awaits=False)
    lab.handle(TrialCheckpointRequested(trial_id=trial.trial_id, time=lab.tick()))
    lab.save(trial, 1, 1)
    assert [record.index for record in trial.checkpoints] == [0, 1]
    assert trial.status is S.RUNNING
