"""Distributed trials: one trial on several processes, on real workers."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    assert_no_step_back,
    driver_settings,
    fitting,
    journal,
    note,
    notes,
    restarts,
    run_config,
    statuses,
    until,
)
from distributed import Client, LocalCluster, Security, WorkerPlugin

import dasktune as tune
from dasktune.cli.command_line import main


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes with two threads each."""
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_rank_is_left(cluster: LocalCluster) -> Iterator[None]:
    """Check after each test that no worker has a rank or anything of the experiment."""
    yield
    with Client(cluster, set_as_default=False) as client:
        until(lambda: len(client.scheduler_info()["workers"]) == 2)
        workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
        until(lambda: not any(worker.children(recursive=True) for worker in workers))
        assert_clean(client)


def tuner(
    cluster: LocalCluster, place: Path, trainable: Any, space: dict[str, Any] | None = None, **options: Any
) -> tune.Tuner:
    """Return a tuner of one trial that gets a place for notes."""
    settings = options.pop("tune_config", None)
    return tune.Tuner(
        trainable,
        param_space={"place": str(place), **(space or {})},
        tune_config=settings,
        run_config=run_config(place, **options),
        client=cluster,
    )


def only_error(results: tune.ResultGrid) -> str:
    """Return the error of the only trial."""
    [error] = results.errors
    return str(error)


def pids(place: Path) -> dict[int, int]:
    """Return the process id of each rank that has called `introduce`."""
    found = {}
    for path in place.glob("rank-?"):  # and not those that are being written
        found[int(path.name.removeprefix("rank-"))] = int(path.read_text())
    return found


def introduce(config: dict[str, Any]) -> int:
    """Write down the process id of this rank, and return its number."""
    rank = tune.get_context().get_world_rank()
    path = Path(config["place"]) / f"rank-{rank}"
    path.with_suffix(".part").write_text(f"{os.getpid()}\n")
    path.with_suffix(".part").rename(path)
    return rank


def all_gone(processes: dict[int, int] | list[int]) -> bool:
    """Whether no process of these lives."""
    ids = processes.values() if isinstance(processes, dict) else processes
    return not any(psutil.pid_exists(pid) and _lives(pid) for pid in ids)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# What a rank sees


def describe(config: dict[str, Any]) -> None:
    """Report once, and write down what this rank sees."""
    context = tune.get_context()
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    seen = {
        "context": [
            context.get_world_rank(),
            context.get_world_size(),
            context.get_local_rank(),
            context.get_local_world_size(),
            context.get_node_rank(),
        ],
        "environment": {name: os.environ[name] for name in names},
        "own": os.environ["MINE"],
        "worker": os.getppid(),
        "threads": os.environ["OMP_NUM_THREADS"],
    }
    note(Path(config["place"]), json.dumps(seen))
    tune.report({"rank": context.get_world_rank()})


@pytest.mark.parametrize("preload", [(), None], ids=["forked", "fresh"])
def test_ranks_get_the_contract_of_torchrun(cluster: LocalCluster, tmp_path: Path, preload: Any) -> None:
    trainable = tune.with_ranks(describe, 4, env={"MINE": "x"}, preload=preload)
    results = tuner(cluster, tmp_path, trainable).fit()
    assert statuses(results) == {"TERMINATED"}
    seen = sorted((json.loads(line) for line in notes(tmp_path)), key=lambda one: one["context"])
    # Both workers are on one host, so the ranks there are counted together.
    assert [one["context"] for one in seen] == [[rank, 4, rank, 4, 0] for rank in range(4)]
    for rank, one in enumerate(seen):
        environment = one["environment"]
        assert (environment["RANK"], environment["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (environment["WORLD_SIZE"], environment["GROUP_RANK"]) == ("4", "0")
        assert (one["own"], one["threads"]) == ("x", "1")
    assert len({one["environment"]["MASTER_PORT"] for one in seen}) == 1
    assert len({one["worker"] for one in seen}) == 2
    # One trial with one stream of results.
    assert [one["metrics"]["rank"] for one in journal(tmp_path, event="ResultReported")] == [0]


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Fleet]:
    """Two workers with a thread each on each of two addresses of this machine."""
    fleet = Fleet(tmp_path)
    try:
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.3"):
            fleet.add_worker(f"--host={host}")
        with fleet.client() as client:
            until(lambda: len(client.scheduler_info()["workers"]) == 4)
        yield fleet
    finally:
        fleet.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_ranks_are_laid_out_by_host(two_hosts: Fleet, tmp_path: Path) -> None:
    def places(ranks: int, name: str, **options: Any) -> list[list[int]]:
        place = tmp_path / name
        place.mkdir()
        trainable = tune.with_ranks(describe, ranks, env={"MINE": "x"}, **options)
        one = tune.Tuner(
            trainable,
            param_space={"place": str(place)},
            run_config=run_config(place),
            client=two_hosts.address,
        )
        assert statuses(one.fit()) == {"TERMINATED"}
        return sorted(json.loads(line)["context"] for line in notes(place))

    # Rank, world size, local rank, local world size and number of the host.
    assert places(2, "packed") == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]
    assert places(2, "exact", per_host=1) == [[0, 2, 0, 1, 0], [1, 2, 0, 1, 1]]
    assert places(4, "full", per_host=2) == [
        [0, 4, 0, 2, 0],
        [1, 4, 1, 2, 0],
        [2, 4, 0, 2, 1],
        [3, 4, 1, 2, 1],
    ]


