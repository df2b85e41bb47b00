"""Nothing is lost, whatever dies: every trial ends, with every step once.

``make chaos`` runs twenty seeds on each storage.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from checker import check_ended
from cluster_kit import assert_clean
from s3_kit import S3Server
from storm import Storm, ground, loss_of, step_in, train, undisturbed

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(3600), pytest.mark.slow]

SEEDS = int(os.environ.get("CHAOS_SEEDS", "0"))

#: Trials, steps and seconds of a step. A small storm runs with the other slow tests. The server
#: answers two hundred requests a second, and a step needs six.
DISK = (100, 20, 0.1) if SEEDS else (30, 8, 0.1)
S3 = (30, 8, 0.4) if SEEDS else (12, 4, 0.4)

#: Share of the requests to S3 that have a fault.
RATE = 0.05


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_nothing_is_lost_in_a_storm(tmp_path: Path, seed: int):
    weather(tmp_path, None, seed, DISK)


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_nothing_is_lost_in_a_storm_over_s3(tmp_path: Path, s3: S3Server, seed: int):
    weather(tmp_path, s3, seed, S3)


def weather(place: Path, server: S3Server | None, seed: int, size: tuple[int, int, float]) -> None:
    """Let a storm rage over an experiment, and check what it has left."""
    trials, steps, seconds = size
    with ground(place, server, seed, RATE) as at:
        storm = Storm(place, at, seed, trials, steps, seconds)
        storm.rage()
        try:
            print(dict(storm.faults), at.faults)
            assert storm.faults["kill driver"] == 3
            assert storm.faults["kill scheduler"] == 2
            assert server is None or len(at.faults) > 4
            storm.calm()
            run = at.direct.child("run")
            assert check_ended(run, undisturbed, step_in) == []
            results = tune.Tuner.restore(
                run.url, train, storage_options=dict(run.storage_options)
            ).get_results()
            assert len(results) == trials
            best = min(range(trials), key=lambda x: loss_of(x, steps))
            assert results.get_best_result().config["x"] == best
            assert [len(result.records) for result in results] == [2] * trials
            with storm.fleet.client() as client:
                assert_clean(client)
        finally:
            storm.end()
    shutil.rmtree(place)
