"""How many ranks a trial starts with, and when it is to get all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from dasktune.runner.elastic_ranks import ElasticRanks, ElasticTimes
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def elastic(ranks: int = 8, least: int = 2, per_host: int | None = 2) -> ElasticPlacement:
    request = HostPlacement([{"GPU": 1}] * ranks, per_host=per_host)
    return ElasticPlacement(request, least, 8)


@dataclass
class Room:
    """A cluster with room for a number of bundles."""

    free: int = 0
    #: What was asked for, in order.
    asked: list[int] = field(default_factory=list)

    def has(self, request: PlacementGroupFactory) -> bool:
        self.asked.append(len(request.bundles))
        return len(request.bundles) <= self.free

    def instead(self, requests: Mapping[str, PlacementGroupFactory]) -> bool:
        wanted = sum(len(request.bundles) for request in requests.values())
        self.asked.append(wanted)
        return wanted <= self.free


def trial_of(request: PlacementGroupFactory, name: str = "a") -> Trial:
    return Trial(trial_id=name, config={}, resources=request)


def number(placed: tuple[PlacementGroupFactory, bool]) -> tuple[int, bool]:
    request, fits = placed
    return len(request.bundles), fits


@pytest.mark.parametrize("free", [0, 1])
def test_a_trial_without_a_choice_is_asked_for_once(free: int) -> None:
    room = Room(free)
    chosen = ElasticRanks(room.has, room.instead)
    assert chosen.place(trial_of(ONE_CPU), 0.0) == (ONE_CPU, bool(free))
    assert room.asked == [1]


def test_all_ranks_start_at_once_if_there_is_room() -> None:
    room = Room(8)
    assert number(ElasticRanks(room.has, room.instead).place(trial_of(elastic(2)), 0.0)) == (8, True)


def test_the_wait_begins_when_there_is_room_for_the_fewest() -> None:
    room = Room(1)
    chosen, trial = ElasticRanks(room.has, room.instead), trial_of(elastic())
    # An executor reports a lasting shortage of the fewest ranks only.
    assert number(chosen.place(trial, 0.0)) == (8, False)
    assert room.asked == [2]
    room.free = 7
    assert number(chosen.place(trial, 20.0)) == (8, False)
    assert number(chosen.place(trial, 29.9)) == (8, False)
    # Each host has two.
    assert number(chosen.place(trial, 30.0)) == (6, True)
    room.free = 1
    assert number(chosen.place(trial, 31.0)) == (8, False)
    room.free = 2
    assert number(chosen.place(trial, 32.0)) == (8, False)


def test_another_trial_waits_too() -> None:
    room = Room(2)
    chosen = ElasticRanks(room.has, room.instead)
    first, second = trial_of(elastic()), trial_of(elastic(), "b")
    chosen.place(first, 0.0)
    assert number(chosen.place(second, 10.0)) == (8, False)
    assert number(chosen.place(second, 20.0)) == (2, True)
    chosen.note_start(second, 20.0)
    assert number(chosen.place(second, 21.0)) == (8, False)


def test_a_suspect_trial_runs_alone_with_any_number_of_ranks() -> None:
    room = Room(2)
    chosen, trial = ElasticRanks(room.has, room.instead), trial_of(elastic())
    trial.shared_losses = 2
    chosen.place(trial, 0.0)
    request, fits = chosen.place(trial, 10.0)
    assert (request, fits) == (elastic(2).exclusively(), True)


def started(chosen: ElasticRanks, request: PlacementGroupFactory, name: str = "a") -> Trial:
    trial = trial_of(request, name)
    trial.incarnation, trial.status = 1, TrialStatus.RUNNING
    chosen.note_start(trial, 0.0)
    return trial


def test_a_trial_with_fewer_ranks_grows_once_when_its_time_has_come_and_there_is_room() -> None:
    room = Room(7)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {"a": started(chosen, elastic(2)), "b": started(chosen, elastic(8), "b")}
    trials["c"] = started(chosen, ONE_CPU, "c")
    assert chosen.room_for_all(trials, 59.0) == []
    assert room.asked == []
    assert chosen.room_for_all(trials, 60.0) == []
    room.free = 8
    # There is one look a second.
    assert chosen.room_for_all(trials, 60.9) == []
    [found] = chosen.room_for_all(trials, 61.0)
    assert (found.trial_id, found.incarnation, found.time) == ("a", 1, 61.0)
    assert found.reason == "there is room for all of its 8 ranks"
    assert chosen.room_for_all(trials, 70.0) == []


def test_only_a_trial_that_runs_undisturbed_grows() -> None:
    room = Room(16)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {name: started(chosen, elastic(2), name) for name in "abcd"}
    trials["a"].status = TrialStatus.SAVING
    trials["b"].shared_losses = 2
    trials["c"].status = TrialStatus.TERMINATED
    trials["d"].incarnation = 2
    assert chosen.room_for_all(trials, 60.0) == []
    # What has ended or was started again is forgotten, the others grow later.
    for trial in trials.values():
        trial.status, trial.shared_losses, trial.incarnation = TrialStatus.RUNNING, 0, 1
    assert [one.trial_id for one in chosen.room_for_all(trials, 70.0)] == ["a", "b"]


def test_no_trial_grows_into_room_for_which_another_one_waits() -> None:
    room = Room(2)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {"a": started(chosen, elastic(2)), "b": trial_of(elastic(), "b")}
    # The other one waits for a moment for all of its ranks, and then takes what there is.
    assert number(chosen.place(trials["b"], 60.0)) == (8, False)
    room.free = 8
    assert chosen.room_for_all(trials, 61.0) == []
    room.free = 1
    assert number(chosen.place(trials["b"], 62.0)) == (8, False)
    room.free = 8
    assert [one.trial_id for one in chosen.room_for_all(trials, 63.0)] == ["a"]


@pytest.mark.parametrize("other", [None, ONE_CPU])
def test_a_trial_that_waits_no_more_keeps_no_room(other: PlacementGroupFactory | None) -> None:
    room = Room(2)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {"a": started(chosen, elastic(2))}
    chosen.place(trial_of(elastic(), "b"), 60.0)
    room.free = 8
    # The user has stopped it. No other trial waits, or one without a choice.
    if other is None:
        chosen.note_none_waits()
    else:
        chosen.place(trial_of(other, "c"), 60.0)
    assert [one.trial_id for one in chosen.room_for_all(trials, 61.0)] == ["a"]


def test_a_trial_whose_scheduler_chooses_its_resources_does_not_grow() -> None:
    room = Room(8)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {"a": started(chosen, elastic(2))}
    trials["a"].resources, trials["a"].status = ONE_CPU, TrialStatus.RESIZING
    assert chosen.room_for_all(trials, 60.0) == []
    trials["a"].status = TrialStatus.PENDING
    assert chosen.room_for_all(trials, 70.0) == []


def test_a_trial_waits_and_trains_with_fewer_ranks_as_long_as_the_user_says() -> None:
    room = Room(2)
    chosen = ElasticRanks(room.has, room.instead, ElasticTimes(0.0, 300.0))
    trial = trial_of(elastic())
    assert number(chosen.place(trial, 5.0)) == (2, True)
    trials = {"a": started(chosen, elastic(2))}
    room.free = 8
    assert chosen.room_for_all(trials, 299.0) == []
    assert len(chosen.room_for_all(trials, 300.0)) == 1


def test_the_room_for_which_a_trial_leaves_is_promised_to_it() -> None:
    room = Room(8)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {name: started(chosen, elastic(2), name) for name in "abc"}
    assert [one.trial_id for one in chosen.room_for_all(trials, 60.0)] == ["a"]
    # It may need long until it saves, and may wait at a milestone meanwhile.
    trials["a"].status = TrialStatus.SAVING
    assert chosen.room_for_all(trials, 600.0) == []
    room.free = 16
    assert [one.trial_id for one in chosen.room_for_all(trials, 601.0)] == ["b"]
    # The first has left and got its ranks, and holds what was promised to it.
    trials["a"].incarnation, trials["a"].status = 2, TrialStatus.RUNNING
    room.free = 8
    assert chosen.room_for_all(trials, 602.0) == []
    # The second was paused before it could leave.
    trials["b"].status = TrialStatus.PAUSED
    assert [one.trial_id for one in chosen.room_for_all(trials, 603.0)] == ["c"]


def saved(chosen: ElasticRanks, name: str) -> Trial:
    trial = started(chosen, elastic(2), name)
    trial.checkpoints = [CheckpointRecord(path="a", index=0, iteration=1)]
    return trial


def test_workers_are_wanted_for_a_trial_that_can_leave_until_it_has_started_again() -> None:
    room = Room(2)
    chosen = ElasticRanks(room.has, room.instead)
    trials = {"a": saved(chosen, "a"), "b": started(chosen, elastic(2), "b")}
    assert chosen.room_for_all(trials, 59.0) == []
    assert chosen.growing == {}
    assert chosen.room_for_all(trials, 60.0) == []
    # The other one has saved nothing yet, so it may never leave.
    assert chosen.growing == {"a": elastic(8)}
    room.free = 8
    assert [one.trial_id for one in chosen.room_for_all(trials, 61.0)] == ["a"]
    assert chosen.room_for_all(trials, 62.0) == []
    assert chosen.growing == {"a": elastic(8)}
    # It has got its ranks.
    room.free = 0
    for now, name in enumerate("ab", 63):
        trials[name].incarnation, trials[name].resources = 2, elastic(8)
        chosen.note_start(trials[name], float(now))
        assert chosen.room_for_all(trials, float(now)) == []
        assert chosen.growing == {}