def fail_at_first(config: dict[str, Any]) -> None:
    """Fail in the first run of the experiment, and describe the ranks in the second one."""
    if not Path(config["place"], "mended").exists():
        raise ValueError("not mended yet")
    describe(config)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_the_layout_of_a_trial_survives_its_driver(two_hosts: Fleet, tmp_path: Path) -> None:
    trainable = tune.with_ranks(fail_at_first, 2, per_host=1, env={"MINE": "x"})
    one = tune.Tuner(
        trainable,
        param_space={"place": str(tmp_path)},
        run_config=run_config(tmp_path),
        client=two_hosts.address,
    )
    assert "not mended yet" in only_error(one.fit())
    (tmp_path / "mended").touch()
    # A driver that dies may not have written a snapshot; this one has, if it has run for long.
    shutil.rmtree(tmp_path / "run" / "snapshots", ignore_errors=True)
    again = tune.Tuner.restore(tmp_path / "run", trainable, restart_errored=True, client=two_hosts.address)
    assert statuses(again.fit()) == {"TERMINATED"}
    seen = sorted(json.loads(line)["context"] for line in notes(tmp_path))
    assert seen == [[0, 2, 0, 1, 0], [1, 2, 0, 1, 1]]
    [*_, start] = journal(tmp_path, event="TrialStarted")
    assert [worker.rpartition(":")[0] for worker, _ in start["ranks"]] in (
        ["tcp://127.0.0.2", "tcp://127.0.0.3"],
        ["tcp://127.0.0.3", "tcp://127.0.0.2"],
    )


def add_up(config: dict[str, Any]) -> None:
    """Add the ranks' numbers over sockets, through the rendezvous of the environment."""
    context = tune.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            total = 0
            for _ in range(size - 1):
                connection, _ = server.accept()
                with connection:
                    total += int(connection.recv(64))
    else:
        total = 0
        until(lambda: _sent(address, rank))
    tune.report({"total": total, "rank": rank})


def _sent(address: tuple[str, int], number: int) -> bool:
    try:
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(str(number).encode())
    except OSError:
        return False
    return True


def test_ranks_meet_at_the_port_and_their_number_may_be_searched(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    trainable = tune.with_ranks(add_up, lambda config: config["ranks"])
    space = {"ranks": tune.grid_search([2, 4])}
    results = tuner(cluster, tmp_path, trainable, space).fit()
    assert sorted(result.metrics["total"] for result in results) == [1, 6]


def differ(config: dict[str, Any]) -> None:
    """Report another number on each rank."""
    tune.report({"loss": float(tune.get_context().get_world_rank())})


def report_own(config: dict[str, Any]) -> None:
    """Report one of the fields that are filled for distributed trials, if the trial is to."""
    tune.report({"slowest_rank": -1} if config["own"] else {})


@pytest.mark.parametrize(("ranks", "own"), [(2, False), (2, True), (1, False)], ids=["two", "own", "one"])
def test_results_name_the_rank_for_which_the_others_waited(
    cluster: LocalCluster, tmp_path: Path, ranks: int, own: bool
) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(report_own, ranks), {"own": own}).fit()
    if ranks == 1:
        assert not {"slowest_rank", "rank_wait_s"} & result.metrics.keys()
        return
    assert result.metrics["slowest_rank"] in ([-1] if own else [0, 1])
    assert result.metrics["rank_wait_s"] >= 0


