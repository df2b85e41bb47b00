"""Which trials may still resume from which checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import Lab, bring, committed, kinds

from dasktune.errors import InvalidTransition
from dasktune.experiment.checkpoint_references import CheckpointReferences
from dasktune.schedulers.decision import Continue, Pause
from dasktune.trial.actions import DeleteCheckpoint, RestoreTrial, SaveTrial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointLost,
    CheckpointStored,
    RestoreFailed,
    SessionBegan,
    TrialEnded,
    TrialPaused,
    TrialPauseRequested,
    TrialReopenRequested,
    TrialStarted,
    TrialStopRequested,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.retention import Retention
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


def test_the_owner_of_a_checkpoint_is_found_by_its_directory():
    """Which may be called what another trial's id is."""
    request = PlacementGroupFactory([{"CPU": 1}])
    names = {"a": "b", "b": "elsewhere", "c": ""}
    trials = {
        key: Trial(trial_id=key, config={}, resources=request, dirname=dirname)
        for key, dirname in names.items()
    }
    references = CheckpointReferences(trials, Retention())
    for key, folder in (("a", "b"), ("b", "elsewhere"), ("c", "c")):
        path = f"trials/{folder}/checkpoint_000000_i01"
        assert references.owner_of(path) is trials[key]


def test_a_clone_of_the_same_checkpoint_again_does_not_delete_it():
    request = PlacementGroupFactory([{"CPU": 1}])
    owner, clone = (Trial(trial_id=name, config={}, resources=request) for name in "ab")
    references = CheckpointReferences({"a": owner, "b": clone}, Retention())
    record = committed(owner, 0, 1)
    # Its owner does not need it any more.
    owner.lent = (record,)
    for _ in range(2):
        assert references.add_reference(clone, record) == []
    assert owner.lent == (record,)


def in_memory(trial: Trial, index: int, iteration: int) -> CheckpointRecord:
    record = committed(trial, index, iteration)
    return CheckpointRecord(**{**record.to_json(), "kind": CheckpointKind.MEMORY})


def pause(lab: Lab, trial: Trial, index: int, iteration: int) -> list[Any]:
    """Pause a running trial, which leaves a checkpoint in memory, and return all that was done."""
    before, lab.scheduler.decide = lab.scheduler.decide, lambda *_: Pause("not now")
    actions = lab.result(trial, iteration)
    lab.scheduler.decide = before
    record = in_memory(trial, index, iteration)
    actions += lab.tell(trial, CheckpointCommitted, checkpoint=record)
    return actions + lab.tell(trial, TrialPaused)


def paused(lab: Lab) -> Trial:
    """Return a trial with one checkpoint in the storage and a newer one in memory."""
    trial = lab.running()
    lab.result(trial, 1, checkpoint=0)
    pause(lab, trial, 1, 2)
    return trial


def lose(lab: Lab, trial: Trial, index: int) -> list[Any]:
    path = f"trials/{trial.trial_id}/checkpoint_{index:06d}_i01"
    return lab.handle(CheckpointLost(trial_id=trial.trial_id, path=path, reason="gone", time=lab.tick()))


def deleted(actions: list[Any]) -> list[int]:
    return [one.checkpoint.index for one in actions if isinstance(one, DeleteCheckpoint)]


def restored(lab: Lab, trial: Trial) -> int | None:
    """Start a trial and return the number of the checkpoint that it resumes from."""
    order = lab.grant(trial)
    return order.checkpoint.index if isinstance(order, RestoreTrial) else None


def test_a_paused_trial_resumes_from_memory():
    lab = Lab()
    trial = paused(lab)
    assert trial.checkpoint.index == 0
    order = lab.grant(trial)
    assert order.checkpoint == trial.memory
    assert order.checkpoint.kind is CheckpointKind.MEMORY


@pytest.mark.parametrize("status", [TrialStatus.PAUSED, TrialStatus.RESTORING])
def test_a_trial_whose_checkpoint_in_memory_is_lost_resumes_from_the_storage(status):
    lab = Lab()
    trial = paused(lab)
    if status is TrialStatus.RESTORING:
        assert restored(lab, trial) == 1
    lose(lab, trial, 1)
    assert trial.status is status
    if status is TrialStatus.RESTORING:
        lab.lose(trial)
    assert restored(lab, trial) == 0


def test_a_trial_without_any_other_checkpoint_begins_again():
    lab = Lab()
    trial = lab.running()
    pause(lab, trial, 0, 1)
    lose(lab, trial, 0)
    assert restored(lab, trial) is None


