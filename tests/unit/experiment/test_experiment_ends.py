"""How experiments begin and end: suggestions, stops, commands, and no trial left behind."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from experiment_kit import ENDS, ONE_CPU, Lab, bring, kinds
from numpy.random import SeedSequence

from dasktune.errors import InvalidTransition
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, StopOther, Unpause
from dasktune.stopper import CombinedStopper
from dasktune.trial.actions import FinishTrial, StopTrial
from dasktune.trial.events import (
    Answered,
    ResourcesGranted,
    ResultReported,
    Suggested,
    TrialEnded,
    TrialPaused,
    TrialStopped,
    TrialStopRequested,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

UNFINISHED = [status for status in TrialStatus if not status.is_final]


# Suggestions


def test_trials_are_named_by_the_seed_and_their_number():
    one, other = Lab(), Lab()
    names = [one.add().trial_id for _ in range(2)]
    assert names == [other.add().trial_id for _ in range(2)]
    prefix, number = names[1].split("_")
    assert (len(prefix), int(prefix, 16) >= 0, number) == (5, True, "00001")


def test_the_scheduler_learns_the_goal():
    lab = Lab(metric="loss", mode="min")
    assert (lab.scheduler.metric, lab.scheduler.mode) == ("loss", "min")


def test_the_search_is_asked_only_as_far_ahead_as_it_wants():
    lab = Lab()
    assert lab.experiment.wants_suggestion
    lab.add()
    assert not lab.experiment.wants_suggestion
    lab.search.lookahead = 2
    assert lab.experiment.wants_suggestion


def test_a_search_that_waits_is_asked_again_when_a_trial_has_ended():
    lab = Lab()
    trial = lab.running()
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert not lab.experiment.wants_suggestion
    lab.time_passes()
    assert not lab.experiment.wants_suggestion
    lab.tell(trial, TrialEnded)
    assert lab.experiment.wants_suggestion


def test_a_search_that_waits_although_nothing_runs_is_asked_again_after_a_while():
    lab = Lab()
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert not lab.experiment.wants_suggestion
    assert not lab.experiment.finished
    lab.time_passes()
    assert lab.experiment.wants_suggestion


def test_an_experiment_without_a_single_suggestion_is_finished():
    lab = Lab()
    lab.no_more()
    assert lab.experiment.finished
    assert lab.experiment.next_trial() is None
    assert lab.time_passes() == []
    assert lab.scheduler.calls == []


def test_an_experiment_of_one_trial_ends_with_it():
    lab = Lab()
    trial = lab.running()
    lab.no_more()
    assert not lab.experiment.finished
    lab.tell(trial, TrialEnded)
    assert lab.experiment.finished
    assert trial.ended_at == lab.now
    assert not trial.status_log
    assert lab.search.ends == [(trial.trial_id, None, False)]


def test_an_experiment_lasts_as_long_as_there_may_be_more_suggestions():
    lab = Lab()
    lab.tell(lab.running(), TrialEnded)
    assert not lab.experiment.finished


def test_a_suggestion_that_is_answered_after_the_stop_is_ended_and_reported():
    lab = Lab()
    lab.stop("enough")
    trial = lab.add()
    assert (trial.status, trial.reason) == (TrialStatus.TERMINATED, "enough")
    assert lab.seen_once(trial, "remove")
    assert lab.experiment.finished


# Stops


@pytest.mark.parametrize("status", [s for s in UNFINISHED if s is not TrialStatus.FAILING])
def test_a_trial_can_be_stopped_wherever_it_is_and_its_end_is_seen_once(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    request = TrialStopRequested(trial_id=trial.trial_id, reason="no use", time=lab.tick())
    actions = lab.handle(request)
    if status.is_active:
        expected = [] if status is TrialStatus.STOPPING else ["StopTrial"]
        assert kinds(actions) == expected
        assert lab.handle(request) == []
        lab.tell(trial, TrialStopped)
    else:
        assert actions == [
            FinishTrial(trial_id=trial.trial_id, incarnation=trial.incarnation, reason="no use")
        ]
    assert trial.status is TrialStatus.TERMINATED
    assert trial.reason == ("bad" if status is TrialStatus.STOPPING else "no use")
    assert lab.handle(request) == []
    assert lab.seen_once(trial, "complete" if status.is_active else "remove")


def test_a_trial_that_paused_before_it_got_its_stop_has_ended():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSING)
    lab.stop()
    lab.tell(trial, TrialPaused)
    assert lab.seen_once(trial, "complete")


def test_a_stop_ends_trials_in_all_statuses():
    lab = Lab()
    trials = {status: bring(lab, status) for status in TrialStatus}
    lab.stop("enough")
    assert lab.experiment.state.stop_reason == "enough"
    assert not lab.experiment.wants_suggestion
    for status, trial in trials.items():
        if status.is_active:
            ending = TrialStatus.FAILING if status is TrialStatus.FAILING else TrialStatus.STOPPING
            assert trial.status is ending
            lab.tell(trial, TrialStopped)
    assert lab.experiment.finished
    for trial in trials.values():
        assert len(lab.scheduler.ends(trial)) == 1
    assert sorted(key for key, _, _ in lab.search.ends) == sorted(lab.experiment.trials)


def test_the_first_reason_to_stop_stands():
    lab = Lab()
    trial = lab.running()
    lab.stop("first")
    assert lab.stop("second") == []
    assert lab.experiment.state.stop_reason == trial.reason == "first"


def test_time_may_be_up_while_nothing_happens():
    lab = Lab()
    trial, waiting = lab.running(), lab.add()
    lab.stopper.everything = True
    assert kinds(lab.time_passes()) == ["EndExperiment", "StopTrial", "FinishTrial"]
    assert trial.reason == waiting.reason == "RecordingStopper said so"


def test_a_start_that_was_stopped_on_its_way_takes_the_stop_with_it():
    lab = Lab()
    trial = bring(lab, TrialStatus.STARTING)
    assert lab.stop("enough") == [StopTrial(trial_id=trial.trial_id, incarnation=1, reason="enough")]


# Commands of the scheduler


def test_a_scheduler_may_wake_one_trial_and_stop_another():
    lab = Lab()
    asleep, doomed = bring(lab, TrialStatus.PAUSED), lab.running()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Continue(
        commands=(
            Unpause(trial_id=asleep.trial_id),
            StopOther(trial_id=doomed.trial_id, reason="beaten"),
        )
    )
    assert kinds(lab.result(trial, 1)) == ["ContinueTraining", "UnpauseTrial", "StopTrial"]
    assert (asleep.status, doomed.status) == (TrialStatus.PENDING, TrialStatus.STOPPING)
    assert doomed.reason == "beaten"


def test_waking_a_trial_that_does_not_sleep_changes_nothing():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Continue(commands=(Unpause(trial_id=trial.trial_id),))
    assert kinds(lab.result(trial, 1)) == ["ContinueTraining"]


@pytest.mark.parametrize("how", ENDS)
def test_commands_that_come_with_an_end_are_obeyed(how: str):
    lab = Lab()
    asleep = bring(lab, TrialStatus.PAUSED)
    trial = lab.add()
    lab.scheduler.commands[trial.trial_id] = (Unpause(trial_id=asleep.trial_id),)
    if how == "remove":
        lab.handle(TrialStopRequested(trial_id=trial.trial_id, reason="no", time=lab.tick()))
    else:
        lab.start(trial)
        _ = lab.fail(trial) if how == "error" else lab.tell(trial, TrialEnded)
    assert lab.seen_once(trial, how)
    assert asleep.status is TrialStatus.PENDING


def test_a_trial_that_is_woken_while_everything_ends_ends_too():
    lab = Lab()
    first, second = bring(lab, TrialStatus.PAUSED), bring(lab, TrialStatus.PAUSED)
    lab.scheduler.commands[first.trial_id] = (Unpause(trial_id=second.trial_id),)
    lab.no_more()
    lab.stop()
    assert lab.experiment.finished
    assert lab.seen_once(second, "remove")


def test_a_chain_of_commands_may_be_longer_than_the_stack():
    lab = Lab()
    lab.experiment.trial_index.validate = lambda *trials: None  # type: ignore[method-assign]
    trials = [lab.add() for _ in range(sys.getrecursionlimit())]
    for trial, following in pairwise(trials):
        command = StopOther(trial_id=following.trial_id, reason="all of us")
        lab.scheduler.commands[trial.trial_id] = (command,)
    lab.handle(TrialStopRequested(trial_id=trials[0].trial_id, reason="one", time=lab.tick()))
    assert {trial.status for trial in trials} == {TrialStatus.TERMINATED}


# No trial hangs


def test_trials_that_the_scheduler_never_wakes_are_ended_when_nothing_else_is_left():
    lab = Lab()
    asleep, waiting = bring(lab, TrialStatus.PAUSED), lab.add()
    lab.scheduler.strands = True
    lab.no_more()
    assert kinds(lab.time_passes()) == ["FinishTrial", "FinishTrial"]
    assert lab.experiment.finished
    assert asleep.reason == waiting.reason == "RecordingScheduler never chose it to run again"
    assert lab.seen_once(asleep, "remove")


def test_a_scheduler_may_resume_those_that_wait_when_no_other_runs():
    lab = Lab()
    one, other = bring(lab, TrialStatus.PAUSED), bring(lab, TrialStatus.PAUSED)
    lab.scheduler.strands = True
    lab.scheduler.standstill = (
        Unpause(trial_id=one.trial_id),
        StopOther(trial_id=other.trial_id, reason="the worse one"),
    )
    lab.no_more()
    assert kinds(lab.time_passes()) == ["UnpauseTrial", "FinishTrial"]
    assert one.status is TrialStatus.PENDING
    assert other.reason == "the worse one"
    lab.scheduler.standstill = ()
    assert kinds(lab.time_passes()) == ["FinishTrial"]
    assert one.reason == "RecordingScheduler never chose it to run again"


def test_nothing_stands_still_while_the_scheduler_waits_for_an_answer():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSED)
    lab.scheduler.strands = True
    lab.scheduler.question = (Unpause(trial_id=trial.trial_id),)
    lab.no_more()
    assert lab.time_passes() == []
    answered = lab.handle(Answered(number=1, answer="so", time=lab.tick()))
    assert kinds(answered) == ["UnpauseTrial"]
    assert ("answer 1", "so") in lab.scheduler.calls
    assert kinds(lab.time_passes()) == ["FinishTrial"]


def test_the_scheduler_gets_every_start():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSED)
    lab.handle(ResourcesGranted(trial_id=trial.trial_id, time=lab.tick()))
    starts = [what for what, key in lab.scheduler.calls if key == trial.trial_id]
    assert starts.count("start") == 2


def test_a_search_and_a_scheduler_that_wait_for_each_other_do_not_hang_the_experiment():
    lab = Lab()
    asleep = bring(lab, TrialStatus.PAUSED)
    lab.scheduler.strands = True
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    lab.time_passes()
    assert asleep.status is TrialStatus.TERMINATED
    assert lab.experiment.wants_suggestion


def test_a_scheduler_learns_that_the_search_ended():
    lab = Lab()
    asleep, trial = bring(lab, TrialStatus.PAUSED), lab.running()
    lab.scheduler.at_search_end = (Unpause(trial_id=asleep.trial_id),)
    lab.no_more()
    assert lab.scheduler.search_ends == 1
    assert (asleep.status, trial.status) == (TrialStatus.PENDING, TrialStatus.RUNNING)


def test_a_scheduler_is_not_asked_for_help_where_none_waits_for_it():
    lab = Lab()
    bring(lab, TrialStatus.TERMINATED)
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert lab.time_passes() == []
    assert lab.scheduler.search_ends == 0
    assert lab.experiment.wants_suggestion


def test_a_search_gets_the_pauses_of_trials_that_wait_for_others_and_may_suggest_them():
    lab = Lab()
    lab.scheduler.lets_others_come = True
    trial = bring(lab, TrialStatus.PAUSING)
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert not lab.experiment.wants_suggestion
    lab.tell(trial, TrialPaused)
    assert lab.experiment.wants_suggestion
    lab.start(trial)
    told = [("pause", trial.trial_id), ("unpause", trial.trial_id)]
    assert lab.search.pauses == told
    lab.tell(trial, TrialEnded)
    assert lab.search.pauses == told


def test_a_search_does_not_get_a_resumption_of_a_trial_that_ends():
    lab = Lab()
    lab.scheduler.lets_others_come = True
    trial = bring(lab, TrialStatus.PAUSED)
    lab.stop()
    assert lab.search.pauses == [("pause", trial.trial_id)]


def test_a_search_does_not_get_other_pauses():
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSED)
    lab.handle(Suggested(trial_id=lab.experiment.next_trial_id, config=None, time=lab.tick()))
    assert not lab.experiment.wants_suggestion
    lab.start(trial)
    assert lab.search.pauses == []


def test_a_search_gets_what_the_scheduler_has_to_say_about_a_result():
    lab = Lab()
    lab.scheduler.lets_others_come = True
    trial = lab.running()
    lab.result(trial, 1, loss=0.5)
    lab.tell(trial, TrialEnded)
    told = {"training_iteration": 1, "loss": 0.5, "rung": 1}
    assert lab.search.told == [told]
    assert lab.search.ends == [(trial.trial_id, told, False)]
    assert "rung" not in trial.history[0]


def test_a_scheduler_may_leave_a_place_free_as_long_as_something_runs():
    lab = Lab()
    asleep, trial = bring(lab, TrialStatus.PAUSED), lab.running()
    lab.scheduler.strands = True
    lab.no_more()
    assert lab.experiment.next_trial() is None
    assert lab.time_passes() == []
    lab.tell(trial, TrialEnded)
    assert asleep.status is TrialStatus.PAUSED


def test_a_scheduler_may_wait_for_another_suggestion():
    lab = Lab()
    asleep = bring(lab, TrialStatus.PAUSED)
    lab.scheduler.strands = True
    assert lab.experiment.wants_suggestion
    assert lab.time_passes() == []
    assert asleep.status is TrialStatus.PAUSED


def test_trials_that_wait_for_room_on_the_cluster_are_left_waiting():
    lab = Lab()
    waiting = lab.add()
    lab.no_more()
    assert lab.time_passes() == []
    assert waiting.status is TrialStatus.PENDING


# Bugs


def test_a_place_for_a_trial_that_runs_is_a_bug():
    lab = Lab()
    trial = lab.running()
    event = ResourcesGranted(trial_id=trial.trial_id, time=lab.tick())
    with pytest.raises(InvalidTransition, match="is running and got StartTrial"):
        lab.handle(event)


def test_a_result_before_the_news_of_the_start_is_a_bug():
    lab = Lab()
    trial = bring(lab, TrialStatus.STARTING)
    with pytest.raises(InvalidTransition) as caught:
        lab.tell(trial, ResultReported, metrics={"training_iteration": 1})
    assert caught.value.story == (
        "pending: StartTrial of incarnation 1",
        "starting: ResultReported of incarnation 1, seq 1",
    )


@pytest.mark.parametrize("checked", [True, False])
def test_contradictions_are_looked_for_after_each_event_only_if_wanted(checked):
    experiment = ExperimentMachine(
        ExperimentSettings(),
        search=Lab().search,
        scheduler=FIFOScheduler(),
        criteria=CombinedStopper(),
        stopper=CombinedStopper(),
        seed=SeedSequence(1),
    )
    experiment.validate_each_event = checked
    experiment.trial_index.trials["uncounted"] = Trial(trial_id="uncounted", config={}, resources=ONE_CPU)
    suggestion = Suggested(trial_id="a_00000", config={}, resources=ONE_CPU, time=0.0)
    if checked:
        with pytest.raises(InvalidTransition, match=r"uncounted.*pending index is wrong"):
            experiment.handle(suggestion)
    else:
        assert experiment.handle(suggestion).actions == []
