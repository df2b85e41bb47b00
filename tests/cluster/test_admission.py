"""Workers that join while an experiment runs are looked at before they get a trial."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import WITHOUT_DASKTUNE, run_config
from distributed import Client, LocalCluster, Nanny

import dasktune as tune
from dasktune.cluster.checks.admission import Admission
from dasktune.cluster.checks.preflight import Checks, PreflightReport
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.errors import PreflightError
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        spec = next(iter(cluster.new_worker_spec().values()))
        options = {**spec["options"], "preload": WITHOUT_DASKTUNE}
        cluster.worker_spec["foreign"] = {"cls": Nanny, "options": options}
        cluster.scale(len(cluster.worker_spec))
        client.wait_for_workers(2, timeout=60)
        yield client


def checks(tmp_path: Path) -> Checks:
    return Checks(blob=pickle.dumps({"trainable": len}), storage=Storage(str(tmp_path)))


def test_a_worker_without_dasktune_gets_no_trial_and_stays_alive(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def admit() -> list[dict[str, str]]:
        admission = Admission(client, checks(tmp_path))
        workers = await list_workers(client)
        before = after = admission(workers)
        while any(worker.status == "unchecked" for worker in after.values()):
            await asyncio.sleep(0.02)
            after = admission(workers)
        admission.close()
        return [{w.name: w.status for w in found.values()} for found in (before, after)]

    with caplog.at_level(logging.WARNING, logger="dasktune"):
        before, after = client.sync(admit)
    assert before == {"0": "unchecked", "foreign": "unchecked"}
    assert after == {"0": "running", "foreign": "refused"}
    assert "gets no trials: dasktune must be importable on the workers" in caplog.text
    assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2


def test_a_worker_that_does_not_answer_is_asked_again(client: Client, tmp_path: Path) -> None:
    gone = WorkerCapacity(address="tcp://127.0.0.1:1", host="127.0.0.1")
    asked: list[Any] = []

    class Noted:
        """The client, whose calls to workers are noted."""

        run_on_scheduler = client.run_on_scheduler

        async def run(self, *args: Any, workers: list[str], **options: Any) -> Any:
            asked.extend(workers)
            return await client.run(*args, workers=workers, **options)

    async def admit() -> str:
        impatient = dataclasses.replace(checks(tmp_path), timeout_s=0.2)
        admission = Admission(Noted(), impatient, PreflightReport(hosts=("127.0.0.1",)))
        await admission.examine({gone.address: gone})
        before = len(asked)
        status = admission({gone.address: gone})[gone.address].status
        while len(asked) == before:
            await asyncio.sleep(0.01)
        admission.close()
        return status

    assert client.sync(admit) == "unchecked"
    assert set(asked) == {gone.address}


def test_an_address_that_comes_back_is_checked_again(client: Client, tmp_path: Path) -> None:
    async def admit() -> list[str]:
        admission = Admission(client, checks(tmp_path))
        good = {a: w for a, w in (await list_workers(client)).items() if w.name == "0"}
        await admission.examine(good)
        first = admission(good)
        admission({})
        second = admission(good)
        admission.close()
        return [worker.status for found in (first, second) for worker in found.values()]

    assert client.sync(admit) == ["running", "unchecked"]


def test_a_worker_that_is_not_allowed_is_left_alone(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def without_foreign(worker: tune.WorkerInfo) -> bool:
        if worker.name == "strange":
            raise KeyError("strange")
        return worker.name != "foreign"

    async def admit() -> dict[str, str]:
        admission = Admission(client, checks(tmp_path), allowed=without_foreign)
        workers = await list_workers(client)
        late = WorkerCapacity(address="tcp://127.0.0.1:1", name="strange")
        await admission.examine(workers)
        found = admission({**workers, late.address: late})
        admission.close()
        return {worker.name: worker.status for worker in found.values()}

    with caplog.at_level(logging.WARNING, logger="dasktune"):
        found = client.sync(admit)
    assert found == {"0": "running", "foreign": "not allowed", "strange": "not allowed"}
    # It was not even asked for its version. The mistake in the user's function costs one worker.
    assert "must be importable" not in caplog.text
    assert "gets no trials: workers must be a function" in caplog.text


def with_priority(config: dict[str, Any]) -> dict[str, Any]:
    def priorities(dask_scheduler: Any = None) -> list[float]:
        tasks = dask_scheduler.tasks.items()
        return [task.priority[0] for key, task in tasks if str(key).startswith("dasktune-")]

    context = tune.get_context()
    found = tune.get_client().run_on_scheduler(priorities)
    return {"priorities": found, "worker": context.get_bundle_workers()[0]}


def test_trials_run_on_allowed_workers_only_and_with_their_priority(client: Client, tmp_path: Path) -> None:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    [allowed] = [address for address, worker in workers.items() if worker["name"] != "foreign"]
    results = tune.Tuner(
        with_priority,
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=run_config(tmp_path, workers=[allowed], priority=5),
        client=client,
    ).fit()
    rows = [result.history[0] for result in results]
    assert {row["worker"] for row in rows} == {allowed}
    # Dask takes the lowest number first; the half lets them overtake the tasks of others.
    assert all(row["priorities"] and set(row["priorities"]) == {-5.5} for row in rows)


def test_a_cluster_without_an_allowed_worker_is_refused_at_once(client: Client, tmp_path: Path) -> None:
    tuner = tune.Tuner(with_priority, run_config=run_config(tmp_path, workers=["elsewhere"]), client=client)
    with pytest.raises(PreflightError, match=r"workers must allow .*'elsewhere'.*name 'foreign'"):
        tuner.fit()
