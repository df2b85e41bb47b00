"""A trial leaves its worker, and comes back with other resources before anybody else."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import ONE_CPU, TWO_CPUS, Lab, bring, kinds

from dasktune.experiment import RecordedDecisions
from dasktune.schedulers.decision import Continue, Resize, ResizeWaiting, StopOther
from dasktune.trial.actions import ChangeRequest, ContinueTraining, ResizeTrial
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.events import (
    ClusterChanged,
    ResultReported,
    TrialEnded,
    TrialPaused,
    TrialReopenRequested,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus, TrialStatus
from dasktune.trial.trial import Trial

FOUR_CPUS = PlacementGroupFactory([{"CPU": 4}])


def order(trial: Trial, resources: PlacementGroupFactory = TWO_CPUS) -> ResizeTrial:
    return ResizeTrial(
        trial_id=trial.trial_id,
        incarnation=trial.incarnation,
        resources=resources,
        reason="there is room",
    )


def deciding(lab: Lab, decision: Any) -> None:
    lab.scheduler.decide = lambda trial, result: decision


def test_a_resized_trial_resumes_at_once_with_what_it_is_given():
    lab = Lab()
    trial = lab.running()
    waiting = lab.add()
    deciding(lab, Resize(TWO_CPUS, "there is room"))
    assert lab.result(trial, 1) == [order(trial)]
    assert trial.status is TrialStatus.RESIZING
    assert trial.public_status is PublicStatus.RUNNING
    assert (trial.resources, trial.base_resources) == (TWO_CPUS, ONE_CPU)
    lab.save(trial, 0, 1)
    assert lab.tell(trial, TrialPaused) == []
    assert trial.status is TrialStatus.PENDING
    assert list(lab.experiment.trial_index.pending.values()) == [trial, waiting]
    assert lab.experiment.next_trial() is trial
    start = lab.grant(trial)
    assert start.resources == TWO_CPUS
    assert start.incarnation == 2


def test_what_it_first_asked_for_is_kept_in_mind_while_it_has_something_else():
    lab = Lab()
    trial = lab.running()
    for number, request in enumerate((TWO_CPUS, FOUR_CPUS, ONE_CPU)):
        deciding(lab, Resize(request, "there is room"))
        lab.result(trial, number + 1)
        lab.tell(trial, TrialPaused)
        assert (trial.resources, trial.base_resources) == (request, ONE_CPU)
        lab.start(trial)
    assert trial.first_resources is None


@pytest.mark.parametrize("lost", ["worker", "code"])
def test_whatever_happens_on_the_way_it_comes_back_with_them(lost: str):
    lab = Lab(max_failures=1)
    trial = bring(lab, TrialStatus.RESIZING)
    if lost == "worker":
        lab.lose(trial)
    else:
        lab.fail(trial)
    assert trial.status is TrialStatus.PENDING
    assert lab.grant(trial).resources == TWO_CPUS
    assert trial.failures + trial.worker_losses == 1


def test_one_that_was_resized_keeps_what_it_has_when_its_worker_is_lost():
    lab = Lab()
    trial = bring(lab, TrialStatus.RESIZING)
    lab.tell(trial, TrialPaused)
    lab.start(trial)
    lab.lose(trial)
    assert lab.grant(trial).resources == TWO_CPUS


def test_one_that_ends_on_the_way_has_ended():
    lab = Lab()
    trial = bring(lab, TrialStatus.RESIZING)
    lab.tell(trial, TrialEnded)
    assert trial.status is TrialStatus.TERMINATED
    assert lab.seen_once(trial, "complete")


def test_commands_that_come_with_it_are_obeyed():
    lab = Lab()
    trial, other = lab.running(), lab.running()
    stop = StopOther(trial_id=other.trial_id, reason="beaten")
    deciding(lab, Resize(TWO_CPUS, "there is room", save=False, commands=(stop,)))
    [resize, _] = lab.result(trial, 1)
    assert not resize.save
    assert other.status is TrialStatus.STOPPING


@pytest.mark.parametrize("status", TrialStatus)
def test_only_a_trial_on_no_worker_re_asks(status: TrialStatus):
    lab = Lab()
    trial = bring(lab, status)
    before = trial.resources
    command = ResizeWaiting(trial_id=trial.trial_id, resources=FOUR_CPUS)
    deciding(lab, Continue(commands=(command,)))
    asked = lab.result(lab.running(), 1)[1:]
    if status in (TrialStatus.PENDING, TrialStatus.PAUSED) or status.is_paused_by_user:
        key, number = trial.trial_id, trial.incarnation
        assert asked == [ChangeRequest(trial_id=key, incarnation=number, resources=FOUR_CPUS)]
        assert trial.status is status
        assert (trial.resources, trial.base_resources) == (FOUR_CPUS, ONE_CPU)
        # The same again is none of its business.
        assert kinds(lab.result(lab.running(), 1)) == ["ContinueTraining"]
    else:
        assert asked == []
        assert trial.resources == before


def test_the_scheduler_gets_cluster_changes_and_may_return_commands():
    lab = Lab()
    trial = lab.add()
    command = ResizeWaiting(trial_id=trial.trial_id, resources=FOUR_CPUS)
    lab.scheduler.on_cluster_change = lambda: (command,)
    lab.scheduler.observe = lambda view: None
    workers = {"a": {"CPU": 4}}
    actions = lab.handle(ClusterChanged(workers=workers, time=lab.tick()))
    assert kinds(actions) == ["ChangeRequest"]
    state = lab.experiment.state_dict()
    assert state["policies"]["workers"] == workers
    again = Lab()
    again.experiment.load_state_dict(state)
    assert again.experiment.state_dict() == state
    assert again.experiment.trials[trial.trial_id].base_resources == ONE_CPU
    lab.scheduler.on_cluster_change = lambda: ()
    lab.handle(ClusterChanged(workers={"b": {"CPU": 1}}, time=lab.tick()))
    assert lab.experiment.state_dict()["policies"]["workers"] == {"b": {"CPU": 1}}
    assert state["policies"]["workers"] == workers


def test_what_was_decided_then_stands_whatever_is_decided_now():
    lab = Lab()
    trial = lab.running()
    told = ResizeTrial(
        trial_id=trial.trial_id,
        incarnation=1,
        resources=FOUR_CPUS,
        save=False,
        reason="then",
        kind=CheckpointKind.PERSISTENT,
    )
    recorded = RecordedDecisions([told])
    event = lab.event(trial, ResultReported, metrics={"training_iteration": 1})
    assert lab.experiment.handle(event, recorded).actions == [told]
    assert trial.resources == FOUR_CPUS
    assert recorded.diverged_policy
    other = bring(lab, TrialStatus.PENDING)
    change = ChangeRequest(trial_id=other.trial_id, incarnation=0, resources=FOUR_CPUS)
    event = ClusterChanged(workers={"a": {"CPU": 4}}, time=lab.tick())
    assert lab.experiment.handle(event, RecordedDecisions([change])).actions == [change]
    assert other.resources == FOUR_CPUS


def test_a_replay_resizes_no_trial_that_was_not_resized():
    lab = Lab()
    trial = lab.running()
    deciding(lab, Resize(TWO_CPUS, "now"))
    recorded = RecordedDecisions([None])
    event = lab.event(trial, ResultReported, metrics={"training_iteration": 1})
    [action] = lab.experiment.handle(event, recorded).actions
    assert isinstance(action, ContinueTraining)
    assert trial.resources == ONE_CPU


@pytest.mark.parametrize("fresh", [False, True])
def test_one_that_restarts_asks_for_what_it_first_asked_for(fresh: bool):
    lab = Lab()
    trial = bring(lab, TrialStatus.RESIZING)
    lab.tell(trial, TrialEnded)
    lab.handle(TrialReopenRequested(trial_id=trial.trial_id, fresh=fresh, time=lab.tick()))
    assert trial.resources == (ONE_CPU if fresh else TWO_CPUS)
    assert trial.base_resources == ONE_CPU
