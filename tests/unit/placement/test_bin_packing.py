"""Where several bundles go: found if it can be found, and by the strategy."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.placement.bin_packing import WorkerPool, assign_bundles
from dasktune.placement.free_capacity import FreeCapacity


def pools_of(*workers: tuple[str, dict[str, float]]) -> list[WorkerPool]:
    """Return a pool for each worker, by name and what is free."""
    return [
        WorkerPool(FreeCapacity(tuple(free.items())), members=[(number, name)])
        for number, (name, free) in enumerate(workers)
    ]


def test_a_first_choice_that_blocks_a_later_bundle_is_taken_back() -> None:
    pools = pools_of(("wide", {"CPU": 2, "TPU": 2}), ("narrow", {"CPU": 2, "TPU": 1}))
    # Of equal rank, "wide" comes first, but the second bundle fits nowhere else.
    bundles = [{"CPU": 2, "TPU": 1}, {"CPU": 1, "TPU": 2}]
    assert assign_bundles(bundles, "STRICT_SPREAD", pools) == {0: "narrow", 1: "wide"}


def test_what_few_workers_have_is_seated_first() -> None:
    pools = pools_of(("gpu", {"CPU": 4, "TPU": 1}), ("cpu", {"CPU": 4}))
    found = assign_bundles([{"CPU": 4}, {"CPU": 1, "TPU": 1}], "PACK", pools)
    assert found == {1: "gpu", 0: "cpu"}


def test_the_worker_that_takes_most_bundles_is_packed_first() -> None:
    pools = pools_of(("a", {"CPU": 1}), ("b", {"CPU": 2}), ("c", {"CPU": 3}))
    assert assign_bundles([{"CPU": 1}] * 5, "PACK", pools) == dict(enumerate("cccbb"))


def test_a_search_without_end_stops() -> None:
    pools = pools_of(("a", {"CPU": 1}), ("b", {"CPU": 1}), ("c", {"CPU": 1}))
    assert assign_bundles([{"CPU": 1}] * 3, "STRICT_SPREAD", pools, max_steps=2) is None
    assert assign_bundles([{"CPU": 1}] * 3, "STRICT_SPREAD", pools) is not None


def test_a_worker_is_found_behind_many_that_have_no_room() -> None:
    pools = pools_of(*((str(number), {"CPU": 1 + number}) for number in range(99)), ("tpu", {"TPU": 1}))
    assert assign_bundles([{"CPU": 1}, {"TPU": 1}], "PACK", pools) == {1: "tpu", 0: "0"}


def test_many_bundles_are_no_trouble() -> None:
    workers = WorkerPool(
        FreeCapacity((("CPU", 4),)), members=[(number, str(number)) for number in range(500)]
    )
    found = assign_bundles([{"CPU": 1}] * 300, "STRICT_SPREAD", [workers])
    assert found is not None
    assert len(set(found.values())) == 300


AMOUNTS = st.sampled_from([0, 1, 2])
NEEDS = st.fixed_dictionaries({"CPU": AMOUNTS, "TPU": AMOUNTS})


def by_trying_all(bundles: list[dict[str, float]], strategy: str, rooms: list[dict[str, float]]) -> bool:
    for choice in product(range(len(rooms)), repeat=len(bundles)):
        used = len(set(choice))
        if strategy == "STRICT_PACK" and used > 1:
            continue
        if strategy == "STRICT_SPREAD" and used < len(bundles):
            continue
        taken = [
            {
                kind: sum(b[kind] for b, c in zip(bundles, choice, strict=True) if c == number)
                for kind in ("CPU", "TPU")
            }
            for number in range(len(rooms))
        ]
        if all(t[kind] <= room[kind] for t, room in zip(taken, rooms, strict=True) for kind in t):
            return True
    return False


@settings(max_examples=60)
@given(
    bundles=st.lists(NEEDS, min_size=1, max_size=4),
    rooms=st.lists(NEEDS, min_size=1, max_size=4),
    strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
def test_an_arrangement_is_found_where_there_is_one(
    bundles: list[dict[str, float]], rooms: list[dict[str, float]], strategy: str
) -> None:
    pools = pools_of(*((f"w{number}", room) for number, room in enumerate(rooms)))
    found = assign_bundles(bundles, strategy, pools)
    assert (found is not None) == by_trying_all(bundles, strategy, rooms)