def test_that_an_old_checkpoint_is_lost_is_no_news():
    lab = Lab()
    trial = paused(lab)
    lose(lab, trial, 0)
    assert restored(lab, trial) == 1


def test_a_checkpoint_in_memory_is_kept_until_there_is_a_newer_one():
    lab = Lab()
    trial = paused(lab)
    lab.start(trial)
    assert deleted(lab.result(trial, 3)) == []
    assert deleted(pause(lab, trial, 2, 4)) == [1]
    lab.start(trial)
    assert deleted(lab.result(trial, 5, checkpoint=3)) == [2]
    assert trial.memory is None


def test_retention_counts_what_is_in_the_storage_only():
    lab = Lab(retention=Retention(num_to_keep=1))
    trial = paused(lab)
    assert [one.index for one in trial.checkpoints] == [0]
    assert restored(lab, trial) == 1


@pytest.mark.parametrize("way", ["ended", "stopped while paused"])
def test_a_trial_that_has_ended_leaves_nothing_in_memory(way):
    lab = Lab()
    trial = paused(lab)
    if way == "ended":
        lab.start(trial)
        actions = lab.tell(trial, TrialEnded)
    else:
        request = TrialStopRequested(trial_id=trial.trial_id, reason="enough", time=lab.tick())
        actions = lab.handle(request)
    assert deleted(actions) == [1]
    assert trial.memory is None
    assert trial.checkpoint.index == 0


def test_another_driver_has_nothing_in_memory():
    lab = Lab()
    trial = paused(lab)
    lab.handle(SessionBegan(time=lab.tick()))
    assert restored(lab, trial) == 0


def test_what_a_driver_that_leaves_has_stored_is_there_for_the_next_one():
    lab = Lab()
    trial = paused(lab)
    stored = committed(trial, 1, 2)
    event = CheckpointStored(trial_id=trial.trial_id, checkpoint=stored, time=lab.tick())
    assert deleted(lab.handle(event)) == [1]
    lab.handle(SessionBegan(time=lab.tick()))
    order = lab.grant(trial)
    assert order.checkpoint == stored


def store(lab: Lab, trial: Trial, index: int, iteration: int) -> list[Any]:
    """Report that the driver, which leaves, has written a checkpoint in memory to the storage."""
    path = f"trials/{trial.trial_id}/checkpoint_{index:06d}_i01"
    stored = CheckpointRecord(path=path, index=index, iteration=iteration)
    return lab.handle(CheckpointStored(trial_id=trial.trial_id, checkpoint=stored, time=lab.tick()))


@pytest.mark.parametrize("superseded", [False, True], ids=["newest", "superseded"])
def test_a_clone_resumes_from_what_was_stored_for_it_under_the_next_driver(superseded: bool):
    lab = Lab()
    donor, clone = paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, clone, donor, 2)
    if superseded:
        lab.start(donor)
        lab.result(donor, 3, checkpoint=2)
        lab.lose(donor)
    assert store(lab, donor, 1, 2) == []
    assert donor.memory_checkpoints == ()
    lab.handle(SessionBegan(time=lab.tick()))
    assert clone.origin.index == 1
    assert clone.origin.kind is CheckpointKind.PERSISTENT
    lab.start(clone)
    # Only the clone needed what was superseded.
    assert deleted(lab.tell(clone, TrialEnded)) == ([1] if superseded else [])


def test_what_is_held_in_memory_is_held_in_the_storage_once_it_is_stored():
    trial = Trial(trial_id="a", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))
    references, stored = CheckpointReferences({"a": trial}, Retention()), committed(trial, 0, 2)
    trial.history.append({"training_iteration": 2})
    references.keep(trial, CheckpointRecord(**{**stored.to_json(), "kind": CheckpointKind.MEMORY}))
    references.hold(trial)
    references.store(trial, stored)
    assert (trial.held, trial.memory, trial.checkpoints) == (stored, None, [stored])


def test_the_loss_of_a_copy_in_memory_after_it_was_stored_changes_nothing():
    lab = Lab()
    donor, clone = paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, clone, donor, 2)
    store(lab, donor, 1, 2)
    lose(lab, donor, 1)
    assert donor.checkpoint.index == clone.origin.index == 1


def test_what_was_stored_too_late_is_deleted():
    lab = Lab()
    trial = paused(lab)
    lab.start(trial)
    lab.result(trial, 3, checkpoint=2)
    stored = CheckpointRecord(path=f"trials/{trial.trial_id}/checkpoint_000001_i01", index=1, iteration=2)
    event = CheckpointStored(trial_id=trial.trial_id, checkpoint=stored, time=lab.tick())
    [action] = lab.handle(event)
    assert action.checkpoint == stored
    assert [one.index for one in trial.checkpoints] == [0, 2]


