"""Trials with several bundles and GPUs: what they read, and what Dask's own books say."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    available,
    driver_settings,
    fitting,
    journal,
    note,
    notes,
    readings_of_workers,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.placement import WorkerCapacity

pytestmark = pytest.mark.cluster

APART = tune.PlacementGroupFactory([{"CPU": 2, "GPU": 1}, {"CPU": 2}], "STRICT_SPREAD")

FREE = {"CPU": 2, "GPU": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes of two threads, which declare GPUs that need not exist, and no CPUs."""
    with LocalCluster(
        n_workers=2, threads_per_worker=2, resources={"GPU": 2}, dashboard_address=":0"
    ) as cluster:
        yield cluster


def declared(client: Client) -> list[dict[str, float]]:
    return client.run_on_scheduler(
        lambda dask_scheduler: [dict(one.resources) for one in dask_scheduler.workers.values()]
    )


def used(client: Client) -> dict[str, dict[str, float]]:
    """What is taken on each worker, as the scheduler sees it."""
    return client.run_on_scheduler(
        lambda dask_scheduler: {
            one.address: {kind: amount for kind, amount in one.used_resources.items() if amount}
            for one in dask_scheduler.workers.values()
        }
    )


def tuner_of(trainable: Any, place: Path, client: Client, request: Any, **options: Any) -> Any:
    return tune.Tuner(
        tune.with_resources(trainable, request),
        param_space={"place": str(place), "name": options.get("name", "run")},
        tune_config=tune.TuneConfig(num_samples=options.pop("num_samples", 1)),
        run_config=run_config(place, **options),
        client=client,
    )


def gated(config: dict[str, Any]) -> None:
    place, context = Path(config["place"]), tune.get_context()
    note(place, f"{context.get_bundle_workers()} {context.get_gpu_ids()}")
    wait_for_file(place / "go")
    tune.report({"workers": context.get_bundle_workers()})


def counted(config: dict[str, Any]) -> None:
    place, context = Path(config["place"]), tune.get_context()
    for worker in context.get_bundle_workers():
        note(place, f"+ {worker}")
    for step in range(3):
        tune.report({"step": step})
    for worker in context.get_bundle_workers():
        note(place, f"- {worker}")