def spread(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the distance of the numbers."""
    losses = [one["loss"] for one in metrics]
    return {"loss": max(losses) - min(losses)}


@pytest.mark.parametrize(
    ("reduce", "loss"), [("rank0", 0.0), ("mean", 0.5), (spread, 1.0)], ids=["rank0", "mean", "own"]
)
def test_metrics_are_reduced(cluster: LocalCluster, tmp_path: Path, reduce: Any, loss: float) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(differ, 2, reduce=reduce)).fit()
    assert result.metrics["loss"] == loss


def talk(config: dict[str, Any]) -> None:
    """Print the number of the rank."""
    print(f"here is {tune.get_context().get_world_rank()}")


def test_each_rank_has_files_for_its_output(cluster: LocalCluster, tmp_path: Path) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(talk, 2), log_to_file=True).fit()
    assert (Path(result.path) / "stdout").read_text() == "here is 0\n"
    assert (Path(result.path) / "rank_1_stdout").read_text() == "here is 1\n"


def measure(config: dict[str, Any], data: np.ndarray) -> None:
    """Report the size of the data on each rank."""
    tune.report({"size": data.nbytes})


def test_large_objects_reach_all_workers_of_a_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    data = np.zeros(1 << 18)
    trainable = tune.with_ranks(tune.with_parameters(measure, data=data), 4, reduce="mean")
    [result] = tuner(cluster, tmp_path, trainable).fit()
    assert result.metrics["size"] == data.nbytes


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_ranks_run_on_workers_that_are_threads_of_the_driver(
    tmp_path: Path, security: Security, encrypted: bool
) -> None:
    options: dict[str, Any] = {"security": security, "protocol": "tls"} if encrypted else {}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", **options
    ) as cluster:
        [result] = tuner(cluster, tmp_path, tune.with_ranks(differ, 2, reduce="mean")).fit()
    assert result.metrics["loss"] == 0.5


# Leaving together


def count(config: dict[str, Any]) -> None:
    """Report steps until the trial is stopped, and write down the last one."""
    introduce(config)
    checkpoint = tune.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    begin = step
    try:
        while step < config.get("steps", 10**9):
            step += 1
            # Tests read the whole journal again and again, so it must not grow fast.
            time.sleep(0.02)
            state = (
                tune.Checkpoint.from_dict({"step": step}) if not tune.get_context().get_world_rank() else None
            )
            tune.report({"step": step}, checkpoint=state)
    finally:
        note(Path(config["place"]), f"{begin} {step}")


def test_all_ranks_stop_at_the_same_report(cluster: LocalCluster, tmp_path: Path) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(count, 4), stop={"step": 7}).fit()
    assert notes(tmp_path) == ["0 7"] * 4
    assert result.metrics["step"] == 7
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict() == {"step": 7}


# Failures


def fail_once(config: dict[str, Any]) -> None:
    """Raise on rank 1 at the third step of the first start."""
    checkpoint = tune.get_checkpoint()
    begin = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    rank = tune.get_context().get_world_rank()
    for step in range(begin + 1, 5):
        if step == 3 and not begin and rank == 1:
            raise ValueError("no luck")
        tune.report({"step": step}, checkpoint=None if rank else tune.Checkpoint.from_dict({"step": step}))


def test_an_error_names_its_rank_and_the_trial_resumes(cluster: LocalCluster, tmp_path: Path) -> None:
    failures = tune.FailureConfig(max_failures=1)
    results = tuner(cluster, tmp_path, tune.with_ranks(fail_once, 2), failure_config=failures).fit()
    assert statuses(results) == {"TERMINATED"}
    steps = [one["metrics"]["step"] for one in journal(tmp_path, event="ResultReported")]
    assert steps == [1, 2, 3, 4]
    [failure] = journal(tmp_path, event="TrialFailed")
    assert "rank 1: ValueError: no luck" in json.dumps(failure)
    assert "Rank 1 ran on worker tcp://" in failure["error"]["traceback"]


def wait_for_peers(config: dict[str, Any]) -> None:
    """Report once; then rank 1 waits for its end, and the others wait for it in C with the GIL."""
    rank = introduce(config)
    tune.report({"step": 1})
    if rank == 1:
        child = os.fork() if config.get("fork") else 0
        if config.get("fork") and not child:
            signal.pause()
        if child:
            note(Path(config["place"]), child)
        signal.pause()
    path = str(Path(config["place"]) / "never").encode()
    ctypes.PyDLL(None).open(path, os.O_RDONLY)


#: How ranks are started: as forks, which is the default, or as fresh interpreters.
STARTS = pytest.mark.parametrize(
    "preload", [pytest.param((), id="forked"), pytest.param(None, id="fresh", marks=pytest.mark.slow)]
)


@STARTS
@pytest.mark.parametrize("fork", [False, True])
def test_no_rank_survives_a_killed_one(
    cluster: LocalCluster, tmp_path: Path, fork: bool, preload: Any
) -> None:
    os.mkfifo(tmp_path / "never")
    trainable = tune.with_ranks(wait_for_peers, 4, preload=preload)
    with fitting(tuner(cluster, tmp_path, trainable, {"fork": fork})) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) == 1)
        if fork:
            until(lambda: len(notes(tmp_path)) == 1)
        os.kill(pids(tmp_path)[1], signal.SIGKILL)
        error = only_error(future.result(timeout=120))
    assert "rank 1" in error
    assert "SIGKILL" in error
    assert all_gone(pids(tmp_path))
    assert all_gone([int(pid) for pid in notes(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 3], ids=["own", "other"])
def test_no_fork_of_a_rank_survives_a_killed_worker(cluster: LocalCluster, tmp_path: Path, rank: int) -> None:
    options = {"stop": StopAllAtOnce(tmp_path), "stop_grace": 0.5}
    with fitting(tuner(cluster, tmp_path, tune.with_ranks(fork_and_wait, 4), **options)) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(notes(tmp_path)) == 4)
        forked = [int(pid) for pid in notes(tmp_path)]
        os.kill(worker_of(tmp_path, rank), signal.SIGKILL)
        until(lambda: all_gone(forked))
        until(lambda: len(notes(tmp_path)) == 8)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}


def leave_the_group(config: dict[str, Any]) -> None:
    """Start a program in a process group of its own, report once and wait for ever."""
    introduce(config)
    program = subprocess.Popen(["sleep", "600"], start_new_session=True)
    note(Path(config["place"]), program.pid)
    tune.report({"step": 1})
    signal.pause()


@pytest.mark.parametrize("how", ["rank", pytest.param("worker", marks=pytest.mark.slow)])
def test_nothing_that_has_left_the_group_of_a_rank_survives(
    cluster: LocalCluster, tmp_path: Path, how: str
) -> None:
    options = {
        "stop": StopAllAtOnce(tmp_path),
        "stop_grace": 0.5,
        "failure_config": tune.FailureConfig(max_failures=0 if how == "worker" else 1),
    }
    with fitting(tuner(cluster, tmp_path, tune.with_ranks(leave_the_group, 4), **options)) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(notes(tmp_path)) == 4)
        started = [int(pid) for pid in notes(tmp_path)]
        os.kill(pids(tmp_path)[1] if how == "rank" else worker_of(tmp_path, 1), signal.SIGKILL)
        until(lambda: all_gone(started))
        until(lambda: len(notes(tmp_path)) == 8)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    # The trial has ended when they have.
    assert all_gone([int(pid) for pid in notes(tmp_path)])


def fork_and_wait(config: dict[str, Any]) -> None:
    """Fork, report once and wait for ever."""
    introduce(config)
    child = os.fork()
    if child:
        note(Path(config["place"]), child)
        tune.report({"step": 1})
    signal.pause()


def test_a_signal_to_all_processes_of_a_job_fails_no_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    # Nannies take SIGTERM as a notice. Batch systems send it to the ranks, too.
    options = {"stop": StopAllAtOnce(tmp_path)}
    with fitting(tuner(cluster, tmp_path, tune.with_ranks(count, 2), **options)) as future:
        until(lambda: len(pids(tmp_path)) == 2 and len(journal(tmp_path, event="ResultReported")) > 3)
        for pid in pids(tmp_path).values():
            os.kill(pid, signal.SIGTERM)
        done = len(journal(tmp_path, event="ResultReported"))
        until(lambda: len(journal(tmp_path, event="ResultReported")) > done + 5)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    assert len(restarts(tmp_path)) == 1


def count_with_preload(config: dict[str, Any]) -> None:
    """Note what has imported the module of `preload`, and count."""
    import csv  # a module that nothing else here imports

    note(Path(config["place"]), json.dumps([os.getppid(), csv.__name__]))
    count(config)


@pytest.mark.parametrize("how", ["rank", "server", pytest.param("worker", marks=pytest.mark.slow)])
def test_no_forked_rank_survives(cluster: LocalCluster, tmp_path: Path, how: str) -> None:
    options = {
        "stop": StopAllAtOnce(tmp_path),
        "failure_config": tune.FailureConfig(max_failures=0 if how == "worker" else 1),
    }
    trainable = tune.with_ranks(count_with_preload, 4, preload=["csv"])
    with fitting(tuner(cluster, tmp_path, trainable, **options)) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) > 3)
        before = pids(tmp_path)
        server = psutil.Process(before[0]).parent()
        assert server is not None
        # Both ranks of a worker are forks of one process.
        assert len({psutil.Process(pid).ppid() for pid in before.values()}) == 2
        killed = {"rank": before[0], "server": server.pid, "worker": server.ppid()}[how]
        os.kill(killed, signal.SIGKILL)
        until(lambda: all_gone(before))
        until(lambda: len(pids(tmp_path)) == 4 and set(pids(tmp_path).values()).isdisjoint(before.values()))
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    assert len(journal(tmp_path, event="TrialFailed")) == (how != "worker")
    steps_of_results(tmp_path)


def test_modules_that_cannot_be_preloaded_are_named(cluster: LocalCluster, tmp_path: Path) -> None:
    error = only_error(tuner(cluster, tmp_path, tune.with_ranks(count, 2, preload=["no_such_module"])).fit())
    assert "the modules of preload (no_such_module) could not be imported" in error
    assert "No module named 'no_such_module'" in error


def end_early(config: dict[str, Any]) -> None:
    """Report once less on rank 0."""
    tune.report({"step": 1})
    if tune.get_context().get_world_rank():
        tune.report({"step": 2})


def test_a_rank_that_ends_before_the_others_fails_the_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    error = only_error(tuner(cluster, tmp_path, tune.with_ranks(end_early, 2)).fit())
    assert "rank 0 ended, but rank 1 called report() for the 2. time" in error


def hang(config: dict[str, Any]) -> None:
    """Let rank 1 hang in C with the interpreter's lock, while rank 0 waits in `report`."""
    tune.report({"step": 1})
    if tune.get_context().get_world_rank() or config["all"]:
        ctypes.PyDLL(None).open(str(Path(config["place"]) / "never").encode(), os.O_RDONLY)
    tune.report({"step": 2})


@pytest.mark.parametrize(
    ("everywhere", "late"),
    [
        pytest.param(False, "rank 1", id="one"),
        pytest.param(True, "ranks 0, 1", id="all", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_hang_are_shown_and_killed(
    cluster: LocalCluster, tmp_path: Path, everywhere: bool, late: str
) -> None:
    os.mkfifo(tmp_path / "never")
    trainable = tune.with_ranks(hang, 2, report_timeout_s=3)
    results = tuner(cluster, tmp_path, trainable, {"all": everywhere}).fit()
    error = only_error(results)
    assert f"no result for 3 s (report_timeout_s): {late} did not come to report 2" in error
    assert "in hang" in error


def wait_in_rendezvous(config: dict[str, Any]) -> None:
    """Wait in a function as that of PyTorch, in all ranks or in all but rank 0."""
    source = "import time\ndef init_process_group(): time.sleep(3600)\n"
    package: dict[str, Any] = {}
    exec(compile(source, "/packages/torch/distributed/distributed_c10d.py", "exec"), package)
    if tune.get_context().get_world_rank() or config["all"]:
        package["init_process_group"]()
    time.sleep(3600)


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, True], ids=["one", "all"])
def test_a_rendezvous_that_does_not_come_about_fails_the_trial(
    cluster: LocalCluster, tmp_path: Path, everywhere: bool
) -> None:
    trainable = tune.with_ranks(wait_in_rendezvous, 2, rendezvous_timeout_s=1)
    # The ranks are looked at six times in twice this time.
    options = {"heartbeat_timeout": 3.0}
    error = only_error(tuner(cluster, tmp_path, trainable, {"all": everywhere}, **options).fit())
    if everywhere:
        assert "ranks 0, 1 waited for 1 s in a rendezvous" in error
        assert "MASTER_ADDR" in error
    else:
        assert "rank 1 waited for 1 s in a rendezvous" in error
        assert "rank 0 did not come to it" in error
    assert "in init_process_group" in error


class Unwilling:
    """Takes for ever to unpickle in rank 1."""

    def __reduce__(self) -> Any:
        return _wait_in_rank_1, ()


def _wait_in_rank_1() -> int:
    if os.environ.get("RANK") == "1":
        time.sleep(3600)
    return 0


@pytest.mark.slow
def test_ranks_that_do_not_start_are_named(cluster: LocalCluster, tmp_path: Path) -> None:
    bound = tune.with_parameters(lambda config, unwilling: tune.report({"a": 1}), unwilling=Unwilling())
    error = only_error(tuner(cluster, tmp_path, tune.with_ranks(bound, 2, start_timeout_s=8)).fit())
    assert "did not start within 8 s" in error
    assert "rank 1" in error or "ranks 0, 1" in error


def ignore_stop(config: dict[str, Any]) -> None:
    """Report once and hang, while the other trial ends the experiment."""
    introduce(config)
    tune.report({"step": 1})
    signal.pause()


class StopAllAtOnce(tune.Stopper):
    """Stops the experiment once the test has asked for it."""

    def __init__(self, place: Path) -> None:
        self._path = place / "stop"

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._path.exists()


def test_a_stop_between_results_kills_after_the_grace_period(cluster: LocalCluster, tmp_path: Path) -> None:
    stopper = StopAllAtOnce(tmp_path)
    with fitting(
        tuner(cluster, tmp_path, tune.with_ranks(ignore_stop, 2), stop=stopper, stop_grace=0.5)
    ) as future:
        until(lambda: len(journal(tmp_path, event="ResultReported")) == 1)
        (tmp_path / "stop").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert all_gone(pids(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.parametrize(
    "rank", [pytest.param(0, id="own", marks=pytest.mark.slow), pytest.param(1, id="other")]
)
def test_a_worker_that_is_closed_is_no_failure(two_hosts: Fleet, tmp_path: Path, rank: int) -> None:
    place = tmp_path / "trial"
    place.mkdir()
    one = tune.Tuner(
        tune.with_ranks(count, 2, per_host=1),
        param_space={"place": str(place)},
        run_config=run_config(place, stop=StopAllAtOnce(place)),
        client=two_hosts.address,
    )
    with fitting(one) as future:
        until(lambda: len(pids(place)) == 2 and len(journal(place, event="ResultReported")) > 3)
        before = pids(place)
        os.kill(worker_of(place, rank), signal.SIGTERM)  # It closes in an orderly way.
        until(lambda: len(pids(place)) == 2 and set(pids(place).values()).isdisjoint(before.values()))
        until(lambda: all_gone(before))
        (place / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    assert not journal(place, event="TrialFailed")
    steps_of_results(place)


@pytest.mark.slow
def test_ranks_end_with_a_worker_that_is_a_thread_of_the_driver(tmp_path: Path) -> None:
    # No process ends, and the trial's own worker has no connection to its agent.
    options = {"stop": StopAllAtOnce(tmp_path), "stop_grace": 600}
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        fitting(tuner(cluster, tmp_path, tune.with_ranks(ignore_stop, 2), **options)) as future,
    ):
        until(lambda: len(journal(tmp_path, event="ResultReported")) == 1)
        before = pids(tmp_path)
        [worker] = cluster.workers.values()
        cluster.sync(worker.close)
        until(lambda: all_gone(before))
        cluster.scale(2)  # the first one counts until Dask looks again
        until(lambda: len(pids(tmp_path)) == 2 and set(pids(tmp_path).values()).isdisjoint(before.values()))
        (tmp_path / "stop").touch()
        for pid in pids(tmp_path).values():
            os.kill(pid, signal.SIGKILL)
        assert future.result(timeout=120) is not None
    assert all_gone(pids(tmp_path))


def worker_of(place: Path, rank: int) -> int:
    """Return the process id of the worker of a rank."""
    parent = psutil.Process(pids(place)[rank]).parent()
    assert parent is not None
    is_server = any("fork_server_process" in part for part in parent.cmdline())
    return parent.ppid() if is_server else parent.pid


@pytest.mark.parametrize(
    "rank", [pytest.param(0, id="own"), pytest.param(3, id="other", marks=pytest.mark.slow)]
)
@STARTS
def test_a_killed_worker_costs_time_and_no_failure(
    cluster: LocalCluster, tmp_path: Path, rank: int, preload: Any
) -> None:
    # `max_failures` is 0: a lost worker is not the trial's failure.
    trainable = tune.with_ranks(count, 4, preload=preload)
    with fitting(tuner(cluster, tmp_path, trainable, stop={"step": 10**9})) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) > 3)
        before = pids(tmp_path)
        os.kill(worker_of(tmp_path, rank), signal.SIGKILL)
        until(lambda: all_gone(before))
        until(lambda: len(restarts(tmp_path)) == 2)
        (tmp_path / "enough").touch()
        until(lambda: set(pids(tmp_path).values()).isdisjoint(before.values()))
        ranks = pids(tmp_path)
        assert len(ranks) == 4
        os.kill(ranks[0], signal.SIGKILL)
        error = only_error(future.result(timeout=120))
    assert "rank 0" in error


def count_and_size(config: dict[str, Any]) -> None:
    """Note the number of ranks of this start, and count."""
    if tune.get_context().get_world_rank() == 0:
        note(Path(config["place"]), f"of {tune.get_context().get_world_size()}")
    count(config)


def test_a_trial_trains_with_fewer_ranks_until_a_lost_worker_is_replaced(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    # The nanny starts another worker after some seconds: the trial starts before, and grows after.
    trainable = tune.with_ranks(count_and_size, 4, min_ranks=2, wait_for_ranks_s=0, grow_after_s=0.5)
    with fitting(tuner(cluster, tmp_path, trainable, stop=StopAllAtOnce(tmp_path))) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) > 3)
        os.kill(worker_of(tmp_path, 3), signal.SIGKILL)
        until(lambda: "of 2" in notes(tmp_path))
        until(lambda: notes(tmp_path).count("of 4") == 2)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    # `max_failures` is 0: none of this is a failure.
    starts = [len(start["ranks"]) for start in journal(tmp_path, event="TrialStarted")]
    assert (starts[:2], starts[-1]) == ([4, 2], 4)
    assert len(journal(tmp_path, event="TrialFailed")) == 0
    # It has left with a checkpoint, so no step is computed twice then.
    steps_of_results(tmp_path)
    [*_, grown] = restarts(tmp_path)
    last = journal(tmp_path, event="RoomForRanks")[-1]["incarnation"]
    before = [one for one in journal(tmp_path, event="ResultReported") if one["incarnation"] == last]
    assert grown[1] == before[-1]["metrics"]["training_iteration"]


class SlowToClose(WorkerPlugin):
    """Another plugin, which delays the moment when the scheduler sees that a worker closes."""

    async def teardown(self, worker: Any) -> None:
        await asyncio.sleep(2)


@pytest.mark.slow
def test_a_worker_that_closes_is_no_failure_of_its_ranks(tmp_path: Path) -> None:
    options = {"stop": StopAllAtOnce(tmp_path), "stop_grace": 0.5}
    with (
        LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address=":0") as cluster,
        fitting(tuner(cluster, tmp_path, tune.with_ranks(count, 4), **options)) as future,
    ):
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) > 3)
        other = worker_of(tmp_path, 3)
        with Client(cluster, set_as_default=False) as client:
            client.register_plugin(SlowToClose(), name="slow-to-close")
            [address] = [one for one, pid in client.run(os.getpid).items() if pid == other]
            client.run(close_soon, workers=[address])
        until(lambda: len(restarts(tmp_path)) == 2 or future.done())
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}
    assert len(restarts(tmp_path)) == 2


