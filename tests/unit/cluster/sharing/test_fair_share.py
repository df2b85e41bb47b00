"""The plan by which experiments share a cluster: its promises, and experiments in virtual time."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dasktune.cluster.sharing import trial_places
from dasktune.cluster.sharing.amounts import gpu_amounts, total_amounts
from dasktune.cluster.sharing.due_shares import CREDIT, Contender, ShareRequest, due_shares, next_lag
from dasktune.cluster.sharing.fair_share import plan_shares
from dasktune.placement.assign_request import assign_to_hosts
from dasktune.placement.bin_packing import WorkerPool, assign_bundles
from dasktune.placement.devices import pick_gpus
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.placement.host_layout import host_of
from dasktune.trial.resources import HostPlacement

EPSILON = 1e-6
ONE = ({"CPU": 1},)


def wants(count: int, *bundles: dict[str, float], strategy: str = "PACK") -> list[ShareRequest]:
    return [ShareRequest(bundles or ONE, strategy, count)]


def held(*addresses: str, amount: float = 1) -> list[list[tuple[str, dict[str, float]]]]:
    return [[(address, {"CPU": amount})] for address in addresses]


def cpus(plan: Any, name: str) -> dict[str, float]:
    """Return how many CPUs of each worker an experiment may hold."""
    return {address: plan.allowed(name, address)["CPU"] for address in plan.left}


def as_free(room: dict[str, float]) -> FreeCapacity:
    """Return what is left of a worker as the ledger of a driver sees it."""
    amounts = tuple((kind, amount) for kind, amount in room.items() if not kind.startswith("GPU/"))
    loads = tuple(1 - amount for kind, amount in room.items() if kind.startswith("GPU/"))
    return FreeCapacity(amounts, loads)


def pools_of(capacity: dict[str, dict[str, float]]) -> list[WorkerPool]:
    """Return a pool for each worker."""
    return [
        WorkerPool(as_free(room), members=[(number, address)])
        for number, (address, room) in enumerate(capacity.items())
    ]


# Single plans


def test_equal_experiments_get_equal_shares() -> None:
    first = Contender("a", holdings=held("x", "x", "y", "y"), requests=wants(9))
    plan = plan_shares({"x": {"CPU": 2}, "y": {"CPU": 2}}, [first, Contender("b", requests=wants(9))])
    assert plan.contended
    assert [sum(cpus(plan, name).values()) for name in "ab"] == [2, 2]
    assert plan.startable == {"a": set(), "b": set()}


def test_shares_follow_the_weights() -> None:
    heavy = Contender("heavy", weight=3, requests=wants(9))
    plan = plan_shares({"x": {"CPU": 8}}, [heavy, Contender("light", requests=wants(9))])
    assert [cpus(plan, name)["x"] for name in ("heavy", "light")] == [6, 2]


def test_a_higher_class_gets_all_that_it_requests_first() -> None:
    low = Contender("low", weight=100, holdings=held("x", "x", "x"), requests=wants(9))
    high = Contender("high", priority=1, requests=wants(2))
    plan = plan_shares({"x": {"CPU": 3}}, [low, high])
    assert [cpus(plan, name)["x"] for name in ("low", "high")] == [1, 2]
    shares = due_shares({"CPU": 3}, [low, high])
    assert shares == {"low": pytest.approx(1 / 3), "high": pytest.approx(2 / 3)}


def test_the_dominant_resource_counts() -> None:
    # The example of the paper: 9 CPUs and 18 GB; one user's tasks need <1, 4>, the other's <3, 1>.
    capacity = {"x": {"CPU": 9, "GB": 18}}
    first = Contender("a", requests=wants(99, {"CPU": 1, "GB": 4}))
    second = Contender("b", requests=wants(99, {"CPU": 3, "GB": 1}))
    plan = plan_shares(capacity, [first, second])
    assert plan.granted == {"a": {"x": {"CPU": 3, "GB": 12}}, "b": {"x": {"CPU": 6, "GB": 2}}}
    assert due_shares(capacity["x"], [first, second]) == {
        "a": pytest.approx(2 / 3),
        "b": pytest.approx(2 / 3),
    }


def test_what_one_does_not_request_others_get() -> None:
    plan = plan_shares(
        {"x": {"CPU": 8}}, [Contender("a", requests=wants(1)), Contender("b", requests=wants(9))]
    )
    assert plan.granted["b"] == {"x": {"CPU": 7}}
    assert due_shares({"CPU": 8}, [Contender("a", requests=wants(1)), Contender("b", requests=wants(9))]) == {
        "a": pytest.approx(1 / 8),
        "b": pytest.approx(7 / 8),
    }


def test_without_want_no_experiment_is_limited() -> None:
    both = [Contender("a", holdings=held("x")), Contender("b", requests=wants(1))]
    plan = plan_shares({"x": {"CPU": 4}}, both)
    assert not plan.contended
    assert plan.startable["b"] == {"x"}
    # Two CPUs are left for either.
    assert [cpus(plan, name)["x"] for name in "ab"] == [3, 3]
    assert plan.allowed("a", "unknown worker") is None


def test_a_trial_keeps_its_place_while_shares_are_nearly_equal() -> None:
    capacity = {"x": {"CPU": 3}}
    owner = Contender("owner", holdings=held("x", "x"), requests=wants(9))
    other = Contender("other", holdings=held("x"), requests=wants(9), lag=0.05)
    assert cpus(plan_shares(capacity, [owner, other]), "owner")["x"] == 2
    # The lag decides at the end, so that the odd CPU goes from one to the other.
    assert cpus(plan_shares(capacity, [owner, other._replace(lag=1.0)]), "owner")["x"] == 1


def test_a_new_one_is_next_although_all_is_held() -> None:
    owner = Contender("owner", weight=2, holdings=held("x", "y"), requests=wants(9))
    plan = plan_shares(
        {"x": {"CPU": 1}, "y": {"CPU": 1}}, [owner, Contender("new", lag=CREDIT, requests=wants(1))]
    )
    assert sum(cpus(plan, "new").values()) == 1


def test_a_large_trial_reserves_the_worker_where_least_is_missing() -> None:
    capacity = {"x": {"CPU": 4}, "y": {"CPU": 4}}
    small = Contender("small", holdings=held("x", "x", "x", "y", "y"), requests=wants(99))
    large = Contender("large", requests=wants(2, {"CPU": 4}), lag=CREDIT)
    plan = plan_shares(capacity, [small, large])
    assert cpus(plan, "large")["y"] == 4
    # The rest of the other worker is filled meanwhile.
    assert cpus(plan, "small") == {"x": 4, "y": 0}
    assert plan.startable == {"small": {"x"}, "large": set()}


def test_a_worker_that_an_experiment_cannot_use_is_not_reserved_for_it() -> None:
    capacity = {"x": {"CPU": 1}, "y": {"CPU": 1}}
    one = Contender("a", requests=wants(2), lag=0.5, closed=frozenset({"x"}))
    plan = plan_shares(capacity, [one, Contender("b", holdings=held("y"), requests=wants(2))])
    assert plan.granted["a"] == {"y": {"CPU": 1}}
    assert plan.granted["b"] == {"x": {"CPU": 1}}


def test_other_programs_come_first() -> None:
    # They use 3 of 2 CPUs: Dask counts a task as soon as it is assigned.
    plan = plan_shares({"x": {"CPU": -1}}, [Contender("a", holdings=held("x"), requests=wants(1))])
    assert plan.contended
    assert plan.granted == {"a": {}}
    assert cpus(plan, "a") == {"x": 0}


def test_a_trial_on_a_lost_worker_gets_nothing() -> None:
    plan = plan_shares({"x": {"CPU": 1}}, [Contender("a", holdings=[[("gone", {"CPU": 1})]])])
    assert plan.granted == {"a": {}}


def test_a_trial_on_several_workers_stays_on_all_or_none() -> None:
    pair = [[("x", {"CPU": 2}), ("y", {"CPU": 2})]]
    first = Contender("a", holdings=pair, requests=wants(3, {"CPU": 2}, {"CPU": 2}))
    high = Contender("b", priority=1, requests=wants(1), closed=frozenset({"y"}))
    plan = plan_shares({"x": {"CPU": 2}, "y": {"CPU": 2}}, [first, high])
    assert plan.granted["a"] == {}


def test_requests_without_resources_compete_for_nothing() -> None:
    plan = plan_shares({"x": {"CPU": 1}}, [Contender("a", requests=wants(10**9, {}))])
    assert not plan.contended
    assert due_shares({"CPU": 1}, [Contender("a", requests=wants(9, {}))]) == {"a": 0}
    assert due_shares({}, [Contender("a", requests=wants(9))]) == {"a": 0}


def test_several_requests_are_dealt_one_after_the_other() -> None:
    requests = [*wants(1, {"CPU": 9}), *wants(0), *wants(2)]
    plan = plan_shares({"x": {"CPU": 4}}, [Contender("a", requests=requests)])
    assert plan.granted == {"a": {"x": {"CPU": 2}}}
    assert plan.contended


# Several bundles

TWO = ({"CPU": 1}, {"CPU": 1})


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("PACK", {"x": {"CPU": 2}}),
        ("STRICT_PACK", {"x": {"CPU": 2}}),
        ("SPREAD", {"x": {"CPU": 1}, "y": {"CPU": 1}}),
        ("STRICT_SPREAD", {"x": {"CPU": 1}, "y": {"CPU": 1}}),
    ],
)
def test_bundles_are_placed_by_the_strategy(strategy: str, expected: dict[str, Any]) -> None:
    capacity = {"x": {"CPU": 2}, "y": {"CPU": 2}}
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, {}, *TWO, strategy=strategy))])
    assert plan.granted["a"] == expected
    assert plan.startable["a"] == set(expected)


@pytest.mark.parametrize("strategy", ["PACK", "STRICT_PACK"])
def test_bundles_that_fit_on_one_worker_reserve_one(strategy: str) -> None:
    first = Contender("a", holdings=held("x", "y"), requests=wants(9))
    second = Contender("b", lag=1.0, requests=wants(1, *TWO, strategy=strategy))
    plan = plan_shares({"x": {"CPU": 2}, "y": {"CPU": 1}}, [first, second])
    assert plan.granted["b"] == {"x": {"CPU": 2}}
    assert plan.startable["b"] == set()


def test_bundles_that_can_start_on_two_workers_do_not_wait_for_one() -> None:
    first = Contender("a", holdings=held("x", "y"))
    plan = plan_shares({"x": {"CPU": 2}, "y": {"CPU": 2}}, [first, Contender("b", requests=wants(1, *TWO))])
    assert plan.startable["b"] == {"x", "y"}
    assert plan.spread == {"a": [], "b": [{"x": {"CPU": 1}, "y": {"CPU": 1}}]}


def test_bundles_that_must_spread_reserve_several_workers() -> None:
    first = Contender("a", holdings=held("x", "x", "y"), requests=wants(9))
    second = Contender("b", priority=1, requests=wants(1, *TWO, strategy="STRICT_SPREAD"))
    plan = plan_shares({"x": {"CPU": 2}, "y": {"CPU": 1}}, [first, second])
    assert plan.granted["b"] == {"x": {"CPU": 1}, "y": {"CPU": 1}}
    assert plan.granted["a"] == {"x": {"CPU": 1}}


@pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_bundles_that_fit_nowhere_reserve_nothing(strategy: str) -> None:
    three = [{"CPU": 1}] * 3
    plan = plan_shares({"x": {"CPU": 2}}, [Contender("a", requests=wants(1, *three, strategy=strategy))])
    assert plan.granted == {"a": {}}
    assert plan.contended


def test_one_plan_deals_a_limited_number_of_trials_on_several_workers() -> None:
    capacity = {f"w{number}": {"CPU": 1} for number in range(200)}
    plan = plan_shares(capacity, [Contender("a", requests=wants(100, *TWO, strategy="STRICT_SPREAD"))])
    assert len(plan.granted["a"]) == 32


def test_a_first_choice_that_blocks_a_later_bundle_is_taken_back() -> None:
    capacity = {"x": {"CPU": 2, "TPU": 1}, "y": {"CPU": 1}}
    three = [{"CPU": 1}, {"CPU": 1}, {"CPU": 1, "TPU": 1}]
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, *three))])
    assert plan.granted["a"] == {"x": {"CPU": 2, "TPU": 1}, "y": {"CPU": 1}}


def test_bundles_of_different_kinds_go_to_different_workers() -> None:
    capacity = {"x": {"CPU": 2}, "y": {"TPU": 9}}
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, {"CPU": 2}, {"TPU": 1}))])
    assert plan.granted["a"] == {"x": {"CPU": 2}, "y": {"TPU": 1}}


def test_a_search_without_end_stops() -> None:
    capacity = {str(number): {"CPU": 2 + number / 10} for number in range(12)}
    plan = plan_shares(
        capacity, [Contender("a", requests=wants(1, *[{"CPU": 2}] * 13, strategy="STRICT_SPREAD"))]
    )
    assert plan.granted["a"] == {}


def test_equal_workers_are_not_tried_one_after_the_other() -> None:
    capacity = {"x": {"CPU": 2}, "y": {"CPU": 2}, "z": {"CPU": 1}}
    three = [{"CPU": 2}] * 3
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, *three, strategy="STRICT_SPREAD"))])
    assert plan.granted["a"] == {}


AMOUNTS = st.sampled_from([0, 1, 2])
NEEDS = st.fixed_dictionaries({"CPU": AMOUNTS, "TPU": AMOUNTS})


@settings(max_examples=60)
@given(
    st.lists(NEEDS.filter(lambda needs: any(needs.values())), min_size=1, max_size=3),
    st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    st.lists(NEEDS, min_size=1, max_size=3),
)
def test_the_plan_starts_a_trial_if_and_only_if_the_driver_can_place_it(
    bundles: list[dict[str, float]], strategy: str, rooms: list[dict[str, float]]
) -> None:
    capacity = {str(number): room for number, room in enumerate(rooms)}
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, *bundles, strategy=strategy))])
    assert plan.contended == (assign_bundles(bundles, strategy, pools_of(capacity)) is None)


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD"])
@pytest.mark.parametrize("most", [3, 1])
def test_the_plan_and_the_driver_fill_workers_exactly_with_the_same_answer(strategy: str, most: int) -> None:
    # Such cases reach the bound of the search, and then its order decides.
    random = Random(most)
    for _ in range(120):
        bundles = [{"CPU": random.randint(1, 5), "TPU": random.randint(1, most)} for _ in range(9)]
        rooms = [Counter[str]() for _ in range(4)]
        for needs in bundles:
            random.choice(rooms).update(needs)
        capacity = {str(number): dict[str, float](room) for number, room in enumerate(rooms)}
        found = assign_bundles(bundles, strategy, pools_of(capacity)) or {}
        plan = plan_shares(capacity, [Contender("a", requests=wants(1, *bundles, strategy=strategy))])
        held: dict[str, Counter[str]] = {}
        for number, address in found.items():
            held.setdefault(address, Counter()).update(bundles[number])
        assert plan.granted["a"] == held


# GPUs by device, and memory


def gpus(*parts: float, **others: float) -> dict[str, float]:
    """Return the amounts of a worker whose GPUs have these parts left."""
    return {"GPU": sum(parts), **gpu_amounts(dict(enumerate(parts))), **others}


def on_gpu(address: str, parts: dict[int, float], **others: float) -> list[tuple[str, dict[str, float]]]:
    """Return the holding of a trial with parts of GPUs."""
    return [(address, {"GPU": sum(parts.values()), **gpu_amounts(parts), **others})]


def test_a_whole_gpu_does_not_start_on_two_free_halves() -> None:
    halves = Contender("halves", holdings=[on_gpu("x", {0: 0.5}), on_gpu("x", {1: 0.5})])
    whole = Contender("whole", requests=wants(1, {"GPU": 1}))
    plan = plan_shares({"x": gpus(1, 1)}, [halves, whole], {"halves": 0.5, "whole": 0.5})
    assert plan.startable["whole"] == set()
    assert plan.contended
    # The sums alone would let it start.
    sums = [one._replace(holdings=[[("x", {"GPU": 0.5})]] * len(one.holdings)) for one in (halves, whole)]
    assert plan_shares({"x": {"GPU": 2}}, sums).startable["whole"] == {"x"}


def test_a_whole_gpu_reserves_one_device_and_leaves_the_other() -> None:
    halves = Contender(
        "halves", holdings=[on_gpu("x", {0: 0.5}), on_gpu("x", {1: 0.5})], requests=wants(9, {"GPU": 0.5})
    )
    whole = Contender("whole", lag=CREDIT, requests=wants(1, {"GPU": 1}))
    plan = plan_shares({"x": gpus(1, 1)}, [halves, whole])
    assert plan.granted["whole"] == {"x": {"GPU": 1, "GPU/1": 1}}
    # Its own half of the other device, and the free half beside it.
    allowed = plan.allowed("halves", "x")
    assert allowed is not None
    assert (allowed["GPU"], allowed["GPU/0"], allowed["GPU/1"]) == (1, 1, 0)


def test_a_fraction_goes_to_the_device_that_is_used_most() -> None:
    other = Contender("other", holdings=[on_gpu("x", {1: 0.5})])
    plan = plan_shares({"x": gpus(1, 1)}, [other, Contender("new", requests=wants(1, {"GPU": 0.5}))])
    assert plan.granted["new"] == {"x": {"GPU": 0.5, "GPU/1": 0.5}}
    assert plan.startable["new"] == {"x"}


def test_two_bundles_have_gpus_of_their_own() -> None:
    # One of 0.75 and one of 0.25 fit beside half of a GPU; as a sum they would need a whole one.
    other = Contender("other", holdings=[on_gpu("x", {0: 0.5})])
    one = Contender("one", requests=wants(1, {"GPU": 0.75}, {"GPU": 0.25}, strategy="STRICT_PACK"))
    plan = plan_shares({"x": gpus(1, 1)}, [other, one])
    assert plan.granted["one"] == {"x": {"GPU": 1, "GPU/1": 1}}
    assert plan.startable["one"] == {"x"}


def test_memory_counts_where_workers_have_a_limit() -> None:
    holds = Contender("holds", holdings=[[("x", {"CPU": 1, "memory": 6.0})]])
    wants_memory = Contender("wants", requests=wants(1, {"CPU": 1, "memory": 4.0}))
    plan = plan_shares({"x": {"CPU": 4, "memory": 8.0}}, [holds, wants_memory])
    assert (plan.startable["wants"], plan.contended) == (set(), True)
    # A worker without a limit has room, and no memory counts as a share then.
    capacity = {"x": {"CPU": 4, "memory": 8.0}, "y": {"CPU": 4, "memory": inf}}
    plan = plan_shares(capacity, [holds, wants_memory])
    assert plan.startable["wants"] == {"y"}
    assert total_amounts(capacity) == {"CPU": 8}
    assert due_shares(total_amounts(capacity), [wants_memory]) == {"wants": 1 / 8}


GPU_NEEDS = st.sampled_from([{}, {"GPU": 0.25}, {"GPU": 0.5}, {"GPU": 0.75}, {"GPU": 1}, {"GPU": 2}])


@st.composite
def situations_with_gpus(draw: st.DrawFn) -> tuple[dict[str, dict[str, float]], list[Contender]]:
    """Draw workers with GPUs and memory, and experiments that hold and request both."""
    capacity = {
        f"w{n}": gpus(*[1.0] * draw(st.integers(0, 3)), CPU=draw(st.integers(1, 4)), memory=8.0)
        for n in range(draw(st.integers(1, 3)))
    }
    free = {address: dict(room) for address, room in capacity.items()}
    contenders = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        holdings = []
        for address in draw(st.lists(st.sampled_from(sorted(capacity)), max_size=3)):
            count = len(free[address]) - 3
            part = draw(st.sampled_from([0, 0.25, 0.5, 1]))
            place = draw(st.integers(0, max(0, count - 1)))
            parts = {place: part} if part and count else {}
            [(_, needs)] = on_gpu(address, parts, CPU=1, memory=draw(st.sampled_from([0, 2, 4])))
            if fits(free[address], needs):
                for kind, amount in needs.items():
                    free[address][kind] -= amount
                holdings.append([(address, without_zeros(needs))])
        bundles = st.tuples(GPU_NEEDS, st.sampled_from([{"CPU": 1}, {"CPU": 1, "memory": 3.0}]))
        drawn = draw(st.lists(bundles, min_size=1, max_size=2))
        request = ShareRequest(
            tuple({**one, **other} for one, other in drawn),
            draw(st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])),
            draw(st.integers(0, 4)),
        )
        contenders.append(Contender(name, lag=draw(st.floats(-3, 3)), holdings=holdings, requests=[request]))
    return capacity, contenders


@settings(max_examples=50)
@given(situations_with_gpus())
def test_no_gpu_is_overbooked_and_what_starts_has_gpus_of_its_own(
    situation: tuple[dict[str, dict[str, float]], list[Contender]],
) -> None:
    capacity, contenders = situation
    plan = plan_shares(capacity, contenders)
    assert plan == plan_shares(capacity, contenders)
    for address, room in capacity.items():
        for kind, total in room.items():
            dealt = sum(plan.granted[one.name].get(address, {}).get(kind, 0) for one in contenders)
            assert dealt + plan.left[address][kind] == pytest.approx(total)
        for one in contenders:
            granted = plan.granted[one.name].get(address, {})
            single = sum(amount for kind, amount in granted.items() if kind.startswith("GPU/"))
            assert single == pytest.approx(granted.get("GPU", 0))


@settings(max_examples=50)
@given(situations_with_gpus())
def test_no_gpu_is_left_that_a_waiting_trial_could_use(
    situation: tuple[dict[str, dict[str, float]], list[Contender]],
) -> None:
    capacity, contenders = situation
    plan = plan_shares(capacity, contenders)
    for one in contenders:
        [request] = one.requests
        [needs, *more] = request.bundles
        if one.holdings or more:
            continue
        dealt = sum(granted["CPU"] for granted in plan.granted[one.name].values()) / needs["CPU"]
        if dealt < request.trials:
            assert not any(as_free(room).allocate(needs) is not None for room in plan.left.values())


@settings(max_examples=60)
@given(
    st.lists(GPU_NEEDS.filter(bool), min_size=1, max_size=3),
    st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    st.lists(st.lists(st.sampled_from([0.25, 0.5, 1.0]), max_size=3), min_size=1, max_size=3),
)
def test_the_plan_starts_a_trial_with_gpus_if_and_only_if_the_driver_can_place_it(
    bundles: list[dict[str, float]], strategy: str, parts: list[list[float]]
) -> None:
    capacity = {str(number): gpus(*free) for number, free in enumerate(parts)}
    plan = plan_shares(capacity, [Contender("a", requests=wants(1, *bundles, strategy=strategy))])
    assert plan.contended == (assign_bundles(bundles, strategy, pools_of(capacity)) is None)


def test_none_starves_for_whole_gpus_beside_halves() -> None:
    cluster = GpuCluster({"x": gpus(1.0, 1.0)})
    cluster.add("halves", {"GPU": 0.5}, length=5)
    cluster.advance(8)
    cluster.add("whole", {"GPU": 1}, length=3)
    cluster.add("both", {"GPU": 2}, length=4)
    cluster.advance(200)
    assert min(cluster.begun.values()) >= 4, cluster.begun
    shares = [cluster.seconds[name] / 200 for name in cluster.experiments]
    # Gaps come from the whole GPUs, for which two halves must end.
    assert sum(shares) > 0.8
    assert min(shares) > 0.2


# Ranks on hosts, of which each has several workers

GPU = {"GPU": 1.0}


def ranks(number: int, trials: int = 1, strategy: str = "PACK", per_host: int | None = None) -> Any:
    return [ShareRequest((GPU,) * number, strategy, trials, True, per_host)]


def gpu_hosts(**hosts: int) -> dict[str, dict[str, float]]:
    """Return workers with a GPU each, so many on each host."""
    return {f"tcp://{host}:{port}": dict(GPU) for host, count in hosts.items() for port in range(count)}


def on_hosts(plan: Any, name: str) -> dict[str, float]:
    """Return how many GPUs of each host are dealt to an experiment."""
    counts: Counter[str] = Counter()
    for address, amounts in plan.granted[name].items():
        counts[host_of(address)] += amounts.get("GPU", 0)
    return dict(counts)


def test_ranks_that_must_share_a_host_use_several_of_its_workers() -> None:
    workers = gpu_hosts(a=1, b=2, c=1)
    contenders = [Contender("ranks", requests=ranks(2, strategy="STRICT_PACK")), Contender("other")]
    plan = plan_shares(workers, contenders)
    assert on_hosts(plan, "ranks") == {"b": 2}
    assert plan.startable["ranks"] == {"tcp://b:0", "tcp://b:1"}
    assert not plan.contended


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ranks(4, per_host=2), {"b": 2, "c": 2}),
        (ranks(3), {"c": 3}),
        (ranks(4, strategy="SPREAD"), {"a": 1, "b": 2, "c": 1}),
        (ranks(3, strategy="STRICT_SPREAD"), {"a": 1, "b": 1, "c": 1}),
        (ranks(4, strategy="STRICT_SPREAD"), {}),
        (ranks(8, per_host=4), {}),
    ],
)
def test_the_plan_places_ranks_as_drivers_do(request_: Any, expected: dict[str, int]) -> None:
    plan = plan_shares(gpu_hosts(a=1, b=2, c=3), [Contender("ranks", requests=request_)])
    assert on_hosts(plan, "ranks") == expected


def test_room_is_reserved_on_one_host_for_ranks_that_need_it_there() -> None:
    # By worker, a GPU of each host would be reserved, and the ranks could never start.
    workers = gpu_hosts(a=2, b=2)
    holdings = [[(address, GPU)] for address in workers]
    single = [ShareRequest((GPU,), "PACK", 9)]
    greedy = Contender("greedy", holdings=holdings, requests=single)
    plan = plan_shares(workers, [greedy, Contender("ranks", requests=ranks(2, 5, per_host=2))])
    assert on_hosts(plan, "ranks") in ({"a": 2}, {"b": 2})
    assert on_hosts(plan, "greedy") in ({"a": 2}, {"b": 2})
    assert plan.startable["ranks"] == set()


def test_room_for_ranks_is_reserved_where_others_hold_too_much() -> None:
    workers = gpu_hosts(a=2, b=2, c=2)
    holdings = [[(address, GPU)] for address in workers]
    due = {"small": 2 / 6, "greedy": 2 / 6, "ranks": 2 / 6}
    small = Contender("small", holdings=holdings[:2])
    greedy = Contender("greedy", holdings=holdings[2:])
    waiting = Contender("ranks", lag=1.0, requests=ranks(2, strategy="STRICT_PACK"))
    plan = plan_shares(workers, [small, greedy, waiting], due)
    assert on_hosts(plan, "ranks") in ({"b": 2}, {"c": 2})


def test_each_rank_gets_a_gpu_of_its_own() -> None:
    workers = {"tcp://a:0": gpus(1, 1), "tcp://a:1": gpus(1), "tcp://b:0": gpus(1)}
    other = Contender("other", holdings=[on_gpu("tcp://a:0", {0: 0.5})])
    plan = plan_shares(workers, [other, Contender("ranks", requests=ranks(2, strategy="STRICT_PACK"))])
    assert plan.granted["ranks"] == {"tcp://a:0": {"GPU": 1, "GPU/1": 1}, "tcp://a:1": {"GPU": 1, "GPU/0": 1}}
    # The sum of the GPUs is enough for three, but two halves are no GPU.
    other = Contender("other", holdings=[on_gpu("tcp://a:0", {0: 0.5}), on_gpu("tcp://a:0", {1: 0.5})])
    plan = plan_shares(workers, [other, Contender("ranks", requests=ranks(2, strategy="STRICT_PACK"))])
    assert plan.startable["ranks"] == set()


def test_ranks_fit_on_workers_without_a_limit_of_memory() -> None:
    bundle = {"CPU": 1.0, "memory": 1e9, "GPU": 0.0}
    workers: dict[str, dict[str, float]] = {
        "tcp://a:0": {"CPU": 2, "memory": inf},
        "tcp://b:0": {"CPU": 2, "memory": 1e9},
    }
    one = Contender("ranks", requests=[ShareRequest((bundle,) * 2, "STRICT_PACK", 1, True)])
    other = Contender("other", requests=[ShareRequest(({"memory": 1e9},) * 3, "STRICT_PACK", 1, True)])
    plan = plan_shares(workers, [one, other])
    assert plan.startable == {"ranks": {"tcp://a:0"}, "other": {"tcp://a:0"}}


def test_closed_workers_get_no_ranks() -> None:
    one = Contender("ranks", requests=ranks(2, 3, per_host=2), closed=frozenset({"tcp://a:0"}))
    plan = plan_shares(gpu_hosts(a=2, b=2), [one])
    assert on_hosts(plan, "ranks") == {"b": 2}


@st.composite
def rank_situations(draw: st.DrawFn) -> tuple[dict[str, dict[str, float]], ShareRequest]:
    """Draw hosts with workers, and ranks that are to run there."""
    workers = {}
    for host in "abc"[: draw(st.integers(1, 3))]:
        for port in range(draw(st.integers(1, 3))):
            workers[f"tcp://{host}:{port}"] = {"GPU": float(draw(st.integers(0, 3)))}
    strategy = draw(st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]))
    number = draw(st.integers(2, 6))
    divisors = [one for one in range(1, number + 1) if number % one == 0]
    soft = strategy in ("PACK", "SPREAD")
    per_host = draw(st.sampled_from([None, *divisors])) if soft else None
    return workers, ShareRequest((GPU,) * number, strategy, 1, True, per_host)


@settings(max_examples=80)
@given(rank_situations())
def test_the_plan_finds_room_for_ranks_where_a_driver_does(
    situation: tuple[dict[str, dict[str, float]], ShareRequest],
) -> None:
    workers, asked = situation
    plan = plan_shares(workers, [Contender("ranks", requests=[asked])])
    pools = [
        WorkerPool(
            FreeCapacity((("GPU", room["GPU"]),), (0.0,) * int(room["GPU"])), members=[(number, address)]
        )
        for number, (address, room) in enumerate(workers.items())
    ]
    layout = HostPlacement(list(asked.bundles), asked.strategy, asked.per_host)
    found = assign_to_hosts(layout, pools)
    assert (found is not None) == bool(plan.startable["ranks"])
    if found is not None:
        placed = Counter(host_of(address) for address in found.values())
        # The hosts may differ, but not how the ranks are divided.
        assert sorted(placed.values()) == sorted(on_hosts(plan, "ranks").values())


# The promises


def fits(room: dict[str, float], needs: dict[str, float]) -> bool:
    return all(room.get(kind, 0) + EPSILON >= amount for kind, amount in needs.items())


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, dict[str, float]], list[Contender]]:
    """Draw workers, and experiments that hold and request something there."""
    kinds = {"CPU": st.integers(0, 4), "GPU": st.integers(0, 2)}
    capacity = {f"w{n}": draw(st.fixed_dictionaries(kinds)) for n in range(draw(st.integers(1, 4)))}
    free = {address: dict(room) for address, room in capacity.items()}
    contenders = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        holdings = []
        for address in draw(st.lists(st.sampled_from(sorted(capacity)), max_size=3)):
            needs = {"CPU": draw(st.sampled_from([0.5, 1, 2]))}
            if fits(free[address], needs):
                free[address]["CPU"] -= needs["CPU"]
                holdings.append([(address, needs)])
        request = ShareRequest(
            tuple(draw(st.lists(st.fixed_dictionaries(kinds).map(without_zeros), min_size=1, max_size=2))),
            draw(st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])),
            draw(st.integers(0, 5)),
        )
        contenders.append(
            Contender(
                name,
                weight=draw(st.sampled_from([0.5, 1, 3])),
                priority=draw(st.sampled_from([0, 0, 1])),
                lag=draw(st.floats(-3, 3)),
                holdings=holdings,
                requests=[request],
                closed=frozenset(draw(st.lists(st.sampled_from(sorted(capacity)), max_size=1))),
                group=draw(st.sampled_from(["", "", "g"])),
            )
        )
    return capacity, contenders


def without_zeros(needs: dict[str, float]) -> dict[str, float]:
    return {kind: amount for kind, amount in needs.items() if amount}


@settings(max_examples=30)
@given(situations())
def test_no_worker_is_overbooked_and_the_free_room_is_only_dealt_once(
    situation: tuple[dict[str, dict[str, float]], list[Contender]],
) -> None:
    capacity, contenders = situation
    plan = plan_shares(capacity, contenders)
    for address, room in capacity.items():
        for kind, total in room.items():
            dealt = sum(plan.granted[one.name].get(address, {}).get(kind, 0) for one in contenders)
            assert dealt + plan.left[address][kind] == pytest.approx(total)
            assert plan.left[address][kind] >= 0


@settings(max_examples=30)
@given(situations())
def test_nothing_is_left_that_a_waiting_trial_could_use(
    situation: tuple[dict[str, dict[str, float]], list[Contender]],
) -> None:
    # The first one holds nothing and waits for single bundles, which can be counted.
    capacity, [one, *others] = situation
    request = one.requests[0]
    needs = request.bundles[0]
    assume(needs)
    one = one._replace(holdings=[], requests=[request._replace(bundles=(needs,))])
    plan = plan_shares(capacity, [one, *others])
    kind, amount = next(iter(needs.items()))
    dealt = sum(granted.get(kind, 0) for granted in plan.granted[one.name].values()) / amount
    if dealt < request.trials:
        is_open = [address for address in capacity if address not in one.closed]
        assert not any(fits(plan.left[address], needs) for address in is_open)


@settings(max_examples=30)
@given(situations())
def test_equal_arguments_give_equal_plans(
    situation: tuple[dict[str, dict[str, float]], list[Contender]],
) -> None:
    capacity, contenders = situation
    assert plan_shares(capacity, contenders) == plan_shares(capacity, contenders)
    shares = due_shares(capacity["w0"], contenders)
    assert all(0 <= share <= 1 + EPSILON for share in shares.values())


@settings(max_examples=30)
@given(situations(), st.sampled_from([0.1, 1, 7]))
def test_an_experiment_that_is_alone_in_its_group_is_as_without_one(
    situation: tuple[dict[str, dict[str, float]], list[Contender]], weight: float
) -> None:
    capacity, contenders = situation
    single = [one._replace(group="") for one in contenders]
    # The weight in the group does not matter. The lag of one that requests nothing counts alone.
    single = [one if one.requests[0].trials else one._replace(lag=0.0) for one in single]
    groups = [one._replace(group=one.name, group_weight=one.weight, weight=weight) for one in single]
    assert plan_shares(capacity, groups) == plan_shares(capacity, single)
    totals = {"CPU": 8, "GPU": 3}
    assert due_shares(totals, groups) == pytest.approx(due_shares(totals, single))


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from([0.5, 1, 3]), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([1, 4]),
)
def test_groups_have_equal_shares_however_many_experiments_they_have(
    groups: list[list[float]], first_weight: float
) -> None:
    contenders = [
        Contender(
            f"{number}-{place}",
            weight=weight,
            requests=wants(10_000),
            group=str(number),
            group_weight=1 if number else first_weight,
        )
        for number, weights in enumerate(groups)
        for place, weight in enumerate(weights)
    ]
    capacity = {"x": {"CPU": 400.0}}
    due = due_shares(capacity["x"], contenders)
    plan = plan_shares(capacity, contenders)
    total = first_weight + len(groups) - 1
    for number, weights in enumerate(groups):
        mine = [one for one in contenders if one.group == str(number)]
        wanted = (1 if number else first_weight) / total
        assert sum(due[one.name] for one in mine) == pytest.approx(wanted)
        dealt = [plan.granted[one.name].get("x", {}).get("CPU", 0) for one in mine]
        # Whole trials: at most one too many or too few.
        assert sum(dealt) == pytest.approx(400 * wanted, abs=len(groups))
        for one, cpus_of in zip(mine, dealt, strict=True):
            assert due[one.name] == pytest.approx(wanted * one.weight / sum(weights))
            assert cpus_of == pytest.approx(sum(dealt) * one.weight / sum(weights), abs=len(weights))


def test_what_an_experiment_of_a_group_does_not_request_its_group_gets() -> None:
    small = Contender("small", requests=wants(1), group="g")
    large = Contender("large", requests=wants(99), group="g")
    other = Contender("other", requests=wants(99))
    capacity = {"x": {"CPU": 8}}
    plan = plan_shares(capacity, [small, large, other])
    assert [cpus(plan, one)["x"] for one in ("small", "large", "other")] == [1, 3, 4]
    assert due_shares(capacity["x"], [small, large, other]) == {"small": 1 / 8, "large": 3 / 8, "other": 0.5}


def test_within_a_group_shares_count_and_neither_the_size_of_trials_nor_what_is_held() -> None:
    small = Contender("small", holdings=held(*"xxxxxxx", amount=1), requests=wants(99), group="g")
    large = Contender("large", requests=wants(99, {"CPU": 2}), group="g")
    plan = plan_shares({"x": {"CPU": 8}}, [small, large])
    assert [cpus(plan, one)["x"] for one in ("small", "large")] == [4, 4]


def test_an_idle_experiment_of_a_group_does_not_delay_the_others() -> None:
    idle = Contender("idle", lag=-3, group="g")
    mine, other = Contender("mine", requests=wants(9), group="g"), Contender("other", requests=wants(9))
    plan = plan_shares({"x": {"CPU": 4}}, [idle, mine, other])
    assert [cpus(plan, one)["x"] for one in ("mine", "other")] == [2, 2]


@pytest.mark.parametrize("bundles", [({"CPU": 1},), ({"GPU": 0.5},), ({"CPU": 1},) * 4])
def test_the_work_of_a_plan_grows_with_the_workers_and_no_faster(
    bundles: tuple[dict[str, float], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Counter[int]()

    def fits(room: dict[str, float], needs: dict[str, float]) -> bool:
        looks[size] += 1
        return look(room, needs)

    # Unpickling the plugin by value, as a test does, gives the class the functions of a copy of the
    # module.
    scope = trial_places.TrialPlaces.find.__globals__
    look = scope["fits"]
    monkeypatch.setitem(scope, "fits", fits)
    for size in (25, 100):
        capacity = {f"w{number}": gpus(1.0, CPU=4) for number in range(size)}
        trials = [on_gpu(address, {0: 0.25}, CPU=1) for address in capacity for _ in range(4)]
        request = ShareRequest(bundles, "SPREAD", size)
        contenders = [Contender(str(n), holdings=trials[n::4], requests=[request]) for n in range(4)]
        plan_shares(capacity, contenders)
    assert looks[100] < 5 * looks[25]


# Experiments in virtual time


class Cluster:
    """Experiments that always want more, in virtual time, with a plan at each step."""

    #: The resource by which shares are measured.
    resource = "CPU"

    def __init__(self, capacity: dict[str, dict[str, float]]) -> None:
        self.capacity = capacity
        self.experiments: dict[str, dict[str, Any]] = {}
        #: Running trials: experiment, worker, needs and step of the end.
        self.running: list[tuple[str, str, dict[str, float], int]] = []
        self.begun: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.step = 0

    def add(self, name: str, needs: dict[str, float], length: int, **options: Any) -> None:
        self.experiments[name] = {"needs": needs, "length": length, "lag": CREDIT, **options}

    def contenders(self) -> list[Contender]:
        return [
            Contender(
                name,
                weight=one.get("weight", 1),
                priority=one.get("priority", 0),
                lag=one["lag"],
                holdings=[[(where, needs)] for owner, where, needs, _ in self.running if owner == name],
                requests=wants(self.waiting(name) if one.get("learns") else 1000, one["needs"]),
                group=one.get("group", ""),
                group_weight=one.get("group_weight", 1),
            )
            for name, one in self.experiments.items()
        ]

    def waiting(self, name: str) -> int:
        return max(1, sum(owner == name for owner, *_ in self.running))

    def advance(self, steps: int, seconds: float = 0.5) -> None:
        totals, kind = total_amounts(self.capacity), self.resource
        for _ in range(steps):
            self.step += 1
            self.running = [one for one in self.running if one[3] > self.step]
            contenders = self.contenders()
            plan = plan_shares(self.capacity, contenders)
            due = due_shares(totals, contenders)
            for name, one in self.experiments.items():
                self.start(name, one, plan)
            for name, one in self.experiments.items():
                share = sum(needs[kind] for owner, _, needs, _ in self.running if owner == name)
                one["lag"] = next_lag(one["lag"], due[name], share / totals[kind], seconds, waits=True)
                self.seconds[name] += share / totals[kind]

    def start(self, name: str, one: dict[str, Any], plan: Any) -> None:
        """Start trials where there is room for them, as a driver's ledger would."""
        for address, room in self.capacity.items():
            needs = one["needs"]
            while True:
                used = sum(n["CPU"] for _, where, n, _ in self.running if where == address)
                own = sum(n["CPU"] for o, where, n, _ in self.running if where == address and o == name)
                allowed = plan.allowed(name, address)["CPU"] if plan.contended else room["CPU"]
                if min(room["CPU"] - used, allowed - own) + EPSILON < needs["CPU"]:
                    break
                self.running.append((name, address, needs, self.step + one["length"]))
                self.begun[name] += 1


