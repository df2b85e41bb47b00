"""Where the ranks of a trial go, if several workers are on one host."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.placement.assign_request import assign_to_hosts
from dasktune.placement.bin_packing import WorkerPool
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.placement.host_layout import host_of
from dasktune.trial.resources import HostPlacement

CPU = {"CPU": 1}


def pools_of(**hosts: list[float]) -> list[WorkerPool]:
    """Return pools of workers, by host and the free CPUs of each of its workers."""
    pools: dict[FreeCapacity, WorkerPool] = {}
    number = 0
    for host, workers in hosts.items():
        for port, free in enumerate(workers):
            room = FreeCapacity((("CPU", free),))
            pool = pools.setdefault(room, WorkerPool(room))
            pool.members.append((number, f"tcp://{host}:{port}"))
            number += 1
    return list(pools.values())


def on_hosts(request: HostPlacement, pools: list[WorkerPool]) -> dict[str, int] | None:
    """Return the number of bundles on each host."""
    found = assign_to_hosts(request, pools)
    if found is None:
        return None
    assert sorted(found) == list(range(len(request.bundles)))
    return dict(Counter(map(host_of, found.values())))


def test_workers_of_one_host_are_one_place() -> None:
    pools = pools_of(a=[1], b=[1, 1], c=[2, 2])
    assert on_hosts(HostPlacement([CPU] * 2), pools) == {"b": 2}
    assert on_hosts(HostPlacement([CPU] * 2, "STRICT_PACK"), pools) == {"b": 2}
    assert on_hosts(HostPlacement([CPU] * 4), pools) == {"c": 4}
    assert on_hosts(HostPlacement([CPU] * 5, "STRICT_PACK"), pools) is None
    assert on_hosts(HostPlacement([CPU] * 3, "STRICT_SPREAD"), pools) == {"a": 1, "b": 1, "c": 1}
    assert on_hosts(HostPlacement([CPU] * 4, "STRICT_SPREAD"), pools) is None


def test_the_fewest_hosts_get_equally_many_if_they_can() -> None:
    assert on_hosts(HostPlacement([CPU] * 4), pools_of(a=[3], b=[3], c=[1])) == {"a": 2, "b": 2}
    # Two hosts suffice only if one of them has three.
    assert on_hosts(HostPlacement([CPU] * 4), pools_of(a=[3], b=[1], c=[1])) == {"a": 3, "b": 1}
    # The smallest host that suffices gets the rest.
    assert on_hosts(HostPlacement([CPU] * 5), pools_of(a=[4], b=[3], c=[1])) == {"a": 4, "c": 1}


def test_a_spread_is_as_equal_as_it_can_be() -> None:
    assert on_hosts(HostPlacement([CPU] * 5, "SPREAD"), pools_of(a=[1], b=[2, 2], c=[1])) == {
        "a": 1,
        "b": 3,
        "c": 1,
    }
    assert on_hosts(HostPlacement([CPU] * 7, "SPREAD"), pools_of(a=[1], b=[2, 2], c=[1])) is None


def test_an_exact_number_on_each_host() -> None:
    pools = pools_of(a=[1], b=[1, 1], c=[2, 2])
    assert on_hosts(HostPlacement([CPU] * 4, per_host=2), pools) == {"b": 2, "c": 2}
    assert on_hosts(HostPlacement([CPU] * 6, per_host=2), pools) is None
    assert on_hosts(HostPlacement([CPU] * 3, per_host=1), pools) == {"a": 1, "b": 1, "c": 1}


def test_hosts_with_what_others_lack_stay_free() -> None:
    plain = WorkerPool(FreeCapacity((("CPU", 4),)), members=[(1, "tcp://a:1")])
    room = FreeCapacity((("CPU", 2), ("TPU", 1)))
    special = WorkerPool(room, ("TPU",), members=[(0, "tcp://b:1")])
    assert on_hosts(HostPlacement([CPU] * 2), [special, plain]) == {"a": 2}
    assert on_hosts(HostPlacement([{"TPU": 1}]), [special, plain]) == {"b": 1}


def test_the_fullest_worker_of_a_host_is_filled_first() -> None:
    idle = WorkerPool(FreeCapacity((("CPU", 4),)), members=[(0, "tcp://a:1")])
    busy = WorkerPool(FreeCapacity((("CPU", 2),)), fill=0.5, members=[(1, "tcp://a:2")])
    found = assign_to_hosts(HostPlacement([CPU] * 3), [idle, busy])
    assert found == {0: "tcp://a:2", 1: "tcp://a:2", 2: "tcp://a:1"}


def test_each_gpu_has_one_rank() -> None:
    room = FreeCapacity((("GPU", 2),), (0.0, 0.5))
    pool = WorkerPool(room, members=[(0, "tcp://a:1"), (1, "tcp://a:2")])
    assert on_hosts(HostPlacement([{"GPU": 1}] * 2), [pool]) == {"a": 2}
    assert on_hosts(HostPlacement([{"GPU": 1}] * 3), [pool]) is None


def test_ranks_without_resources_fit_on_any_host() -> None:
    assert on_hosts(HostPlacement([{}] * 3), pools_of(a=[0])) == {"a": 3}
    assert on_hosts(HostPlacement([{}] * 3), []) is None


ROOMS = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4)


def possible(total: int, rooms: list[int]) -> list[tuple[int, ...]]:
    """Return all numbers of bundles on the hosts that are possible."""
    return [one for one in product(*(range(room + 1) for room in rooms)) if sum(one) == total]


@settings(max_examples=80)
@given(
    hosts=ROOMS,
    total=st.integers(1, 6),
    strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
def test_each_strategy_finds_the_best_layout(hosts: list[list[int]], total: int, strategy: str) -> None:
    pools = pools_of(**{f"h{number}": [float(free) for free in one] for number, one in enumerate(hosts)})
    found = assign_to_hosts(HostPlacement([CPU] * total, strategy), pools)
    ways = possible(total, [sum(one) for one in hosts])
    if strategy == "STRICT_PACK":
        ways = [way for way in ways if max(way) == total]
    if strategy == "STRICT_SPREAD":
        ways = [way for way in ways if max(way) == 1]
    assert (found is not None) == bool(ways)
    if found is None:
        return
    assert all(count <= hosts[int(worker[7])][int(worker[-1])] for worker, count in _used(found).items())
    counts = [count for count in Counter(map(host_of, found.values())).values() if count]
    used = [[count for count in way if count] for way in ways]
    if strategy == "PACK":
        fewest = min(map(len, used))
        assert len(counts) == fewest
        equal = any(len(way) == fewest and len(set(way)) == 1 for way in used)
        assert (len(set(counts)) == 1) == equal
    if strategy == "SPREAD":
        assert len(counts) == max(map(len, used))
        assert max(counts) == min(max(way) for way in used)


def _used(found: dict[int, str]) -> Counter[str]:
    return Counter(found.values())


@given(hosts=ROOMS, number=st.integers(1, 3), each=st.integers(1, 3))
def test_an_exact_number_is_found_where_there_is_room(hosts: list[list[int]], number: int, each: int) -> None:
    pools = pools_of(**{f"h{which}": [float(free) for free in one] for which, one in enumerate(hosts)})
    counts = on_hosts(HostPlacement([CPU] * (number * each), per_host=each), pools)
    assert (counts is not None) == (sum(sum(one) >= each for one in hosts) >= number)
    if counts is not None:
        assert list(counts.values()) == [each] * number


@pytest.mark.parametrize(
    ("address", "host"), [("tcp://10.0.0.7:1", "10.0.0.7"), ("inproc://10.0.0.7/1/2", "10.0.0.7"), ("a", "a")]
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host
