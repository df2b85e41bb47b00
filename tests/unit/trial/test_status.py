from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import pytest

from dasktune.errors import InvalidTransition
from dasktune.experiment import TrialIndex
from dasktune.experiment.trial_state import trial_state
from dasktune.trial import actions, events
from dasktune.trial.actions import (
    FinishTrial,
    GiveUp,
    ReopenTrial,
    StopTrial,
    TrialAction,
    UnpauseTrial,
)
from dasktune.trial.events import (
    RestoreFailed,
    StartFailed,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStopped,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import ACTIVE, FINAL, PUBLIC, TRANSITIONS, PublicStatus, TrialStatus
from dasktune.trial.trial import Trial, new_status_log
from dasktune.trial.user_error import ErrorInfo


def concrete(module: ModuleType, base: type) -> tuple[type[Any], ...]:
    """Return the classes of a module that are made: dataclasses derived from another class."""
    return tuple(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and kind is not base
        and "__dataclass_params__" in vars(kind)
    )


EVENTS: tuple[type[TrialEvent], ...] = concrete(events, TrialEvent)
ACTIONS: tuple[type[TrialAction], ...] = concrete(actions, TrialAction)
PAIRS = [(status, cause) for status in TrialStatus for cause in (*EVENTS, *ACTIONS)]
ABSENT = [pair for pair in PAIRS if pair not in TRANSITIONS]

#: What must be given to make one of each.
FACTS: dict[str, Any] = {
    "worker": "w",
    "metrics": {"training_iteration": 1},
    "checkpoint": None,
    "error": ErrorInfo(message="ValueError: no", traceback=""),
    "reason": "because",
    "config": {},
    "old_config": {},
    "donor": "d",
    "iteration": 3,
    "resources": PlacementGroupFactory([{"CPU": 1}]),
    "seq": 7,
    "path": "trials/t/checkpoint_000000_i01",
    "fresh": False,
}


def cause_of(kind: type[TrialEvent] | type[TrialAction]) -> TrialEvent | TrialAction:
    names = kind.__dataclass_fields__
    facts = {name: value for name, value in FACTS.items() if name in names}
    if "time" in names:
        facts["time"] = 1.0
    return kind(trial_id="t", incarnation=1, **facts)


def index_with(status: TrialStatus) -> tuple[TrialIndex, Trial]:
    """Return a index with one trial that stands there, whatever led to it."""
    trial = Trial(trial_id="t", config={}, resources=FACTS["resources"], incarnation=1, status=status)
    index = TrialIndex()
    index.load_state_dict(
        {
            "trials": [trial_state(trial)],
            "pending": ["t"] if status is TrialStatus.PENDING else [],
            "paused": ["t"] if status is TrialStatus.PAUSED else [],
        }
    )
    trial = index.trials["t"]
    # One that has ended has none after a restore.
    trial.status_log = new_status_log()
    return index, trial


@pytest.mark.parametrize(("status", "cause"), TRANSITIONS)
def test_a_row_of_the_table_moves_the_trial_and_all_indexes(
    status: TrialStatus, cause: type[TrialEvent] | type[TrialAction]
) -> None:
    index, trial = index_with(status)
    index.apply(trial, cause_of(cause), 1.0)
    assert trial.status is TRANSITIONS[status, cause]
    index.validate()
    assert index.public_counts()[trial.public_status] == sum(index.public_counts().values()) == 1
    assert index.unfinished == (not trial.status.is_final)


@pytest.mark.parametrize("status", TrialStatus)
def test_a_pair_that_is_not_in_the_table_is_a_bug_that_tells_the_trials_story(status: TrialStatus) -> None:
    causes = [cause for one, cause in ABSENT if one is status]
    assert causes
    for cause in causes:
        index, trial = index_with(status)
        with pytest.raises(InvalidTransition) as caught:
            index.apply(trial, cause_of(cause), 1.0)
        assert f"trial t is {status.value} and got {cause.__name__}" in str(caught.value)
        assert "bug in dasktune" in str(caught.value)
        last = caught.value.story[-1]
        assert last.startswith(f"{status.value}: {cause.__name__} of incarnation 1")
        assert trial.status is status
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)


def test_the_table_speaks_of_every_event_and_action_that_there_is():
    assert {cause for _, cause in TRANSITIONS} == {*EVENTS, *ACTIONS}
    assert len(EVENTS) == 11
    assert len(ACTIONS) == 21


def test_nothing_but_the_user_leads_out_of_the_final_statuses():
    ways_out = {cause for status, cause in TRANSITIONS if status in FINAL}
    assert ways_out == {ReopenTrial}
    assert {status for status in TrialStatus if status.is_final} == FINAL


def test_every_status_is_active_final_or_waiting():
    resting = {status for status in TrialStatus if status.is_paused_by_user}
    assert resting == {TrialStatus.SUSPENDED, TrialStatus.SHELVED}
    waiting = {TrialStatus.PENDING, TrialStatus.PAUSED, *resting}
    assert ACTIVE | FINAL | waiting == set(TrialStatus)
    assert not ACTIVE & FINAL
    assert {status for status in TrialStatus if status.is_active} == ACTIVE


def test_users_see_one_of_five_words_for_every_status():
    assert set(PUBLIC) == set(TrialStatus)
    assert set(PUBLIC.values()) == set(PublicStatus)
    assert [str(word) for word in PublicStatus] == [
        "PENDING",
        "RUNNING",
        "PAUSED",
        "TERMINATED",
        "ERROR",
    ]
    assert TrialStatus.SAVING.public is PublicStatus.RUNNING


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_a_worker_may_be_lost_and_code_may_fail_in_every_active_status(status: TrialStatus):
    for cause in (TrialLost, TrialFailed):
        assert not TRANSITIONS[status, cause].is_active


ENDING = {TrialStatus.STOPPING, TrialStatus.FAILING}


@pytest.mark.parametrize("status", sorted(set(TrialStatus) - FINAL - ENDING))
def test_a_trial_can_be_stopped_in_every_status(status: TrialStatus):
    if status.is_active:
        assert TRANSITIONS[status, StopTrial] is TrialStatus.STOPPING
    else:
        assert TRANSITIONS[status, FinishTrial] is TrialStatus.TERMINATED


def test_a_stopping_trial_only_ever_ends():
    after = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is TrialStatus.STOPPING}
    assert after == {TrialStatus.STOPPING, TrialStatus.TERMINATED, TrialStatus.ERROR}


def test_a_failing_trial_only_ever_ends_in_error():
    after = {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] is TrialStatus.FAILING}
    assert after == {TrialStatus.FAILING, TrialStatus.ERROR}


def test_resources_are_held_exactly_from_a_start_to_a_terminal_event():
    terminal = {
        TrialEnded,
        TrialPaused,
        TrialStopped,
        TrialFailed,
        TrialLost,
        TrialReturned,
        StartFailed,
        RestoreFailed,
    }
    for (before, cause), after in TRANSITIONS.items():
        assert before.is_active or not issubclass(cause, TrialEvent)
        if before.is_active:
            assert after.is_active == (cause not in terminal)
    waiting = (UnpauseTrial, FinishTrial, GiveUp)
    assert all(not TRANSITIONS[pair].is_active for pair in TRANSITIONS if pair[1] in waiting)


def test_every_status_can_be_reached():
    reached, todo = {TrialStatus.PENDING}, [TrialStatus.PENDING]
    while todo:
        here = todo.pop()
        found = {after for (before, _), after in TRANSITIONS.items() if before is here} - reached
        reached |= found
        todo.extend(found)
    assert reached == set(TrialStatus)
