from __future__ import annotations

from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import ResultReported
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import STATUS_LOG_LENGTH, Trial, new_status_log
from dasktune.trial.user_error import ErrorInfo


def make() -> Trial:
    return Trial(trial_id="t", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))


def record(index: int) -> CheckpointRecord:
    return CheckpointRecord(path=f"checkpoint_{index}", index=index, iteration=index)


def test_a_new_trial_has_nothing_to_show():
    trial = make()
    assert (trial.last_result, trial.last_iteration, trial.checkpoint, trial.error) == (
        {},
        0,
        None,
        None,
    )
    assert str(trial) == "t[pending]"
    assert trial.public_status == "PENDING"


def test_a_trial_shows_the_newest_of_everything():
    trial = make()
    trial.history = [{"training_iteration": 1}, {"training_iteration": 3, "loss": 0.5}]
    trial.checkpoints = [record(0), record(1)]
    trial.errors = [ErrorInfo(message="first"), ErrorInfo(message="second")]
    assert trial.last_result["loss"] == 0.5
    assert trial.last_iteration == 3
    assert trial.checkpoint == record(1)
    assert trial.error == ErrorInfo(message="second")


def test_the_first_checkpoint_is_progress_however_far_the_trial_was_without_one():
    trial = make()
    seen = [trial.progress]
    trial.history = [{"training_iteration": 50}]
    seen.append(trial.progress)
    trial.next_checkpoint = 1
    seen.append(trial.progress)
    trial.next_checkpoint = 2
    seen.append(trial.progress)
    assert seen == sorted(set(seen))


def test_more_iterations_are_no_progress_once_a_loss_leads_back_to_a_checkpoint():
    trial = make()
    trial.next_checkpoint = 1
    before = trial.progress
    trial.history = [{"training_iteration": 50}]
    assert trial.progress == before


def test_a_story_keeps_its_last_steps_only():
    trial = make()
    trial.status_log = new_status_log()
    trial.status_log.extend((trial.status, ResultReported, 1, seq) for seq in range(100))
    assert len(trial.status_log) == STATUS_LOG_LENGTH
    assert trial.status_log[-1][-1] == 99


def test_trials_are_compared_by_identity():
    assert make() != make()
