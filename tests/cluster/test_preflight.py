"""What a preflight says of real clusters."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cluster_kit import run_config, until
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.cluster.checks.preflight import (
    CheckResult,
    Checks,
    PreflightReport,
    check_request,
    check_worker,
    preflight,
)
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.cluster.protocol.pickling import dumps_user_code
from dasktune.errors import ClusterError, PreflightError
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.trial.resources import ElasticPlacement, HostPlacement, PlacementGroupFactory

pytestmark = pytest.mark.cluster

BLOB = pickle.dumps({"trainable": len})


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def threads() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def workers_of(client: Client) -> dict[str, WorkerCapacity]:
    workers: dict[str, WorkerCapacity] = client.sync(list_workers, client)
    return workers


def fly(client: Client, storage: Storage, blob: bytes = BLOB, **options: Any) -> PreflightReport:
    checks = Checks(blob=blob, storage=storage, code=options.pop("code", "auto"), timeout_s=30.0)
    workers = options.get("workers", workers_of(client))
    report: PreflightReport = client.sync(preflight, client, checks, workers=workers)
    return report


def test_a_cluster_that_shares_everything_passes_and_keeps_no_trace(
    processes: Client, tmp_path: Path
) -> None:
    storage = Storage(str(tmp_path / "runs"))
    report = fly(processes, storage)
    assert (report.hosts, report.unchecked) == (("127.0.0.1",), {})
    assert set(report.results.values()) == {CheckResult(shares=True)}
    assert storage.find() == []


def test_a_module_that_the_workers_lack_is_named_with_the_remedies(processes: Client, tmp_path: Path) -> None:
    blob = b"cnot_there_anywhere\ntrain\n."
    with pytest.raises(PreflightError, match="cannot import the module 'not_there_anywhere'") as e:
        fly(processes, Storage(str(tmp_path)), blob)
    assert "upload_file('not_there_anywhere.py')" in str(e.value)


@pytest.fixture
def local_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "only_on_the_driver.py").write_text(
        "def train(config):\n    return helper()\n\n\ndef helper():\n    return 42\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "only_on_the_driver", raising=False)
    module = __import__("only_on_the_driver")
    monkeypatch.setitem(sys.modules, "only_on_the_driver", module)
    return module


def test_a_local_module_travels_by_value(processes: Client, tmp_path: Path, local_module: ModuleType) -> None:
    blob = dumps_user_code({"trainable": local_module.train})
    assert fly(processes, Storage(str(tmp_path / "runs")), blob).unchecked == {}
    # By a task as well, and on the last worker: what travels by value needs no file anywhere.
    run = processes.submit(lambda: pickle.loads(blob)["trainable"]({}))
    assert run.result(timeout=30) == 42


def test_code_installed_asks_for_the_module_and_offers_to_let_it_travel(
    processes: Client, tmp_path: Path, local_module: ModuleType
) -> None:
    blob = dumps_user_code({"trainable": local_module.train}, code="installed")
    with pytest.raises(PreflightError, match="code='auto' would let it travel"):
        fly(processes, Storage(str(tmp_path / "runs")), blob, code="installed")


class _ExitsWhenUnpickled:
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, ("no licence",)


def test_user_code_that_exits_while_it_is_unpickled_kills_no_worker(
    processes: Client, tmp_path: Path
) -> None:
    before = set(workers_of(processes))
    with pytest.raises(PreflightError, match="SystemExit: no licence"):
        fly(processes, Storage(str(tmp_path)), pickle.dumps(_ExitsWhenUnpickled()))
    assert set(workers_of(processes)) == before


def finding(client: Client, storage: Storage, **options: Any) -> CheckResult:
    checks = Checks(blob=BLOB, storage=storage, timeout_s=30.0)
    worker = next(iter(workers_of(client).values()))
    found: CheckResult = client.sync(check_worker, client, worker, checks, **options)
    return found


@pytest.mark.parametrize("whole", [True, False])
def test_memory_storage_is_shared_by_workers_in_this_process_only(
    processes: Client, threads: Client, whole: bool
) -> None:
    storage = Storage("memory://preflight")
    assert finding(threads, storage, whole=whole) == CheckResult(shares=True)
    assert finding(processes, storage, whole=whole) == CheckResult(shares=False)
    assert storage.find() == []


class _ElsewhereStorage(Storage):
    """A path that is another directory in the worker's process, as on a host of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.url + "-elsewhere", self.storage_options)


def test_a_path_that_a_worker_does_not_share_is_noticed_and_left_alone(
    processes: Client, tmp_path: Path
) -> None:
    storage = _ElsewhereStorage(str(tmp_path / "runs"))
    assert finding(processes, storage) == CheckResult(shares=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "runs-elsewhere").exists()


class _OtherBucket(_ElsewhereStorage):
    """A store that is another one for the worker, by an endpoint of its own for one."""

    is_local = False


def test_a_store_that_is_another_one_on_a_worker_is_refused(processes: Client, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"on every worker, got .*runs with FileNotFoundError"):
        finding(processes, _OtherBucket(str(tmp_path / "runs")))


def test_a_place_that_this_process_cannot_write_to_is_refused(processes: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PreflightError, match="storage_path must be readable and writable"):
        fly(processes, Storage(str(tmp_path / "file" / "runs")))


