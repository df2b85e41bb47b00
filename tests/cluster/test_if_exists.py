"""Experiments of one name: two that begin at once, and others that resume or replace one."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from cluster_kit import Fleet, histories, run_config, until
from distributed import LocalCluster
from s3_kit import S3Server

import dasktune as tune
from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.tuner.tuner import Tuner

pytestmark = pytest.mark.cluster

#: Begins an experiment when the other process is ready, too. Takes the storage's URL and options,
#: the cluster, a directory for the meeting, and this process's number.
SCRIPT = """
import json, sys, time
from pathlib import Path
import dasktune as tune

def train(config):
    for step in range(3):
        tune.report({"step": step, "driver": config["driver"]})

url, options, client, meeting, number = sys.argv[1:]
if __name__ == "__main__":
    tuner = tune.Tuner(
        train,
        param_space={"driver": int(number), "x": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(
            storage_path=url, storage_options=json.loads(options), name="same", verbose=0
        ),
        client=client,
    )
    Path(meeting, number).touch()
    while len(list(Path(meeting).iterdir())) < 2:
        time.sleep(0.001)
    print(tuner.fit().experiment_path)
"""


def square(config: dict[str, Any]) -> None:
    for step in range(2):
        tune.report({"step": step, "x": config["x"]})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_two_processes_that_start_one_name_lose_nothing(
    kind: str, tmp_path: Path, fleet: Fleet, request: pytest.FixtureRequest
):
    options = "{}"
    place = Storage(str(tmp_path / "results"))
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3")
        place, options = server.storage(), json.dumps(server.options())
    fleet.keep(2)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, place.url, options, fleet.address, str(meeting), number],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in "12"
    ]
    ends = [driver.communicate(timeout=240) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], ends
    paths = sorted(out.strip().rpartition("/")[2] for out, _ in ends)
    assert paths == ["same", "same_2"]
    owners = []
    for name in paths:
        rows = [one for one in read_journal(place.child(name)) if one["event"] == "ResultReported"]
        assert sorted(one["metrics"]["step"] for one in rows) == [0, 0, 1, 1, 2, 2]
        owners.append({one["metrics"]["driver"] for one in rows})
    assert sorted(owners, key=min) == [{1}, {2}], "each directory has the results of one driver"


def fit(place: Path, cluster: LocalCluster, num_samples: int, **options: Any) -> tune.ResultGrid:
    return Tuner(
        square,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=num_samples),
        run_config=run_config(place, "e", **options),
        client=cluster,
    ).fit()


def test_a_second_run_resumes_or_replaces_the_first(tmp_path: Path, pair: LocalCluster):
    first = fit(tmp_path, pair, 2)
    more = fit(tmp_path, pair, 4, if_exists="resume")
    assert [result.config for result in more][:2] == [result.config for result in first]
    assert histories(more, "step") == [[0, 1]] * 4
    with pytest.raises(StorageError, match="name must be new to its storage_path, got 'e'"):
        fit(tmp_path, pair, 1, if_exists="error")
    third = fit(tmp_path, pair, 1, if_exists="replace")
    assert third.experiment_path == more.experiment_path
    assert [result.trial_id for result in third] == [
        path.name for path in (tmp_path / "e" / "trials").iterdir()
    ]
    fresh = fit(tmp_path, pair, 1)
    assert fresh.experiment_path.endswith("e_2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "e_2"]


def test_a_run_that_should_resume_begins_where_there_is_nothing(tmp_path: Path, pair: LocalCluster):
    assert histories(fit(tmp_path, pair, 1, if_exists="resume"), "step") == [[0, 1]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_that_submit_one_name_at_the_same_moment_get_two(tmp_path: Path, pair: LocalCluster):
    start = Barrier(2)

    def submit(number: int) -> tune.DetachedExperiment:
        tuner = Tuner(square, param_space={"x": number}, run_config=run_config(tmp_path, "twin"), client=pair)
        start.wait()
        return tuner.submit()

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(submit, (1, 2)))
    assert {experiment.name for experiment in both} == {"twin", "twin_2"}
    for number, experiment in enumerate(both, start=1):
        with experiment:
            results = experiment.result(timeout=120)
            assert histories(results, "step") == [[0, 1]]
            assert results[0].config == {"x": number}
            assert results.experiment_path.endswith(f"/{experiment.name}")
            experiment.forget()
    until(lambda: not list(tmp_path.glob("twin*/.*submitted*")))
