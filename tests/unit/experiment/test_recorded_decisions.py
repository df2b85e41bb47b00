"""An old story is decided as it was, whatever the policies say now."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import Lab, Replayed, kinds

from dasktune.errors import InvalidTransition
from dasktune.experiment import RecordedDecisions
from dasktune.schedulers.decision import Continue, Pause, Stop, StopOther, Unpause
from dasktune.trial.actions import (
    Action,
    ContinueTraining,
    EndExperiment,
    FailTrial,
    PauseTrial,
    SaveTrial,
    StopTrial,
    UnpauseTrial,
)
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.events import (
    ResultReported,
    SessionBegan,
    TrialPaused,
    TrialReopenRequested,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def order(what: Any, trial: Trial, **facts: Any) -> Action:
    return what(trial_id=trial.trial_id, incarnation=trial.incarnation, **facts)


def reported(lab: Lab, trial: Trial, *told: Action | None) -> Replayed:
    """Report a result of which a journal tells."""
    recorded = RecordedDecisions(told)
    event = lab.event(trial, ResultReported, metrics={"training_iteration": 1})
    handled = lab.experiment.handle(event, recorded)
    lab.experiment.trial_index.validate()
    return Replayed(handled.actions, recorded.diverged_policy)


VERDICTS = {
    "continue": (ContinueTraining, {"seq": 2}, TrialStatus.RUNNING),
    "save": (SaveTrial, {"seq": 2}, TrialStatus.SAVING),
    "pause": (PauseTrial, {"reason": "then", "save": False}, TrialStatus.PAUSING),
    "stop": (StopTrial, {"reason": "then"}, TrialStatus.STOPPING),
    "fail": (FailTrial, {"reason": "then", "traceback": "of then"}, TrialStatus.FAILING),
}


@pytest.mark.parametrize("now", ["continue", "pause", "stop", "stopper", "breaks"])
@pytest.mark.parametrize("then", VERDICTS)
def test_what_became_of_a_trial_stands(then: str, now: str):
    lab = Lab()
    trial = lab.running()
    kind, facts, status = VERDICTS[then]
    decisions = {"continue": Continue(), "pause": Pause("now"), "stop": Stop("now")}
    lab.scheduler.decide = lambda *_: decisions.get(now, Continue())
    lab.stopper.stops_at = 1 if now == "stopper" else None
    lab.stopper.breaks = now == "breaks"
    again = reported(lab, trial, order(kind, trial, **facts))
    assert kinds(again.actions) == [kind.__name__]
    assert trial.status is status
    assert trial.reason == ("then" if then in ("stop", "fail") else "")
    assert [error.traceback for error in trial.errors] == ["of then"] * (then == "fail")
    # The searcher learns of a result that does not end its trial.
    heard = then in ("continue", "save", "pause") or (then == "fail" and now != "stop")
    assert lab.search.results == [(trial.trial_id, 1)] * heard
    same = {"continue": "continue", "save": "continue", "pause": "pause", "fail": "breaks"}
    agrees = now in ("stop", "stopper") if then == "stop" else now == same[then]
    assert bool(again.diverged_policy) != agrees


@pytest.mark.parametrize("where", CheckpointKind)
@pytest.mark.parametrize("then", ["save", "pause"])
def test_a_checkpoint_is_where_it_was(then: str, where: CheckpointKind):
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Stop("now")
    what, facts, _ = VERDICTS[then]
    again = reported(lab, trial, order(what, trial, **facts, kind=where))
    assert again.actions[0].kind is where


def test_a_stopper_that_only_now_says_stop_does_not_keep_the_result_from_the_scheduler():
    lab = Lab()
    trial = lab.running()
    lab.stopper.stops_at = 1
    again = reported(lab, trial, order(ContinueTraining, trial, seq=2))
    assert ("result 1", trial.trial_id) in lab.scheduler.calls
    assert again.diverged_policy == "RecordingScheduler or RecordingStopper"


@pytest.mark.parametrize("breaks", [False, True])
def test_the_end_of_everything_stands(breaks: bool):
    lab = Lab()
    trial, other = lab.running(), lab.running()
    lab.stopper.breaks = breaks
    told = [
        EndExperiment(reason="then"),
        order(StopTrial, trial, reason="then"),
        order(StopTrial, other, reason="then"),
    ]
    again = reported(lab, trial, *told)
    assert kinds(again.actions) == ["EndExperiment", "StopTrial", "StopTrial"]
    assert lab.experiment.state.stop_reason == other.reason == "then"
    assert not trial.errors
    assert again.diverged_policy == "RecordingStopper"


def test_what_did_not_end_everything_does_not_do_so_now():
    lab = Lab()
    trial = lab.running()
    lab.stopper.everything = True
    again = reported(lab, trial, order(ContinueTraining, trial, seq=2))
    assert lab.experiment.state.stop_reason == ""
    assert again.diverged_policy == "RecordingStopper"


def paused(lab: Lab) -> Trial:
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Pause("a rest")
    lab.result(trial, 1)
    lab.scheduler.decide = lambda *_: Continue()
    lab.tell(trial, TrialPaused)
    return trial


def test_orders_to_other_trials_stand_and_new_ones_are_dropped():
    lab = Lab()
    trial, one, other = lab.running(), paused(lab), lab.running()
    now = (StopOther(trial_id=one.trial_id, reason="now"), Unpause(trial_id=one.trial_id))
    lab.scheduler.decide = lambda *_: Continue(commands=now)
    told = [
        order(ContinueTraining, trial, seq=2),
        order(UnpauseTrial, one),
        order(StopTrial, other, reason="then"),
    ]
    again = reported(lab, trial, *told)
    assert (one.status, other.status) == (TrialStatus.PENDING, TrialStatus.STOPPING)
    assert other.reason == "then"
    assert again.diverged_policy == "RecordingScheduler"
    lab.scheduler.decide = lambda *_: Continue()
    assert kinds(lab.result(trial, 2)) == ["ContinueTraining"]


def test_orders_that_are_given_again_overrule_none():
    lab = Lab()
    trial, one = lab.running(), paused(lab)
    lab.scheduler.decide = lambda *_: Continue(commands=(Unpause(trial_id=one.trial_id),))
    told = [order(ContinueTraining, trial, seq=2), order(UnpauseTrial, one)]
    assert reported(lab, trial, *told).diverged_policy == ""
    assert one.status is TrialStatus.PENDING


def test_an_order_that_cannot_have_been_obeyed_is_an_error():
    lab = Lab()
    trial, other = lab.running(), lab.running()
    told = [order(ContinueTraining, trial, seq=2), order(UnpauseTrial, other)]
    with pytest.raises(InvalidTransition):
        reported(lab, trial, *told)


def test_an_order_to_a_trial_that_ends_anyway_is_dropped():
    lab = Lab()
    trial, other = lab.running(), lab.running()
    lab.stopper.stops_at = 1
    lab.result(other, 1)
    lab.stopper.stops_at = None
    told = [order(ContinueTraining, trial, seq=2), order(StopTrial, other, reason="again")]
    assert kinds(reported(lab, trial, *told, None).actions) == ["ContinueTraining"]


# What ended everything, in a later session


@pytest.mark.parametrize(("fail_fast", "stays"), [(True, True), (False, False)])
def test_a_failure_that_ended_everything_stands_in_the_next_session(fail_fast: bool, stays: bool):
    lab = Lab(fail_fast=True)
    trial = lab.running()
    lab.fail(trial)
    later = Lab(fail_fast=fail_fast)
    later.experiment.load_state_dict(lab.experiment.state_dict())
    later.handle(SessionBegan(time=later.tick()))
    assert later.experiment.finished is stays
    assert (later.experiment.state.first_failed is not None) is stays


def test_a_trial_that_is_opened_again_lets_others_run():
    lab = Lab(fail_fast=True)
    trial = lab.running()
    lab.fail(trial)
    lab.handle(SessionBegan(time=lab.tick()))
    request = TrialReopenRequested(trial_id=trial.trial_id, fresh=False, time=lab.tick())
    lab.handle(request)
    assert lab.experiment.state.first_failed is None
    assert lab.experiment.state.stop_reason == ""
    assert lab.experiment.next_trial() is trial


def test_no_more_trials_are_wanted_than_may_run():
    lab = Lab(max_concurrent=1)
    trial = lab.add()
    lab.search.lookahead = 3
    waiting = lab.add()
    lab.start(trial)
    assert lab.experiment.next_trial() is None
    assert not lab.experiment.wants_suggestion
    lab.fail(trial)
    assert lab.experiment.next_trial() is waiting
    assert lab.experiment.wants_suggestion
