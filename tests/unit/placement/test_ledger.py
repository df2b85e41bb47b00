"""The ledger: who has room, who is preferred, and what is left."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.placement import Claim, Ledger, Placement, WorkerCapacity
from dasktune.trial.resources import STRATEGIES, ElasticPlacement, HostPlacement, PlacementGroupFactory


def needs(**amounts: float) -> PlacementGroupFactory:
    return PlacementGroupFactory([amounts])


def worker(address: str, nthreads: int = 2, **facts: object) -> WorkerCapacity:
    return WorkerCapacity(address=address, nthreads=nthreads, **facts)  # type: ignore[arg-type]


def ledger_of(*workers: WorkerCapacity) -> Ledger:
    ledger = Ledger(heartbeat_timeout=30.0)
    ledger.update({one.address: one for one in workers})
    return ledger


def place(ledger: Ledger, request: PlacementGroupFactory, now: float = 0.0) -> str | None:
    """Return where user code runs."""
    placement = ledger.place(request, now=now)
    return placement and placement.address


def seats(ledger: Ledger, *bundles: dict[str, float], strategy: str = "PACK") -> list[str] | None:
    """Return the address of each bundle."""
    placement = ledger.place(PlacementGroupFactory(list(bundles), strategy), now=0.0)
    return placement and [seat.address for seat in placement.bundles]


ONE = {"CPU": 1}


def test_what_a_worker_declares_counts_and_threads_stand_in_for_cpus() -> None:
    plain = worker("a", nthreads=4, memory_limit=100)
    assert (plain.total("CPU"), plain.total("memory"), plain.total("GPU")) == (4, 100, 0)
    assert plain.total("TPU") == 0
    declared = worker("a", nthreads=4, memory_limit=100, resources={"CPU": 2, "memory": 50})
    assert (declared.total("CPU"), declared.total("memory")) == (2, 50)
    assert worker("a", memory_limit=0).total("memory") == inf
    assert worker("a", resources={"TPU": 1, "none": 0}, devices=("0",)).resource_names == (
        "CPU",
        "memory",
        "TPU",
        "GPU",
    )


def test_a_worker_is_filled_before_the_next_one_is_touched() -> None:
    ledger = ledger_of(worker("a"), worker("b"), worker("c"))
    placed = [place(ledger, needs(CPU=1)) for _ in range(7)]
    assert placed == ["a", "a", "b", "b", "c", "c", None]


def test_equal_workers_keep_the_order_in_which_they_arrived() -> None:
    ledger = ledger_of(worker("b"))
    ledger.update({"a": worker("a"), "b": worker("b")})
    assert list(ledger.workers) == ["b", "a"]
    first = ledger.place(needs(CPU=2), now=0.0)
    assert first is not None
    assert first.address == "b"
    assert place(ledger, needs(CPU=1)) == "a"
    ledger.release(first)
    assert place(ledger, needs(CPU=2)) == "b"


def test_a_trial_without_a_gpu_leaves_gpu_workers_alone_while_it_can() -> None:
    ledger = ledger_of(worker("gpu", nthreads=1, resources={"GPU": 1}), worker("cpu", nthreads=1))
    assert place(ledger, needs(CPU=1)) == "cpu"
    assert place(ledger, needs(CPU=1)) == "gpu"


def test_ten_tenths_fit_into_one_and_no_more() -> None:
    ledger = ledger_of(worker("a", resources={"GPU": 1}))
    placements = [ledger.place(needs(GPU=0.1), now=0.0) for _ in range(11)]
    assert placements.pop() is None
    assert ledger.free("a", "GPU") == 0
    for placement in placements:
        assert placement is not None
        ledger.release(placement)
    assert ledger.free("a", "GPU") == 1


def test_a_request_for_nothing_needs_a_worker_all_the_same() -> None:
    assert place(ledger_of(), needs()) is None
    assert place(ledger_of(worker("a", nthreads=0)), needs()) == "a"


def test_what_is_released_can_be_placed_again_but_only_once() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    first = ledger.place(needs(CPU=1), now=0.0)
    assert first is not None
    assert not ledger.fits(needs(CPU=1), now=0.0)
    ledger.release(first)
    assert place(ledger, needs(CPU=1)) == "a"
    ledger.release(first)
    assert not ledger.fits(needs(CPU=1), now=0.0)


def test_what_is_held_outlives_updates_and_a_worker_out_of_sight() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    held = ledger.place(needs(CPU=1), now=0.0)
    assert held is not None
    ledger.update({})
    assert not ledger.fits(needs(CPU=1), now=0.0)
    ledger.update({"a": worker("a", nthreads=1)})
    assert not ledger.fits(needs(CPU=1), now=0.0)
    ledger.update({})
    ledger.release(held)
    ledger.update({"a": worker("a", nthreads=1)})
    assert ledger.fits(needs(CPU=1), now=0.0)


def test_a_removed_worker_comes_back_empty_and_owes_nothing() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    held = ledger.place(needs(CPU=1), now=0.0)
    assert held is not None
    ledger.remove("a")
    ledger.remove("never seen")
    assert ledger.workers == {}
    ledger.release(held)
    ledger.update({"a": worker("a", nthreads=1)})
    again = ledger.place(needs(CPU=1), now=0.0)
    assert again is not None
    ledger.release(held)
    assert not ledger.fits(needs(CPU=1), now=0.0)


def test_what_other_clients_hold_is_not_ours_to_place() -> None:
    ledger = ledger_of(worker("a", nthreads=3, used={"CPU": 2}))
    assert place(ledger, needs(CPU=1)) == "a"
    assert not ledger.fits(needs(CPU=1), now=0.0)


def test_what_others_take_besides_us_counts() -> None:
    ledger = ledger_of(worker("a", nthreads=3))
    place(ledger, needs(CPU=1))
    ledger.update({"a": worker("a", nthreads=3, used={"CPU": 1})})
    assert ledger.free("a", "CPU") == 1
    assert ledger.free("a", "TPU") == 0


def test_dask_keeps_account_of_what_a_worker_declares() -> None:
    ledger = ledger_of(worker("a", nthreads=3, resources={"GPU": 2}))
    placement = ledger.place(
        PlacementGroupFactory([{"CPU": 1, "GPU": 0.5, "memory": 0}, {"GPU": 1}]), now=0.0
    )
    assert placement is not None
    assert placement.bundles[0].declared == {"GPU": 0.5}
    assert placement.claim_on("a").resources == {"GPU": 1.5}
    assert placement.claim_on("b").resources == {}


def test_only_running_and_fresh_workers_take_trials() -> None:
    for unfit in (
        worker("a", status="paused"),
        worker("a", status="closing_gracefully"),
        worker("a", python="2.7"),
        worker("a", age=30.1),
    ):
        assert not ledger_of(unfit).fits(needs(CPU=1), now=0.0)
    assert ledger_of(worker("a", age=30.0)).fits(needs(CPU=1), now=0.0)


def test_an_avoided_worker_is_used_again_when_its_time_is_up() -> None:
    ledger = ledger_of(worker("a"))
    ledger.avoid("a", 15.0)
    assert place(ledger, needs(CPU=1), now=14.9) is None
    ledger.update(ledger.workers)
    assert place(ledger, needs(CPU=1), now=14.9) is None
    assert place(ledger, needs(CPU=1), now=15.0) == "a"
    ledger.avoid("never seen", 20.0)
    assert place(ledger, needs(CPU=1), now=20.0) == "a"


def test_memory_is_asked_of_the_limit_and_never_ends_without_one() -> None:
    ledger = ledger_of(worker("small", memory_limit=100), worker("unlimited"))
    assert place(ledger, needs(memory=80)) == "small"
    assert place(ledger, needs(memory=80)) == "unlimited"
    assert ledger.free("unlimited", "memory") == inf


def test_a_request_that_is_too_large_for_now_differs_from_one_that_never_fits() -> None:
    ledger = ledger_of(worker("a", nthreads=2), worker("gone", nthreads=8, status="closing"))
    place(ledger, needs(CPU=2))
    assert not ledger.fits(needs(CPU=2), now=0.0)
    assert ledger.fits_when_idle(needs(CPU=2))
    assert not ledger.fits_when_idle(needs(CPU=3))
    assert not ledger.fits_when_idle(needs(CPU=1, TPU=1))


def test_a_paused_or_silent_worker_may_fit_later() -> None:
    assert ledger_of(worker("a", status="paused")).fits_when_idle(needs(CPU=2))
    assert ledger_of(worker("a", age=99.0)).fits_when_idle(needs(CPU=2))


def test_whether_several_bundles_ever_fit_depends_on_the_strategy() -> None:
    ledger = ledger_of(worker("a"), worker("b"))
    fit = {
        strategy: ledger.fits_when_idle(PlacementGroupFactory([ONE, ONE, ONE], strategy))
        for strategy in STRATEGIES
    }
    assert fit == {"PACK": True, "SPREAD": True, "STRICT_PACK": False, "STRICT_SPREAD": False}


# Several bundles


def test_bundles_are_packed_on_as_few_workers_as_possible() -> None:
    ledger = ledger_of(worker("small"), worker("large", nthreads=4), worker("other"))
    assert seats(ledger, ONE, ONE, ONE) == ["large"] * 3
    assert seats(ledger, ONE, ONE, ONE) == ["small", "small", "large"]
    assert seats(ledger, ONE, ONE, ONE) is None
    assert seats(ledger, ONE, ONE) == ["other", "other"]


def test_ranks_are_packed_on_hosts_and_the_table_names_the_rule() -> None:
    ledger = ledger_of(*(worker(f"tcp://{name}") for name in ("a:1", "b:1", "a:2", "b:2")))
    whole = [{"CPU": 2}]
    packed = ledger.place(HostPlacement(whole * 2), now=0.0)
    assert packed is not None
    assert packed.addresses == ("tcp://a:1", "tcp://a:2")
    exact = HostPlacement(whole * 4, per_host=2)
    assert not ledger.fits(exact, now=0.0)
    assert ledger.fits_when_idle(exact)
    assert not ledger.fits_when_idle(HostPlacement(whole * 4, "STRICT_PACK"))
    assert "Each host must have room for 2 bundles (per_host)." in ledger.table(exact)
    strict = HostPlacement(whole * 4, "STRICT_PACK")
    assert "All bundles must fit on one host (STRICT_PACK)." in ledger.table(strict)
    assert "must" not in ledger.table(HostPlacement(whole * 4))
    assert "fit on one worker" in ledger.table(PlacementGroupFactory(whole * 4, "STRICT_PACK"))


def test_bundles_that_must_share_a_worker_wait_for_a_large_one() -> None:
    ledger = ledger_of(worker("a"), worker("b", nthreads=3))
    assert seats(ledger, ONE, {"CPU": 2}, strategy="STRICT_PACK") == ["b", "b"]
    assert seats(ledger, ONE, {"CPU": 2}, strategy="STRICT_PACK") is None


def test_bundles_are_spread_as_far_as_possible() -> None:
    ledger = ledger_of(worker("a"), worker("b", nthreads=3))
    assert seats(ledger, ONE, ONE, ONE, strategy="SPREAD") == ["a", "b", "a"]
    assert seats(ledger, ONE, ONE, strategy="SPREAD") == ["b", "b"]


def test_bundles_that_must_be_apart_wait_for_workers_of_their_own() -> None:
    ledger = ledger_of(worker("a"), worker("b", nthreads=3))
    assert seats(ledger, ONE, ONE, strategy="STRICT_SPREAD") == ["a", "b"]
    assert seats(ledger, ONE, ONE, ONE, strategy="STRICT_SPREAD") is None
    assert seats(ledger, {"CPU": 2}, ONE, strategy="STRICT_SPREAD") == ["b", "a"]


def test_an_empty_head_sits_with_its_first_helper() -> None:
    ledger = ledger_of(worker("a", nthreads=1), worker("b", nthreads=1))
    placement = ledger.place(PlacementGroupFactory([{}, ONE, ONE], "STRICT_SPREAD"), now=0.0)
    assert placement is not None
    assert [seat.address for seat in placement.bundles] == ["a", "a", "b"]
    assert placement.address == "a"
    assert placement.addresses == ("a", "b")
    assert placement.devices is None
    assert [seat.resources for seat in placement.bundles_on("a")] == [{}, ONE]


def test_all_bundles_are_granted_or_none() -> None:
    ledger = ledger_of(worker("a", nthreads=1), worker("b", nthreads=1))
    place(ledger, needs(CPU=1))
    assert seats(ledger, ONE, ONE) is None
    assert ledger.free("b", "CPU") == 1


# GPUs


def test_whole_gpus_are_whole_devices_and_fractions_share_one() -> None:
    ledger = ledger_of(worker("a", nthreads=9, devices=("4", "5", "6")))

    def devices(amount: float) -> tuple[str, ...] | None:
        placement = ledger.place(needs(GPU=amount), now=0.0)
        return placement and placement.devices

    assert devices(0.5) == ("4",)
    assert devices(1) == ("5",)
    assert devices(0.25) == ("4",)
    assert devices(2) is None
    assert devices(0.5) == ("6",)
    # Half a GPU is left, but in two pieces.
    assert ledger.free("a", "GPU") == 0.75
    assert devices(0.75) is None


def test_a_trial_that_asks_for_no_gpu_gets_no_device() -> None:
    placement = ledger_of(worker("a", devices=("0",))).place(needs(CPU=1), now=0.0)
    assert placement is not None
    assert placement.devices is None


def test_declared_gpus_count_and_have_numbers_where_none_is_seen() -> None:
    fake = worker("a", resources={"GPU": 2})
    assert (fake.total("GPU"), fake.gpus) == (2, ("0", "1"))
    shared = worker("a", resources={"GPU": 3}, devices=("7", "8"))
    assert (shared.total("GPU"), shared.gpus) == (3, ("7", "8", "7"))
    assert worker("a", resources={"GPU": 0.5}, devices=("7", "8")).gpus == ("7",)


def test_what_is_held_stays_known_while_a_worker_changes() -> None:
    ledger = ledger_of(worker("a", devices=("0", "1", "2")))
    held = ledger.place(needs(GPU=2), now=0.0)
    assert held is not None
    ledger.update({"a": worker("a", devices=("0",))})
    assert not ledger.fits(needs(GPU=0.5), now=0.0)
    ledger.release(held)
    ledger.update({"a": worker("a", devices=("0", "1", "2"))})
    assert ledger.fits(needs(GPU=3), now=0.0)


def test_a_placement_claims_on_each_worker_what_its_bundles_need_there() -> None:
    ledger = ledger_of(
        worker("a", devices=("4", "5"), resources={"CPU": 2}), worker("b", resources={"CPU": 2})
    )
    bundles = [{"CPU": 1, "GPU": 0.5}, {"CPU": 1, "GPU": 0.5}, {"CPU": 2}]
    placement = ledger.place(PlacementGroupFactory(bundles), now=0.0)
    assert placement is not None
    head = placement.claim_on("a")
    assert head == Claim(resources={"CPU": 2}, shares=((0.5, ("4",)), (0.5, ("4",))), gpus=("4", "5"))
    assert placement.claim_on("b") == Claim(resources={"CPU": 2})
    elsewhere = Claim(resources={"CPU": 2}, shares=((0.5, ("5",)),) * 2, gpus=("5",))
    assert head.same_amounts(elsewhere)
    assert not head.same_amounts(placement.claim_on("b"))


def test_only_a_change_that_matters_is_looked_at() -> None:
    ledger = ledger_of(worker("a", age=1.0))
    ledger.update({"a": worker("a", age=29.0, memory=5)})
    assert ledger.fits(needs(CPU=2), now=0.0)
    ledger.update({"a": worker("a", age=31.0)})
    assert not ledger.fits(needs(CPU=2), now=0.0)
    for changed in (
        {"used": {"CPU": 1}},
        {"resources": {"CPU": 1}},
        {"nthreads": 1},
        {"resources": {"memory": 1}, "memory_limit": 1},
    ):
        ledger.update({"a": worker("a")})
        assert ledger.fits(needs(CPU=2, memory=2), now=0.0)
        ledger.update({"a": worker("a", **changed)})
        assert not ledger.fits(needs(CPU=2, memory=2), now=0.0)


# For people


def test_the_table_shows_what_is_asked_beside_what_is_there() -> None:
    ledger = ledger_of(
        worker("tcp://a:1", nthreads=2),
        worker("tcp://b:1", nthreads=4, age=60.0, resources={"GPU": 2}),
        worker("tcp://c:1", nthreads=1, python="2.7"),
    )
    place(ledger, needs(CPU=1))
    assert ledger.table(needs(CPU=8, GPU=0.5, memory=5)).splitlines() == [
        "worker     status      CPU free/total  GPU free/total  memory free/total",
        "asked                  8               0.5             5",
        "tcp://b:1  silent      4/4             2/2             unlimited/unlimited",
        "tcp://a:1  running     1/2             0/0             unlimited/unlimited",
        "tcp://c:1  Python 2.7  1/1             0/0             unlimited/unlimited",
    ]


def test_the_table_has_a_row_for_each_kind_of_bundle_and_the_rule() -> None:
    ledger = ledger_of(worker("a"))
    request = PlacementGroupFactory([ONE, {"CPU": 4}, {"CPU": 4}], "STRICT_SPREAD")
    assert ledger.table(request).splitlines() == [
        "worker              status   CPU free/total",
        "asked, bundle 0              1",
        "asked, bundles 1-2           4",
        "a                   running  2/2",
        "Each bundle must have a worker of its own (STRICT_SPREAD).",
    ]


def test_the_table_of_a_large_cluster_shows_the_largest_workers() -> None:
    ledger = ledger_of(*(worker(f"w{i}", nthreads=i) for i in range(25)))
    lines = ledger.table(needs()).splitlines()
    assert len(lines) == 23
    assert lines[2].startswith("w24")
    assert lines[-1] == "and 5 more"


# What always holds

BUNDLES = st.lists(
    st.fixed_dictionaries(
        {
            "CPU": st.sampled_from([0, 0.25, 0.5, 1, 2]),
            "GPU": st.sampled_from([0, 0, 0.3, 0.5, 1, 2]),
        }
    ),
    min_size=1,
    max_size=4,
)
REQUESTS = st.builds(PlacementGroupFactory, BUNDLES, strategy=st.sampled_from(STRATEGIES))


def check_strategy(request: PlacementGroupFactory, placement: Placement) -> None:
    bundles = request.bundles
    assert [dict(seat.resources) for seat in placement.bundles] == bundles
    real = placement.bundles[1:] if not bundles[0] and any(bundles) else placement.bundles
    addresses = [seat.address for seat in real]
    if request.strategy == "STRICT_PACK":
        assert len(set(addresses)) == 1
    if request.strategy == "STRICT_SPREAD":
        assert len(set(addresses)) == len(addresses)


def check_books(ledger: Ledger, held: list[Placement]) -> None:
    """No worker has lent more than there is, and what is free is the rest."""
    for address, one in ledger.workers.items():
        mine = [seat for placement in held for seat in placement.bundles_on(address)]
        for kind in ("CPU", "GPU"):
            taken = sum(seat.resources.get(kind, 0) for seat in mine)
            assert ledger.free(address, kind) == pytest.approx(one.total(kind) - taken)
            assert taken <= one.total(kind) + 1e-6
        shares: Counter[str] = Counter()
        for seat in mine:
            for device in seat.devices or ():
                shares[device] += seat.resources["GPU"] / len(seat.devices or ())
        assert set(shares) <= set(one.gpus)
        assert max(shares.values(), default=0) <= 1 + 1e-6


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4),
    steps=st.lists(st.none() | REQUESTS, max_size=20),
)
def test_no_worker_is_ever_overbooked_and_all_comes_back(
    sizes: list[tuple[int, int]], steps: list[PlacementGroupFactory | None]
) -> None:
    ledger = ledger_of(
        *(
            worker(f"w{i}", nthreads=cpus, devices=tuple(f"{i}-{n}" for n in range(gpus)))
            for i, (cpus, gpus) in enumerate(sizes)
        )
    )
    held: list[Placement] = []
    for request in steps:
        if request is not None:
            room = ledger.fits(request, now=0.0)
            placement = ledger.place(request, now=0.0)
            assert room == (placement is not None)
            if placement is not None:
                assert ledger.fits_when_idle(request)
                check_strategy(request, placement)
                held.append(placement)
        elif held:
            ledger.release(held.pop(0))
        check_books(ledger, held)
    for placement in held:
        ledger.release(placement)
    check_books(ledger, [])


@settings(max_examples=60)
@given(request=REQUESTS, room=st.integers(1, 4))
def test_a_request_fits_once_more_after_a_release(request: PlacementGroupFactory, room: int) -> None:
    ledger = ledger_of(
        *(worker(f"w{i}", nthreads=2, devices=(f"{i}",)) for i in range(room)),
        worker("large", nthreads=4, devices=("8", "9")),
    )
    placements = []
    while len(placements) < 50 and (placement := ledger.place(request, now=0.0)) is not None:
        placements.append(placement)
    for placement in placements:
        ledger.release(placement)
        assert ledger.fits(request, now=0.0)


# Alone on a worker


def test_an_exclusive_request_waits_for_a_worker_of_which_we_hold_nothing() -> None:
    ledger = ledger_of(worker("a", nthreads=4, used={"CPU": 1}))
    alone = needs(CPU=1).exclusively()
    others = [ledger.place(needs(CPU=1), now=0.0), ledger.place(needs(), now=0.0)]
    assert None not in others
    for other in others:
        assert not ledger.fits(alone, now=0.0)
        assert other is not None
        ledger.release(other)
    assert place(ledger, alone) == "a"


def test_none_joins_an_exclusive_placement_until_it_ends_or_lets_them() -> None:
    ledger = ledger_of(worker("a", nthreads=4), worker("b", nthreads=4))
    alone = needs(CPU=1).exclusively()
    first, second = (ledger.place(alone, now=0.0) for _ in range(2))
    assert first is not None
    assert second is not None
    assert place(ledger, needs(CPU=1)) is None
    ledger.end_exclusive(first)
    ledger.end_exclusive(first)
    assert place(ledger, needs(CPU=1)) == first.address
    ledger.release(first)
    ledger.release(second)
    assert place(ledger, needs(CPU=4)) == second.address


def test_an_exclusive_request_with_several_bundles_has_all_its_workers_to_itself() -> None:
    ledger = ledger_of(worker("a"), worker("b"), worker("c"))
    assert place(ledger, needs(CPU=1)) == "a"
    request = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD").exclusively()
    assert ledger.fits_when_idle(request)
    placement = ledger.place(request, now=0.0)
    assert placement is not None
    assert sorted(placement.addresses) == ["b", "c"]
    assert place(ledger, needs(CPU=1)) == "a"
    assert place(ledger, needs(CPU=1)) is None


def test_a_worker_that_comes_back_is_not_reserved() -> None:
    ledger = ledger_of(worker("a"))
    assert place(ledger, needs(CPU=1).exclusively()) == "a"
    ledger.remove("a")
    ledger.update({"a": worker("a")})
    assert place(ledger, needs(CPU=1)) == "a"


def test_what_is_disregarded_is_no_company() -> None:
    ledger = ledger_of(worker("a"))
    left_behind = ledger.place(needs(CPU=1), now=0.0)
    assert left_behind is not None
    assert not ledger.fits(needs(CPU=1).exclusively(), now=0.0)
    ledger.ignore_for_exclusive(left_behind)
    ledger.ignore_for_exclusive(left_behind)
    assert not ledger.fits(needs(CPU=2).exclusively(), now=0.0)
    assert place(ledger, needs(CPU=1).exclusively()) == "a"
    ledger.release(left_behind)
    assert place(ledger, needs(CPU=1)) is None


@pytest.mark.parametrize(
    "later",
    [
        {"a": worker("a", 3)},
        {"a": worker("a", used={"CPU": 1})},
        {"a": worker("a", age=31.0)},
        {"a": worker("a"), "b": worker("b")},
        {},
    ],
    ids=["threads", "used", "silent", "joined", "gone"],
)
def test_the_revision_changes_with_what_workers_have(later: dict[str, WorkerCapacity]) -> None:
    ledger = ledger_of(worker("a"))
    revision, offered = ledger.revision, ledger.available_resources()
    ledger.update({"a": worker("a", age=1.0, heartbeat=7.0, memory=5)})
    assert place(ledger, needs(CPU=1)) == "a"
    assert (ledger.revision, ledger.available_resources()) == (revision, offered)
    ledger.update(later)
    assert ledger.revision != revision
    assert ledger.available_resources() != offered


# What other experiments are given


def test_what_is_withheld_is_not_free_but_is_still_offered() -> None:
    ledger = ledger_of(worker("a", 4, used={"CPU": 1}, withheld={"CPU": 2}))
    assert ledger.free("a", "CPU") == 1
    assert place(ledger, needs(CPU=2)) is None
    # Policies do not get an amount that changes every second.
    assert ledger.available_resources()["a"]["CPU"] == 3
    ledger.update({"a": worker("a", 4, used={"CPU": 1})})
    assert place(ledger, needs(CPU=2)) == "a"


def test_a_released_place_is_used_again_unless_it_is_for_others() -> None:
    ledger = ledger_of(worker("a", 2), worker("b", 2))
    facts = {"resources": {"CPU": 2}}
    ledger.update({name: worker(name, 2, **facts) for name in "ab"})
    placement = ledger.place(PlacementGroupFactory([ONE] * 4), now=0.0)
    assert placement is not None
    assert not ledger.exceeds(placement)
    withheld = {"a": worker("a", 2, **facts), "b": worker("b", 2, withheld={"CPU": 1}, **facts)}
    ledger.update(withheld)
    assert ledger.exceeds(placement)
    ledger.release(placement)
    assert not ledger.exceeds(placement)
    assert not ledger.may_repeat(placement)
    ledger.update({**withheld, "b": worker("b", 2, **facts)})
    assert ledger.may_repeat(placement)
    ledger.remove("b")
    assert not ledger.may_repeat(placement)
    assert not ledger.exceeds(placement)


def test_a_placement_is_closed_while_one_of_its_workers_accepts_no_trials() -> None:
    ledger = Ledger()
    ledger.update({name: worker(name, 1) for name in "ab"})
    placement = ledger.place(PlacementGroupFactory([ONE] * 2), now=0.0)
    assert placement is not None
    # The workers are full, and would accept another trial if there was room.
    assert not ledger.is_closed(placement)
    ledger.update({"a": worker("a", 1), "b": worker("b", 1, status="paused")})
    assert ledger.is_closed(placement)
    ledger.update({name: worker(name, 1) for name in "ab"})
    assert not ledger.is_closed(placement)
    ledger.avoid("a", 10.0)
    assert ledger.is_closed(placement)
    assert not ledger.fits(PlacementGroupFactory([ONE]), now=11.0)
    assert not ledger.is_closed(placement)
    ledger.remove("b")
    assert ledger.is_closed(placement)


def test_gpus_that_others_hold_or_that_are_reserved_for_them_are_not_chosen() -> None:
    gpus = {"resources": {"CPU": 8, "GPU": 2}, "devices": ("4", "5")}
    ledger = ledger_of(worker("a", **gpus, gpu_loads=(0.5, 0.0)))
    half, whole = PlacementGroupFactory([{"GPU": 0.5}]), PlacementGroupFactory([{"GPU": 1}])
    # Half of the first GPU is another experiment's: the sum would allow three halves on any device.
    first = ledger.place(half, now=0.0)
    second = ledger.place(whole, now=0.0)
    assert first is not None
    assert second is not None
    assert (first.devices, second.devices) == (("4",), ("5",))
    assert not ledger.fits(half, now=0.0)
    # The second GPU becomes another's. Its trial runs on, and is not followed by the next one.
    ledger.update({"a": worker("a", **gpus, gpu_loads=(0.5, 1.0))})
    assert ledger.exceeds(second)
    ledger.release(second)
    assert not ledger.may_repeat(second)
    ledger.release(first)
    assert ledger.may_repeat(first)
    # A worker of which the scheduler knows fewer GPUs yet.
    ledger.update({"a": worker("a", **gpus, gpu_loads=(1.0,))})
    third = ledger.place(whole, now=0.0)
    assert third is not None
    assert third.devices == ("5",)


def test_a_released_place_is_not_used_again_if_its_memory_is_for_others() -> None:
    ledger = ledger_of(worker("a", memory_limit=8, resources={"CPU": 2}))
    placement = ledger.place(PlacementGroupFactory([{"CPU": 1, "memory": 5}]), now=0.0)
    assert placement is not None
    claim = placement.claim_on("a")
    assert (claim.resources, claim.memory) == ({"CPU": 1}, 5)
    assert claim.annotations == {"dasktune_memory": 5, "dasktune_gpu_shares": []}
    ledger.release(placement)
    assert ledger.may_repeat(placement)
    ledger.update({"a": worker("a", memory_limit=8, resources={"CPU": 2}, withheld={"memory": 4})})
    assert not ledger.may_repeat(placement)


def test_workers_that_accept_no_trial_are_closed() -> None:
    ledger = ledger_of(worker("a"), worker("b"), worker("c", status="paused"))
    ledger.avoid("a", until=5.0)
    assert ledger.closed_for(None) == ["a", "c"]
    assert place(ledger, needs(CPU=1), now=6.0) == "a"
    assert ledger.closed_for(PlacementGroupFactory([ONE])) == ["c"]
    # A trial that needs a worker for itself waits for one on which no other trial is.
    assert ledger.closed_for(PlacementGroupFactory([ONE]).exclusively()) == ["a", "c"]


def test_a_worker_is_avoided_until_the_latest_time_that_was_given() -> None:
    ledger = Ledger()
    ledger.update({"a": WorkerCapacity(address="a", nthreads=1)})
    one = PlacementGroupFactory([{"CPU": 1}])
    ledger.avoid("a", 120.0)
    ledger.avoid("a", 2.0)
    assert not ledger.fits(one, now=119.0)
    # A newer notice of the worker is the one that counts.
    ledger.avoid("a", 60.0, is_leaving=True)
    assert ledger.leaving == {"a"}
    assert ledger.fits(one, now=60.0)
    ledger.avoid("a", 120.0)
    assert ledger.fits(one, now=120.0)


def test_a_request_may_fit_in_place_of_a_placement_which_stays_as_it_is() -> None:
    ledger = ledger_of(worker("a", resources={"GPU": 2}), worker("b", resources={"GPU": 1}))
    held = ledger.place(HostPlacement([{"GPU": 1}] * 2), now=0.0)
    assert held is not None
    three, four = (HostPlacement([{"GPU": 1}] * number) for number in (3, 4))
    assert not ledger.fits(three, now=0.0)
    for _ in range(2):
        assert ledger.fits_instead([held], [three], now=0.0)
        assert not ledger.fits_instead([held], [four], now=0.0)
        assert (ledger.free("a", "GPU"), ledger.free("b", "GPU")) == (0, 1)
    # A worker of the placement is lost, or only out of sight.
    ledger.update({"b": worker("b", resources={"GPU": 1})})
    assert not ledger.fits_instead([held], [three], now=0.0)
    ledger.update({one: worker(one, resources={"GPU": 2}) for one in ("a", "b")})
    assert ledger.free("a", "GPU") == 0
    ledger.remove("a")
    assert not ledger.fits_instead([held], [three], now=0.0)
    ledger.update({one: worker(one, resources={"GPU": 2}) for one in ("a", "b")})
    assert ledger.fits(four, now=0.0)


def test_a_question_about_a_placement_keeps_it_ignored_for_exclusive_requests() -> None:
    ledger = ledger_of(worker("a", nthreads=2))
    one = PlacementGroupFactory([{"CPU": 1}])
    held = ledger.place(one, now=0.0)
    assert held is not None
    ledger.ignore_for_exclusive(held)
    assert ledger.fits_instead([held], [one], now=0.0)
    assert ledger.fits(one.exclusively(), now=0.0)


def test_two_requests_do_not_get_the_same_room_instead_of_what_they_hold() -> None:
    ledger = ledger_of(worker("a", nthreads=4), worker("b", nthreads=2))
    four = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    held = [ledger.place(four.resized(2), now=0.0) for _ in range(2)]
    assert all(held)
    before = [(one, ledger.free(one, "CPU"), ledger.is_used(one)) for one in "ab"]
    assert ledger.fits_instead(held[:1], [four], now=0.0)
    assert not ledger.fits_instead(held, [four, four], now=0.0)
    assert ledger.missing_bundles(held, [four, four], now=0.0) == ([0, 2], 0)
    ledger.update({"a": worker("a", nthreads=1), "b": worker("b", nthreads=0, resources={"CPU": 0})})
    # There is not even room for the fewest.
    assert ledger.missing_bundles(held, [four, four], now=0.0) == ([4, 4], 2)
    ledger.update({one.address: one for one in (worker("a", nthreads=4), worker("b", nthreads=2))})
    assert [(one, ledger.free(one, "CPU"), ledger.is_used(one)) for one in "ab"] == before
    ledger.update({one.address: one for one in (worker("a", nthreads=4), worker("b", nthreads=4))})
    assert ledger.fits_instead(held, [four, four], now=0.0)
    assert ledger.missing_bundles(held, [four, four], now=0.0) == ([0, 0], 0)
    # Nothing uses the last worker; another client uses the one before.
    more = worker("c", nthreads=4, resources={"CPU": 4}, used={"CPU": 4}), worker("d", nthreads=1)
    ledger.update({**ledger.workers, **{one.address: one for one in more}})
    assert ledger.missing_bundles(held, [four, four], now=0.0) == ([0, 0], 1)
