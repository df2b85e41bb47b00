"""Trials in processes of their own, on the workers of a real cluster."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cluster_kit import (
    assert_clean,
    driver_settings,
    fitting,
    histories,
    journal,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.schedulers import ASHAScheduler
from dasktune.schedulers.decision import Continue, Decision, StopOther
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.trial import Trial


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One worker process with four threads."""
    with LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def worker(cluster: LocalCluster) -> Iterator[psutil.Process]:
    """The worker, which must survive the test and be left without children."""
    with Client(cluster, set_as_default=False) as client:
        [pid] = client.run(os.getpid).values()
        worker = psutil.Process(pid)
        yield worker
        assert set(client.run(os.getpid).values()) == {pid}
        assert_clean(client)
        until(lambda: not worker.children(recursive=True))


def spend(config: dict[str, Any]) -> None:
    """Hold the lock of the interpreter from here until the test lets go."""
    place = Path(config["place"])
    note(place, os.getpid())
    ctypes.PyDLL(None).open(str(place / f"gate-{config['x']}").encode(), os.O_RDONLY)
    tune.report({"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]})


@pytest.mark.slow
def test_trials_that_hold_the_interpreter_run_beside_each_other(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    gates = [tmp_path / f"gate-{x}" for x in range(4)]
    for gate in gates:
        os.mkfifo(gate)
    tuner = tune.Tuner(
        spend,
        param_space={"x": tune.grid_search([0, 1, 2, 3]), "place": str(tmp_path)},
        run_config=run_config(tmp_path, isolation="process"),
        client=cluster,
    )
    with fitting(tuner) as future:
        # In one process the first of them would keep the others from coming so far.
        until(lambda: len(notes(tmp_path)) == 4)
        opened = [os.open(gate, os.O_WRONLY) for gate in gates]
        results = future.result(timeout=120)
    for descriptor in opened:
        os.close(descriptor)
    assert statuses(results) == {"TERMINATED"}
    pids = {result.metrics["pid"] for result in results}
    assert len(pids) == 4
    assert worker.pid not in pids
    assert {result.metrics["threads"] for result in results} == {"1"}


def improve(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(start + 1, 6):
        tune.report(
            {"loss": config["x"] / step, "step": step},
            checkpoint=tune.Checkpoint.from_dict({"step": step}),
        )


def test_both_isolations_give_the_same_answers(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    def answers(isolation: Any) -> Any:
        results = tune.Tuner(
            improve,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                num_samples=6,
                seed=3,
                scheduler=ASHAScheduler(max_t=5),
                # One after the other, or their order would depend on the machine.
                max_concurrent_trials=1,
            ),
            run_config=run_config(tmp_path, isolation, isolation=isolation),
            client=cluster,
        ).fit()
        last = [result.checkpoint and result.checkpoint.to_dict() for result in results]
        return [result.config for result in results], histories(results, "loss"), last

    assert answers("process") == answers("thread")


def die(config: dict[str, Any]) -> None:
    tune.report({"pid": os.getpid()})
    if config["how"] == "exit":
        os._exit(1)
    if config["how"] == "segfault":
        ctypes.string_at(0)


def test_a_trial_that_kills_its_process_fails_alone_and_is_tried_again(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    results = tune.Tuner(
        die,
        param_space={"how": tune.grid_search(["exit", "segfault", "not", "not at all"])},
        run_config=run_config(
            tmp_path, isolation="process", failure_config=tune.FailureConfig(max_failures=1)
        ),
        client=cluster,
    ).fit()
    ends = {result.config["how"]: result for result in results}
    assert [ends[how].status.value for how in ends] == ["ERROR"] * 2 + ["TERMINATED"] * 2
    assert "exited with code 1 in the middle of the trial" in str(ends["exit"].error)
    assert "died of signal 11 (SIGSEGV)" in str(ends["segfault"].error)
    assert len(journal(tmp_path, event="TrialFailed")) == 4
    assert not journal(tmp_path, event="TrialLost")


class StopTheStuck(TrialScheduler):
    """At the first result of the helper, stop the trials that are stuck."""

    def __init__(self) -> None:
        self.stuck: list[str] = []

    def on_trial_add(self, trial: Trial) -> None:
        if trial.config["how"] in ("C", "deaf"):
            self.stuck.append(trial.trial_id)

    def on_trial_result(self, trial: Trial, result: Any) -> Decision:
        stuck, self.stuck = self.stuck, []
        return Continue(commands=tuple(StopOther(trial_id=name, reason="stuck") for name in stuck))

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        return next(iter(waiting.pending.values()), None)


def get_stuck(config: dict[str, Any]) -> None:
    place, how = Path(config["place"]), config["how"]
    note(place, f"{how} begins")
    if how == "C":
        ctypes.PyDLL(None).sleep(1000)
    if how == "deaf":
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                note(place, "deaf does not listen")
    if how == "helper":
        wait_for_file(place / "all-are-stuck")
        tune.report({"step": 1})


def test_what_does_not_obey_is_killed_and_gives_its_place_free(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    # Four places, and what comes last needs all of them.
    waits = tune.with_resources(get_stuck, lambda c: {"cpu": 4 if c["how"] == "last" else 1})
    tuner = tune.Tuner(
        waits,
        param_space={
            "how": tune.grid_search(["C", "deaf", "helper", "last"]),
            "place": str(tmp_path),
        },
        tune_config=tune.TuneConfig(scheduler=StopTheStuck()),
        run_config=run_config(tmp_path, isolation="process", stop_grace=0.5),
        client=cluster,
    )
    with fitting(tuner) as future:
        until(lambda: {"C begins", "deaf begins", "helper begins"} <= set(notes(tmp_path)))
        (tmp_path / "all-are-stuck").touch()
        results = future.result(timeout=120)
    assert statuses(results) == {"TERMINATED"}
    assert "last begins" in notes(tmp_path)


def test_trials_with_several_cpus_have_a_process_by_default(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    def where(config: dict[str, Any]) -> None:
        tune.report({"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]})

    def pids(cpus: int) -> list[int]:
        results = tune.Tuner(
            tune.with_resources(where, {"cpu": cpus}),
            tune_config=tune.TuneConfig(num_samples=3, max_concurrent_trials=1),
            run_config=run_config(tmp_path, f"with-{cpus}"),
            client=cluster,
        ).fit()
        if cpus > 1:
            assert {result.metrics["threads"] for result in results} == {str(cpus)}
        return [result.metrics["pid"] for result in results]

    assert pids(1) == [worker.pid] * 3
    # However busy the machine is, no slot has a rest between two trials.
    with driver_settings(idle_time=300.0, idle_lease_time=300.0):
        [first, *others] = pids(2)
    assert first != worker.pid
    # The same slot, and so the same process.
    assert others == [first] * 2


def test_a_process_sees_the_gpus_that_its_trial_was_given_and_no_others(tmp_path: Path) -> None:
    place = str(tmp_path)

    def trainable(config: dict[str, Any]) -> None:
        # Set before anything of the user's was imported.
        visible = os.environ["CUDA_VISIBLE_DEVICES"]
        note(Path(place), visible)
        # All three hold their GPUs at the same time.
        until(lambda: len(notes(Path(place))) == 3)
        gpus = tune.get_context().get_gpu_ids()
        tune.report({"visible": visible, "gpus": ",".join(gpus), "pid": os.getpid()})

    with LocalCluster(
        n_workers=1, threads_per_worker=3, resources={"GPU": 2}, dashboard_address=":0"
    ) as cluster:
        results = tune.Tuner(
            tune.with_resources(trainable, lambda config: {"cpu": 1, "gpu": config["gpu"]}),
            param_space={"gpu": tune.grid_search([1, 0.5, 0.5])},
            run_config=run_config(tmp_path),
            client=cluster,
        ).fit()
    assert statuses(results) == {"TERMINATED"}
    whole, half, other = (result.metrics for result in results)
    assert len({whole["pid"], half["pid"], other["pid"]}) == 3
    assert all(row["visible"] == row["gpus"] for row in (whole, half, other))
    assert half["visible"] == other["visible"]
    assert {whole["visible"], half["visible"]} == {"0", "1"}


def test_processes_of_a_worker_share_large_objects_and_run_tasks_on_the_cluster(
    cluster: LocalCluster, worker: psutil.Process, tmp_path: Path
) -> None:
    def trainable(config: dict[str, Any], data: Any) -> None:
        total = tune.get_client().submit(sum, [1, 2, 3]).result()
        maps = Path("/proc/self/maps").read_text()
        mapped = {line.split()[-1] for line in maps.splitlines() if "dasktune-shared-" in line}
        tune.report({"total": total, "last": int(data[-1]), "file": ",".join(mapped)})

    results = tune.Tuner(
        tune.with_parameters(trainable, data=np.arange(500_000)),
        tune_config=tune.TuneConfig(num_samples=4),
        run_config=run_config(tmp_path, isolation="process"),
        client=cluster,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert {(one.metrics["total"], one.metrics["last"]) for one in results} == {(6, 499_999)}
    [file] = {one.metrics["file"] for one in results}
    assert file
    assert not Path(file).exists()
