"""What a new driver makes of an experiment."""

from __future__ import annotations

import pytest
from experiment_kit import ENDS, Lab, bring, kinds

from dasktune.errors import StorageError
from dasktune.trial.actions import DeleteCheckpoint, RestoreTrial, StartTrial
from dasktune.trial.events import SessionBegan, TrialReopenRequested
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def reopen(lab: Lab, trial: Trial, *, fresh: bool = False) -> list:
    return lab.handle(TrialReopenRequested(trial_id=trial.trial_id, fresh=fresh, time=lab.tick()))


def restored(lab: Lab) -> Lab:
    """Return the same experiment as a driver finds it that knows its state only."""
    other = Lab()
    other.experiment.load_state_dict(lab.experiment.state_dict())
    other.now = lab.now
    return other


@pytest.mark.parametrize("status", TrialStatus)
def test_a_trial_in_any_status_is_the_same_in_a_restored_experiment(status: TrialStatus):
    lab = Lab()
    bring(lab, status)
    lab.add(x=1)
    other = restored(lab)
    assert other.experiment.state_dict() == lab.experiment.state_dict()
    assert list(other.experiment.trial_index.pending) == list(lab.experiment.trial_index.pending)
    assert other.experiment.trial_index.public_counts() == lab.experiment.trial_index.public_counts()


def test_a_state_does_not_change_with_the_experiment():
    lab = Lab()
    trial = lab.running()
    before = lab.experiment.state_dict()
    lab.result(trial, 1, checkpoint=0)
    assert before["trials"][0]["history"] == []
    assert before["trials"][0]["checkpoints"] == []


def test_the_failure_that_ended_everything_is_known_to_a_restored_experiment():
    lab = Lab(fail_fast=True)
    trial = lab.running()
    lab.fail(trial)
    found = restored(lab).experiment.state.first_failed
    assert found is not None
    assert (found.trial_id, found.error) == (trial.trial_id, trial.error)


def test_a_new_session_may_resume_what_had_ended():
    lab = Lab()
    lab.no_more()
    lab.stop()
    assert lab.experiment.finished
    lab.handle(SessionBegan(time=lab.tick()))
    assert not lab.experiment.finished
    assert lab.experiment.wants_suggestion
    assert lab.experiment.state.stop_reason == ""
    trial = lab.running()
    assert trial.status is TrialStatus.RUNNING


def test_stoppers_begin_a_new_session():
    lab = Lab()
    told: list[object] = []
    lab.stopper.state_dict = lambda: {"used": 3.0}  # type: ignore[method-assign]
    lab.stopper.load_state_dict = told.append  # type: ignore[method-assign]
    lab.handle(SessionBegan(time=lab.tick()))
    assert told == [{"used": 3.0}]


def test_an_ended_trial_resumes_from_its_newest_checkpoint():
    lab = Lab(max_failures=1)
    trial = lab.running()
    lab.result(trial, 1, checkpoint=0)
    lab.fail(trial)
    lab.start(trial)
    lab.fail(trial)
    assert trial.status is TrialStatus.ERROR
    assert reopen(lab, trial)[0].fresh is False
    assert (trial.status, trial.failures, trial.reason) == (TrialStatus.PENDING, 0, "")
    assert isinstance(lab.grant(trial), RestoreTrial)
    assert [row["training_iteration"] for row in trial.history] == [1]
    # Two more failures: the user wants it to be tried again, as often as at first.
    assert len(trial.errors) == 2
    calls = [what for what, _ in lab.scheduler.calls if what in ("add", *ENDS)]
    assert calls == ["add", "error", "add"]


def test_a_trial_that_restarts_has_nothing_of_before():
    lab = Lab()
    trial = lab.running()
    lab.result(trial, 1, checkpoint=0)
    lab.fail(trial)
    actions = reopen(lab, trial, fresh=True)
    assert kinds(actions) == ["ReopenTrial", "DeleteCheckpoint"]
    assert isinstance(actions[1], DeleteCheckpoint)
    left = (trial.history, trial.best_score, trial.checkpoints, trial.errors)
    assert left == ([], None, [], [])
    start = lab.grant(trial)
    assert isinstance(start, StartTrial)
    # No directory is ever written to twice.
    assert (start.incarnation, start.next_checkpoint) == (2, 1)


@pytest.mark.parametrize("status", [TrialStatus.PENDING, TrialStatus.PAUSED])
def test_a_waiting_trial_that_restarts_is_no_new_trial_to_the_scheduler(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    reopen(lab, trial, fresh=True)
    assert trial.status is TrialStatus.PENDING
    assert [what for what, _ in lab.scheduler.calls if what in ("add", *ENDS)] == ["add"]


def test_reopened_trials_wait_behind_those_that_had_not_ended():
    lab = Lab()
    ended = bring(lab, TrialStatus.TERMINATED)
    waiting = lab.add()
    reopen(lab, ended)
    assert list(lab.experiment.trial_index.pending) == [waiting.trial_id, ended.trial_id]


def test_a_trial_whose_name_would_lead_elsewhere_is_refused():
    lab = Lab()
    lab.add()
    state = lab.experiment.state_dict()
    state["trials"][0]["trial_id"] = "../elsewhere"
    with pytest.raises(StorageError, match=r"trial_id must be one name, got '\.\./elsewhere'"):
        Lab().experiment.load_state_dict(state)


def test_the_starts_of_a_session_have_numbers_above_all_starts_of_earlier_sessions():
    lab = Lab()
    trial = lab.running()
    assert trial.incarnation == 1
    # The record of this start, and of any number of others, may be missing in what was restored.
    other = restored(lab)
    other.handle(SessionBegan(time=other.tick(), number=2))
    waiting = other.experiment.trials[trial.trial_id]
    other.lose(waiting, charged=False)
    start = other.grant(waiting)
    assert start.incarnation == waiting.incarnation > 100_000
    later = restored(other)
    later.handle(SessionBegan(time=later.tick(), number=3))
    assert later.running().incarnation > waiting.incarnation + 99_000