def close_soon(dask_worker: Any) -> None:
    """Close this worker, without its nanny."""
    dask_worker.loop.add_callback(dask_worker.close)


#: Runs a distributed trial whose ranks write down their ids, report once and wait for ever.
DRIVER = """
import os, signal, sys
from pathlib import Path
import dasktune as tune
place, address = Path(sys.argv[1]), sys.argv[2]
def trainable(config):
    rank = tune.get_context().get_world_rank()
    path = place / f"rank-{rank}.part"
    path.write_text(f"{os.getpid()}\\n")
    path.rename(place / f"rank-{rank}")
    tune.report({"step": 1})
    signal.pause()
if __name__ == "__main__":
    tune.Tuner(
        tune.with_ranks(trainable, 4),
        run_config=tune.RunConfig(
            storage_path=place, name="run", verbose=0, driver_ttl=4, heartbeat_timeout=4, stop_grace=600
        ),
        client=address,
    ).fit()
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="dead"),
        pytest.param(signal.SIGSTOP, id="hung", marks=pytest.mark.slow),
    ],
)
def test_no_rank_survives_its_driver(cluster: LocalCluster, tmp_path: Path, how: signal.Signals) -> None:
    # With this `stop_grace` an ordinary trial would be left alone for ten minutes.
    address = cluster.scheduler_address
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), address]) as driver:
        try:
            until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) == 1)
            driver.send_signal(how)
            until(lambda: all_gone(pids(tmp_path)))
        finally:
            driver.kill()
    # The next experiment removes what a dead driver has left on the workers.
    assert not tuner(cluster, tmp_path / "next", tune.with_ranks(differ, 2)).fit().errors


@pytest.mark.slow
@STARTS
def test_no_rank_survives_a_suspended_worker(cluster: LocalCluster, tmp_path: Path, preload: Any) -> None:
    os.mkfifo(tmp_path / "never")
    stopper = StopAllAtOnce(tmp_path)
    options = {"stop": stopper, "heartbeat_timeout": 8, "stop_grace": 0.5}
    trainable = tune.with_ranks(wait_for_peers, 4, preload=preload)
    with fitting(tuner(cluster, tmp_path, trainable, **options)) as future:
        until(lambda: len(pids(tmp_path)) == 4 and len(journal(tmp_path, event="ResultReported")) == 1)
        before = pids(tmp_path)
        # Rank 3 waits in C with the interpreter's lock, and its worker cannot kill it.
        worker = psutil.Process(worker_of(tmp_path, 3))
        worker.suspend()
        try:
            until(lambda: all_gone(before))
        finally:
            worker.resume()
        until(lambda: len(restarts(tmp_path)) == 2)
        (tmp_path / "stop").touch()
        assert statuses(future.result(timeout=120)) == {"TERMINATED"}


def kill_ranks(future: Any, place: Path, *, ranks: int, times: int) -> tune.ResultGrid:
    """Kill a rank of each start after a result, so often; return the results of the experiment."""
    seen: set[int] = set()
    for turn in range(times):
        until(lambda: len(pids(place)) == ranks and seen.isdisjoint(pids(place).values()))
        there = pids(place)
        seen.update(there.values())
        done = len(journal(place, event="ResultReported"))
        until(lambda done=done: len(journal(place, event="ResultReported")) > done)
        os.kill(there[turn % ranks], signal.SIGKILL)
        until(lambda there=there: all_gone(there))
    (place / "stop").touch()
    results: tune.ResultGrid = future.result(timeout=120)
    return results


def steps_of_results(place: Path) -> list[int]:
    """Return the recorded steps, of which none is missing and none came twice."""
    assert_no_step_back(place)
    steps = [one["metrics"]["step"] for one in journal(place, event="ResultReported")]
    assert steps == list(range(1, len(steps) + 1))
    return steps


@pytest.mark.slow
def test_ranks_killed_at_any_moment_lose_no_recorded_step(cluster: LocalCluster, tmp_path: Path) -> None:
    options = {"stop": StopAllAtOnce(tmp_path), "failure_config": tune.FailureConfig(max_failures=-1)}
    with fitting(tuner(cluster, tmp_path, tune.with_ranks(count, 3), **options)) as future:
        [result] = kill_ranks(future, tmp_path, ranks=3, times=6)
    steps = steps_of_results(tmp_path)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict() == {"step": steps[-1]}


# Room


def hinder_kills(place: str) -> None:
    """Let no kill reach the ranks of a worker until there is a file, as if a disk hung."""
    from dasktune.isolation.process import ChildProcess
    from dasktune.isolation.ranks import rank_group

    rank_group._KILL_SECONDS = 0.1  # type: ignore[misc]

    def kill_later(self: ChildProcess) -> None:
        def wait() -> None:
            while not Path(place, "die").exists():
                time.sleep(0.01)
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

        threading.Thread(target=wait, daemon=True).start()

    ChildProcess._kill_group = kill_later  # type: ignore[method-assign]


def leave_a_rank(config: dict[str, Any]) -> None:
    """Let rank 1 wait for ever in the first trial, whose rank 0 fails; look in the second one."""
    place = Path(config["place"])
    if config["trial"]:
        note(place, all_gone(pids(place)))
        return
    rank = introduce(config)
    tune.report({"step": 1})
    if rank == config["failing"]:
        raise ValueError("no luck")
    signal.pause()


@pytest.mark.slow
@pytest.mark.parametrize("failing", [pytest.param(0, id="other"), pytest.param(1, id="own")])
def test_a_rank_that_does_not_die_at_once_keeps_its_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    space = {"trial": tune.grid_search([0, 1]), "failing": failing}
    # Each trial needs both workers.
    trainable = tune.with_ranks(leave_a_rank, 2, {"cpu": 1})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            client.run(hinder_kills, str(tmp_path))
        with fitting(tuner(cluster, tmp_path, trainable, space)) as future:
            until(lambda: "stay reserved" in caplog.text)
            # A thread writes the journal.
            until(lambda: len(journal(tmp_path, event="TrialFailed")) == 1)
            assert len(journal(tmp_path, event="TrialStarted")) == 1
            assert not all_gone(pids(tmp_path))
            (tmp_path / "die").touch()
            results = future.result(timeout=120)
    assert len(results.errors) == 1
    assert notes(tmp_path) == ["True", "True"]


# Sharded checkpoints


def save_shards(config: dict[str, Any]) -> None:
    """Add one to the number in each of six slices, which the ranks share out, at each step."""
    introduce(config)
    context = tune.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    checkpoint = tune.get_checkpoint()
    mine = {index: 0 for index in range(6) if index % size == rank}
    if checkpoint is not None:
        # Any number of ranks reads what any other number has written.
        mine = {index: int(Path(checkpoint.path, f"slice_{index}").read_text()) for index in mine}
    step = next(iter(mine.values()), 0)
    while step < config["steps"]:
        step += 1
        time.sleep(0.02)
        with tempfile.TemporaryDirectory() as directory:
            for index in mine:
                Path(directory, f"slice_{index}").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(directory))


def slices(checkpoint: tune.Checkpoint | None) -> list[str]:
    """Return the contents of the six slices."""
    assert checkpoint is not None
    return [Path(checkpoint.path, f"slice_{index}").read_text() for index in range(6)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_rank_saves_its_own_files(cluster: LocalCluster, tmp_path: Path, ranks: int) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(save_shards, ranks), {"steps": 2}).fit()
    assert slices(result.checkpoint) == ["2"] * 6


@pytest.mark.slow
def test_another_number_of_ranks_restores_the_shards(cluster: LocalCluster, tmp_path: Path) -> None:
    [result] = tuner(cluster, tmp_path / "a", tune.with_ranks(save_shards, 4), {"steps": 2}).fit()
    again = tune.with_ranks(save_shards, 3)
    [result] = tuner(cluster, tmp_path / "b", again, {"steps": 3}, restore=result.checkpoint).fit()
    assert slices(result.checkpoint) == ["3"] * 6
    assert [one["metrics"]["step"] for one in journal(tmp_path / "b", event="ResultReported")] == [3]


def clash(config: dict[str, Any]) -> None:
    """Hand in one name from two ranks, and then one file from both."""
    context = tune.get_context()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "weights").write_text(str(context.get_world_rank()))
        try:
            tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_directory(directory))
        except tune.ConfigError as error:
            note(Path(config["place"]), error)
    shared = Path(config["place"]) / "shared"
    shared.mkdir(exist_ok=True)
    (shared / "weights").touch()
    tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_directory(shared))


def test_two_files_of_one_name_are_refused_and_one_file_counts_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    [result] = tuner(cluster, tmp_path, tune.with_ranks(clash, 2)).fit()
    refused = "checkpoint must have each file from one rank, got 'weights' from ranks 0 and 1"
    assert [text.startswith(refused) for text in notes(tmp_path)] == [True, True]
    assert result.checkpoint is not None
    assert os.listdir(result.checkpoint.path).count("weights") == 1


@pytest.mark.slow
def test_ranks_killed_in_a_save_leave_no_mixed_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    options = {"stop": StopAllAtOnce(tmp_path), "failure_config": tune.FailureConfig(max_failures=-1)}
    trainable = tune.with_ranks(save_shards, 4)
    with fitting(tuner(cluster, tmp_path, trainable, {"steps": 10**9}, **options)) as future:
        [result] = kill_ranks(future, tmp_path, ranks=4, times=8)
    steps = steps_of_results(tmp_path)
    # Every checkpoint that is left is of one step.
    assert slices(result.checkpoint) == [str(steps[-1])] * 6
    for path in (tmp_path / "run" / "trials").glob("*/checkpoint_*"):
        if (path / ".manifest.json").exists():
            assert len(set(slices(tune.Checkpoint(path)))) == 1


def die_in_a_save(config: dict[str, Any]) -> None:
    """In the first start, die while rank 0's file is copied; in the second, list what is left."""
    rank = introduce(config)
    place = Path(config["place"])
    died = place / "died"
    is_first = not died.exists()
    trial = Path(tune.get_context().get_trial_dir())
    if rank == 0 and is_first:
        kill_once_files_are_copied(worker_of(place, 0) if config["of_worker"] else os.getpid(), trial, died)
    elif rank == 0:
        note(place, [one.name for one in trial.glob("checkpoint_*")])
    with tempfile.TemporaryDirectory(dir=place) as directory:
        # A file without blocks on the disk takes long to copy and no room.
        with open(Path(directory, f"of-rank-{rank}"), "wb") as file:
            file.truncate(1 << 31 if rank == 0 and is_first else 1)
        tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_directory(directory))