def test_a_request_that_the_workers_can_never_meet_shows_both(processes: Client) -> None:
    ledger = Ledger()
    check_request(ledger, PlacementGroupFactory([{"CPU": 7}]))
    ledger.update(workers_of(processes))
    check_request(ledger, PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD"))
    # The fewest ranks are enough.
    seven = HostPlacement([{"CPU": 1}] * 7)
    check_request(ledger, ElasticPlacement(seven, 2, 7))
    with pytest.raises(PreflightError, match="they can never meet"):
        check_request(ledger, ElasticPlacement(seven, 6, 7))
    with pytest.raises(PreflightError, match=r"asked +7\n.* 1/1\n"):
        check_request(ledger, PlacementGroupFactory([{"CPU": 7}]))


def test_only_a_name_that_may_be_mistyped_is_guessed_at(processes: Client) -> None:
    ledger = Ledger()
    ledger.update(workers_of(processes))
    for asked, hint in (
        ("GPU", "No worker has any 'GPU'\n?$"),
        ("TPU", "No worker has any 'TPU'\n?$"),
        ("CPUs", "No worker has any 'CPUs'; did you mean 'CPU'\\?"),
    ):
        with pytest.raises(PreflightError, match=hint):
            check_request(ledger, PlacementGroupFactory([{"CPU": 1, asked: 1}]))


def test_another_python_is_refused_before_anything_is_sent(processes: Client, tmp_path: Path) -> None:
    workers = workers_of(processes)
    address, worker = next(iter(workers.items()))
    workers[address] = dataclasses.replace(worker, python="3.8")
    with pytest.raises(PreflightError, match=f"got 3.8 on {address}"):
        fly(processes, Storage(str(tmp_path)), workers=workers)


def test_workers_whose_threads_are_busy_are_checked_all_the_same(processes: Client, tmp_path: Path) -> None:
    with Client(processes.cluster, set_as_default=False) as other:
        go = f"preflight-{id(tmp_path)}"
        waiting = other.map(_wait_for_event, [go] * 4, pure=False)
        try:
            until(lambda: all(other.run(lambda dask_worker: len(dask_worker.state.executing)).values()))
            assert fly(processes, Storage(str(tmp_path))).unchecked == {}
        finally:
            other.sync(_set_event, other, go)
            other.gather(waiting)


def _wait_for_event(name: str) -> None:
    from distributed import Event

    Event(name).wait(timeout=60)


async def _set_event(client: Client, name: str) -> None:
    await client.scheduler.event_set(name=name)


@pytest.mark.slow
def test_a_worker_that_is_gone_is_neither_good_nor_bad(processes: Client, tmp_path: Path) -> None:
    gone = WorkerCapacity(address="tcp://127.0.0.1:1", host="127.0.0.1")
    checks = Checks(blob=BLOB, storage=Storage(str(tmp_path)), timeout_s=0.5)
    assert processes.sync(check_worker, processes, gone, checks).reason is not None
    with pytest.raises(ClusterError, match="none of 1 workers answered"):
        processes.sync(preflight, processes, checks, workers={gone.address: gone})


def test_without_workers_nothing_is_checked(processes: Client, tmp_path: Path) -> None:
    assert fly(processes, Storage(str(tmp_path)), workers={}) == PreflightReport(hosts=(), unchecked={})


class _MuteStorage(Storage):
    """A storage that never answers this process."""

    def write_bytes(self, name: str, data: bytes, *, durable: bool = False) -> None:
        threading.Event().wait()


def test_a_storage_that_never_answers_does_not_hang_the_preflight(processes: Client, tmp_path: Path) -> None:
    checks = Checks(blob=BLOB, storage=_MuteStorage(str(tmp_path)), timeout_s=0.5)
    with pytest.raises(PreflightError, match=r"no answer within 0\.5 s"):
        processes.sync(preflight, processes, checks, workers=workers_of(processes))


BEGUN, END = threading.Event(), threading.Event()


def wait_for_end() -> None:
    BEGUN.set()
    assert END.wait(60)


async def looked_at(client: Client, checks: Checks) -> PreflightReport:
    return await preflight(client, checks, workers=await list_workers(client))


def test_a_preflight_that_fails_forgets_nothing_that_tasks_of_others_use(tmp_path: Path) -> None:
    def in_use(dask_scheduler: Any = None) -> list[dict[str, float]]:
        return [dict(worker.used_resources) for worker in dask_scheduler.workers.values()]

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, resources={"TPU": 1}, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        task = client.submit(wait_for_end, resources={"TPU": 1})
        assert BEGUN.wait(60)
        # Dask forgets what is in use when a worker declares its CPUs.
        checks = Checks(blob=b"cnot_there_anywhere\ntrain\n.", storage=Storage(str(tmp_path)), declare=True)
        with pytest.raises(PreflightError, match="cannot import the module"):
            client.sync(lambda: looked_at(client, checks))
        assert [used["TPU"] for used in client.run_on_scheduler(in_use)] == [1]
        trainable = tune.with_resources(lambda config: None, {"TPU": 2})
        tuner = tune.Tuner(trainable, run_config=run_config(tmp_path), client=cluster)
        with pytest.raises(PreflightError, match="resources must be at most what the workers have"):
            tuner.fit()
        assert client.run_on_scheduler(in_use) == [{"TPU": 1, "CPU": 0}]
        END.set()
        task.result()
        assert [used["TPU"] for used in client.run_on_scheduler(in_use)] == [0]
