"""The ledger: who has room, who is preferred, and what is left."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from dasktune.cluster.capacity import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory


def needs(**amounts: float) -> PlacementGroupFactory:
    return PlacementGroupFactory([amounts])


def worker(address: str, nthreads: int = 2, **facts: object) -> WorkerCapacity:
    return WorkerCapacity(address=address, nthreads=nthreads, **facts)  # type: ignore[arg-type]


def ledger_of(*workers: WorkerCapacity) -> Ledger:
    ledger = Ledger(heartbeat_timeout=30.0)
    ledger.update({one.address: one for one in workers})
    return ledger


def test_what_a_worker_declares_counts_and_threads_stand_in_for_cpus() -> None:
    plain = worker("a", nthreads=4, memory_limit=100)
    assert (plain.total("CPU"), plain.total("memory"), plain.total("GPU")) == (4, 100, 0)
    declared = worker("a", nthreads=4, memory_limit=100, resources={"CPU": 2, "memory": 50})
    assert (declared.total("CPU"), declared.total("memory")) == (2, 50)
    assert worker("a", memory_limit=0).total("memory") == inf


def test_a_worker_is_filled_before_the_next_one_is_touched() -> None:
    ledger = ledger_of(worker("a"), worker("b"), worker("c"))
    placed = [ledger.place(needs(CPU=1), now=0.0) for _ in range(7)]
    assert placed == ["a", "a", "b", "b", "c", "c", None]


def test_equal_workers_keep_the_order_in_which_they_arrived() -> None:
    ledger = ledger_of(worker("b"))
    ledger.update({"a": worker("a"), "b": worker("b")})
    assert ledger.place(needs(CPU=1), now=0.0) == "b"
    assert list(ledger.workers) == ["b", "a"]


def test_a_trial_without_a_gpu_leaves_gpu_workers_alone_while_it_can() -> None:
    ledger = ledger_of(worker("gpu", nthreads=1, resources={"GPU": 1}), worker("cpu", nthreads=1))
    assert ledger.place(needs(CPU=1), now=0.0) == "cpu"
    assert ledger.place(needs(CPU=1), now=0.0) == "gpu"


def test_ten_tenths_fit_into_one_and_no_more() -> None:
    ledger = ledger_of(worker("a", resources={"GPU": 1}))
    tenth = needs(GPU=0.1)
    assert [ledger.place(tenth, now=0.0) for _ in range(11)] == ["a"] * 10 + [None]
    for _ in range(10):
        ledger.release("a", tenth)
    assert ledger.free("a", "GPU") == 1


def test_all_bundles_of_a_request_go_to_one_worker() -> None:
    ledger = ledger_of(worker("small", nthreads=2), worker("large", nthreads=3))
    both = PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}])
    assert ledger.place(both, now=0.0) == "large"
    assert not ledger.fits(both, now=0.0)


def test_a_request_for_nothing_needs_a_worker_all_the_same() -> None:
    assert ledger_of().place(needs(), now=0.0) is None
    assert ledger_of(worker("a", nthreads=0)).place(needs(), now=0.0) == "a"


def test_what_is_released_can_be_placed_again() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    assert ledger.place(needs(CPU=1), now=0.0) == "a"
    assert not ledger.fits(needs(CPU=1), now=0.0)
    ledger.release("a", needs(CPU=1))
    assert ledger.place(needs(CPU=1), now=0.0) == "a"


def test_reservations_outlive_updates_and_a_worker_out_of_sight() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    ledger.place(needs(CPU=1), now=0.0)
    ledger.update({})
    assert not ledger.fits(needs(CPU=1), now=0.0)
    ledger.update({"a": worker("a", nthreads=1)})
    assert not ledger.fits(needs(CPU=1), now=0.0)


def test_a_removed_worker_comes_back_empty() -> None:
    ledger = ledger_of(worker("a", nthreads=1))
    ledger.place(needs(CPU=1), now=0.0)
    ledger.remove("a")
    ledger.remove("never seen")
    ledger.release("a", needs(CPU=1))
    assert ledger.workers == {}
    ledger.update({"a": worker("a", nthreads=1)})
    assert ledger.fits(needs(CPU=1), now=0.0)


def test_what_other_clients_hold_is_not_ours_to_place() -> None:
    ledger = ledger_of(worker("a", nthreads=3, used={"CPU": 2}))
    assert ledger.place(needs(CPU=1), now=0.0) == "a"
    assert not ledger.fits(needs(CPU=1), now=0.0)


def test_what_others_take_besides_us_counts() -> None:
    ledger = ledger_of(worker("a", nthreads=3))
    ledger.place(needs(CPU=1), now=0.0)
    ledger.update({"a": worker("a", nthreads=3, used={"CPU": 1})})
    assert ledger.free("a", "CPU") == 1


def test_dask_keeps_account_of_what_a_worker_declares() -> None:
    ledger = ledger_of(worker("a", nthreads=3, resources={"GPU": 2}))
    assert ledger.declared("a", needs(CPU=1, GPU=0.5, memory=0)) == {"GPU": 0.5}


def test_only_running_and_fresh_workers_take_trials() -> None:
    for unfit in (
        worker("a", status="paused"),
        worker("a", status="closing_gracefully"),
        worker("a", age=30.1),
    ):
        assert not ledger_of(unfit).fits(needs(CPU=1), now=0.0)
    assert ledger_of(worker("a", age=30.0)).fits(needs(CPU=1), now=0.0)


def test_an_avoided_worker_is_used_again_when_its_time_is_up() -> None:
    ledger = ledger_of(worker("a"))
    ledger.avoid("a", 15.0)
    assert ledger.place(needs(CPU=1), now=14.9) is None
    assert ledger.place(needs(CPU=1), now=15.0) == "a"


def test_memory_is_asked_of_the_limit_and_never_ends_without_one() -> None:
    ledger = ledger_of(worker("small", memory_limit=100), worker("unlimited"))
    assert ledger.place(needs(memory=80), now=0.0) == "small"
    assert ledger.place(needs(memory=80), now=0.0) == "unlimited"
    assert ledger.free("unlimited", "memory") == inf


def test_a_request_that_is_too_large_for_now_is_told_from_one_that_never_fits() -> None:
    ledger = ledger_of(worker("a", nthreads=2), worker("gone", nthreads=8, status="closing"))
    ledger.place(needs(CPU=2), now=0.0)
    assert not ledger.fits(needs(CPU=2), now=0.0)
    assert ledger.ever_fits(needs(CPU=2))
    assert not ledger.ever_fits(needs(CPU=3))
    assert not ledger.ever_fits(needs(CPU=1, TPU=1))


def test_a_paused_or_silent_worker_may_fit_later() -> None:
    assert ledger_of(worker("a", status="paused")).ever_fits(needs(CPU=2))
    assert ledger_of(worker("a", age=99.0)).ever_fits(needs(CPU=2))


def test_the_largest_worker_has_most_cpus_then_gpus() -> None:
    assert ledger_of().largest() is None
    large = worker("c", nthreads=4, resources={"GPU": 1})
    assert ledger_of(worker("a"), worker("b", nthreads=4), large).largest() == large


def test_the_table_shows_what_is_asked_beside_what_is_there() -> None:
    ledger = ledger_of(
        worker("tcp://a:1", nthreads=2),
        worker("tcp://b:1", nthreads=4, age=60.0, resources={"GPU": 2}),
    )
    ledger.place(needs(CPU=1), now=0.0)
    assert ledger.table(needs(CPU=8, GPU=0.5, memory=5)).splitlines() == [
        "worker     status   CPU free/total  GPU free/total  memory free/total",
        "asked               8               0.5             5",
        "tcp://b:1  silent   4/4             2/2             unlimited/unlimited",
        "tcp://a:1  running  1/2             0/0             unlimited/unlimited",
    ]


def test_the_table_of_a_large_cluster_shows_the_largest_workers() -> None:
    ledger = ledger_of(*(worker(f"w{i}", nthreads=i) for i in range(25)))
    lines = ledger.table(needs()).splitlines()
    assert len(lines) == 23
    assert lines[2].startswith("w24")
    assert lines[-1] == "and 5 more"


@given(
    totals=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from([0.25, 0.5, 1, 2])), max_size=30),
)
def test_no_worker_is_ever_overbooked_and_all_comes_back(
    totals: list[int], steps: list[tuple[bool, float]]
) -> None:
    ledger = ledger_of(*(worker(f"w{i}", nthreads=total) for i, total in enumerate(totals)))
    held: list[tuple[str, float]] = []
    for is_request, amount in steps:
        if is_request:
            room = ledger.fits(needs(CPU=amount), now=0.0)
            address = ledger.place(needs(CPU=amount), now=0.0)
            assert room == (address is not None)
            if address is not None:
                held.append((address, amount))
        elif held:
            address, amount = held.pop()
            ledger.release(address, needs(CPU=amount))
        for i, total in enumerate(totals):
            mine = sum(amount for address, amount in held if address == f"w{i}")
            assert ledger.free(f"w{i}", "CPU") == total - mine >= 0
