"""Experiments that live on the cluster: their clients leave, and the workers that host them die."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    histories,
    journal,
    restarts,
    run_config,
    statuses,
    steps,
    until,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.control.issuer import this_user
from dasktune.errors import ConfigError, ControlError
from dasktune.tuner.tuner import Tuner

pytestmark = pytest.mark.cluster

#: Submits, and ends at once. The function is the script's own.
SCRIPT = """
import sys
import dasktune as tune

def train(config):
    for step in range(3):
        tune.report({"step": step + config["x"]})

if __name__ == "__main__":
    experiment = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0, 10])},
        tune_config=tune.TuneConfig(metric="step", mode="max"),
        run_config=tune.RunConfig(storage_path=sys.argv[1], name="mine"),
        client=sys.argv[2],
    ).submit()
    print(experiment)
"""


def gated(place: Path, samples: int, gates: tuple[int, ...]) -> Any:
    space = {"place": str(place), "steps": 8, "gates": gates, "x": tune.uniform(0, 1)}
    return space, tune.TuneConfig(metric="step", mode="max", num_samples=samples)


def host_pid(dask_scheduler: Any, name: str) -> str:
    """Return the address of the worker that hosts a driver; empty while none does."""
    for key, task in dask_scheduler.tasks.items():
        if str(key).startswith(f"dasktune-driver-{name}-") and task.processing_on is not None:
            return str(task.processing_on.address)
    return ""


def progressed(place: Path, name: str, epoch: int) -> bool:
    """Whether a driver of this epoch has begun a trial."""
    segment = place / name / "journal" / f"{epoch:06d}-000000.jsonl"
    return segment.exists() and b"TrialStarted" in segment.read_bytes()


@pytest.mark.slow
def test_a_client_leaves_and_another_one_gets_the_results(tmp_path: Path, fleet: Fleet):
    fleet.keep(2)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), fleet.address]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "DetachedExperiment('mine', running)" in told
    with tune.attach("mine", client=fleet.address) as experiment:
        results = experiment.result(timeout=90)
        assert histories(results) == [[0, 1, 2], [10, 11, 12]]
        assert experiment.status == "finished"
        assert results.get_best_result().config == {"x": 10}
        experiment.forget()
    with pytest.raises(ConfigError, match="name must be of an experiment that was submitted"):
        tune.attach("mine", client=fleet.address)
    with fleet.client() as client:
        assert_clean(client)


@pytest.mark.slow
def test_the_host_of_the_driver_dies_six_times(tmp_path: Path):
    gates = (1, 2, 3, 4, 5, 6)
    space, config = gated(tmp_path, 2, gates)
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        experiment = Tuner(
            steps,
            param_space=space,
            tune_config=config,
            run_config=run_config(tmp_path, "run", driver_ttl=2.0),
            client=cluster,
        ).submit()
        for epoch in gates:
            until(lambda epoch=epoch: progressed(tmp_path, "run", epoch))
            address = client.run_on_scheduler(host_pid, name="run")
            pid = client.run(os.getpid, workers=[address])[address]
            os.kill(pid, signal.SIGKILL)
            (tmp_path / f"gate-{epoch}").touch()
        with experiment:
            results = experiment.result(timeout=90)
            assert histories(results) == [list(range(1, 9))] * 2
            assert statuses(results) == {"TERMINATED"}
            experiment.forget()
    sessions = [one for one in journal(tmp_path) if one["event"] == "SessionBegan"]
    assert len(sessions) >= 6
    # Nothing was charged for it.
    lost = journal(tmp_path, event="TrialLost")
    assert not [one for one in lost if one["charged"] and "driver" in one["reason"]]
    assert restarts(tmp_path)


@pytest.mark.slow
def test_an_experiment_is_stopped_or_interrupted_from_afar(tmp_path: Path, pair: LocalCluster):
    space, config = gated(tmp_path, 2, (3,))
    for name in ("stopped", "interrupted"):
        experiment = Tuner(
            steps,
            param_space=space,
            tune_config=config,
            run_config=run_config(tmp_path, name, stop_grace=0.5),
            client=pair,
        ).submit()
        until(lambda name=name: progressed(tmp_path, name, 1))
        with experiment, tune.attach(name, client=pair) as other:
            other.stop() if name == "stopped" else other.interrupt()
            results = experiment.result(timeout=90)
            event = "StopRequested" if name == "stopped" else "InterruptRequested"
            assert [one["by"] for one in journal(tmp_path, name, event=event)] == [f"{this_user()} (Dask)"]
            assert statuses(results) <= ({"TERMINATED"} if name == "stopped" else {"PENDING", "RUNNING"})
            again = run_config(tmp_path / "b", name, if_exists="error")
            with pytest.raises(ConfigError, match="name must be new to the cluster"):
                Tuner(steps, run_config=again, client=pair).submit()
            experiment.forget()
    (tmp_path / "gate-3").touch()
    # Under its old name: the request to end concerned the driver before it.
    with Tuner.restore(tmp_path / "interrupted", steps, client=pair).submit() as again:
        assert histories(again.result(timeout=90)) == [list(range(1, 9))] * 2
        again.forget()


def test_a_submitted_experiment_takes_commands(tmp_path: Path, pair: LocalCluster):
    space, config = gated(tmp_path, 2, (3,))
    tuner = Tuner(
        steps,
        param_space=space,
        tune_config=config,
        run_config=run_config(tmp_path, "run", stop_grace=0.5),
        client=pair,
    )
    with tuner.submit() as experiment:
        until(lambda: len(journal(tmp_path, event="Suggested")) >= 2)
        first, second = (one["trial_id"] for one in journal(tmp_path, event="Suggested")[:2])
        assert "no trial starts" in experiment.hold().message
        assert "weight 2 and priority 1" in experiment.set_share(2, priority=1).message
        with pytest.raises(ControlError, match="weight must be a positive finite number, got -1"):
            experiment.set_share(weight=-1)
        assert experiment.stop_trial(first).trial_id == first
        added = experiment.add_trial({**space, "x": 0.75})
        until(lambda: any(e["trial_id"] == first for e in journal(tmp_path, event="TrialStopped")))
        assert added.status == "PENDING"
        with pytest.raises(ControlError, match="there is no trial 'absent'"):
            experiment.stop_trial("absent")
        with pytest.raises(ControlError, match=f"trial {first} is over already"):
            experiment.pause_trial(first)
        (tmp_path / "gate-3").touch()
        experiment.release()
        results = {one.trial_id: one for one in experiment.result(timeout=90)}
        assert set(results) == {first, second, added.trial_id}
        assert results[added.trial_id].config["x"] == 0.75
        assert len(results[added.trial_id].history) == len(results[second].history) == 8
        assert len(results[first].history) < 8
        requests = [one for one in journal(tmp_path) if one["event"].endswith("Requested")]
        assert [one["by"] for one in requests] == [f"{this_user()} (Dask)"] * 5
        with pytest.raises(ControlError, match="experiment run is finished"):
            experiment.hold()
        experiment.forget()


def test_what_cannot_be_submitted_is_refused(
    tmp_path: Path, pair: LocalCluster, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="name must be"):
        tune.attach("nothing", client=pair)
    large = bytes(40 << 20)

    def heavy(config: dict[str, Any]) -> int:
        return len(large)

    with pytest.raises(ConfigError, match="trainable must be at most 32 MiB"):
        Tuner(heavy, run_config=run_config(tmp_path), client=pair).submit()
    in_memory = run_config(tmp_path, "private")
    private = dataclasses.replace(in_memory, storage_path="memory://private")
    with pytest.raises(ConfigError, match=r"storage_path must be shared by all workers .* tcp://"):
        Tuner(steps, run_config=private, client=pair).submit()
    with pytest.raises(ConfigError, match="client must be a cluster that outlives this process"):
        Tuner(steps, run_config=run_config(tmp_path)).submit()
