"""Failures of user code, lost workers, and what they cost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from experiment_kit import Lab, bring, continues, kinds

from dasktune.trial.events import (
    StartFailed,
    TrialEnded,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReopenRequested,
    TrialStarted,
    TrialStopped,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

LOSES_ITS_PLACE = (
    TrialStatus.STARTING,
    TrialStatus.RESTORING,
    TrialStatus.RUNNING,
    TrialStatus.SAVING,
)


@pytest.mark.parametrize("status", LOSES_ITS_PLACE)
def test_a_trial_that_loses_its_worker_waits_for_the_next_place(status: TrialStatus):
    lab = Lab()
    other = lab.add()
    trial = bring(lab, status)
    assert lab.lose(trial) == []
    assert trial.status is TrialStatus.PENDING
    assert lab.experiment.next_trial() is trial
    assert other.status is TrialStatus.PENDING
    assert lab.scheduler.ends(trial) == []


def test_a_pausing_trial_that_loses_its_worker_is_paused():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSING)
    lab.lose(trial)
    assert trial.status is TrialStatus.PAUSED


def test_a_stopping_trial_that_loses_its_worker_has_ended():
    lab = Lab()
    trial = bring(lab, TrialStatus.STOPPING)
    lab.lose(trial)
    assert (trial.status, trial.reason) == (TrialStatus.TERMINATED, "bad")
    assert lab.seen_once(trial, "complete")


def test_a_loss_that_comes_twice_counts_once():
    lab = Lab(max_worker_losses=1)
    trial = lab.running()
    event = lab.event(trial, TrialLost, reason="gone")
    lab.handle(event)
    assert lab.handle(event) == []
    assert trial.worker_losses == 1


def test_a_trial_fails_after_too_many_losses_without_progress():
    lab = Lab(max_worker_losses=2)
    trial = lab.running()
    for _ in range(2):
        lab.lose(trial)
        lab.start(trial)
    (action,) = lab.lose(trial)
    assert kinds([action]) == ["GiveUp"]
    assert trial.status is TrialStatus.ERROR
    assert trial.reason == action.reason
    assert "lost its worker 3 times" in trial.reason
    assert "worker w left the cluster" in trial.reason
    assert lab.seen_once(trial, "error")


def test_no_loss_at_all_may_be_allowed():
    lab = Lab(max_worker_losses=0)
    trial = lab.running()
    assert kinds(lab.lose(trial)) == ["GiveUp"]


def test_a_retiring_workers_loss_is_not_charged():
    lab = Lab(max_worker_losses=0)
    trial = lab.running()
    for _ in range(5):
        assert lab.lose(trial, charged=False) == []
        lab.start(trial)
    assert trial.worker_losses == 0


def test_new_iterations_between_losses_are_progress_if_there_are_no_checkpoints():
    lab = Lab(max_worker_losses=1)
    trial = lab.running()
    for iteration in range(1, 6):
        lab.result(trial, iteration)
        assert lab.lose(trial) == []
        lab.start(trial)
    assert trial.worker_losses == 1


def test_recomputed_iterations_are_no_progress():
    lab = Lab(max_worker_losses=1)
    trial = lab.running()
    lab.result(trial, 1)
    lab.lose(trial)
    lab.start(trial)
    lab.result(trial, 1)
    assert kinds(lab.lose(trial)) == ["GiveUp"]


def test_iterations_beyond_the_newest_checkpoint_are_no_progress():
    lab = Lab(max_worker_losses=1)
    trial = lab.running()
    lab.result(trial, 1, checkpoint=0)
    lab.lose(trial)
    lab.start(trial)
    lab.result(trial, 2)
    assert kinds(lab.lose(trial)) == ["GiveUp"]


def test_the_first_checkpoint_is_progress_whatever_was_reached_before():
    lab = Lab(max_worker_losses=1)
    trial = lab.running()
    lab.result(trial, 9)
    lab.lose(trial)
    lab.start(trial)
    lab.result(trial, 3, checkpoint=0)
    assert lab.lose(trial) == []
    assert trial.worker_losses == 1


def suspect(lab: Lab) -> Trial:
    """Return a trial that runs alone, as it has lost two workers together with others."""
    trial = lab.running()
    for _ in range(2):
        lab.lose(trial, shared=True)
        lab.start(trial)
    return trial


def test_a_death_that_trials_share_is_charged_to_none_of_them():
    lab = Lab(max_worker_losses=0)
    trials = [lab.running(), lab.running()]
    assert [lab.lose(trial, shared=True) for trial in trials] == [[], []]
    assert [trial.worker_losses for trial in trials] == [0, 0]
    assert [trial.status for trial in trials] == [TrialStatus.PENDING] * 2


def test_after_two_shared_deaths_a_trial_asks_to_be_alone():
    lab = Lab()
    trial = lab.running()
    lab.lose(trial, shared=True)
    assert trial.request == trial.resources
    lab.start(trial)
    lab.lose(trial, shared=True)
    assert trial.request == trial.resources.exclusively()
    assert lab.grant(trial).resources.exclusive


def test_a_departure_that_trials_share_makes_none_suspect():
    lab = Lab()
    trial = lab.running()
    for _ in range(3):
        lab.lose(trial, charged=False, shared=True)
        lab.start(trial)
    assert not trial.is_suspect


def test_a_trial_that_kills_its_worker_while_it_is_alone_is_charged_for_it():
    lab = Lab(max_worker_losses=1)
    trial = suspect(lab)
    assert lab.lose(trial) == []
    assert trial.request.exclusive
    lab.start(trial)
    assert kinds(lab.lose(trial)) == ["GiveUp"]
    assert "lost its worker 2 times without progress in between, and no other" in trial.reason


def test_others_may_join_a_trial_that_has_made_progress():
    lab = Lab()
    trial = suspect(lab)
    assert kinds(lab.result(trial, 1)) == ["AdmitOthers", "ContinueTraining"]
    assert kinds(lab.result(trial, 2)) == ["ContinueTraining"]
    lab.lose(trial, shared=True)
    assert not trial.request.exclusive


def test_a_checkpoint_is_progress_and_recomputed_iterations_are_none():
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 3)
    for _ in range(2):
        lab.lose(trial, shared=True)
        lab.start(trial)
    assert kinds(lab.result(trial, 3)) == ["ContinueTraining"]
    assert kinds(lab.save(trial, 0, 3)) == ["AdmitOthers"]


def test_one_that_is_to_stop_admits_no_other():
    lab = Lab()
    trial = suspect(lab)
    lab.stop()
    assert lab.result(trial, 1) == []


def test_a_trial_that_is_opened_again_is_under_no_suspicion():
    lab = Lab(max_worker_losses=0)
    trial = suspect(lab)
    lab.lose(trial)
    lab.handle(TrialReopenRequested(trial_id=trial.trial_id, fresh=False, time=lab.tick()))
    assert not trial.is_suspect


@pytest.mark.parametrize("max_failures", [0, 2])
def test_code_may_fail_so_often_and_then_the_trial_fails(max_failures: int):
    lab = Lab(max_failures=max_failures)
    trial = lab.running()
    for _ in range(max_failures):
        assert lab.fail(trial) == []
        assert trial.status is TrialStatus.PENDING
        lab.start(trial)
    assert kinds(lab.fail(trial)) == ["GiveUp"]
    assert (trial.status, trial.reason) == (TrialStatus.ERROR, "ValueError: no such loss")
    assert trial.failures == len(trial.errors) == max_failures + 1
    assert lab.seen_once(trial, "error")
    assert lab.search.ends == [(trial.trial_id, None, True)]


def test_code_may_fail_for_ever():
    lab = Lab(max_failures=-1)
    trial = lab.running()
    for _ in range(50):
        lab.fail(trial)
        lab.start(trial)
    assert trial.failures == 50


def test_failures_count_over_the_whole_life_whatever_progress_there_is():
    lab = Lab(max_failures=1)
    trial = lab.running()
    lab.fail(trial)
    lab.start(trial)
    lab.result(trial, 1, checkpoint=0)
    assert kinds(lab.fail(trial)) == ["GiveUp"]


def test_a_failure_that_was_got_over_is_no_reason_for_the_end():
    lab = Lab(max_failures=1)
    trial = lab.running()
    lab.fail(trial)
    lab.start(trial)
    lab.tell(trial, TrialEnded)
    assert (trial.status, trial.reason) == (TrialStatus.TERMINATED, "")
    assert trial.error is not None


def test_losses_and_failures_are_counted_apart():
    lab = Lab(max_failures=1, max_worker_losses=1)
    trial = lab.running()
    assert lab.lose(trial) == []
    lab.start(trial)
    assert lab.fail(trial) == []
    assert (trial.failures, trial.worker_losses) == (1, 1)


@pytest.mark.parametrize("status", [*LOSES_ITS_PLACE, TrialStatus.PAUSING])
def test_code_may_fail_in_every_active_status_and_is_tried_again(status: TrialStatus):
    lab = Lab(max_failures=1)
    trial = bring(lab, status)
    lab.fail(trial)
    assert trial.status is TrialStatus.PENDING


def test_code_that_fails_while_it_is_stopped_makes_the_trial_fail_at_once():
    lab = Lab(max_failures=5)
    trial = bring(lab, TrialStatus.STOPPING)
    assert lab.fail(trial, "OSError: disk full") == []
    assert (trial.status, trial.reason) == (TrialStatus.ERROR, "OSError: disk full")
    assert lab.seen_once(trial, "error")


@pytest.mark.parametrize("status", [TrialStatus.STARTING, TrialStatus.RESTORING])
def test_a_failed_start_costs_nothing(status: TrialStatus):
    lab = Lab(max_worker_losses=0, max_failures=0) if status == "starting" else Lab()
    trial = bring(lab, status)
    losses = trial.worker_losses
    lab.tell(trial, StartFailed, reason="no room any more")
    assert trial.status is TrialStatus.PENDING
    assert trial.worker_losses == losses


def test_a_start_that_fails_while_it_is_stopped_has_ended():
    lab = Lab()
    trial = bring(lab, TrialStatus.STARTING)
    lab.stop()
    lab.tell(trial, StartFailed, reason="no room any more")
    assert lab.seen_once(trial, "complete")


def test_each_start_is_another_incarnation_and_only_the_first_has_a_date():
    lab = Lab()
    trial = lab.running()
    began = trial.started_at
    lab.lose(trial)
    lab.grant(trial)
    lab.tell(trial, TrialStarted, worker="v")
    assert (trial.incarnation, trial.worker, trial.started_at) == (2, "v", began)


@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_the_first_failure_may_end_everything(fail_fast):
    lab = Lab(fail_fast=fail_fast)
    bad, good, waiting = lab.running(), lab.running(), lab.add()
    actions = lab.fail(bad)
    assert kinds(actions) == ["GiveUp", "StopTrial", "FinishTrial"]
    assert actions[1].at_once
    assert lab.experiment.state.first_failed is bad
    assert lab.experiment.state.stop_reason == f"trial {bad.trial_id} failed"
    assert waiting.status is TrialStatus.TERMINATED
    assert not lab.experiment.finished
    lab.tell(good, TrialStopped)
    assert lab.experiment.finished
    assert all(
        lab.seen_once(trial, how) for trial, how in ((bad, "error"), (good, "complete"), (waiting, "remove"))
    )


def test_an_error_of_every_trial_ends_everything_while_no_trial_has_a_result():
    lab = Lab(max_failures=3)
    bad, good = lab.running(), lab.running()
    error = ErrorInfo(message="ReportError: no loss", fails_all_trials=True)
    actions = lab.tell(bad, TrialFailed, error=error)
    assert kinds(actions) == ["GiveUp", "StopTrial"]
    assert actions[1].at_once
    assert lab.experiment.state.first_failed is bad
    lab.result(good, 1)  # was on its way
    later = Lab(max_failures=3)
    later.experiment.load_state_dict(lab.experiment.state_dict())
    assert lab.experiment.is_stopped_by_failure
    assert later.experiment.is_stopped_by_failure


def test_an_error_of_every_trial_is_that_of_one_trial_if_another_has_a_result():
    lab = Lab()
    good, bad = lab.running(), lab.running()
    lab.result(good, 1)
    lab.tell(bad, TrialFailed, error=ErrorInfo(message="ReportError: no loss", fails_all_trials=True))
    assert (bad.status, good.status) == (TrialStatus.ERROR, TrialStatus.RUNNING)
    assert lab.experiment.state.first_failed is None


def test_the_first_failure_is_the_one_that_ended_everything():
    lab = Lab(fail_fast=True)
    first, second = lab.running(), lab.running()
    lab.fail(first)
    lab.fail(second)
    assert second.status is TrialStatus.ERROR
    assert lab.experiment.state.first_failed is first


def test_a_failure_after_the_users_stop_did_not_end_everything():
    lab = Lab(fail_fast=True)
    trial = lab.running()
    lab.stop("enough")
    lab.fail(trial)
    assert lab.experiment.state.first_failed is None
    assert lab.experiment.state.stop_reason == "enough"


def test_a_trial_that_the_user_stops_is_not_interrupted_at_once():
    lab = Lab(fail_fast=True)
    lab.running()
    (action,) = lab.stop("enough")
    assert not action.at_once


def test_without_fail_fast_the_others_run():
    lab = Lab()
    bad, good = lab.running(), lab.running()
    lab.fail(bad)
    assert good.status is TrialStatus.RUNNING
    assert lab.experiment.state.first_failed is None


# Stoppers that raise


# A worker that retires pauses its trials, and that may cross our stop on the wire.
@pytest.mark.parametrize("last_word", [TrialStopped, TrialEnded, TrialPaused])
def test_a_stopper_that_raises_fails_the_trial_and_nothing_else(last_word):
    lab = Lab()
    other = lab.running()
    trial = bring(lab, TrialStatus.FAILING)
    assert trial.status is TrialStatus.FAILING
    assert trial.error is not None
    assert trial.error.message == "the stopper raised ZeroDivisionError: no data"
    assert "Traceback" in trial.error.traceback
    lab.tell(trial, last_word)
    assert trial.status is TrialStatus.ERROR
    assert trial.reason == "the stopper raised ZeroDivisionError: no data"
    assert lab.seen_once(trial, "error")
    assert continues(lab.result(other, 1), other)


def test_a_trial_that_a_stopper_failed_is_not_tried_again():
    lab = Lab(max_failures=-1)
    trial = bring(lab, TrialStatus.FAILING)
    lab.lose(trial)
    assert trial.status is TrialStatus.ERROR


def test_what_a_failing_trial_still_says_is_kept_and_not_judged():
    lab = Lab()
    trial = bring(lab, TrialStatus.FAILING)
    shown = list(lab.stopper.shown)
    assert lab.result(trial, 2, checkpoint=0) == []
    assert lab.stop("enough") == []
    assert len(trial.history) == 2
    assert lab.stopper.shown == shown


def test_more_failures_than_allowed_in_all_end_everything():
    lab = Lab(max_total_failures=1)
    first, second, good = lab.running(), lab.running(), lab.running()
    lab.fail(first)
    assert good.status is TrialStatus.RUNNING
    lab.fail(second)
    assert good.status is TrialStatus.STOPPING
    reason = f"trials have failed more often than 1 time, {second.trial_id} the last of them"
    assert lab.experiment.state.stop_reason == reason


def test_an_event_of_another_kind_is_a_mistake_of_the_program():
    with pytest.raises(TypeError, match="the experiment cannot handle SimpleNamespace"):
        Lab().handle(SimpleNamespace(time=1.0))  # type: ignore[arg-type]