class GpuCluster(Cluster):
    """A cluster on which trials hold single GPUs."""

    resource = "GPU"

    def start(self, name: str, one: dict[str, Any], plan: Any) -> None:
        for address, room in self.capacity.items():
            while True:
                limit = plan.allowed(name, address) if plan.contended else room
                free = dict(room)
                for owner, where, needs, _ in self.running:
                    if where == address:
                        for kind, amount in needs.items():
                            free[kind] -= amount
                            if owner == name and kind.startswith("GPU/"):
                                limit = {**limit, kind: limit[kind] - amount}
                usable = [min(free[kind], limit[kind]) for kind in room if kind.startswith("GPU/")]
                places = pick_gpus([1 - part for part in usable], one["needs"]["GPU"])
                if places is None:
                    break
                part = one["needs"]["GPU"] / len(places)
                [(_, needs)] = on_gpu(address, dict.fromkeys(places, part))
                self.running.append((name, address, needs, self.step + one["length"]))
                self.begun[name] += 1


def test_an_experiment_whose_search_learns_soon_has_its_share() -> None:
    # It requests at most as many trials as run, so its demand grows 1, 2, 4.
    cluster = Cluster({"x": {"CPU": 16}})
    cluster.add("many", {"CPU": 1}, length=2)
    cluster.advance(4)
    cluster.add("learns", {"CPU": 1}, length=9, learns=True)
    cluster.advance(8)
    before = cluster.seconds["learns"]
    cluster.advance(40)
    assert (cluster.seconds["learns"] - before) / 40 == pytest.approx(0.5, abs=0.1)


