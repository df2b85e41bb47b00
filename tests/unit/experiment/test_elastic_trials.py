"""Distributed trials that start with fewer ranks than they request, and leave to get all."""

from __future__ import annotations

import pytest
from experiment_kit import ONE_CPU, Lab, bring, kinds

from dasktune.trial.actions import Action, ChangeRequest, GrowTrial, RestoreTrial
from dasktune.trial.events import ResourcesGranted, RoomForRanks, TrialStarted
from dasktune.trial.resources import ElasticPlacement, HostPlacement
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

FOUR = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)


def grant(lab: Lab, trial: Trial, ranks: int) -> list[Action]:
    event = ResourcesGranted(trial_id=trial.trial_id, time=lab.tick(), num_ranks=ranks)
    return lab.handle(event)


def grow(lab: Lab, trial: Trial, **facts: int) -> list[Action]:
    given = {"incarnation": trial.incarnation, **facts}
    return lab.handle(RoomForRanks(trial_id=trial.trial_id, reason="room", time=lab.tick(), **given))


def elastic(lab: Lab) -> Trial:
    trial = lab.add()
    trial.resources = FOUR
    return trial


def test_a_trial_starts_with_the_ranks_that_were_granted() -> None:
    lab = Lab()
    trial = elastic(lab)
    [change, start] = grant(lab, trial, 3)
    assert change == ChangeRequest(trial_id=trial.trial_id, incarnation=0, resources=FOUR.resized(3))
    assert (start.resources, start.incarnation) == (FOUR.resized(3), 1)
    assert (trial.resources, trial.base_resources) == (FOUR.resized(3), FOUR)
    assert (trial.resources.is_reduced, FOUR.is_reduced) == (True, False)


@pytest.mark.parametrize(("ranks", "actions"), [(0, ["StartTrial"]), (4, ["StartTrial"])])
def test_a_trial_with_all_its_ranks_keeps_its_request(ranks: int, actions: list[str]) -> None:
    lab = Lab()
    trial = elastic(lab)
    assert kinds(grant(lab, trial, ranks)) == actions
    assert (trial.resources, trial.first_resources) == (FOUR, None)


def test_an_ordinary_trial_has_no_choice() -> None:
    lab = Lab()
    trial = lab.add()
    assert kinds(grant(lab, trial, 1)) == ["StartTrial"]
    assert trial.resources == ONE_CPU


def test_a_paused_trial_gets_its_ranks_when_it_is_unpaused() -> None:
    lab = Lab()
    trial = bring(lab, TrialStatus.PAUSED)
    trial.resources = FOUR
    assert kinds(grant(lab, trial, 2))[:2] == ["UnpauseTrial", "ChangeRequest"]


def test_a_trial_that_grows_trains_on_and_starts_again_without_a_failure() -> None:
    lab = Lab(max_failures=0, max_worker_losses=0)
    trial = elastic(lab)
    grant(lab, trial, 2)
    lab.tell(trial, TrialStarted, worker="w")
    assert grow(lab, trial) == [GrowTrial(trial_id=trial.trial_id, incarnation=1, reason="room")]
    assert trial.status is TrialStatus.RUNNING
    assert kinds(lab.result(trial, 1, checkpoint=0)) == ["ContinueTraining"]
    assert lab.lose(trial, charged=False) == []
    [change, start] = grant(lab, trial, 4)
    assert isinstance(start, RestoreTrial)
    assert (change.resources, start.checkpoint.iteration) == (FOUR, 1)
    assert (trial.first_resources, trial.failures, trial.worker_losses) == (None, 0, 0)


@pytest.mark.parametrize("status", [one for one in TrialStatus if one is not TrialStatus.RUNNING])
def test_only_a_running_trial_grows(status: TrialStatus) -> None:
    lab = Lab()
    trial = bring(lab, status)
    assert grow(lab, trial) == []
    assert trial.status is status


def test_an_event_about_an_earlier_start_has_no_effect() -> None:
    lab = Lab()
    assert grow(lab, lab.running(), incarnation=0) == []
