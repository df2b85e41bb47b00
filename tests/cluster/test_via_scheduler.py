"""The core, where the workers can only be called through the scheduler, as behind a gateway."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    assert_clean,
    fitting,
    histories,
    journal,
    leave,
    make_certificate,
    run_config,
    statuses,
    until,
)
from distributed import Client

import dasktune as tune
from dasktune.cluster.connection.connect import connect
from dasktune.schedulers import ASHAScheduler

pytestmark = [pytest.mark.cluster, pytest.mark.core]

#: A scheduler that listens with and without encryption, and two workers that require it.
HIDDEN = """
import asyncio, sys
from distributed import Scheduler, Security, Worker

async def main(file):
    roles = ("scheduler", "worker", "client")
    files = {f"tls_{role}_{part}": file for role in roles for part in ("cert", "key")}
    security = Security(tls_ca_file=file, require_encryption=False, **files)
    listening = {"protocol": ["tcp", "tls"], "host": ["127.0.0.1"] * 2, "port": [0, 0]}
    async with Scheduler(**listening, security=security, dashboard=False) as scheduler:
        tcp, tls = (listener.contact_address for listener in scheduler.listeners)
        worker = {"nthreads": 1, "security": security, "dashboard": False}
        async with Worker(tls, **worker), Worker(tls, **worker):
            print(tcp, flush=True)
            await scheduler.finished()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("hidden")
    command = [sys.executable, "-c", HIDDEN, str(make_certificate(directory))]
    log = (directory / "log").open("wb")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def client(hidden: str) -> Iterator[Client]:
    with Client(hidden, set_as_default=False) as client:
        yield client
        assert_clean(client)


def test_the_workers_are_out_of_reach(hidden: str) -> None:
    with connect(hidden) as connection:
        assert not connection.direct


def numbers(config: dict[str, Any]) -> None:
    if config["step"] == 7:
        raise OSError("disk full")
    for step in range(1, 31):
        tune.report(
            {"step": step, "loss": config["step"] + step},
            checkpoint=tune.Checkpoint.from_dict({"step": step}) if step % 10 == 0 else None,
        )


def test_results_checkpoints_and_failures_arrive(client: Client, tmp_path: Path) -> None:
    results = tune.Tuner(
        numbers,
        param_space={"step": tune.grid_search(list(range(40)))},
        run_config=run_config(tmp_path),
        client=client,
    ).fit()
    failed = [result for result in results if result.error is not None]
    assert [result.config["step"] for result in failed] == [7]
    assert "disk full" in str(failed[0].error)
    others = [one for one in results if one.error is None]
    assert all([row["step"] for row in one.history] == list(range(1, 31)) for one in others)
    assert all(one.checkpoint.to_dict() == {"step": 30} for one in others)


def test_decisions_of_a_scheduler_arrive(client: Client, tmp_path: Path) -> None:
    results = tune.Tuner(
        numbers,
        param_space={"step": tune.grid_search([1, 100, 200, 300])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=ASHAScheduler(grace_period=3, max_t=30, reduction_factor=2),
        ),
        run_config=run_config(tmp_path),
        client=client,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    lengths = [len(result.history) for result in results]
    assert lengths[0] == 30
    assert 3 in lengths[1:]


def until_told(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while not (Path(config["place"]) / "go").exists():
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        time.sleep(0.01)


def test_a_trial_moves_when_its_worker_leaves(client: Client, tmp_path: Path) -> None:
    tuner = tune.Tuner(
        until_told,
        param_space={"place": str(tmp_path)},
        run_config=run_config(tmp_path),
        client=client,
    )
    with fitting(tuner) as future:
        until(lambda: len(journal(tmp_path, event="ResultReported")) > 5)
        [started] = journal(tmp_path, event="TrialStarted")
        client.run(leave, workers=[started["worker"]])
        until(lambda: len(journal(tmp_path, event="TrialStarted")) == 2)
        (tmp_path / "go").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    [history] = histories(results)
    assert history == list(range(1, len(history) + 1))
