"""Experiments whose trials report so much that their driver does not keep it all."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dasktune import RunConfig, TuneConfig, grid_search
from dasktune.callback import TrialStorage
from dasktune.experiment import ExperimentMachine
from dasktune.progress.trial_counts import TrialCounts
from dasktune.results.journal_trials import load_trials
from dasktune.stopper import FunctionStopper
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.snapshots import Snapshots
from dasktune.trial.rows.trial_history import BLOCK_ROWS
from tests.simulated.test_restored_experiments import Died, Lab, ends, once_each

STEPS = 6 * BLOCK_ROWS


def noisy(config: dict[str, Any]) -> Generator[tuple[dict[str, Any], float], None, None]:
    for step in range(STEPS):
        yield {"loss": config["x"] + (step * 37 % 101) / 100}, 1.0


def long_lab(storage: Storage, **changes: Any) -> Lab:
    return Lab(
        storage,
        noisy,
        tune_config=TuneConfig(metric="loss", mode="min", seed=0),
        run_config=RunConfig(**changes),
        param_space={"x": grid_search([1.0, 2.0, 3.0])},
    )


def losses(trial: Any) -> list[float]:
    return [row["loss"] for row in trial.history]


EXPECTED = [[x + (step * 37 % 101) / 100 for step in range(STEPS)] for x in (1.0, 2.0, 3.0)]


@pytest.fixture
def killed(tmp_path: Any) -> Lab:
    """An experiment whose driver died in the middle, after several snapshots."""
    place = long_lab(Storage(str(tmp_path / "exp")))
    with pytest.raises(Died):
        place.begin(2 * STEPS)
    return place


def sizes(storage: Storage) -> list[int]:
    return [len(storage.read_bytes(f"snapshots/{name}")) for name in storage.names("snapshots")]


def test_a_snapshot_does_not_grow_with_the_results(tmp_path: Any):
    place = long_lab(Storage(str(tmp_path / "exp")))
    with pytest.raises(Died):
        place.begin(STEPS)
    early = max(sizes(place.storage))
    place.resume()
    snapshot = next(Snapshots(place.storage).newest_first())
    assert snapshot.state["trials"][0]["num_results"] > STEPS // 2
    assert max(sizes(place.storage)) < 1.2 * early


def test_a_restored_experiment_has_all_results_and_reads_the_old_ones_late(killed: Lab):
    experiment = killed.restore().experiment
    trials = list(experiment.trials.values())
    assert [trial.history.is_at_hand for trial in trials] == [False] * 3
    for trial, expected in zip(trials, EXPECTED, strict=True):
        assert losses(trial) == expected[: len(trial.history)]
        assert len(trial.history) > STEPS // 2


def test_resuming_does_not_read_the_old_results_and_the_end_has_them_all(killed: Lab):
    session = killed.restore()
    experiment = killed.drive(session.experiment, session=session)
    assert all(not trial.history.is_at_hand for trial in experiment.trials.values())
    assert list(map(losses, experiment.trials.values())) == EXPECTED
    once_each(experiment)


def test_results_that_were_computed_again_replace_those_in_the_journal(tmp_path: Any):
    runs: list[int] = []

    def counted(config: dict[str, Any]) -> Generator[tuple[dict[str, Any], float], None, None]:
        run = len(runs)
        runs.append(run)
        for row, seconds in noisy(config):
            yield {**row, "run": run}, seconds

    place = long_lab(Storage(str(tmp_path / "exp")))
    place.trainable = counted
    with pytest.raises(Died):
        place.begin(2 * STEPS)
    # No trial has a checkpoint, so each begins at its first step again, and its rows with it.
    experiment = place.resume()
    found = [{row["run"] for row in trial.history} for trial in experiment.trials.values()]
    assert sorted(found, key=min) == [{3}, {4}, {5}]
    assert [one.history for one in load_trials(place.storage)] == [
        one.history for one in experiment.trials.values()
    ]


def test_new_configurations_do_not_read_the_old_results_either(killed: Lab):
    session = killed.restore(run_config=RunConfig())
    assert all(not trial.history.is_at_hand for trial in session.experiment.trials.values())
    assert [losses(trial)[:3] for trial in session.experiment.trials.values()] == [
        expected[:3] for expected in EXPECTED
    ]


def test_a_new_stopper_is_shown_the_old_results(killed: Lab):
    seen: list[Any] = []
    stop = FunctionStopper(lambda trial_id, result: bool(seen.append(result["loss"])))
    session = killed.restore(run_config=RunConfig(stop=stop))
    assert seen == [loss for one in session.experiment.trials.values() for loss in losses(one)]


def counts(experiment: ExperimentMachine) -> TrialCounts:
    storage = TrialStorage.of(ExperimentStore(Storage("memory://counts")), "noisy")
    return TrialCounts(experiment.trials, storage, metric="loss", mode="min")


def test_the_best_values_are_known_without_the_old_results(killed: Lab):
    experiment = killed.restore().experiment
    known, read = counts(experiment), counts(experiment)
    known.load(("loss", "min"))
    assert all(not trial.history.is_at_hand for trial in experiment.trials.values())
    read.load()
    assert known.best == read.best
    assert known.results == read.results == sum(len(one.history) for one in experiment.trials.values())
    for key in experiment.trials:
        assert known.best_value(key) == read.best_value(key)


def test_results_of_the_directory_are_those_of_the_run(killed: Lab):
    ended = killed.resume()
    trials = load_trials(killed.storage)
    assert [losses(one) for one in trials] == EXPECTED
    assert [one.history for one in trials] == [one.history for one in ended.trials.values()]
    assert ends(ended) == {
        key: (trial.public_status, expected, trial.config)
        for (key, trial), expected in zip(ended.trials.items(), EXPECTED, strict=True)
    }
