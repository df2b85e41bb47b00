"""Which trial yields while an experiment holds more than its share for too long."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.driver.yielding import YieldChooser
from dasktune.trainable.reporting.trial_messages import PauseAnswer


def run(name: str, *addresses: str, **facts: Any) -> Any:
    placement = SimpleNamespace(end_reported=False, addresses=addresses)
    reservation = SimpleNamespace(end_reported=False, placement=placement)
    return SimpleNamespace(
        end_reported=False,
        spec=SimpleNamespace(checkpoint=None),
        **{"trial_id": name, "reservation": reservation, "received_seq": 1, "order": None, **facts},
    )


def resumed(name: str, *addresses: str, started_at: float | None, first_result_at: float | None) -> Any:
    one = run(name, *addresses, started_at=started_at, first_result_at=first_result_at)
    one.spec.checkpoint = "saved"
    return one


def chosen(chooser: YieldChooser, runs: list[Any], *, seconds: float = 5, now: float = 0) -> list[str]:
    return [one.trial_id for one in chooser.choose(["x", "y"], seconds, runs, now)]


def test_on_each_worker_the_trial_that_began_last_yields() -> None:
    runs = [run("a", "x"), run("b", "x"), run("c", "y"), run("d", "z")]
    assert chosen(YieldChooser(5, can_save=True), runs) == ["b", "c"]


@pytest.mark.parametrize(("yields_after", "can_save"), [(5.1, True), (inf, True), (0, False)])
def test_no_trial_yields_early_or_if_it_would_lose_steps(yields_after: float, can_save: bool) -> None:
    assert chosen(YieldChooser(yields_after, can_save=can_save), [run("a", "x")]) == []


def test_an_experiment_that_holds_no_more_than_its_share_does_not_yield() -> None:
    assert YieldChooser(0, can_save=True).choose([], 0, [run("a", "x")], 0) == []


def test_a_trial_that_has_not_begun_is_left_alone() -> None:
    runs = [run("a", "x"), run("queued", "x", received_seq=0), run("other", "y", received_seq=0)]
    assert chosen(YieldChooser(0, can_save=True), runs) == ["a"]


def test_the_next_trial_yields_when_the_last_one_has_left() -> None:
    chooser = YieldChooser(0, can_save=True)
    first, last = run("a", "x"), run("b", "x")
    assert chosen(chooser, [first, last], now=10) == ["b"]
    assert chosen(chooser, [first, last], now=11.9) == []
    last.order = PauseAnswer()
    assert chosen(chooser, [first, last], now=60) == []
    assert chosen(chooser, [first], now=60) == ["a"]


def test_a_trial_on_several_workers_yields_once() -> None:
    runs = [run("a", "x"), run("wide", "x", "y")]
    assert chosen(YieldChooser(0, can_save=True), runs) == ["wide"]


def test_a_trial_that_has_resumed_trains_for_as_long_as_its_start_took() -> None:
    chooser = YieldChooser(0, can_save=True)
    runs = [resumed("a", "x", started_at=10, first_result_at=40)]
    assert chosen(chooser, runs, now=69) == []
    assert chosen(chooser, runs, now=70) == ["a"]


@pytest.mark.parametrize("started_at", [None, 10])
def test_a_trial_that_has_resumed_and_reported_nothing_does_not_yield(started_at: float | None) -> None:
    runs = [resumed("a", "x", started_at=started_at, first_result_at=None)]
    assert chosen(YieldChooser(0, can_save=True), runs, now=1e6) == []


def test_a_trial_that_has_resumed_keeps_its_place_for_the_seconds_of_the_setting() -> None:
    chooser = YieldChooser(5, can_save=True)
    runs = [resumed("a", "x", started_at=10, first_result_at=10)]
    assert chosen(chooser, runs, now=14.9) == []
    assert chosen(chooser, runs, now=15) == ["a"]


def test_instead_of_a_trial_that_has_just_resumed_the_one_before_yields() -> None:
    runs = [run("a", "x"), resumed("b", "x", started_at=10, first_result_at=40)]
    assert chosen(YieldChooser(0, can_save=True), runs, now=50) == ["a"]
