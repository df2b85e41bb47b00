"""Seats on workers, without any worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dasktune.cluster.driver.reservations import Reservations
from dasktune.cluster.driver.trial_run import TrialRun
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])


def reservations_of(nthreads: int, **options: Any) -> Reservations:
    reservations = Reservations(heartbeat_timeout=30.0, **options)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=nthreads)})
    return reservations


def reserved(reservations: Reservations, request: PlacementGroupFactory, depth: int = 1) -> Any:
    run: Any = TrialRun(trial_id="t", incarnation=1, key="k", spec=TrialSpec.__new__(TrialSpec), config=b"")
    return run if reservations.reserve(run, request, depth) else None


def test_an_exclusive_trial_is_joined_by_none_and_follows_none() -> None:
    reservations = reservations_of(4)
    first = reserved(reservations, ONE)
    assert not reservations.check_room(ONE.exclusively())
    assert not reservations.can_prefetch(ONE.exclusively(), 16)
    reservations.release(first)
    alone = reserved(reservations, ONE.exclusively())
    assert alone is not None
    assert not reservations.check_room(ONE)
    assert not reservations.can_prefetch(ONE, 16)
    assert reserved(reservations, ONE.exclusively(), depth=16) is None
    reservations.admit_others(alone)
    assert reserved(reservations, ONE) is not None


def test_a_trial_that_was_alone_on_its_workers_may_get_all_its_ranks_there() -> None:
    reservations = reservations_of(4)
    alone = reserved(reservations, ONE.exclusively())
    four = PlacementGroupFactory([{"CPU": 1}] * 4)
    assert reservations.has_room_instead([(alone, four)])
    # The question has changed nothing: it still runs alone.
    assert not reservations.check_room(ONE)
    reservations.admit_others(alone)
    assert reservations.has_room_instead([(alone, four)])
    assert reserved(reservations, ONE) is not None
    assert not reservations.has_room_instead([(alone, four)])
    reservations.release(alone)
    assert not reservations.has_room_instead([(alone, ONE)])


def test_none_waits_to_be_alone_for_user_code_that_does_not_leave() -> None:
    reservations = reservations_of(2)
    stubborn = reserved(reservations, ONE)
    stubborn.end_reported = True
    assert reservations.check_room(ONE.exclusively())
    assert reserved(reservations, ONE.exclusively()) is not None
    reservations.release(stubborn)
    assert not reservations.check_room(ONE)


def test_no_trial_is_queued_where_the_room_is_for_another_experiment() -> None:
    def worker(**withheld: float) -> dict[str, WorkerCapacity]:
        facts: dict[str, Any] = {"nthreads": 2, "resources": {"CPU": 2}, "withheld": withheld}
        return {"a": WorkerCapacity(address="a", **facts)}

    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update(worker())
    first, second = reserved(reservations, ONE), reserved(reservations, ONE)
    assert reservations.can_prefetch(ONE, 16)
    reservations.update(worker(CPU=1))
    assert not reservations.can_prefetch(ONE, 16)
    assert reserved(reservations, ONE, depth=16) is None
    reservations.release(first)
    # One of two CPUs is for the experiment, and a trial holds it.
    assert not first.reservation.may_repeat
    assert reservations.can_prefetch(ONE, 16)
    reservations.release(second)
    assert second.reservation.may_repeat


def test_the_room_of_a_trial_is_there_for_another_one_although_the_runner_has_taken_it_already() -> None:
    reservations = Reservations(heartbeat_timeout=30.0)
    reservations.update({"a": WorkerCapacity(address="a", nthreads=1, resources={"CPU": 1})})
    first = reserved(reservations, ONE)
    reservations.release(first)
    # The runner's thread waited for the lock, and takes the room before the loop's next step.
    assert reserved(reservations, ONE) is not None
    # So the actor keeps its lease for that trial.
    assert first.reservation.may_repeat


def test_one_run_is_queued_behind_one_that_is_predicted_to_end_soon() -> None:
    now = 100.0
    reservations = reservations_of(2, clock=lambda: now)
    first, second = reserved(reservations, ONE), reserved(reservations, ONE)
    assert not reservations.can_prefetch(ONE, 1)
    assert reservations.note_nearly_ended(second, 0.1)
    assert reservations.can_prefetch(ONE, 1)
    # Neither one that is to run alone, nor one with another request.
    assert not reservations.can_prefetch(ONE.exclusively(), 1)
    assert not reservations.can_prefetch(PlacementGroupFactory([{"CPU": 2}]), 1)
    third = reserved(reservations, ONE)
    assert third.reservation is second.reservation
    assert not reservations.can_prefetch(ONE, 1)
    # The prediction for a run with a successor changes nothing, nor does one that was wrong.
    assert not reservations.note_nearly_ended(second, 0.1)
    assert reservations.note_nearly_ended(first, 0.1)
    now += 0.2
    assert not reservations.can_prefetch(ONE, 1)
    reservations.release(second)
    assert reservations.note_nearly_ended(third, 0.1)
    assert reservations.release(third)
    # It has ended in time: there is room, and nothing to wait for.
    assert reservations.check_room(ONE)
    assert not reservations.can_prefetch(ONE, 1)
    assert not reservations.note_nearly_ended(third, 0.1)


@pytest.mark.parametrize("depth", [1, 16])
@pytest.mark.parametrize("why", ["paused", "avoided", "leaves"])
def test_none_is_queued_on_a_worker_that_accepts_no_trials(why: str, depth: int) -> None:
    reservations = reservations_of(1)
    run = reserved(reservations, ONE)
    assert reservations.note_nearly_ended(run, 60.0)
    assert reservations.can_prefetch(ONE, depth)
    if why == "paused":
        reservations.update({"a": WorkerCapacity(address="a", nthreads=1, status="paused")})
    elif why == "avoided":
        reservations.avoid("a", 60.0)
    else:
        reservations.follow_notice("a", 60.0)
    assert not reservations.can_prefetch(ONE, depth)
    assert reserved(reservations, ONE, depth) is None


def test_none_is_queued_behind_user_code_that_does_not_leave() -> None:
    reservations = reservations_of(1)
    stubborn = reserved(reservations, ONE)
    assert reservations.note_nearly_ended(stubborn, 60.0)
    stubborn.not_reusable = True
    assert not reservations.can_prefetch(ONE, 1)


def test_a_long_list_of_reservations_is_not_checked_one_by_one() -> None:
    reservations = reservations_of(100)
    assert all(reserved(reservations, ONE) for _ in range(100))
    checked = []
    reservations.with_ledger(lambda ledger, _: setattr(ledger, "exceeds", lambda one: checked.append(one)))
    assert reservations.can_prefetch(ONE, 16)
    assert len(checked) == 1


@pytest.mark.parametrize(("lacks", "ordinary"), [("", False), ("a", True), ("b", False)])
def test_a_distributed_trial_is_relayed_if_any_of_its_workers_lacks_the_storage(
    lacks: str, ordinary: bool
) -> None:
    reservations = Reservations(heartbeat_timeout=30.0)
    workers = {name: WorkerCapacity(address=name, nthreads=1, shares_storage=name != lacks) for name in "ab"}
    reservations.update(workers)
    request = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
    reservation = reserved(reservations, request).reservation
    assert reservation.address == "a"
    spec = TrialSpec(
        trial_id="t",
        incarnation=1,
        resources=request,
        storage=Storage("/tmp/runs"),
        trial_dir="t",
        experiment_name="e",
        trial_name="t",
    )
    # User code of an ordinary trial runs on the first worker only.
    assert reservation.placed_spec(spec).relayed is ordinary
    distributed = reservation.placed_spec(replace(spec, ranks=RankSettings()))
    assert distributed.relayed is bool(lacks)
