"""Workers that are sent away, and other users who end what is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit import Fleet, assert_clean, driver_settings, kill, until
from distributed import Client, Future
from fault_kit import Bout, add_and_meet, addresses, slots, walk

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_a_worker_whose_time_is_up_releases_its_trial(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(1)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=2)
    with bout.fitting() as future:
        until(bout.is_walking)
        short_lived, address = add_and_meet(fleet, client, "--lifetime=6s")
        until(lambda: address in bout.where().values())
        until(lambda: bout.losses)
        bout.go()
        results = future.result(timeout=60)
    # Its process may stay for another 30 s.
    kill(short_lived)
    bout.assert_exact(results)
    [loss] = bout.losses
    assert not loss["charged"]
    # It had saved before it left: nothing was done twice.
    rows = [(one["trial_id"], one["metrics"]["step"]) for one in bout.events("ResultReported")]
    assert len(rows) == len(set(rows))


def test_a_worker_that_is_to_retire_keeps_its_trial_and_takes_no_harm(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=3)
    with bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        there = addresses(client)
        # Dask itself refuses, as actors cannot be moved.
        client.retire_workers(sorted(there)[:1])
        assert addresses(client) == there
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert not bout.losses


@pytest.mark.slow
def test_somebody_else_restarts_all_workers(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(0)
    add_and_meet(fleet, client, nanny=True)
    add_and_meet(fleet, client, nanny=True)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=2)
    with bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        client.restart()
        until(lambda: bout.is_walking(trials=2, incarnation=2))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert {one["trial_id"] for one in bout.losses} == {result.trial_id for result in results}
    assert not any(one["charged"] for one in bout.losses)
    assert_clean(client)


@pytest.mark.slow
def test_somebody_else_cancels_all_that_is_ours(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(2)
    bout = Bout(walk, tmp_path, fleet.address, num_samples=2)
    # There are no other workers.
    with driver_settings(avoid_time=0.5), bout.fitting() as future:
        until(lambda: bout.is_walking(trials=2))
        futures = [Future(key, client) for key in client.run_on_scheduler(slots)]
        client.cancel(futures, force=True)
        until(lambda: bout.is_walking(trials=2, incarnation=2))
        bout.go()
        results = future.result(timeout=60)
    bout.assert_exact(results)
    assert_clean(client)
