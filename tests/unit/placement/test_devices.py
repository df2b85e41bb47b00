"""GPUs: who owns which, and that no two trials get more of one than there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.placement.devices import (
    add_load,
    allocate_shares,
    assign_devices,
    gpu_names,
    is_rotation,
    parse_visible_devices,
    pick_gpus,
)

IDS = ["GPU-a", "GPU-b", "GPU-c"]


def test_what_cuda_would_not_see_does_not_count() -> None:
    assert parse_visible_devices("0,1,-1,2") == ("0", "1")
    assert parse_visible_devices("0,,1") == ("0",)
    assert parse_visible_devices("GPU-a, GPU-b,GPU-a") == ("GPU-a", "GPU-b")


def test_rotations_are_recognised_by_number_or_by_company() -> None:
    assert is_rotation(["2", "0", "1"])
    assert is_rotation(["10", "2", "9"])
    assert not is_rotation(["0", "2", "1"])
    assert not is_rotation(["1"], [["1"]])
    assert not is_rotation(IDS)
    assert not is_rotation(IDS, [IDS])
    assert is_rotation(IDS, [["GPU-c", "GPU-a", "GPU-b"]])


def test_workers_with_rotated_lists_own_the_first_of_theirs() -> None:
    lists = [IDS[turn:] + IDS[:turn] for turn in range(3)]
    owned: list[tuple[str, ...]] = []
    for number, visible in enumerate(lists):
        taken = {name for one in owned for name in one}
        owned.append(assign_devices(visible, taken=taken, others=lists[:number], waiting=3 - number))
    assert owned == [("GPU-a",), ("GPU-b",), ("GPU-c",)]
    # Whatever it declares: the others' devices are not its own.
    assert assign_devices(["1", "0"], taken=(), wanted=2) == ("1",)


def test_workers_that_see_the_same_are_dealt_in_turn() -> None:
    assert assign_devices("0123", taken=(), waiting=3) == ("0", "3")
    assert assign_devices("0123", taken="03", waiting=2) == ("1",)
    assert assign_devices("0123", taken="013", waiting=1) == ("2",)
    assert assign_devices("0", taken="0", waiting=0) == ()


def test_a_worker_that_declares_gpus_is_dealt_as_many() -> None:
    assert assign_devices("0123", taken="0", waiting=4, wanted=2) == ("1", "2")
    assert assign_devices("0123", taken=(), wanted=0) == ()


def test_devices_are_named_again_where_more_is_declared_than_owned() -> None:
    assert gpu_names("45", 5) == ("4", "5", "4", "5", "4")
    assert gpu_names((), 0) == ()
    assert gpu_names("45", 1) == ("4",)


def test_shares_go_where_they_were_thought_of_unless_that_is_taken() -> None:
    assert allocate_shares("456", [], [(1, "5"), (0.5, "6")]) == [(1,), (2,)]
    assert allocate_shares("456", [(0.5, [1])], [(1, "5"), (0.5, "5")]) == [(0,), (1,)]
    assert allocate_shares("456", [(0.5, [0]), (2, [1, 2])], [(1, "4")]) is None
    assert allocate_shares("", [], []) == []


@given(st.lists(st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1, 2, 3]), max_size=20))
def test_no_gpu_is_given_away_more_than_once(amounts: list[float]) -> None:
    loads: tuple[float, ...] = (0.0,) * 3
    for amount in amounts:
        numbers = pick_gpus(loads, amount)
        if numbers is None:
            assert sum(load + min(1, amount) <= 1 for load in loads) < amount
            continue
        assert len(numbers) == max(1, amount)
        before, loads = loads, add_load(loads, numbers, amount)
        assert max(loads) <= 1 + 1e-6
        assert sum(loads) - sum(before) == pytest.approx(amount)


@given(workers=st.integers(1, 5), devices=st.integers(0, 8), leaver=st.integers(0, 4))
def test_every_device_has_one_owner_and_goes_to_another_when_that_dies(
    workers: int, devices: int, leaver: int
) -> None:
    visible = [str(number) for number in range(devices)]
    owned: dict[int, tuple[str, ...]] = {}

    def deal(name: int, waiting: int) -> None:
        taken = {device for one in owned.values() for device in one}
        owned[name] = assign_devices(visible, taken=taken, others=[visible] * len(owned), waiting=waiting)

    for number in range(workers):
        deal(number, workers - number)
    assert sorted(device for one in owned.values() for device in one) == sorted(visible)
    most, least = (pick(len(one) for one in owned.values()) for pick in (max, min))
    assert most - least <= 1
    lost = owned.pop(leaver % workers)
    deal(99, 1)
    assert owned[99] == lost
