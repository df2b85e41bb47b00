from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.callback.hooks import hooks_of
from dasktune.experiment import HandleResult
from dasktune.trial.actions import FinishTrial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointStored,
    ResultReported,
    TimePassed,
    TrialEnded,
    TrialLost,
    TrialPaused,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

KEY = "a_00000"


@pytest.fixture
def trial() -> Trial:
    return Trial(trial_id=KEY, config={}, resources=PlacementGroupFactory([{"CPU": 1}]))


def told(event: Any, trial: Trial, *actions: Any, current: bool = True, new: bool = False) -> Any:
    experiment: Any = SimpleNamespace(trials={trial.trial_id: trial})
    handled = HandleResult(list(actions), is_current=current, is_new_result=new)
    return [hook.name for hook in hooks_of(event, handled, experiment)]


def of(kind: Any, **facts: Any) -> Any:
    return kind(trial_id=KEY, incarnation=1, time=0.0, seq=1, **facts)


def checkpoint(kind: CheckpointKind = CheckpointKind.PERSISTENT) -> CheckpointRecord:
    path = f"trials/{KEY}/checkpoint_000000_i01"
    return CheckpointRecord(path=path, index=0, iteration=1, kind=kind)


SAVED = ["on_checkpoint", "on_trial_save"]


def test_a_checkpoint_in_memory_is_shown_when_it_is_in_the_storage(trial: Trial):
    in_memory = checkpoint(CheckpointKind.MEMORY)
    assert told(of(CheckpointCommitted, checkpoint=in_memory), trial) == []
    stored = CheckpointStored(trial_id=KEY, checkpoint=checkpoint(), time=0.0)
    assert told(stored, trial, current=False) == SAVED


def test_a_result_that_was_computed_again_is_hidden_its_checkpoint_not(trial: Trial):
    result = of(ResultReported, metrics={"training_iteration": 1}, checkpoint=checkpoint())
    assert told(result, trial, new=True) == ["on_trial_result", *SAVED]
    assert told(result, trial, new=False) == SAVED


def test_what_an_older_incarnation_reports_is_not_shown(trial: Trial):
    trial.status = TrialStatus.TERMINATED
    assert told(of(TrialEnded), trial, current=False) == []


def test_a_trial_that_is_ended_right_after_its_pause_ends_once(trial: Trial):
    trial.status = TrialStatus.TERMINATED
    finish = FinishTrial(trial_id=KEY, incarnation=1, reason="standstill")
    assert told(of(TrialPaused), trial, finish) == ["on_trial_complete"]
    assert told(TimePassed(time=0.0), trial, finish, current=False) == ["on_trial_complete"]


def test_a_worker_that_is_lost_during_a_pause_is_nothing_to_recover_from(trial: Trial):
    lost = of(TrialLost, reason="gone")
    trial.status = TrialStatus.PENDING
    assert told(lost, trial) == ["on_trial_recover"]
    trial.status = TrialStatus.PAUSED
    assert told(lost, trial) == []
