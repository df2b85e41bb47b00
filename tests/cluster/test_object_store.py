"""Whole experiments in an S3 bucket, with workers that die and a line that breaks."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path
from typing import Any

import pytest
import s3_kit
from cluster_kit import assert_clean, fitting, histories, statuses, until, wait_for_file
from distributed import Client, LocalCluster
from s3_kit import KEY, SECRET, Line, S3Server, found_in

import dasktune as tune
from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.filesystem import run_each
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

pytestmark = pytest.mark.cluster

STEPS = 6


def train(config: dict[str, Any]) -> None:
    """Report steps, each with a checkpoint; some trials wait before the fourth one for a file."""
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(done + 1, STEPS + 1):
        if step == 4 and config["number"] < 2:
            wait_for_file(Path(config["gate"]))
        if step == 5 and config["number"] == 7 and not os.path.exists(config["gate"] + "-failed"):
            Path(config["gate"] + "-failed").touch()
            raise ValueError("bad on purpose")
        saved = tune.Checkpoint.from_dict({"step": step})
        # Without one the driver hears of the fourth step while the storage is away.
        tune.report({"step": step}, checkpoint=None if step == 4 else saved)


@pytest.fixture
def cluster(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[LocalCluster]:
    """Two worker processes, whose output the test reads, and which work in its directory."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        local_directory=str(tmp_path / "dask"),
    ) as cluster:
        yield cluster


def make_tuner(
    cluster: LocalCluster, url: str, options: dict[str, Any], gate: Path, trials: int, **more: Any
) -> tune.Tuner:
    return tune.Tuner(
        train,
        param_space={"number": tune.grid_search(range(trials)), "gate": str(gate)},
        run_config=tune.RunConfig(
            name="run",
            storage_path=url,
            storage_options=options,
            failure_config=tune.FailureConfig(max_failures=1),
            verbose=0,
            **more,
        ),
        client=cluster,
    )


def results_so_far(storage: Storage, number: int) -> bool:
    found = [one for one in read_journal(storage) if one["event"] == "ResultReported"]
    return len(found) >= number


def assert_complete(results: tune.ResultGrid, storage: Storage, trials: int) -> None:
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [list(range(1, STEPS + 1))] * trials
    for result in results:
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == {"step": STEPS}
    reported: dict[str, set[int]] = {}
    for record in read_journal(storage):
        if record["event"] == "ResultReported":
            step = record["metrics"]["training_iteration"]
            reported.setdefault(record["trial_id"], set()).add(step)
    assert reported == {trial: set(range(1, STEPS + 1)) for trial in reported}
    assert len(reported) == trials


@pytest.mark.slow
def test_20_trials_with_checkpoints_in_a_bucket_outlast_a_killed_worker_and_tell_no_secret(
    s3: S3Server,
    cluster: LocalCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "dasktune")
    base, gate = s3.storage(), tmp_path / "gate"
    storage = base.child("run")
    tuner = make_tuner(cluster, base.url, s3.options(), gate, 20)
    with Client(cluster, set_as_default=False) as client:
        with fitting(tuner) as run:
            until(lambda: results_so_far(storage, 6))
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            gate.touch()
        results = run.result()
        assert_clean(client)
    assert_complete(results, storage, 20)
    losses = [one for one in read_journal(storage) if one["event"] == "TrialLost"]
    assert losses
    # Somebody else reads it, later.
    fresh = Storage(f"{base.url}/run", s3.options())
    assert ExperimentStore(fresh).spec()["name"] == "run"
    record = results[0].records[-1]
    assert CheckpointStore(fresh).load(record).to_dict() == {"step": STEPS}
    assert "bad on purpose" in fresh.read_bytes("trials", results[7].trial_id, "error.txt").decode()

    logs = str(cluster.get_logs())
    spoken = capfd.readouterr()
    names = fresh.find()
    everything = b"".join(run_each(fresh.fs, fresh.read_bytes, names))
    assert len(names) > 20 * STEPS
    for secret in (KEY, SECRET):
        assert secret.encode() not in everything
        for text in (caplog.text, logs, spoken.out, spoken.err, repr(tuner), repr(results)):
            assert secret not in text
        assert found_in(tmp_path, secret) == []