def kill_once_files_are_copied(pid: int, trial: Path, died: Path) -> None:
    """Kill a process, in a thread, once a checkpoint has rank 0's file; note if it is committed."""

    def watch() -> None:
        until(lambda: any(trial.glob("checkpoint_*/of-rank-0")))
        [begun] = trial.glob("checkpoint_*")
        died.write_text(f"{begun.name} {(begun / '.manifest.json').exists()}")
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.slow
@pytest.mark.parametrize("of_worker", [False, True], ids=["rank", "worker"])
def test_the_next_start_finds_nothing_of_a_save_in_which_a_process_was_killed(
    cluster: LocalCluster, tmp_path: Path, of_worker: bool
) -> None:
    """The worker of a killed rank deletes its files; the next start those of a killed worker."""
    options = {"failure_config": tune.FailureConfig(max_failures=1)}
    trainable = tune.with_ranks(die_in_a_save, 2)
    [result] = tuner(cluster, tmp_path, trainable, {"of_worker": of_worker}, **options).fit()
    begun, committed = (tmp_path / "died").read_text().split()
    assert begun.startswith("checkpoint_")
    assert committed == "False"
    assert notes(tmp_path) == ["[]"]
    assert result.checkpoint is not None
    assert sorted(os.listdir(result.checkpoint.path))[-2:] == ["of-rank-0", "of-rank-1"]


