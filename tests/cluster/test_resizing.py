"""Trials that get other resources while they train, on real workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    fitting,
    histories,
    journal,
    kill,
    leased_of_only_worker,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client

import dasktune as tune
from dasktune.schedulers import ResourceChangingScheduler

pytestmark = pytest.mark.cluster


def by_trial(config: dict[str, Any]) -> None:
    """Report three steps, the last one after the first trial's end; note the CPUs of each start."""
    place, name = Path(config["place"]), config["name"]
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    cpus = tune.get_context().get_trial_resources().head_cpus
    note(place, f"{name} has {cpus} after {done}, threads {os.environ.get('OMP_NUM_THREADS')}")
    for step in range(done + 1, 4):
        if step > 1:
            wait_for_file(place / f"{name}-{step}")
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


class ByClass(tune.Trainable):
    """The same, saving nothing but what it is asked to."""

    def setup(self, config: dict[str, Any]) -> None:
        self.place, self.name = Path(config["place"]), config["name"]
        self.count = 0
        assert self.trial_resources is not None
        note(self.place, f"{self.name} has {self.trial_resources.head_cpus}")

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.count > 1:
            wait_for_file(self.place / f"{self.name}-{self.count}")
        note(self.place, f"{self.name} step {self.count}")
        return {"step": self.count, "done": self.count == 3}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = int(Path(checkpoint, "count").read_text())


def tuner_of(trainable: Any, place: Path, address: str, names: list[str], **options: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space={"place": str(place), "name": tune.grid_search(names)},
        tune_config=tune.TuneConfig(scheduler=ResourceChangingScheduler()),
        run_config=run_config(place, **options),
        client=address,
    )


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with fleet.client() as client:
        yield client


def only_worker(fleet: Fleet, threads: int) -> None:
    """See to it that there is one worker, with so many CPUs."""
    fleet.keep(0)
    fleet.add_worker(f"--nthreads={threads}")
    with fleet.client() as client:
        until(lambda: len(client.scheduler_info()["workers"]) == 1)


def held(client: Client) -> float:
    """How many CPUs are taken, as Dask's scheduler sees it."""
    return float(client.run_on_scheduler(leased_of_only_worker)[0].get("CPU", 0))


@pytest.mark.core
def test_what_a_trial_holds_stands_in_the_books_of_dask_and_is_seen_by_its_code(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    only_worker(fleet, 4)
    with fitting(tuner_of(by_trial, tmp_path, fleet.address, ["a", "b"])) as future:
        # Both have reported once, and have come back with a half each.
        until(lambda: len([one for one in notes(tmp_path) if "has 2 after 1" in one]) == 2)
        until(lambda: held(client) == 4)
        for step in (2, 3):
            (tmp_path / f"a-{step}").touch()
        until(lambda: journal(tmp_path, event="TrialEnded"))
        until(lambda: held(client) == 2)
        (tmp_path / "b-2").touch()
        until(lambda: any("b has 4 after 2" in one for one in notes(tmp_path)))
        until(lambda: held(client) == 4)
        (tmp_path / "b-3").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3]] * 2
    # A process of its own has as many threads for numerical libraries as it has CPUs.
    assert "b has 4 after 2, threads 4" in notes(tmp_path)
    assert_clean(client)
    until(lambda: held(client) == 0)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_class_resumes_from_memory_with_its_new_resources(
    fleet: Fleet, client: Client, tmp_path: Path, isolation: str
) -> None:
    only_worker(fleet, 2)
    options = {"checkpoint_config": tune.CheckpointConfig(memory_limit=1_000_000)}
    tuner = tuner_of(ByClass, tmp_path, fleet.address, ["a"], isolation=isolation, **options)
    with fitting(tuner) as future:
        until(lambda: "a has 2" in notes(tmp_path))
        assert list(tmp_path.glob("run/trials/*/*/count")) == []
        for step in (2, 3):
            (tmp_path / f"a-{step}").touch()
        results = future.result(timeout=60)
    assert histories(results) == [[1, 2, 3]]
    assert notes(tmp_path) == ["a has 1", "a step 1", "a has 2", "a step 2", "a step 3"]
    assert_clean(client)


@pytest.mark.slow
def test_a_trial_that_loses_a_large_worker_resumes_with_what_is_left(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    only_worker(fleet, 3)
    with fitting(tuner_of(by_trial, tmp_path, fleet.address, ["a"])) as future:
        until(lambda: any("a has 3 after 1" in one for one in notes(tmp_path)))
        large = fleet.workers[-1]
        fleet.add_worker("--nthreads=2")
        until(lambda: len(journal(tmp_path, event="ClusterChanged")) == 2)
        kill(large)
        until(lambda: len([one for one in notes(tmp_path) if "after 1" in one]) == 2)
        for step in (2, 3):
            (tmp_path / f"a-{step}").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3]]
    starts = [one.split(",")[0] for one in notes(tmp_path)]
    assert starts == ["a has 1 after 0", "a has 3 after 1", "a has 1 after 1", "a has 2 after 2"]
    assert_clean(client)
