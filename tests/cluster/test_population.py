"""Populations on real workers: clones, checkpoints in memory, deaths, and drivers that resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    fitting,
    journal,
    kill,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client

import dasktune as tune
from benchmarks.traffic import received_bytes
from dasktune.schedulers import PB2, PopulationBasedTraining

pytestmark = pytest.mark.cluster

STEPS = 5

#: Takes a directory, an address and the directory of this file.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_population import climbing, tuner_of
if __name__ == "__main__":
    tuner_of(Path(sys.argv[1]), sys.argv[2], climbing, driver_ttl=1.0).fit()
"""


class Climbing(tune.Trainable):
    """Comes higher by its rate at each step, and says who it was before."""

    def setup(self, config: dict[str, Any]) -> None:
        self.height = 0.0

    def step(self) -> dict[str, Any]:
        place = Path(self.config["place"])
        if self.iteration == STEPS - 1:
            wait_for_file(place / "go")
        self.height += self.config["rate"]
        return {"height": self.height, "done": self.iteration + 1 == STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "height").write_text(str(self.height))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.height = float(Path(checkpoint, "height").read_text())


class Resettable(Climbing):
    """Takes its new configuration without being built again."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.height = 0.0
        return True


class Heavy(Climbing):
    """Saves five million bytes more than it needs."""

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        super().save_checkpoint(checkpoint_dir)
        Path(checkpoint_dir, "weights").write_bytes(os.urandom(5_000_000))

    def load_checkpoint(self, checkpoint: Any) -> None:
        super().load_checkpoint(checkpoint)
        assert len(Path(checkpoint, "weights").read_bytes()) == 5_000_000


def climbing(config: dict[str, Any]) -> None:
    height, begin = 0.0, 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            height, begin = json.loads(Path(directory, "state").read_text())
    for step in range(begin, STEPS):
        if step == STEPS - 1:
            wait_for_file(Path(config["place"]) / "go")
        height += config["rate"]
        with TemporaryDirectory() as directory:
            Path(directory, "state").write_text(json.dumps([height, step + 1]))
            tune.report({"height": height}, checkpoint=tune.Checkpoint.from_directory(directory))


def climbing_behind(config: dict[str, Any]) -> None:
    """Begin with the low rate only when the test says so."""
    if config["rate"] == 0.5:
        wait_for_file(Path(config["place"]) / "follow")
    climbing(config)


class Striding(tune.Trainable):
    """Comes higher by its rate at each step, until it is enough."""

    def setup(self, config: dict[str, Any]) -> None:
        self.height = 0.0

    def step(self) -> dict[str, Any]:
        self.height += self.config["rate"]
        is_enough = Path(self.config["place"], "go").exists()
        return {"height": self.height, "done": is_enough}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "height").write_text(str(self.height))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.height = float(Path(checkpoint, "height").read_text())


def climbing_on_ranks(config: dict[str, Any]) -> None:
    """Gain height by the rate at each step; each rank saves a shard of its own."""
    context = tune.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    checkpoint = tune.get_checkpoint()
    begin, shards = 0, [0.0] * size
    if checkpoint is not None:
        read = [Path(checkpoint.path, f"shard-{one}").read_text().split() for one in range(size)]
        [begin] = {int(step) for step, _ in read}
        shards = [float(shard) for _, shard in read]
    for step in range(begin + 1, STEPS + 1):
        # Each shard has a factor of its own, so the shard of another rank would be noticed.
        shards = [shard + config["rate"] * (one + 1) for one, shard in enumerate(shards)]
        height = sum(shard / (one + 1) for one, shard in enumerate(shards)) / size
        with TemporaryDirectory() as directory:
            Path(directory, f"shard-{rank}").write_text(f"{step} {shards[rank]}")
            tune.report({"height": height}, checkpoint=tune.Checkpoint.from_directory(directory))


def tuner_of(
    place: Path, address: str, trainable: Any = Climbing, *, synch: bool = True, **options: Any
) -> tune.Tuner:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"rate": [1.0, 2.0, 4.0]},
        quantile_fraction=0.5,
        synch=synch,
    )
    in_memory = tune.CheckpointConfig(memory_limit=100_000_000)
    return tune.Tuner(
        trainable,
        param_space={"place": str(place), "rate": tune.grid_search([0.5, 2.0])},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler, seed=1),
        run_config=run_config(place, **{"checkpoint_config": in_memory, **options}),
        client=address,
    )


def exploits(place: Path) -> list[dict[str, Any]]:
    actions = (action for record in journal(place) for action in record.get("actions", ()))
    return [action for action in actions if action["do"] == "ExploitTrial"]


def assert_is_a_clone(place: Path, results: Any) -> None:
    """The trial with the low rate is a clone of the other one at its third step."""
    [order] = exploits(place)
    clone = next(one for one in results if one.trial_id == order["trial_id"])
    assert order["old_config"]["rate"] == 2.0
    assert order["checkpoint"]["iteration"] == order["donor_iteration"] == 3
    assert clone.config == order["config"]
    rows = [row["height"] for row in clone.history]
    assert rows == [0.5, 1.0, 1.5, *(6.0 + clone.config["rate"] * n for n in (1, 2))]
    run = place / "run"
    assert json.loads((run / "trials" / clone.trial_id / "params.json").read_text()) == clone.config
    row = [order["trial_id"], order["donor"], 3, 3, order["old_config"], order["config"]]
    assert json.loads((run / "pbt_global.txt").read_text()) == row
    assert json.loads((run / f"pbt_policy_{clone.trial_id}.txt").read_text()) == row


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with fleet.client() as client:
        yield client


@pytest.mark.parametrize(
    ("trainable", "isolation", "kind"),
    [
        (Climbing, "thread", "memory"),
        (Resettable, "thread", "memory"),
        (Climbing, "process", "memory"),
        (climbing, "thread", None),
        (climbing, "process", None),
    ],
)
def test_a_clone_begins_with_the_weights_of_its_donor(
    fleet: Fleet, client: Client, tmp_path: Path, trainable: Any, isolation: str, kind: str | None
) -> None:
    fleet.keep(2)
    (tmp_path / "go").touch()
    tuner = tuner_of(tmp_path, fleet.address, trainable, isolation=isolation)
    results = tuner.fit()
    assert statuses(results) == {"TERMINATED"}
    assert_is_a_clone(tmp_path, results)
    assert exploits(tmp_path)[0]["checkpoint"].get("kind") == kind
    assert_clean(client)


@pytest.mark.parametrize("memory_limit", [100_000_000, 0])
def test_the_weights_of_a_donor_do_not_reach_the_driver(
    fleet: Fleet, client: Client, tmp_path: Path, memory_limit: int
) -> None:
    fleet.keep(2)
    (tmp_path / "go").touch()
    config = tune.CheckpointConfig(memory_limit=memory_limit, checkpoint_at_end=False)
    tuner = tuner_of(tmp_path, fleet.address, Heavy, checkpoint_config=config)
    with received_bytes() as received:
        results = tuner.fit()
        of_the_run = received()
        client.submit(bytes, 5_000_000).result()
        of_as_many = received() - of_the_run
    assert statuses(results) == {"TERMINATED"}
    assert_is_a_clone(tmp_path, results)
    # It would have been counted.
    assert of_the_run < 1_000_000 < 5_000_000 <= of_as_many
    assert_clean(client)


def test_no_trial_waits_if_trials_are_cloned_in_passing(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(2)
    with fitting(tuner_of(tmp_path, fleet.address, climbing_behind, synch=False)) as future:
        # The donor passes its third step although the other trial has not begun.
        until(lambda: len(journal(tmp_path, event="ResultReported")) == STEPS - 1)
        (tmp_path / "follow").touch()
        until(lambda: exploits(tmp_path))
        (tmp_path / "go").touch()
        results = future.result(timeout=90)
    assert statuses(results) == {"TERMINATED"}
    assert_is_a_clone(tmp_path, results)
    assert_clean(client)


def test_a_clone_whose_worker_dies_is_the_same_clone_elsewhere(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    tuner = tuner_of(tmp_path, fleet.address, climbing)
    with fitting(tuner) as future:
        until(lambda: exploits(tmp_path))
        until(lambda: len(journal(tmp_path, event="TrialStarted")) >= 4)
        kill(fleet.workers[0])
        until(lambda: journal(tmp_path, event="TrialLost"))
        (tmp_path / "go").touch()
        results = future.result(timeout=90)
    assert statuses(results) == {"TERMINATED"}
    assert_is_a_clone(tmp_path, results)
    assert_clean(client)


@pytest.mark.slow
def test_a_clone_whose_donor_was_only_in_memory_survives_the_death_of_its_worker(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    tuner = tuner_of(tmp_path, fleet.address)
    with fitting(tuner) as future:
        until(lambda: exploits(tmp_path))
        for worker in fleet.workers:
            kill(worker)
        fleet.keep(2)
        (tmp_path / "go").touch()
        results = future.result(timeout=90)
    assert statuses(results) == {"TERMINATED"}
    assert all(one.metrics["training_iteration"] == STEPS for one in results)
    assert_clean(client)


@pytest.mark.slow
def test_a_population_resumes_after_its_driver_was_killed(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), fleet.address, here]
    driver = subprocess.Popen(command)
    until(lambda: (tmp_path / "run" / "experiment.json").exists())
    until(lambda: len(journal(tmp_path, event="TrialStarted")) >= 4)
    kill(driver)
    # What it had not come to write is written by the next one.
    (tmp_path / "run" / "pbt_global.txt").unlink(missing_ok=True)
    (tmp_path / "go").touch()
    results = tune.Tuner.restore(tmp_path / "run", climbing, client=fleet.address).fit()
    assert statuses(results) == {"TERMINATED"}
    assert_is_a_clone(tmp_path, results)
    assert_clean(client)


def test_results_are_judged_while_the_bandit_thinks(
    fleet: Fleet, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, gate = threading.Event(), threading.Event()

    def thinks(situation: Any) -> list[tuple[float, ...]]:
        has_begun.set()
        assert gate.wait(60)
        return [(0.5,) for _ in situation.rewards]

    monkeypatch.setattr("dasktune.schedulers.pb2.suggest_points", thinks)
    fleet.keep(2)
    scheduler = PB2(
        time_attr="training_iteration",
        perturbation_interval=10,
        hyperparam_bounds={"rate": [1.0, 4.0]},
        quantile_fraction=0.5,
    )
    tuner = tune.Tuner(
        Striding,
        param_space={"place": str(tmp_path), "rate": tune.grid_search([0.5, 2.0])},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler, seed=1),
        run_config=run_config(tmp_path),
        client=fleet.address,
    )
    with fitting(tuner) as future:
        assert has_begun.wait(60)
        before = len(journal(tmp_path, event="ResultReported"))
        until(lambda: len(journal(tmp_path, event="ResultReported")) > before + 20)
        assert not journal(tmp_path, event="Answered")
        gate.set()
        until(lambda: journal(tmp_path, event="Answered"))
        (tmp_path / "go").touch()
        results = future.result(timeout=90)
    assert statuses(results) == {"TERMINATED"}
    first = journal(tmp_path, event="Answered")[0]
    [order] = [one for one in first["actions"] if one["do"] == "ExploitTrial"]
    assert (first["answer"], order["config"]["rate"]) == ([[0.5]], 2.5)
    assert_clean(client)


@pytest.mark.slow
def test_a_population_of_distributed_trials_is_cloned_with_all_shards(
    fleet: Fleet, client: Client, tmp_path: Path
):
    fleet.keep(2)
    heights = []
    for trainable in (climbing_on_ranks, tune.with_ranks(climbing_on_ranks, 2)):
        place = tmp_path / f"{len(heights)}"
        results = tuner_of(place, fleet.address, trainable, checkpoint_config=None).fit()
        assert statuses(results) == {"TERMINATED"}
        assert exploits(place)
        heights.append([[row["height"] for row in result.history] for result in results])
    ordinary, distributed = heights
    assert distributed == ordinary
