"""Checkpoints on the way to a storage that is not a disk of the worker, and workers that die."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import disk_store
import pytest
from cluster_kit import (
    Fleet,
    fitting,
    histories,
    journal,
    kill,
    note,
    notes,
    restarts,
    run_config,
    statuses,
    until,
)
from distributed import LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def remote_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster whose workers know the store; each test starts and kills its own."""
    fleet = Fleet(tmp_path_factory.mktemp("remote-fleet"))
    yield fleet
    fleet.close()


def add_worker(fleet: Fleet) -> Any:
    return fleet.add_worker(f"--preload={disk_store.__file__}")


def tuner_of(trainable: Any, place: Path, fleet: Fleet, **options: Any) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        param_space={"place": str(place)},
        run_config=tune.RunConfig(
            storage_path=f"disk://{place}",
            storage_options={"gate": str(place / "gate")},
            name="run",
            verbose=0,
            **options,
        ),
        client=fleet.address,
    )


def results_in_journal(place: Path) -> int:
    return len(journal(place, event="ResultReported"))


def directories(place: Path) -> dict[str, list[str]]:
    """Return the names of each checkpoint's files."""
    found: dict[str, list[str]] = {}
    for name in disk_store.files_below(place / "run" / "trials"):
        parts = name.split("/")
        if len(parts) > 2 and parts[1].startswith("checkpoint_"):
            found.setdefault(parts[1], []).append(parts[2])
    return found


def three_steps(config: dict[str, Any]) -> None:
    """Save at each step; the second checkpoint takes until the test lets it through."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    note(place, f"starts after {done}")
    for step in range(done + 1, 4):
        checkpoint = tune.Checkpoint.from_dict({"step": step})
        Path(checkpoint.path, "fast").write_text("f" * 1000)
        if step == 2:
            Path(checkpoint.path, "slow").write_text("s" * 1000)
        tune.report({"step": step}, checkpoint=checkpoint)
        note(place, f"reported {step}")


class KnowingTheStore:
    """Code that brings the store's module into a process that could not import it."""

    def __init__(self, trainable: Any) -> None:
        self._trainable = trainable

    def __call__(self, config: dict[str, Any]) -> None:
        self._trainable(config)

    def __reduce__(self) -> Any:
        return prepared, (str(Path(disk_store.__file__).parent), self._trainable)


def prepared(path: str, trainable: Any) -> Any:
    sys.path.append(path)
    importlib.import_module("disk_store")
    return trainable


@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_a_worker_killed_in_the_middle_of_an_upload_costs_time_and_leaves_nothing_half_written(
    remote_fleet: Fleet, tmp_path: Path, isolation: Any
) -> None:
    worker = add_worker(remote_fleet)
    tuner = tuner_of(KnowingTheStore(three_steps), tmp_path, remote_fleet, isolation=isolation)
    with fitting(tuner) as future:
        # User code has gone on, and has ended but for its uploads.
        until(lambda: "reported 3" in notes(tmp_path))
        half = until(lambda: directories(tmp_path).get("checkpoint_000001_i01"))
        until(lambda: results_in_journal(tmp_path) == 1)
        kill(worker)
        assert ".manifest.json" not in half
        assert results_in_journal(tmp_path) == 1
        (tmp_path / "gate").touch()
        replacement = add_worker(remote_fleet)
        results = future.result(timeout=120)
    kill(replacement)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3]]
    assert [iteration for _, iteration in restarts(tmp_path)] == [0, 1]
    assert [one["charged"] for one in journal(tmp_path, event="TrialLost")] == [True]
    left = directories(tmp_path)
    assert sorted(left) == [
        "checkpoint_000000_i01",
        "checkpoint_000001_i02",
        "checkpoint_000002_i02",
    ]
    assert all(".manifest.json" in names for names in left.values())
    assert results[0].checkpoint is not None
    assert results[0].checkpoint.to_dict() == {"step": 3}


#: None reports no score at all.
SCORES = [0.5, float("nan"), 0.9, None, 0.9, 0.1, float("nan")]


def crash_once(config: dict[str, Any]) -> None:
    crashed = Path(config["place"], "crashed")
    if not crashed.exists():
        crashed.touch()
        raise RuntimeError("resume from the last checkpoint")


class FromDicts(tune.Trainable):
    """Saves at every step, as a dict."""

    def setup(self, config: dict[str, Any]) -> None:
        self.done = 0

    def step(self) -> dict[str, Any]:
        if self.done == 5:
            crash_once(self.config)
        score = SCORES[self.done]
        self.done += 1
        metrics = {"step": self.done, "done": self.done == len(SCORES)}
        return metrics if score is None else {**metrics, "score": score}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"done": self.done}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.done = checkpoint["done"]


class FromFiles(FromDicts):
    """Saves at every step, in files."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        Path(checkpoint_dir, "deep").mkdir()
        Path(checkpoint_dir, "deep", "done").write_text(str(self.done))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.done = int(Path(checkpoint, "deep", "done").read_text())


def with_metadata(config: dict[str, Any]) -> None:
    """The same as a function, which keeps what it needs in the metadata."""
    checkpoint = tune.get_checkpoint()
    for done in range(checkpoint.get_metadata()["done"] if checkpoint else 0, len(SCORES)):
        if done == 5:
            crash_once(config)
        checkpoint = tune.Checkpoint.from_dict({})
        checkpoint.set_metadata({"done": done + 1})
        metrics = {"step": done + 1}
        if SCORES[done] is not None:
            metrics["score"] = SCORES[done]
        tune.report(metrics, checkpoint=checkpoint)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("trainable", [FromDicts, FromFiles, with_metadata])
def test_the_best_and_the_newest_of_every_kind_stay_across_a_restart(
    pair: LocalCluster, tmp_path: Path, trainable: Any, isolation: Any
) -> None:
    # A function saves by itself.
    frequency = 1 if isinstance(trainable, type) else 0
    results = tune.Tuner(
        trainable,
        param_space={"place": str(tmp_path)},
        run_config=run_config(
            tmp_path,
            isolation=isolation,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="score", checkpoint_frequency=frequency
            ),
        ),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5, 6, 7]]
    assert [iteration for _, iteration in restarts(tmp_path)] == [0, 5]
    # Both of the score 0.9, and the newest.
    assert [record.iteration for record in results[0].records] == [3, 5, 7]
    assert sorted(directories(tmp_path)) == [
        "checkpoint_000002_i01",
        "checkpoint_000004_i01",
        "checkpoint_000006_i02",
    ]
    [(second, _), (best, metrics)] = results[0].best_checkpoints
    assert (metrics["step"], metrics["score"]) == (5, 0.9)
    for checkpoint, done in ((best, 5), (second, 3), (results[0].checkpoint, 7)):
        assert done_of(checkpoint) == done


def done_of(checkpoint: Any) -> int:
    if "done" in checkpoint.get_metadata():
        return int(checkpoint.get_metadata()["done"])
    file = Path(checkpoint.path, "deep", "done")
    return int(file.read_text()) if file.exists() else checkpoint.to_dict()["done"]