def test_three_equal_experiments_take_turns_on_two_cpus() -> None:
    cluster = Cluster({"x": {"CPU": 1}, "y": {"CPU": 1}})
    for name in "abc":
        cluster.add(name, {"CPU": 1}, length=1)
    cluster.advance(200)
    assert all(cluster.seconds[name] / 200 == pytest.approx(1 / 3, abs=0.03) for name in "abc")
    assert sum(cluster.seconds.values()) == pytest.approx(200)


@pytest.mark.parametrize(("length", "group_weight", "share"), [(1, 1, 1 / 2), (7, 1, 1 / 2), (3, 2, 2 / 3)])
def test_a_group_of_three_has_the_share_of_one(length: int, group_weight: float, share: float) -> None:
    cluster = Cluster({"x": {"CPU": 2}, "y": {"CPU": 1}})
    for name, weight in (("a", 2), ("b", 1), ("c", 1)):
        cluster.add(name, {"CPU": 1}, length, weight=weight, group="g", group_weight=group_weight)
    cluster.add("other", {"CPU": 1}, 2)
    cluster.advance(400)
    shares = {name: cluster.seconds[name] / 400 for name in "abc"}
    assert sum(shares.values()) == pytest.approx(share, abs=0.06)
    assert shares["a"] == pytest.approx(share / 2, abs=0.06)
    assert sum(cluster.seconds.values()) == pytest.approx(400)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 7), (7, 3)])
