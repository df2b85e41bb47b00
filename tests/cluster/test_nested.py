"""Tasks that trials run on their own cluster."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_kit import PATIENCE, Fleet, assert_clean, histories, run_config, statuses, until
from distributed import Client, LocalCluster, Security, default_client, get_worker, wait

import dasktune as tune
from dasktune.cluster.connection.open_client import ClusterAccess, SharedClient

pytestmark = pytest.mark.cluster


def square(number: int) -> int:
    return number * number


def whereabouts() -> str:
    return str(get_worker().address)


def nest(config: dict[str, Any]) -> dict[str, Any]:
    """Run tasks, on the workers of the trial's bundles among others."""
    client = tune.get_client()
    everywhere = client.gather(client.map(square, range(20), pure=False))
    bundles = tune.get_context().get_bundle_workers()
    [here] = {client.submit(whereabouts, workers=[address], pure=False).result() for address in bundles}
    try:
        default = str(default_client())
    except ValueError:
        default = "none"
    return {
        "sum": sum(everywhere),
        "bundles": len(bundles),
        "here": here == bundles[0],
        "same": client is tune.get_client(),
        "client": client.id,
        "default": default,
    }


def nested_clients(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.clients if "dasktune-trials" in name]


def fit_and_check(cluster: LocalCluster, place: Path) -> None:
    results = tune.Tuner(
        tune.with_resources(nest, tune.PlacementGroupFactory([{"CPU": 0.5}, {"CPU": 0.5}])),
        tune_config=tune.TuneConfig(num_samples=6),
        run_config=run_config(place),
        client=cluster,
    ).fit()
    assert statuses(results) == {"TERMINATED"}, results[0].error
    for result in results:
        row = result.history[0]
        assert row["sum"] == sum(n * n for n in range(20))
        assert (row["bundles"], row["here"], row["same"]) == (2, True, True)
        assert row["default"] == "none"
    # One client for each process, gone with the experiment.
    assert len({(row["pid"], row["client"]) for row in (r.history[0] for r in results)}) == len(
        {result.history[0]["pid"] for result in results}
    )
    with Client(cluster, set_as_default=False) as client:
        until(lambda: not client.run_on_scheduler(nested_clients))
        assert_clean(client)


def test_trials_run_tasks_on_the_threads_that_their_leases_leave_free(
    tmp_path: Path, pair: LocalCluster
) -> None:
    fit_and_check(pair, tmp_path)


def test_the_client_of_an_encrypted_cluster_is_encrypted(tmp_path: Path, security: Security) -> None:
    with LocalCluster(
        n_workers=1, processes=False, protocol="tls", security=security, dashboard_address=":0"
    ) as cluster:
        fit_and_check(cluster, tmp_path)


def test_a_worker_with_keys_for_a_worker_only_lends_them_to_its_trials() -> None:
    security = Security(tls_ca_file="ca", tls_worker_cert="cert", tls_worker_key="key")
    scheduler = SimpleNamespace(address="tls://a:1")
    access = ClusterAccess.of_worker(SimpleNamespace(security=security, scheduler=scheduler))
    lent = access.security.get_tls_config_for_role("client")
    assert (lent["ca_file"], lent["cert"], lent["key"]) == ("ca", "cert", "key")
    assert security.tls_client_cert is None
    assert "cert" not in repr(access)


CHILD = """
import sys
from dasktune.trainable.api.dask_client import get_client, offer_pickled_client
offer_pickled_client(sys.stdin.buffer.read())
assert "distributed" not in sys.modules
client = get_client()
assert client is get_client()
print(client.submit(pow, 7, 2).result())
"""


def test_a_child_process_gets_a_client_from_a_pickle(fleet: Fleet) -> None:
    fleet.keep(1)
    shared = SharedClient(ClusterAccess(address=fleet.address, security=Security()))
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps(shared),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout.strip() == b"49", done.stderr.decode()


def test_a_client_that_user_code_has_closed_is_replaced(fleet: Fleet) -> None:
    fleet.keep(1)
    shared = SharedClient(ClusterAccess(address=fleet.address, security=Security()))
    shared.get().close()
    assert shared.get().submit(pow, 7, 2).result() == 49
    shared.close()
    shared.close()


def left_behind(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks if "left-behind" in str(key)]


def leave_tasks(config: dict[str, Any]) -> None:
    """Trial 0 is stopped while its tasks wait; trial 1 sees them go."""
    client = tune.get_client()
    if config["number"] == 0:
        keys = [f"left-behind-{number}" for number in range(20)]
        here = tune.get_context().get_bundle_workers()
        futures = client.map(time.sleep, [0.2] * 20, key=keys, workers=here)
        until(lambda: len(client.run_on_scheduler(left_behind)) == 20)
        tune.report({"known": 20})
        wait(futures)
    until(lambda: not client.run_on_scheduler(left_behind))
    tune.report({"known": 0})


def test_the_tasks_of_a_trial_that_is_stopped_are_dropped_with_it(tmp_path: Path, pair: LocalCluster) -> None:
    results = tune.Tuner(
        leave_tasks,
        param_space={"number": tune.grid_search([0, 1])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=run_config(tmp_path, stop={"training_iteration": 1}),
        client=pair,
    ).fit()
    assert histories(results, "known") == [[20], [0]]
