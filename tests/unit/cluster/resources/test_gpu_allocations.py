"""GPUs on a worker: found where there are any, and never given to two leases."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.cluster.connection.batched_calls import BatchedCalls
from dasktune.cluster.resources.declare import (
    GPUS,
    declare_resources,
    list_gpus,
    parse_listing,
    visible_devices,
)
from dasktune.cluster.resources.resource_lease import allocate_gpus, free_gpus
from dasktune.placement import Claim, WorkerCapacity
from dasktune.storage.fs.retry import RetrySchedule

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc)
  MIG 1g.10gb     Device  1: (UUID: MIG-dddd)
"""


def claim(*shares: tuple[float, tuple[str, ...]], gpus: str = "456") -> Claim:
    return Claim(resources={}, shares=shares, gpus=tuple(gpus))


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", "")
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_two_drivers_that_think_of_the_same_gpu_get_different_ones() -> None:
    assert allocate_gpus("w", "one", claim((1, ("4",)))) == [("4",)]
    assert allocate_gpus("w", "two", claim((1, ("4",)))) == [("5",)]
    assert allocate_gpus("v", "two", claim((1, ("4",)))) == [("4",)]
    free_gpus("v", "two")
    free_gpus("w", "one")
    free_gpus("w", "never seen")
    assert allocate_gpus("w", "three", claim((0.5, ("4",)), (0.5, ("4",)))) == [("4",), ("4",)]
    assert allocate_gpus("w", "four", claim((2, ("4", "6")))) is None
    free_gpus("w", "two")
    free_gpus("w", "three")
    # All are free again.
    assert allocate_gpus("w", "five", claim((3, ("4", "5", "6")))) == [("4", "5", "6")]
    free_gpus("w", "five")


def test_a_lease_without_gpus_claims_none() -> None:
    assert allocate_gpus("w", "one", Claim(resources={"CPU": 1})) == []
    free_gpus("w", "one")


SHARES = st.lists(st.tuples(st.sampled_from([0.3, 0.5, 1, 2]), st.just(("4", "5"))), max_size=3)


@settings(max_examples=60)
@given(st.lists(SHARES, max_size=8))
def test_claims_that_are_granted_fit_together(asked: list[Any]) -> None:
    loads = dict.fromkeys("456", 0.0)
    for number, shares in enumerate(asked):
        given_devices = allocate_gpus("h", str(number), claim(*shares))
        for (amount, _), devices in zip(shares, given_devices or (), strict=False):
            for device in devices:
                loads[device] += amount / len(devices)
    assert max(loads.values()) <= 1 + 1e-6
    for number in range(len(asked)):
        free_gpus("h", str(number))


def test_claims_are_alike_if_they_ask_for_as_much() -> None:
    assert claim((1, ("4",))).same_amounts(claim((1, ("5",))))
    assert not claim((1, ("4",))).same_amounts(claim((0.5, ("4",))))
    assert not claim().same_amounts(Claim(resources={"CPU": 1}))


def test_what_the_environment_says_counts_before_what_the_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert visible_devices() == ("3", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == ()


def test_gpus_in_mig_mode_count_by_their_parts() -> None:
    assert parse_listing(LISTING) == ("0", "MIG-cccc", "MIG-dddd")
    assert parse_listing("NVIDIA-SMI has failed\n") == ()


@pytest.mark.usefixtures("without_gpus")
def test_a_machine_without_gpus_has_none() -> None:
    assert visible_devices() == ()


def test_waits_grow_to_a_limit_and_begin_again() -> None:
    backoff = RetrySchedule(60.0, seed="seed")
    waits = [backoff.next_delay() for _ in range(10)]
    assert all(0.25 <= wait <= 15 for wait in waits)
    assert min(waits[-4:]) >= 7.5
    backoff.end()
    assert backoff.next_delay() <= 0.5


class FakeWorker:
    def __init__(self, address: str, host: str = "h", **resources: float) -> None:
        self.address, self.host, self.resources = address, host, resources
        self.extra: dict[str, Any] = {}
        self.processing: dict[Any, Any] = {}


class FakeScheduler:
    def __init__(self, *workers: FakeWorker) -> None:
        self.workers = {worker.address: worker for worker in workers}


class FakeClient:
    """Runs functions on a scheduler, and on a worker that sees certain GPUs."""

    def __init__(self, scheduler: FakeScheduler, worker: Any = None) -> None:
        self.scheduler, self.worker = scheduler, worker

    async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        try:
            return {workers[0]: await function(*args, dask_worker=self.worker)}
        except OSError as error:
            return {workers[0]: error}

    async def declare(self, worker: WorkerCapacity, *, declare: bool) -> None:
        visible = await list_gpus()
        calls = BatchedCalls(self)
        await declare_resources(self, calls, worker, visible, declare=declare, timeout_s=30.0)

    async def run_on_scheduler(self, function: Any, *args: Any) -> Any:
        return function(*args, dask_scheduler=self.scheduler)


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a driver find a worker that sees these GPUs; return those that the worker gets."""

    def assigned(scheduler: FakeScheduler, address: str, seen: str) -> list[str]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        worker = WorkerCapacity(address=address)
        asyncio.run(FakeClient(scheduler).declare(worker, declare=False))
        owned: list[str] = scheduler.workers[address].extra[GPUS]["owned"]
        return owned

    return assigned


def test_the_scheduler_deals_a_host_s_gpus_once_and_those_of_the_dead_too(assigned: Any) -> None:
    scheduler = FakeScheduler(FakeWorker("a"), FakeWorker("b"), FakeWorker("c", host="other"))
    assert assigned(scheduler, "a", "0,1,2") == ["0", "2"]
    assert assigned(scheduler, "b", "0,1,2") == ["1"]
    assert assigned(scheduler, "c", "0,1,2") == ["0", "1", "2"]
    # The second driver finds what the first one has arranged.
    assert assigned(scheduler, "a", "0,1,2") == ["0", "2"]
    del scheduler.workers["a"]
    scheduler.workers["d"] = FakeWorker("d", GPU=1)
    assert assigned(scheduler, "d", "0,1,2") == ["0"]


def test_workers_of_dask_cuda_own_the_first_of_their_rotated_lists(assigned: Any) -> None:
    scheduler = FakeScheduler(*map(FakeWorker, "ab"))
    assert assigned(scheduler, "a", "0,1") == ["0"]
    assert assigned(scheduler, "b", "1,0") == ["1"]


class DeclaringWorker:
    """A worker whose first word to the scheduler gets lost."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(nthreads=2, total_resources={"TPU": 1})
        self.heard: dict[str, float] = {}
        self._is_cut_off = True

    async def set_resources(self, **resources: float) -> None:
        self.state.total_resources |= resources
        if self._is_cut_off:
            self._is_cut_off = False
            raise OSError("no connection")
        self.heard |= resources


def test_a_declaration_that_the_scheduler_did_not_get_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    worker = DeclaringWorker()
    client = FakeClient(FakeScheduler(FakeWorker("a")), worker)

    def declare(**known: float) -> None:
        found = WorkerCapacity(address="a", resources=known)
        asyncio.run(client.declare(found, declare=True))

    with pytest.raises(OSError, match="no connection"):
        declare(TPU=1)
    declare(TPU=1)
    assert worker.heard == {"CPU": 2, "GPU": 1}
    declare(TPU=1, CPU=2, GPU=1)
    assert worker.heard == {"CPU": 2, "GPU": 1}