def test_shares_follow_the_weights_however_long_trials_are(first: int, second: int) -> None:
    cluster = Cluster({"x": {"CPU": 2}, "y": {"CPU": 1}})
    cluster.add("heavy", {"CPU": 1}, length=first, weight=2)
    cluster.add("light", {"CPU": 1}, length=second)
    cluster.advance(300)
    assert cluster.seconds["heavy"] / 300 == pytest.approx(2 / 3, abs=0.06)
    assert sum(cluster.seconds.values()) == pytest.approx(300)


def test_a_large_trial_begins_among_small_ones() -> None:
    cluster = Cluster({"x": {"CPU": 4}, "y": {"CPU": 4}})
    cluster.add("small", {"CPU": 1}, length=5)
    cluster.advance(7)
    cluster.add("large", {"CPU": 4}, length=5)
    cluster.advance(2 * 5)
    assert cluster.begun["large"] > 0


def test_a_lower_class_starves() -> None:
    cluster = Cluster({"x": {"CPU": 2}})
    cluster.add("low", {"CPU": 1}, length=3)
    cluster.advance(4)
    before = cluster.begun["low"]
    cluster.add("high", {"CPU": 1}, length=3, priority=1)
    cluster.advance(50)
    assert cluster.begun["low"] <= before + 2
    assert cluster.begun["high"] > 20


