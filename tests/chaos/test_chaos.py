"""Whatever dies, nothing is lost: every trial ends, with every step once.

``make chaos`` goes through twenty seeds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cluster_kit import assert_clean, journal
from storm import Storm, loss_of, train

import dasktune as tune

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.slow]

SEEDS = int(os.environ.get("CHAOS_SEEDS", "0"))

#: A small one goes along with the other tests.
TRIALS, STEPS = (100, 20) if SEEDS else (40, 10)


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_nothing_is_lost_in_a_storm(tmp_path: Path, seed: int):
    storm = Storm(tmp_path, seed, TRIALS, STEPS)
    storm.rage()
    try:
        print(dict(storm.faults))
        assert storm.faults["kill driver"] == 3
        assert storm.faults["kill scheduler"] == 2
        storm.calm()
        results = tune.Tuner.restore(tmp_path / "run", train).get_results()
        wanted = list(range(1, STEPS + 1))
        for result in results:
            assert [row["step"] for row in result.history] == wanted
            assert [row["training_iteration"] for row in result.history] == wanted
            x = result.config["x"]
            assert [row["loss"] for row in result.history] == [loss_of(x, n) for n in wanted]
        assert len(results) == TRIALS
        assert {result.status.value for result in results} == {"TERMINATED"}
        best = min(range(TRIALS), key=lambda x: loss_of(x, STEPS))
        assert results.get_best_result().config["x"] == best
        with storm.fleet.client() as client:
            assert_clean(client)
        assert_kept_and_nothing_else(tmp_path / "run")
        ends = [record["trial_id"] for record in journal(tmp_path, event="TrialEnded")]
        assert len(ends) == len(set(ends)) == TRIALS
    finally:
        storm.end()
    shutil.rmtree(tmp_path)


def assert_kept_and_nothing_else(experiment: Path) -> None:
    """The two newest checkpoints of each trial are on disk, whole, and nothing else is."""
    for trial in (experiment / "trials").iterdir():
        checkpoints = sorted(path for path in trial.iterdir() if path.is_dir())
        assert len(checkpoints) == 2, checkpoints
        for checkpoint in checkpoints:
            assert (checkpoint / ".manifest.json").exists(), checkpoint