# Notices


def leave_on_notice(config: dict[str, Any]) -> None:
    """Report until there is a file; save all ranks' files when the trial should."""
    context, place = tune.get_context(), Path(config["place"])
    rank = introduce(config)
    checkpoint = tune.get_checkpoint()
    step = 0 if checkpoint is None else int((Path(checkpoint.path) / f"rank-{rank}").read_text())
    while True:
        step += 1
        saved = None
        if tune.should_checkpoint():
            notice = tune.get_notice()
            note(place, f"{rank} {step} {notice is not None and notice.reason}")
            directory = Path(tempfile.mkdtemp(dir=place))
            (directory / f"rank-{rank}").write_text(str(step))
            saved = tune.Checkpoint.from_directory(directory)
        # Rank 0 decides for all: each may see the file at another step.
        done = (place / "go").exists() and step >= 3
        tune.report({"step": step, "world": context.get_world_size(), "done": done}, checkpoint=saved)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("noticed", "leases"),
    [
        pytest.param("own", True, marks=pytest.mark.slow),
        ("other", True),
        pytest.param("other", False, marks=pytest.mark.slow),
    ],
)
def test_a_notice_reaches_all_ranks_at_the_same_report(
    cluster: LocalCluster, tmp_path: Path, noticed: str, leases: bool
) -> None:
    # Each worker has two threads, so two ranks of two CPUs each are on two workers.
    one = tuner(cluster, tmp_path, tune.with_ranks(leave_on_notice, 2, {"cpu": 2}))
    # Without leases as in a Dask that lacks what they need.
    with driver_settings(leases=leases), fitting(one) as future:
        until(lambda: len(journal(tmp_path, event="ResultReported")) >= 5)
        [started] = journal(tmp_path, event="TrialStarted")
        with Client(cluster, set_as_default=False) as client:
            [other] = set(client.scheduler_info()["workers"]) - {started["worker"]}
        worker = started["worker"] if noticed == "own" else other
        options = ["--worker", worker, "--in", "4", "--reason", "spot"]
        assert main(["notice", "--address", cluster.scheduler_address, *options]) == 0
        until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
        (tmp_path / "go").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    [lost] = journal(tmp_path, event="TrialLost")
    assert not lost["charged"]
    first, second = (line.split(maxsplit=1) for line in notes(tmp_path))
    assert {first[0], second[0]} == {"0", "1"}
    assert first[1] == second[1]
    assert first[1].endswith("spot")
    # No step was computed twice.
    steps = [record["metrics"]["step"] for record in journal(tmp_path, event="ResultReported")]
    assert steps == list(range(1, len(steps) + 1))
