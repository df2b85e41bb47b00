"""A worker that is alive and answers late."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE, driver_settings, fitting, journal, run_config, statuses, until
from distributed import LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster


def report_once(config: dict[str, Any]) -> None:
    tune.report({"step": 1})


def test_a_worker_that_is_slow_to_start_a_trial_gets_more_time_and_ends_no_experiment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    with LocalCluster(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        [worker] = cluster.workers.values()
        # Dask creates all actors in this one thread, as it runs tasks.
        worker.executors["default"].submit(gate.wait, PATIENCE)
        tuner = tune.Tuner(report_once, run_config=run_config(tmp_path), client=cluster)
        with driver_settings(open_timeout=0.5, max_failed_starts=1), fitting(tuner) as future:
            until(lambda: future.done() or "is slow to start a trial" in caplog.text)
            gate.set()
            results = future.result(PATIENCE)
    assert statuses(results) == {"TERMINATED"}
    failed = journal(tmp_path, event="StartFailed")
    assert failed
    assert not any(one["charged"] for one in failed)


@pytest.mark.slow
def test_a_worker_that_never_creates_an_actor_keeps_no_trial_and_ends_no_experiment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    limits = {"open_timeout": 0.1, "lease_timeout": 0.1, "max_failed_starts": 1}
    with LocalCluster(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        [worker] = cluster.workers.values()
        worker.executors["default"].submit(gate.wait)
        tuner = tune.Tuner(report_once, run_config=run_config(tmp_path), client=cluster)
        try:
            with driver_settings(**limits), fitting(tuner) as future:
                until(lambda: future.done() or "8 times as long as usual" in caplog.text)
                cluster.scale(2)
                results = future.result(PATIENCE)
        finally:
            gate.set()
    assert statuses(results) == {"TERMINATED"}
    failed = journal(tmp_path, event="StartFailed")
    # Each attempt gets more time than the one before.
    assert len(failed) >= 4
    assert not any(one["charged"] for one in failed)