def test_a_trial_that_restarts_has_nothing_in_memory():
    lab = Lab()
    trial = paused(lab)
    request = TrialReopenRequested(trial_id=trial.trial_id, fresh=True, time=lab.tick())
    assert deleted(lab.handle(request)) == [0, 1]
    assert restored(lab, trial) is None


def test_a_scheduler_may_have_a_checkpoint_in_memory_while_the_trial_trains():
    lab = Lab()
    trial = lab.running()
    lab.scheduler.decide = lambda *_: Continue(save=True, kind=CheckpointKind.MEMORY)
    [order] = lab.result(trial, 1)
    assert isinstance(order, SaveTrial)
    assert order.kind is CheckpointKind.MEMORY
    lab.tell(trial, CheckpointCommitted, checkpoint=in_memory(trial, 0, 1))
    assert trial.status is TrialStatus.RUNNING
    lab.lose(trial)
    assert restored(lab, trial) == 0


def test_the_state_of_an_experiment_holds_what_is_in_memory_and_lent():
    lab, other = Lab(), Lab()
    donor, trial = paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, trial, donor, 2)
    lab.start(donor)
    lab.result(donor, 3, checkpoint=2)
    other.experiment.load_state_dict(lab.experiment.state_dict())
    assert other.experiment.state_dict() == lab.experiment.state_dict()
    again = other.experiment.trials[trial.trial_id]
    assert deleted(checkpoints_of(other).release_all(again)) == [1]


def test_a_trial_that_has_ended_with_something_in_memory_is_a_bug():
    lab = Lab()
    trial = bring(lab, TrialStatus.TERMINATED)
    trial.memory = in_memory(trial, 0, 1)
    trial.next_checkpoint = 1
    with pytest.raises(InvalidTransition, match="has ended"):
        lab.experiment.trial_index.validate()


# A trial that resumes from another one's checkpoint


def checkpoints_of(lab: Lab) -> CheckpointReferences:
    return lab.experiment._checkpoints


def lend(lab: Lab, trial: Trial, donor: Trial, iteration: int) -> list[Any] | None:
    record = checkpoints_of(lab).newest(donor, iteration)
    return None if record is None else checkpoints_of(lab).add_reference(trial, record)


def test_a_trial_can_resume_from_another_one_s_checkpoint():
    lab = Lab()
    donor, trial = paused(lab), bring(lab, TrialStatus.PAUSED)
    assert lend(lab, trial, donor, 2) == []
    order = lab.grant(trial)
    assert order.checkpoint == donor.memory
    assert order.trial_id == trial.trial_id


def test_only_what_the_donor_had_at_that_iteration_is_lent():
    lab = Lab()
    donor, trial = paused(lab), bring(lab, TrialStatus.PAUSED)
    assert lend(lab, trial, donor, 0) is None
    assert trial.origin is None
    lend(lab, trial, donor, 1)
    assert trial.origin == donor.checkpoint


def test_what_is_lent_is_kept_until_the_last_borrower_has_one_of_its_own():
    lab = Lab(retention=Retention(num_to_keep=1))
    donor = paused(lab)
    first, second = (bring(lab, TrialStatus.PAUSED) for _ in range(2))
    for trial in (first, second):
        lend(lab, trial, donor, 2)
        lab.start(trial)
    lab.start(donor)
    # Superseded, and the donor ends.
    assert deleted(lab.result(donor, 3, checkpoint=2)) == [0]
    assert deleted(lab.tell(donor, TrialEnded)) == []
    assert deleted(lab.result(first, 2, checkpoint=0)) == []
    actions = lab.tell(second, TrialEnded)
    assert [(one.trial_id, one.checkpoint.index) for one in actions] == [(donor.trial_id, 1)]
    assert donor.lent == ()


def test_a_borrower_that_loses_its_worker_resumes_from_there_again():
    lab = Lab()
    donor, trial = paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, trial, donor, 2)
    lab.start(trial)
    lab.lose(trial)
    assert restored(lab, trial) == 1


def test_a_borrower_that_borrows_again_gives_back_first():
    lab = Lab()
    donor, other, trial = paused(lab), paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, trial, donor, 2)
    lab.start(donor)
    lab.result(donor, 3, checkpoint=2)
    actions = lend(lab, trial, other, 2)
    assert kinds(actions) == ["DeleteCheckpoint"]
    assert trial.origin == other.memory


def test_who_borrowed_what_is_lost_takes_an_older_one_of_the_donor():
    lab = Lab()
    donor, trial = paused(lab), bring(lab, TrialStatus.PAUSED)
    lend(lab, trial, donor, 2)
    lose(lab, donor, 1)
    assert trial.origin == donor.checkpoint