def most_at_a_time(place: Path) -> dict[str, int]:
    """Return how many trials used each worker at a time."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in notes(place):
        sign, worker = line.split()
        now[worker] += 1 if sign == "+" else -1
        most[worker] = max(most[worker], now[worker])
    assert not any(now.values())
    return dict(most)


def test_workers_declare_what_they_have_and_what_others_hold_stays_counted(
    client: Client, tmp_path: Path
) -> None:
    holder, other = client.run(os.getpid)
    foreign = client.submit(
        wait_for_file, tmp_path / "foreign", workers=[holder], resources={"GPU": 2}, pure=False
    )
    until(lambda: used(client)[holder] == {"GPU": 2})
    options = {"name": "undeclared", "declare_resources": False}
    (tmp_path / "go").touch()
    tuner_of(gated, tmp_path, client, {"cpu": 1, "gpu": 0.5}, **options).fit()
    assert declared(client) == [{"GPU": 2}] * 2
    tuner_of(gated, tmp_path, client, {"cpu": 1, "gpu": 0.5}).fit()
    assert declared(client) == [FREE] * 2
    assert used(client)[holder] == {"GPU": 2}
    # Both went to the worker that no other task uses.
    assert notes(tmp_path) == [f"['{other}'] ['0']"] * 2
    (tmp_path / "foreign").touch()
    foreign.result(timeout=30)
    until(lambda: used(client) == {holder: {}, other: {}})


def test_both_books_show_every_bundle_until_the_trial_ends(client: Client, tmp_path: Path) -> None:
    with fitting(tuner_of(gated, tmp_path, client, APART)) as future:
        until(lambda: notes(tmp_path))
        # The trial may note its start before the driver records it.
        [started] = until(lambda: journal(tmp_path, event="TrialStarted"))
        trial = started["worker"]
        [helper] = set(client.run(os.getpid)) - {trial}
        assert notes(tmp_path) == [f"['{trial}', '{helper}'] ['0']"]
        assert used(client) == {trial: {"CPU": 2, "GPU": 1}, helper: {"CPU": 2}}
        left = client.run(available)
        assert left == {trial: {"CPU": 0, "GPU": 1}, helper: {"CPU": 0, "GPU": 2}}
        (tmp_path / "go").touch()
        [result] = future.result(timeout=60)
    assert result.metrics["workers"] == [trial, helper]
    until(lambda: used(client) == {trial: {}, helper: {}})
    until(lambda: [*client.run(available).values()] == [FREE] * 2)


@pytest.mark.slow
def test_two_drivers_that_want_all_workers_take_turns(client: Client, tmp_path: Path) -> None:
    whole = tune.PlacementGroupFactory([{"CPU": 2}, {"CPU": 2}], "STRICT_SPREAD")
    names = ("one", "two", "three")
    with ExitStack() as stack:
        futures = [
            stack.enter_context(fitting(tuner_of(counted, tmp_path, client, whole, name=name, num_samples=4)))
            for name in names
        ]
        for future in futures:
            results = future.result(timeout=120)
            assert len(results) == 4
            assert statuses(results) == {"TERMINATED"}
    assert sorted(most_at_a_time(tmp_path).values()) == [1, 1]
    until(lambda: [*client.run(available).values()] == [FREE] * 2)


@pytest.mark.slow
def test_a_bundle_that_is_not_granted_costs_the_others_nothing_and_the_trial_no_retry(
    client: Client, tmp_path: Path
) -> None:
    def blind(workers: dict[str, WorkerCapacity]) -> dict[str, WorkerCapacity]:
        """Return the workers without what others use, as if they had just begun to."""
        return {address: replace(worker, used={}) for address, worker in workers.items()}

    first, last = sorted(client.run(os.getpid))
    foreign = client.submit(
        wait_for_file, tmp_path / "foreign", workers=[last], resources={"GPU": 2}, pure=False
    )
    until(lambda: used(client)[last] == {"GPU": 2})
    request = tune.PlacementGroupFactory([{"GPU": 1}, {"GPU": 1}], "STRICT_SPREAD")
    tuner = tuner_of(gated, tmp_path, client, request)
    # A busy machine may take a second by itself, so that a start fails more often than it must.
    with (
        readings_of_workers(blind),
        driver_settings(lease_timeout=1.0, max_failed_starts=1),
        fitting(tuner) as future,
    ):
        until(lambda: len(journal(tmp_path, event="StartFailed")) >= 3)
        until(lambda: used(client) == {first: {}, last: {"GPU": 2}})
        assert not notes(tmp_path)
        (tmp_path / "foreign").touch()
        foreign.result(timeout=30)
        until(lambda: notes(tmp_path))
        (tmp_path / "go").touch()
        assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    failed = journal(tmp_path, event="StartFailed")
    assert any(f"{last} did not grant {{'GPU': 1}} within 1 s" in one["reason"] for one in failed)
    assert not any(one["charged"] for one in failed)


def test_no_gpu_is_used_by_two_drivers_at_a_time(client: Client, tmp_path: Path) -> None:
    request = {"cpu": 0.5, "gpu": 1}
    with fitting(tuner_of(gated, tmp_path, client, request, name="one")) as first:
        until(lambda: notes(tmp_path))
        # The ledger of the second driver cannot know which GPU the first one uses.
        two = tuner_of(gated, tmp_path, client, request, name="two", num_samples=3)
        with fitting(two) as second:
            until(lambda: len(notes(tmp_path)) == 4)
            (tmp_path / "go").touch()
            for future in (first, second):
                assert statuses(future.result(timeout=60)) == {"TERMINATED"}
    workers = client.run(os.getpid)
    assert set(notes(tmp_path)) == {f"['{one}'] ['{gpu}']" for one in workers for gpu in "01"}


@pytest.mark.slow
def test_the_loss_of_a_helper_s_worker_is_the_loss_of_the_trial(client: Client, tmp_path: Path) -> None:
    with fitting(tuner_of(gated, tmp_path, client, APART)) as future:
        until(lambda: notes(tmp_path))
        # The trial may note its start before the driver records it.
        [started] = until(lambda: journal(tmp_path, event="TrialStarted"))
        trial = started["worker"]
        [helper] = set(client.run(os.getpid)) - {trial}
        [pid] = client.run(os.getpid, workers=[helper]).values()
        os.kill(pid, signal.SIGKILL)
        # The nanny brings another one, which is made to declare what it has, too.
        until(lambda: len(notes(tmp_path)) == 2)
        (tmp_path / "go").touch()
        [result] = future.result(timeout=60)
    [lost] = journal(tmp_path, event="TrialLost")
    assert helper in lost["reason"]
    assert helper not in result.metrics["workers"]
    assert len(set(result.metrics["workers"])) == 2
    assert not [one for one in journal(tmp_path, event="StartFailed") if one["charged"]]
    until(lambda: [*client.run(available).values()] == [FREE] * 2)