@pytest.mark.parametrize("weight", [1, 2])
def test_the_third_experiment_has_its_turn_however_long_trials_are(weight: float) -> None:
    # All lags reach their bound during a trial: those that hold nothing have none.
    cluster = Cluster({"x": {"CPU": 1}})
    for name in "abc":
        cluster.add(name, {"CPU": 1}, length=100, weight=weight if name == "c" else 1)
    cluster.advance(1200)
    assert min(cluster.begun.values()) >= 3, cluster.begun


def test_a_group_that_holds_nothing_has_its_turn_however_long_trials_are() -> None:
    cluster = Cluster({"x": {"CPU": 1}})
    for name in "abcd":
        cluster.add(name, {"CPU": 1}, length=100, group="g" if name in "cd" else "")
    cluster.advance(1200)
    assert cluster.begun["c"] + cluster.begun["d"] >= 3, cluster.begun


def test_room_is_reserved_where_an_experiment_holds_more_than_its_share() -> None:
    one = Contender("one", holdings=held("x"))
    much = Contender("much", holdings=held("y", "y"), requests=wants(9))
    new = Contender("new", lag=CREDIT, requests=wants(1))
    plan = plan_shares({"x": {"CPU": 1}, "y": {"CPU": 2}}, [one, much, new])
    # Trials of "one" do not yield, because it has no more than is due to it.
    assert plan.granted == {"one": {"x": {"CPU": 1}}, "much": {"y": {"CPU": 1}}, "new": {"y": {"CPU": 1}}}
    due = {"one": 1.0, "much": 1.0, "new": 0.0}
    assert plan_shares({"x": {"CPU": 1}, "y": {"CPU": 2}}, [one, much, new], due).granted["new"] == {
        "x": {"CPU": 1}
    }


def test_an_experiment_that_holds_its_share_is_soon_forgiven_what_it_had_before() -> None:
    assert next_lag(2.5, 0.5, 0.5, 1.0, waits=True) == 2.5
    # An experiment that does not wait lacks nothing.
    assert next_lag(2.5, 0.5, 0.5, 1.0, waits=False) == 0
    assert next_lag(-2.0, 0.5, 0.5, 5.0, waits=True) == -1.5
    assert next_lag(-2.0, 0.5, 0.5, 60.0, waits=True) == 0
    assert next_lag(-2.0, 0.5, 0.75, 4.0, waits=True) == -3


@settings(max_examples=14)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.5, 1, 2])), min_size=2, max_size=3
    ),
)
def test_no_experiment_starves(sizes: list[int], experiments: list[tuple[int, int, float]]) -> None:
    cluster = Cluster({f"w{number}": {"CPU": size} for number, size in enumerate(sizes)})
    for number, (needs, length, weight) in enumerate(experiments):
        if needs <= max(sizes):
            cluster.add(str(number), {"CPU": needs}, length, weight=weight)
    # With the weights 0.5 and 2 the smallest of three shares is a ninth.
    cluster.advance(120)
    assert all(cluster.begun[name] >= 2 for name in cluster.experiments)
