from __future__ import annotations

from collections.abc import Callable

import pytest

from dasktune.errors import InvalidTransition
from dasktune.experiment import Roster
from dasktune.trial.actions import RestoreTrial, StartTrial, UnpauseTrial
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import ResultReported, TrialLost, TrialPaused, TrialStarted
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus, TrialStatus
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def add(roster: Roster, trial_id: str) -> Trial:
    trial = Trial(trial_id=trial_id, config={}, resources=ONE_CPU)
    roster.add(trial)
    return trial


def start(roster: Roster, trial: Trial) -> None:
    trial.incarnation += 1
    roster.move(
        trial,
        StartTrial(
            trial_id=trial.trial_id, incarnation=trial.incarnation, config={}, resources=ONE_CPU
        ),
    )
    event = TrialStarted(
        trial_id=trial.trial_id, incarnation=trial.incarnation, time=0.0, seq=1, worker="w"
    )
    roster.move(trial, event)


def lose(roster: Roster, trial: Trial) -> None:
    event = TrialLost(
        trial_id=trial.trial_id, incarnation=trial.incarnation, time=0.0, reason="gone"
    )
    roster.move(trial, event)


def test_a_roster_counts_by_public_status():
    roster = Roster()
    trials = [add(roster, name) for name in "abc"]
    start(roster, trials[1])
    assert len(roster) == 3
    assert roster.unfinished == 3
    assert roster.public_counts() == {
        PublicStatus.PENDING: 2,
        PublicStatus.RUNNING: 1,
        PublicStatus.PAUSED: 0,
        PublicStatus.TERMINATED: 0,
        PublicStatus.ERROR: 0,
    }


def test_trials_wait_in_the_order_in_which_they_came():
    roster = Roster()
    for name in "abc":
        add(roster, name)
    assert list(roster.pending) == ["a", "b", "c"]


def test_who_lost_its_worker_goes_first():
    roster = Roster()
    first = add(roster, "a")
    start(roster, first)
    add(roster, "b")
    lose(roster, first)
    assert list(roster.pending) == ["a", "b"]


def test_who_was_paused_waits_behind_the_others():
    roster = Roster()
    paused = add(roster, "a")
    roster._reindex(paused, TrialStatus.PENDING, TrialStatus.PAUSED)
    add(roster, "b")
    roster.move(paused, UnpauseTrial(trial_id="a", incarnation=0))
    assert list(roster.pending) == ["b", "a"]


def test_a_second_trial_of_the_same_name_is_a_bug():
    roster = Roster()
    add(roster, "a")
    with pytest.raises(InvalidTransition, match="a second trial a was added"):
        add(roster, "a")


def test_a_story_tells_status_cause_incarnation_and_number():
    roster = Roster()
    trial = add(roster, "a")
    start(roster, trial)
    result = ResultReported(trial_id="a", incarnation=1, time=1.0, seq=2, metrics={})
    roster.move(trial, result)
    with pytest.raises(InvalidTransition) as caught:
        roster.move(trial, TrialPaused(trial_id="a", incarnation=1, time=2.0))
    assert caught.value.story == (
        "pending: StartTrial of incarnation 1",
        "starting: TrialStarted of incarnation 1, seq 1",
        "running: ResultReported of incarnation 1, seq 2",
        "running: TrialPaused of incarnation 1",
    )


def test_an_answer_is_awaited_no_longer_once_the_status_has_changed():
    roster = Roster()
    trial = add(roster, "a")
    start(roster, trial)
    trial.awaiting_seq = 5
    lose(roster, trial)
    assert trial.awaiting_seq == 0


def spoil_rows(trial: Trial) -> None:
    trial.history.append({"training_iteration": 1})


def spoil_order(trial: Trial) -> None:
    trial.rows.update({2: 0, 1: 1})
    trial.history.extend([{}, {}])


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
        (spoil_rows, "not one row per iteration"),
        (spoil_order, "history is out of order"),
        (spoil_checkpoints, "checkpoint numbers are out of order"),
        (spoil_answer, "awaits but does not run"),
        (spoil_status, "pending index is wrong"),
        (spoil_incarnation, "pending index is wrong"),
    ],
)
def test_a_broken_invariant_is_found(spoil: Callable[[Trial], None], sentence: str):
    roster = Roster()
    trial = add(roster, "a")
    roster.validate()
    spoil(trial)
    with pytest.raises(InvalidTransition, match=sentence):
        roster.validate(trial)
    with pytest.raises(InvalidTransition, match=sentence):
        roster.validate()


def test_a_trial_that_runs_without_having_been_started_is_found():
    roster = Roster()
    trial = add(roster, "a")
    action = RestoreTrial(
        trial_id="a",
        incarnation=0,
        config={},
        resources=ONE_CPU,
        checkpoint=CheckpointRecord(path="p", index=0, iteration=1),
    )
    roster.move(trial, action)
    with pytest.raises(InvalidTransition, match="active without an incarnation"):
        roster.validate()


def test_a_trial_that_is_not_counted_is_found():
    roster = Roster()
    add(roster, "a")
    roster._counts.clear()
    with pytest.raises(InvalidTransition, match="0 trials are counted, 1 exist"):
        roster.validate()
