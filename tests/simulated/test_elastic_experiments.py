"""Distributed trials that lose a worker, continue with fewer ranks, and get all of them back."""

from __future__ import annotations

from typing import Any

import pytest

import dasktune as tune
from dasktune.config import CheckpointConfig, RunConfig, TuneConfig
from dasktune.runner import elastic_ranks
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.schedulers import ASHAScheduler
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate

CONFIGS = {"tune_config": TuneConfig(metric="loss", mode="min", seed=1), "run_config": RunConfig()}


class Journal(MemoryStore):
    """Keeps no snapshots, so that a restore replays everything."""

    def save_snapshot(self, capture: Any) -> None:
        """Do nothing."""

    @property
    def records(self) -> list[dict[str, Any]]:
        return [decode(line) for line in self.journal.splitlines()]

    def starts(self) -> list[tuple[float, int]]:
        """When each trial was started, and with how many ranks."""
        return [
            (record["time"], len(action["resources"]["bundles"]))
            for record in self.records
            for action in record.get("actions", ())
            if action["do"] in ("StartTrial", "RestoreTrial")
        ]


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    """Train for 20 steps of 10 seconds, and save each second one."""
    for step in range(checkpoint or 0, 20):
        yield {"loss": 1 / (step + 1)}, 10.0, step + 1 if step % 2 else None


def train(config: dict[str, Any]) -> None:
    """Stand for a function; `curve` is what is simulated."""


def run(lost: range, *, trainable: Any = curve, least: int = 2, **options: Any) -> tuple[Any, Journal]:
    """Simulate one trial of 4 ranks; one of two workers is lost in some of the seconds."""
    store = Journal()
    # A reading of the workers each second, as on a cluster.
    workers = {float(second): [2] if second in lost else [2, 2] for second in range(300)}
    [result] = simulate(
        trainable,
        resources=tune.with_ranks(train, 4, min_ranks=least).resources,
        param_space={},
        workers=options.pop("workers", workers),
        store=store,
        **{**CONFIGS, **options},
    )
    assert result.error is None
    assert [row["training_iteration"] for row in result.history] == list(range(1, 21))
    return result, store


def test_a_lost_worker_leaves_fewer_ranks_until_there_is_room_for_all() -> None:
    _, journal = run(range(35, 95))
    # It waits 10 s for another worker, and trains for 60 s at least before it starts again. The
    # first checkpoint after that is that of step 8, at 105 s.
    assert journal.starts() == [(0.0, 4), (45.0, 2), (105.0, 4)]
    [found] = [one for one in journal.records if one["event"] == "RoomForRanks"]
    assert found["reason"] == "there is room for all of its 4 ranks"
    losses = [one for one in journal.records if one["event"] == "TrialLost"]
    assert [one["charged"] for one in losses] == [False, False]


def test_a_worker_that_is_replaced_in_time_leaves_all_ranks() -> None:
    _, journal = run(range(35, 44))
    assert journal.starts() == [(0.0, 4), (44.0, 4)]


def test_too_few_are_not_enough() -> None:
    _, journal = run(range(35, 95), least=3)
    assert journal.starts() == [(0.0, 4), (95.0, 4)]


def test_a_trial_that_saves_nothing_does_not_leave_to_grow() -> None:
    def forgetful(config: dict[str, Any], checkpoint: Any) -> Any:
        assert checkpoint is None
        for step in range(20):
            yield {"loss": step}, 10.0

    _, journal = run(range(0, 65), trainable=forgetful)
    assert journal.starts() == [(10.0, 2)]
    assert [one["event"] for one in journal.records].count("RoomForRanks") == 1


def test_a_small_cluster_gets_fewer_ranks_from_the_beginning() -> None:
    _, journal = run(range(0), workers=[3])
    assert journal.starts() == [(10.0, 3)]


def test_a_trial_leaves_for_more_ranks_after_the_decision_about_its_result() -> None:
    scheduler = ASHAScheduler(max_t=20, grace_period=4)
    config = TuneConfig(metric="loss", mode="min", seed=1, scheduler=scheduler)
    _, journal = run(range(35, 95), tune_config=config)
    assert [ranks for _, ranks in journal.starts()] == [4, 2, 4]


def test_a_trial_leaves_for_more_ranks_only_when_no_other_trial_takes_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some look comes right after the end of a trial.
    monkeypatch.setattr(elastic_ranks, "_LOOK_SECONDS", 0.0)

    def curve_of(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(checkpoint or 0, config["steps"]):
            yield {"loss": 1 / (step + 1)}, 10.0, step + 1

    store = Journal()
    results = simulate(
        curve_of,
        resources=tune.with_ranks(train, 4, min_ranks=2).resources,
        param_space={"steps": tune.grid_search([8, 20, 8])},
        workers=[4, 2],
        store=store,
        **CONFIGS,
    )
    assert [result.error for result in results] == [None] * 3
    # The third trial gets the room of the first one at 80 s. The second trial gets it afterwards.
    assert store.starts() == [(0.0, 4), (10.0, 2), (80.0, 4), (170.0, 4)]


def test_two_trials_do_not_leave_for_the_same_room() -> None:
    def slow_to_save(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(checkpoint or 0, config["steps"]):
            yield {"loss": 1 / (step + 1)}, 10.0, step + 1 if step % 10 == 9 else None

    store = Journal()
    # Room for two ranks of the first trial, later of the second one, and at last for two more.
    workers = {float(second): [2] * (1 + (second >= 20) + (second >= 100)) for second in range(700)}
    results = simulate(
        slow_to_save,
        resources=tune.with_ranks(train, 4, min_ranks=2).resources,
        param_space={"steps": tune.grid_search([50, 60])},
        workers=workers,
        store=store,
        **CONFIGS,
    )
    assert [len(result.history) for result in results] == [50, 60]
    # Both have long trained with fewer ranks at 100 s. The first one saves at 110 s. The second one
    # saves at 130 s and each 100 s later, and does not leave before the first has ended.
    assert store.starts() == [(10.0, 2), (30.0, 2), (110.0, 4), (530.0, 4)]
    leaves = [one["time"] for one in store.records if one["event"] == "RoomForRanks"]
    assert leaves == [100.0, 511.0]


def test_a_replayed_journal_knows_the_ranks_of_each_start() -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1))
    _, journal = run(range(35, 95), run_config=config)
    seen = []
    records = journal.records
    for number, record in enumerate(records, 1):
        if record["event"] != "ResourcesGranted":
            continue
        experiment = build_experiment(CONFIGS["tune_config"], config, {})
        replay(experiment, records[:number], lambda folder: {})
        [trial] = experiment.trials.values()
        seen.append((record["time"], len(trial.resources.bundles)))
        assert len(trial.base_resources.bundles) == 4
        state = experiment.state_dict()
        again = build_experiment(CONFIGS["tune_config"], config, {})
        again.load_state_dict(state)
        assert again.state_dict() == state
    assert seen == journal.starts()
