"""Seats on workers, without any worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dasktune.cluster.seating import Seating
from dasktune.placement import WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])


def seating_of(nthreads: int) -> Seating:
    seating = Seating(heartbeat_timeout=30.0)
    seating.update({"a": WorkerCapacity(address="a", nthreads=nthreads)})
    return seating


def seated(seating: Seating, request: PlacementGroupFactory, depth: int = 1) -> Any:
    run = SimpleNamespace(seat=None, told=False, tainted=False)
    return run if seating.seat(run, request, depth) else None


def test_who_wants_to_be_alone_is_joined_by_nobody_and_follows_nobody() -> None:
    seating = seating_of(4)
    first = seated(seating, ONE)
    assert not seating.has_room(ONE.exclusively())
    assert not seating.takes_ahead(ONE.exclusively(), 16)
    seating.leave(first)
    alone = seated(seating, ONE.exclusively())
    assert alone is not None
    assert not seating.has_room(ONE)
    assert not seating.takes_ahead(ONE, 16)
    assert seated(seating, ONE.exclusively(), depth=16) is None
    seating.admit_others(alone)
    assert seated(seating, ONE) is not None


def test_nobody_waits_to_be_alone_for_user_code_that_does_not_leave() -> None:
    seating = seating_of(2)
    stubborn = seated(seating, ONE)
    stubborn.told = True
    assert seating.has_room(ONE.exclusively())
    assert seated(seating, ONE.exclusively()) is not None
    seating.leave(stubborn)
    assert not seating.has_room(ONE)
