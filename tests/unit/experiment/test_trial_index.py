from __future__ import annotations

from collections.abc import Callable

import pytest

from dasktune.errors import InvalidTransition
from dasktune.experiment import TrialIndex
from dasktune.experiment.trial_state import trial_state
from dasktune.trial.actions import RestoreTrial, StartTrial, UnpauseTrial
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import ResultReported, TrialLost, TrialPaused, TrialStarted
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus, TrialStatus
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def add(index: TrialIndex, trial_id: str) -> Trial:
    trial = Trial(trial_id=trial_id, config={}, resources=ONE_CPU)
    index.add(trial)
    return trial


def start(index: TrialIndex, trial: Trial) -> None:
    action = StartTrial(
        trial_id=trial.trial_id, incarnation=trial.incarnation + 1, config={}, resources=ONE_CPU
    )
    index.apply(trial, action, 0.0)
    event = TrialStarted(trial_id=trial.trial_id, incarnation=trial.incarnation, time=0.0, seq=1, worker="w")
    index.apply(trial, event, 1.0)


def lose(index: TrialIndex, trial: Trial) -> None:
    event = TrialLost(trial_id=trial.trial_id, incarnation=trial.incarnation, time=0.0, reason="gone")
    index.apply(trial, event, 1.0)


def test_a_index_counts_by_public_status():
    index = TrialIndex()
    trials = [add(index, name) for name in "abc"]
    start(index, trials[1])
    assert len(index) == 3
    assert index.unfinished == 3
    assert index.public_counts() == {
        PublicStatus.PENDING: 2,
        PublicStatus.RUNNING: 1,
        PublicStatus.PAUSED: 0,
        PublicStatus.TERMINATED: 0,
        PublicStatus.ERROR: 0,
    }


def test_trials_wait_in_the_order_in_which_they_came():
    index = TrialIndex()
    for name in "abc":
        add(index, name)
    assert list(index.pending) == ["a", "b", "c"]


def test_who_lost_its_worker_goes_first():
    index = TrialIndex()
    first = add(index, "a")
    start(index, first)
    add(index, "b")
    lose(index, first)
    assert list(index.pending) == ["a", "b"]


def test_who_was_paused_waits_behind_the_others():
    index = TrialIndex()
    paused = Trial(trial_id="a", config={}, resources=ONE_CPU, status=TrialStatus.PAUSED)
    index.load_state_dict({"trials": [trial_state(paused)], "pending": [], "paused": ["a"]})
    paused = index.trials["a"]
    add(index, "b")
    index.apply(paused, UnpauseTrial(trial_id="a", incarnation=0), 1.0)
    assert list(index.pending) == ["b", "a"]


def test_a_second_trial_of_the_same_name_is_a_bug():
    index = TrialIndex()
    add(index, "a")
    with pytest.raises(InvalidTransition, match="a second trial a was added"):
        add(index, "a")


def test_a_story_tells_status_cause_incarnation_and_number():
    index = TrialIndex()
    trial = add(index, "a")
    start(index, trial)
    result = ResultReported(trial_id="a", incarnation=1, time=1.0, seq=2, metrics={"training_iteration": 1})
    index.apply(trial, result, 1.0)
    with pytest.raises(InvalidTransition) as caught:
        index.apply(trial, TrialPaused(trial_id="a", incarnation=1, time=2.0), 2.0)
    assert caught.value.story == (
        "pending: StartTrial of incarnation 1",
        "starting: TrialStarted of incarnation 1, seq 1",
        "running: ResultReported of incarnation 1, seq 2",
        "running: TrialPaused of incarnation 1",
    )


def test_an_answer_is_awaited_no_longer_once_the_status_has_changed():
    index = TrialIndex()
    trial = add(index, "a")
    start(index, trial)
    trial.awaiting_seq = 5
    lose(index, trial)
    assert trial.awaiting_seq == 0


def spoil_order(trial: Trial) -> None:
    trial.history.extend({"training_iteration": number} for number in (2, 1))


def spoil_checkpoints(trial: Trial) -> None:
    trial.checkpoints.append(CheckpointRecord(path="p", index=0, iteration=1))


def spoil_answer(trial: Trial) -> None:
    trial.awaiting_seq = 3


def spoil_status(trial: Trial) -> None:
    trial.status = TrialStatus.PAUSED


def spoil_incarnation(trial: Trial) -> None:
    trial.incarnation = 0
    trial.status = TrialStatus.STARTING


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (spoil_order, "history is out of order"),
        (spoil_checkpoints, "checkpoint numbers are out of order"),
        (spoil_answer, "awaits but does not run"),
        (spoil_status, "pending index is wrong"),
        (spoil_incarnation, "pending index is wrong"),
    ],
)
def test_a_broken_invariant_is_found(spoil: Callable[[Trial], None], sentence: str):
    index = TrialIndex()
    trial = add(index, "a")
    index.validate()
    spoil(trial)
    with pytest.raises(InvalidTransition, match=sentence):
        index.validate(trial)
    with pytest.raises(InvalidTransition, match=sentence):
        index.validate()


def test_a_trial_that_runs_without_having_been_started_is_found():
    index = TrialIndex()
    trial = add(index, "a")
    action = RestoreTrial(
        trial_id="a",
        incarnation=0,
        config={},
        resources=ONE_CPU,
        checkpoint=CheckpointRecord(path="p", index=0, iteration=1),
    )
    index.apply(trial, action, 1.0)
    with pytest.raises(InvalidTransition, match="active without an incarnation"):
        index.validate()


def test_a_trial_that_is_not_counted_is_found():
    index = TrialIndex()
    add(index, "a")
    del index.trials["a"]
    with pytest.raises(InvalidTransition, match="1 trials are counted, 0 exist"):
        index.validate()