def test_a_borrower_of_what_is_lost_resumes_from_its_own_without_another():
    lab = Lab()
    donor = lab.running()
    pause(lab, donor, 0, 1)
    trial, bystander = paused(lab), paused(lab)
    lend(lab, trial, donor, 1)
    # Only its borrower still needs it, and then a driver dies.
    lab.start(donor)
    lab.result(donor, 2, checkpoint=1)
    donor.checkpoints.clear()
    lab.handle(SessionBegan(time=lab.tick()))
    assert donor.lent == ()
    assert (trial.origin, trial.restore_point) == (None, trial.checkpoint)
    assert bystander.restore_point == bystander.checkpoint


def test_a_trial_that_has_only_borrowed_lends_that():
    lab = Lab()
    donor = paused(lab)
    trial, third = (bring(lab, TrialStatus.PAUSED) for _ in range(2))
    lend(lab, trial, donor, 2)
    lend(lab, third, trial, 2)
    assert third.origin == donor.memory


# A checkpoint in the storage that is missing or damaged


def damaged(lab: Lab, trial: Trial, index: int, *, owner: Trial | None = None) -> list[Any]:
    """Let a running trial find that a checkpoint, of its own or of another trial, is damaged."""
    path = f"trials/{(owner or trial).trial_id}/checkpoint_{index:06d}_i01"
    return lab.tell(trial, RestoreFailed, path=path, reason="the checkpoint is damaged")


def saved(lab: Lab, count: int) -> Trial:
    """Return a trial that has lost its worker after so many checkpoints in the storage."""
    trial = lab.running()
    for index in range(count):
        lab.result(trial, index + 1, checkpoint=index)
    lab.lose(trial, charged=False)
    return trial


def test_a_trial_falls_back_from_one_damaged_checkpoint_to_the_next_and_then_begins_again():
    lab = Lab(max_failures=0, max_worker_losses=0)
    trial = saved(lab, 3)
    for index in (2, 1, 0):
        assert restored(lab, trial) == index
        lab.tell(trial, TrialStarted, worker="w")
        assert damaged(lab, trial, index) == []
        assert trial.status is TrialStatus.PENDING
    assert restored(lab, trial) is None
    lab.tell(trial, TrialStarted, worker="w")
    # It has lost no result, is charged nothing, and the policies get each result once.
    assert (trial.failures, trial.worker_losses, trial.last_iteration) == (0, 0, 3)
    lab.result(trial, 1)
    assert [what for what, _ in lab.scheduler.calls].count("result 1") == 1
    # The number of a damaged checkpoint is not used again.
    assert trial.next_checkpoint == 3


def test_a_clone_falls_back_to_an_older_checkpoint_of_its_donor_which_loses_it_too():
    lab = Lab()
    donor, clone = saved(lab, 2), bring(lab, TrialStatus.PAUSED)
    lend(lab, clone, donor, 2)
    assert restored(lab, clone) == 1
    lab.tell(clone, TrialStarted, worker="w")
    damaged(lab, clone, 1, owner=donor)
    assert clone.origin == donor.checkpoint
    assert restored(lab, clone) == restored(lab, donor) == 0


def test_what_is_held_for_clones_is_replaced_if_it_is_damaged():
    lab = Lab()
    trial = saved(lab, 2)
    checkpoints_of(lab).hold(trial)
    lab.start(trial)
    damaged(lab, trial, 1)
    assert trial.held.index == 0
    assert checkpoints_of(lab).newest(trial, 2).index == 0


@pytest.mark.parametrize(
    ("order", "after"),
    [(TrialPauseRequested, TrialStatus.SUSPENDED), (TrialStopRequested, TrialStatus.TERMINATED)],
)
def test_an_order_that_crosses_the_damage_is_carried_out(order: Any, after: TrialStatus):
    lab = Lab()
    trial = saved(lab, 2)
    lab.start(trial)
    lab.handle(order(trial_id=trial.trial_id, reason="enough", time=lab.tick()))
    damaged(lab, trial, 1)
    assert trial.status is after
    assert [one.index for one in trial.checkpoints] == [0]


def test_damage_that_an_earlier_start_found_is_no_news():
    lab = Lab()
    trial = saved(lab, 2)
    lab.start(trial)
    lab.lose(trial)
    path = trial.checkpoint.path
    late = RestoreFailed(
        trial_id=trial.trial_id, incarnation=2, time=lab.tick(), seq=9, path=path, reason="gone"
    )
    lab.handle(late)
    assert restored(lab, trial) == 1
