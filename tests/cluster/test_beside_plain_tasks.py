"""Experiments beside Dask tasks of other programs: neither keeps the other from the workers.

Both have work without end until the test says so. So nothing depends on how fast this machine is:
what starves lets the test wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from cluster_kit import PATIENCE, fitting, notes, run_config, statuses, until
from distributed import Client, LocalCluster
from test_fair_share_on_cluster import endless

import dasktune as tune

pytestmark = pytest.mark.cluster

#: More tasks than the workers can do while the test lasts.
BACKLOG = 2000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=2, resources={"CPU": 2}, dashboard_address=":0"
    ) as cluster:
        yield cluster


def work(number: int) -> int:
    time.sleep(0.2)
    return number


@contextmanager
def backlog(client: Client, **options: Any) -> Iterator[list[Any]]:
    """Keep the workers busy with tasks, of which many wait until the end of the block."""
    futures = client.map(work, range(BACKLOG), pure=False, **options)
    try:
        yield futures
    finally:
        client.cancel(futures)


def waiting(futures: list[Any]) -> int:
    return sum(future.status == "pending" for future in futures)


def train(config: dict[str, Any]) -> dict[str, int]:
    return {"x": 1}


@pytest.mark.parametrize("resources", [pytest.param({"CPU": 1}, marks=pytest.mark.slow), None])
def test_an_experiment_runs_while_tasks_wait(
    client: Client, tmp_path: Path, resources: dict[str, float] | None
) -> None:
    with backlog(client, resources=resources) as futures:
        until(lambda: waiting(futures) < BACKLOG)
        tuner = tune.Tuner(
            train,
            tune_config=tune.TuneConfig(num_samples=3),
            run_config=run_config(tmp_path, isolation="thread", dashboard=False),
            client=client,
        )
        with fitting(tuner) as future:
            assert statuses(future.result(PATIENCE)) == {"TERMINATED"}
        # It has not waited for all of them.
        assert waiting(futures) > 0


@pytest.mark.slow
def test_two_experiments_that_share_the_cluster_run_while_tasks_wait(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    with (
        backlog(client, resources={"CPU": 1}) as futures,
        fitting(endless(tmp_path, address, "first")),
        fitting(endless(tmp_path, address, "second")),
    ):
        try:
            until(lambda: {"first", "second"} <= set(notes(tmp_path)))
            assert waiting(futures) > 0
        finally:
            for name in ("first", "second"):
                (tmp_path / f"stop-{name}").touch()


@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.2, marks=pytest.mark.slow)])
def test_tasks_run_while_trials_wait(client: Client, tmp_path: Path, seconds: float) -> None:
    """Trials of milliseconds are handed to a worker ahead, and those of 0.2 s one by one."""
    address = client.scheduler.address
    over = Event()

    def submit_one_after_the_other() -> int:
        done = 0
        while not over.is_set() and done < 4:
            done += client.submit(work, 1, pure=False, resources={"CPU": 2}).result(PATIENCE)
        return done

    with fitting(endless(tmp_path, address, "trials", seconds=seconds)), ThreadPoolExecutor(1) as pool:
        try:
            until(lambda: len(notes(tmp_path)) >= 10)
            # Each needs all CPUs of a worker, of which one is never free by itself.
            assert pool.submit(submit_one_after_the_other).result(PATIENCE) == 4
            before = len(notes(tmp_path))
            until(lambda: len(notes(tmp_path)) > before + 10)
        finally:
            over.set()
            (tmp_path / "stop-trials").touch()
