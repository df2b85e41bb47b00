"""What follows from events and actions without a decision; the experiment's tests show the rest."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.trial.actions import ExploitTrial, PauseTrial, StartTrial, StopTrial
from dasktune.trial.apply import add_checkpoint, apply_action, apply_event, new_trial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ResultReported, Suggested, TrialFailed, TrialLost, TrialPaused, TrialStarted
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial
from dasktune.trial.user_error import ErrorInfo

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def started(incarnation: int = 1) -> Trial:
    event = Suggested(trial_id="a", config={"x": 1}, resources=ONE_CPU, time=0.0)
    trial = new_trial(event, History())
    start(trial, incarnation)
    return trial


def start(trial: Trial, incarnation: int) -> None:
    action = StartTrial(trial_id="a", incarnation=incarnation, config={}, resources=ONE_CPU)
    apply_action(trial, action, 1.0)
    apply_event(trial, about(TrialStarted, incarnation, worker="w"))


def about(kind: type[Any], incarnation: int = 1, **more: Any) -> Any:
    return kind(trial_id="a", incarnation=incarnation, time=2.0, **more)


def record(index: int, kind: CheckpointKind = CheckpointKind.PERSISTENT) -> CheckpointRecord:
    path = f"trials/a/checkpoint_{index:06}_i01"
    return CheckpointRecord(path=path, index=index, iteration=index, metrics={}, kind=kind)


@pytest.mark.parametrize("config", [7, None, [1]])
def test_a_configuration_is_a_dict(config: Any):
    event = Suggested(trial_id="a", config=config, resources=ONE_CPU, time=0.0)
    with pytest.raises(TypeError, match="config must be a dict, got"):
        new_trial(event, History())


def test_a_trial_says_why_it_waits_until_it_starts_again_or_ends():
    trial = started()
    apply_action(trial, PauseTrial(trial_id="a", incarnation=1, save=True, reason="a rung"), 2.0)
    # The loss of a worker that the trial was leaving changes nothing.
    apply_event(trial, about(TrialLost, reason="gone"))
    assert (trial.status, trial.pause_reason, trial.losses) == (TrialStatus.PAUSED, "a rung", 1)
    trial = started()
    apply_event(trial, about(TrialLost, reason="gone"))
    assert (trial.status, trial.pause_reason) == (TrialStatus.PENDING, "gone")
    start(trial, 2)
    assert (trial.pause_reason, trial.incarnation) == ("", 2)


def test_a_trial_whose_code_fails_while_it_is_stopped_early_was_not_stopped_early():
    trial = started()
    apply_action(trial, StopTrial(trial_id="a", incarnation=1, reason="poor", early=True), 2.0)
    assert trial.stopped_early
    apply_event(trial, about(TrialFailed, error=ErrorInfo(message="ValueError: no", traceback="")))
    assert (trial.status, trial.stopped_early) == (TrialStatus.ERROR, False)
    assert (trial.reason, trial.ended_at) == ("ValueError: no", 2.0)


def test_a_late_result_of_a_clone_s_former_life_is_not_recorded():
    trial = started()
    assert apply_event(trial, about(ResultReported, metrics={"training_iteration": 1}))
    exploit = ExploitTrial(
        trial_id="a", incarnation=1, donor="b", config={"x": 2}, old_config={}, reason="worse",
        iteration=1, checkpoint=record(0),
    )  # fmt: skip
    apply_action(trial, exploit, 2.0)
    apply_action(trial, PauseTrial(trial_id="a", incarnation=1, save=False, reason="worse"), 2.0)
    assert not apply_event(trial, about(ResultReported, metrics={"training_iteration": 2}))
    apply_event(trial, about(TrialPaused))
    assert (trial.config, trial.history, trial.pause_reason) == ({"x": 2}, [], "worse")


def test_a_stored_checkpoint_replaces_only_an_older_one_in_memory():
    trial = started()
    add_checkpoint(trial, record(1, CheckpointKind.MEMORY))
    add_checkpoint(trial, record(0))
    assert (trial.memory, trial.next_checkpoint) == (record(1, CheckpointKind.MEMORY), 2)
    add_checkpoint(trial, record(2))
    assert (trial.memory, trial.checkpoints, trial.next_checkpoint) == (None, [record(0), record(2)], 3)