@pytest.mark.slow
@pytest.mark.parametrize("disturbance", ["refused", "mute"])
def test_a_bucket_that_is_away_for_10_s_costs_time_not_results(
    s3: S3Server,
    line: Line,
    cluster: LocalCluster,
    tmp_path: Path,
    disturbance: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    base, gate = s3.storage(), tmp_path / "gate"
    storage = base.child("run")
    tuner = make_tuner(cluster, base.url, s3.options(line.port), gate, 4)
    with fitting(tuner) as run:
        until(lambda: results_so_far(storage, 4))
        line.set(disturbance)
        gate.touch()
        with pytest.raises(StillRunning):  # it waits, and does not fail
            run.result(timeout=10.0)
        line.set("open")
    assert_complete(run.result(), storage, 4)
    if disturbance == "refused":  # else the answers only come late
        assert "Writing the journal of" in caplog.text
        assert "works again after" in caplog.text
        assert SECRET not in caplog.text
    # The workers' checkpoints waited, too.
    assert [one for one in read_journal(storage) if one["event"] == "TrialFailed"] == []


@pytest.mark.slow
def test_a_bucket_that_stays_away_ends_the_experiment_with_what_to_do(
    s3: S3Server, line: Line, cluster: LocalCluster, tmp_path: Path
) -> None:
    base, gate = s3.storage(), tmp_path / "gate"
    storage = base.child("run")
    options = s3.options(line.port)
    tuner = make_tuner(cluster, base.url, options, gate, 2, storage_patience=3.0)
    with Client(cluster, set_as_default=False) as client:
        with fitting(tuner) as run:
            until(lambda: results_so_far(storage, 4))
            line.set("refused")
            gate.touch()
        with pytest.raises(StorageError, match=r"tried for 3 s.*storage_patience=") as told:
            run.result()
        assert SECRET not in str(told.value)
        assert_clean(client)
    # What was recorded can be read.
    assert results_so_far(storage, 4)


#: A driver that never gets to put its journal: the store's period is longer than its life.
LEFT_BEHIND = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import dasktune as tune
from dasktune.storage.journal import journal_writer
from test_object_store import make_tuner
journal_writer.PERIOD = 1e6
if __name__ == "__main__":
    address, url, options, gate = pickle.loads(bytes.fromhex(sys.argv[2]))
    make_tuner(address, url, options, gate, 4, driver_ttl=1.0).fit()
"""


@pytest.mark.slow
def test_starts_that_a_killed_driver_had_not_made_durable_cost_no_trial(
    s3: S3Server, cluster: LocalCluster, tmp_path: Path
) -> None:
    base, gate = s3.storage(), tmp_path / "gate"
    run = base.child("run")
    arguments = pickle.dumps((cluster.scheduler_address, base.url, s3.options(), gate)).hex()
    tests = str(Path(__file__).parent)
    kit = str(Path(s3_kit.__file__).parent)
    command = [sys.executable, "-c", LEFT_BEHIND, tests, arguments]
    driver = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join([kit, *sys.path])})
    try:
        # Both slots are taken by trials that have committed and wait at the gate.
        until(lambda: sum(name.endswith("/.manifest.json") for name in run.find()) >= 6)
    finally:
        driver.kill()
        driver.wait()
    assert list(read_journal(run)) == []
    (tmp_path / "gate-failed").touch()
    gate.touch()
    tuner = tune.Tuner.restore(run.url, train, storage_options=s3.options(), client=cluster)
    assert_complete(tuner.fit(), run, 4)
    # Nothing of the trials' first starts is left.
    saved = {name.split("/")[2] for name in run.find() if "/checkpoint_" in name}
    assert {name.rpartition("_")[2] for name in saved} == {"i200001"}
