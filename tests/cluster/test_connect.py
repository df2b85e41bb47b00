"""Everything that may name a cluster, against real ones."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, Security
from distributed.core import rpc

from dasktune.cluster.connection.connect import Connection, connect
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.errors import ClusterError, ConfigError, PreflightError

pytestmark = pytest.mark.cluster

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def scheduler_process(directory: Path) -> Iterator[str]:
    """Run ``dask scheduler`` as users do, and return its address once it listens."""
    command = ["scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard"]
    with dask(*command, f"--scheduler-file={directory / 'scheduler.json'}") as process:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"Scheduler at:\s+(\S+)", line)
            if found:
                yield found[1]
                return
        raise AssertionError("the scheduler ended without an address")


@contextmanager
def dask(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    # From the scheduler's output we read the address, and never more than fits into the pipe.
    process = subprocess.Popen([sys.executable, "-m", "dask", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def worker_process(address: str, *options: str) -> Iterator[None]:
    flags = ["--nthreads=1", "--no-dashboard", "--no-nanny", "--host=127.0.0.1"]
    with dask("worker", address, *flags, *options):
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    """The address of a cluster from the command line, with one worker."""
    with (
        scheduler_process(directory) as address,
        worker_process(address, "--resources=CPU=2 GPU=1", "--name=alice"),
        Client(address, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        yield address


def works(connection: Connection) -> bool:
    with connection:
        three: int = connection.client.submit(sum, [1, 2], pure=False).result(timeout=30)
        return three == 3 and connection.client.status == "running"


def test_an_address_is_enough(address: str) -> None:
    connection = connect(address)
    assert (connection.address, connection.direct, connection.embedded) == (address, True, False)
    assert works(connection)
    assert connection.client.status == "closed"
    connection.close()


def test_an_address_may_lack_the_protocol(address: str) -> None:
    assert works(connect(address.removeprefix("tcp://")))


def test_a_scheduler_file_is_enough(address: str, directory: Path) -> None:
    assert works(connect(directory / "scheduler.json"))
    assert works(connect(str(directory / "scheduler.json")))


def test_a_client_only_names_the_cluster_and_stays_as_it_is(address: str) -> None:
    with Client(address, set_as_default=False) as client:
        connection = connect(client)
        assert connection.client is not client
        assert works(connection)
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3


def test_a_closed_client_still_names_the_cluster(address: str, directory: Path) -> None:
    with Client(address, set_as_default=False) as by_address:
        pass
    with Client(scheduler_file=str(directory / "scheduler.json"), set_as_default=False) as by_file:
        pass
    assert works(connect(by_address))
    assert works(connect(by_file))


def test_an_asynchronous_client_works_on_the_thread_of_its_loop(address: str) -> None:
    async def driver() -> bool:
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            return works(connect(client))

    assert asyncio.run(driver())


def test_our_client_is_not_the_default(address: str) -> None:
    with connect(address), pytest.raises(ValueError, match="No clients found"):
        Client.current()


def test_none_is_the_current_client_and_never_a_closed_one(address: str) -> None:
    with Client(address) as client:
        connection = connect()
        assert connection.address == client.scheduler.address
        connection.close()
    with client.as_current(), connect(n_workers=1) as connection:
        assert connection.embedded
        assert connection.address != address


def test_a_cluster_that_dasktune_starts_admits_only_its_own_client() -> None:
    async def is_admitted(address: str, security: Security) -> bool:
        call = rpc(address, timeout="1s", connection_args=security.get_connection_args("client"))
        try:
            return bool(await asyncio.wait_for(call.identity(), 1.0))
        except (OSError, TimeoutError, asyncio.TimeoutError):
            return False
        finally:
            await call.close_rpc()

    with connect(n_workers=1) as connection:
        (worker,) = connection.client.scheduler_info(n_workers=-1)["workers"].values()
        theirs = Security.temporary()
        for address in (connection.address, worker["nanny"]):
            assert connection.client.sync(is_admitted, address, connection.client.security)
            assert not connection.client.sync(is_admitted, address, theirs)
            without = address.replace("tls://", "tcp://")
            assert without != address
            assert not connection.client.sync(is_admitted, without, Security())


def test_none_inside_a_task_is_the_cluster_of_the_task(address: str) -> None:
    def task() -> str:
        with connect() as connection:
            return connection.address

    with Client(address, set_as_default=False) as client:
        assert client.submit(task).result(timeout=30) == address


def test_the_scheduler_tells_all_that_the_ledger_needs(address: str) -> None:
    with connect(address) as connection:
        workers = connection.client.sync(list_workers, connection.client)
    (worker,) = workers.values()
    assert (worker.name, worker.status, worker.host) == ("alice", "running", "127.0.0.1")
    assert (worker.total("CPU"), worker.total("GPU"), worker.nthreads) == (2, 1, 1)
    assert worker.python == PYTHON
    assert worker.memory > 0
    assert 0 <= worker.age < 60


def test_a_cluster_in_this_process_is_reached_by_object_and_by_address() -> None:
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        assert cluster.scheduler_address.startswith("inproc://")
        connection = connect(cluster)
        assert connection.direct
        assert works(connection)
        assert works(connect(cluster.scheduler_address))
        with Client(cluster, set_as_default=False) as client:
            assert works(connect(client))
    for closed in (cluster, client):
        with pytest.raises(ClusterError, match="is closed"):
            connect(closed)


def note_requests(scheduler: Any, *ops: str) -> list[str]:
    """Return a list that grows with each of these requests to a scheduler of this process."""
    requests: list[str] = []

    def noted(op: str, handler: Any) -> Any:
        @functools.wraps(handler)
        def handle(*args: Any, **options: Any) -> Any:
            requests.append(op)
            return handler(*args, **options)

        return handle

    scheduler.handlers.update({op: noted(op, scheduler.handlers[op]) for op in ops})
    return requests


def test_a_cluster_in_this_process_is_known_to_run_and_to_be_within_reach() -> None:
    def shown(given: Any) -> tuple[bool, list[str], list[str]]:
        requests.clear()
        with connect(given) as connection:
            asked = list(requests)
            return connection.direct, list(connection.client.sync(list_workers, connection.client)), asked

    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        # The scheduler is asked for its Python, and then for a worker to probe.
        requests = note_requests(cluster.scheduler, "versions", "run_function")
        workers = [cluster.workers[0].address]
        assert shown(cluster.scheduler_address) == (True, workers, ["versions", "run_function"])
        with Client(cluster, set_as_default=False) as client:
            assert shown(cluster) == shown(client) == (True, workers, [])
        cluster.scale(0)
        cluster.sync(cluster._correct_state)
        # A worker that others have started may be out of reach, so it is asked.
        with Client(cluster, set_as_default=False) as client:
            client.sync(wait_for_no_worker, client)
        assert shown(cluster) == (False, [], ["run_function"])


async def wait_for_no_worker(client: Client) -> None:
    while await list_workers(client):
        await asyncio.sleep(0.02)


def test_a_cluster_whose_event_loop_hangs_fails_soon_and_is_named() -> None:
    released = threading.Event()
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
        cluster.scheduler.loop.add_callback(released.wait)
        try:
            with pytest.raises(
                ClusterError, match=r"no Dask scheduler answered at inproc://\S+ within 0.1 s"
            ):
                connect(cluster, timeout_s=0.1)
        finally:
            released.set()


def test_encryption_comes_from_the_cluster_or_client(security: Security) -> None:
    def task() -> bool:
        return works(connect())

    with LocalCluster(
        n_workers=1, processes=False, protocol="tls", security=security, dashboard_address=":0"
    ) as cluster:
        assert works(connect(cluster))
        with Client(cluster, set_as_default=False) as client:
            assert works(connect(client))
            # Code on a worker that has no certificate for clients uses the worker's own one.
            worker = cluster.workers[0]
            worker.security = copy.copy(security)
            worker.security.tls_client_cert = worker.security.tls_client_key = None
            assert client.submit(task, pure=False).result(timeout=30)
        with pytest.raises(ClusterError, match="carries its security"):
            connect(cluster.scheduler_address, timeout_s=1)


@pytest.mark.parametrize("at", ["tcp://127.0.0.1:9", "another cluster's worker"])
def test_workers_out_of_reach_are_called_through_the_scheduler(at: str) -> None:
    with LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=":0") as cluster:
        found = at if at.startswith("tcp") else cluster.workers[0].address

        async def seen_by_the_scheduler(comm: Any, **request: Any) -> dict[str, Any]:
            return {"status": "OK", "result": (found, "Worker-of-the-right-cluster")}

        handlers = cluster.scheduler.handlers
        really, handlers["run_function"] = handlers["run_function"], seen_by_the_scheduler
        connection = connect(cluster.scheduler_address, probe_s=0.5)
        handlers["run_function"] = really
        assert not connection.direct
        assert connection.client.direct_to_workers is False
        assert works(connection)


@pytest.mark.slow
def test_whether_workers_are_reached_is_settled_when_the_first_one_comes(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as address, connect(address) as connection:
        assert not connection.client.sync(connection.probe_direct)
        with worker_process(address):
            connection.client.wait_for_workers(1, timeout=60)
            assert connection.client.sync(connection.probe_direct)
            assert connection.client.direct_to_workers is True


def test_an_address_without_a_scheduler_fails_soon_and_is_named() -> None:
    message = r"no Dask scheduler answered at tcp://127\.0\.0\.1:9 within 0.5 s \(connection refused"
    with pytest.raises(ClusterError, match=message):
        connect("tcp://127.0.0.1:9", timeout_s=0.5)


def test_a_server_that_never_answers_fails_soon_and_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mute = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"answered at {mute} within 0.5 s"):
            connect(mute, timeout_s=0.5)


def test_the_port_of_a_dashboard_is_not_a_scheduler_s() -> None:
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
    ) as cluster:
        page = cluster.dashboard_link
        port = re.findall(r":(\d+)/", page)[0]
        with pytest.raises(
            ClusterError, match=rf"a web server answers at tcp://127\.0\.0\.1:{port}, perhaps"
        ):
            connect(f"127.0.0.1:{port}", timeout_s=1)
        with pytest.raises(ConfigError, match="the address of a page, such as Dask's dashboard"):
            connect(page)


def test_an_address_of_a_worker_is_not_a_scheduler_s(address: str) -> None:
    with connect(address) as connection:
        (worker,) = connection.client.run(os.getpid)
    with pytest.raises(ClusterError, match=f"{worker} is a Dask Worker, not a scheduler"):
        connect(worker)


def test_a_scheduler_on_another_python_is_refused() -> None:
    def versions(packages: Any = None) -> dict[str, Any]:
        return {"host": {"python": "3.8.10.final.0"}}

    with LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=":0") as cluster:
        cluster.scheduler.handlers["versions"] = versions
        address = cluster.scheduler_address
        message = f"the scheduler at {address} runs Python 3.8.10, this process {PYTHON}"
        with pytest.raises(PreflightError, match=message):
            connect(address)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (42, "client must be a distributed.Client, a cluster object, .*, got 42"),
        ("cluster", "got 'cluster'"),
        ("missing.json", "got 'missing.json' .No such file"),
        (Path("/no/such/file"), "got '/no/such/file' .No such file"),
    ],
)
def test_what_names_no_cluster_is_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        connect(given)


def test_a_file_without_an_address_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ConfigError, match="without an address"):
        connect(tmp_path / "other.json")


def test_a_time_out_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="timeout_s must be more than 0"):
        connect("tcp://127.0.0.1:9", timeout_s=0)


def test_the_embedded_cluster_outlives_ctrl_c_and_ends_with_the_connection() -> None:
    with connect(n_workers=1) as connection:
        assert connection.embedded
        assert connection.direct
        before = connection.client.run(os.getpid)
        assert connection.client.nthreads() == dict.fromkeys(before, 1)
        for pid in before.values():
            os.kill(pid, signal.SIGINT)
        # Two round trips: a signal is handled between two steps of the worker's main thread.
        assert connection.client.submit(sum, [1, 2]).result(timeout=30) == 3
        assert connection.client.run(os.getpid) == before
    with pytest.raises(ClusterError):
        connect(connection.address, timeout_s=0.5)


def test_a_cluster_that_is_slow_to_end_is_logged_and_no_error(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    def never_in_time(timeout: float) -> None:
        # As Dask does where a nanny takes longer.
        raise asyncio.TimeoutError(f"timed out after {timeout} s.")

    client = Client(address, set_as_default=False)
    connection = Connection(client, direct=True, cluster=SimpleNamespace(close=never_in_time))
    assert connection.embedded
    connection.close()
    assert "did not end within 10 s" in caplog.text
    assert client.status == "closed"


def test_a_script_without_a_main_guard_says_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("from dasktune.cluster.connection.connect import connect\nconnect().close()\n")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        # Not until its end: older Dask waits for ever for workers that could not start.
        told = any(
            line.startswith("dasktune.errors.ClusterError") and 'if __name__ == "__main__":' in line
            for line in process.stderr
        )
        assert told
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
