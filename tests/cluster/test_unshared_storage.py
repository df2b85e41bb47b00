"""Clusters without a shared disk. A path below /proc/self is another place in each process."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE,
    Fleet,
    fitting,
    histories,
    journal,
    kill,
    note,
    notes,
    restarts,
    statuses,
    steps,
    until,
)
from distributed import LocalCluster

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.trainable.checkpoints import relay

pytestmark = pytest.mark.cluster

#: Below the current directory of the process that opens it.
OWN_PLACE = "/proc/self/cwd/runs"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's directory; the experiment is in `runs` there."""
    place = directory(tmp_path, "driver")
    monkeypatch.chdir(place)
    return place


def directory(place: Path, name: str) -> Path:
    (place / name).mkdir(exist_ok=True)
    return place / name


def checkpoints(place: Path) -> list[str]:
    """Return the names of the checkpoints that are there, whole or not."""
    return sorted(path.name for path in (place / "runs" / "run" / "trials").glob("*/checkpoint_*"))


class Courier:
    """Holds up the driver in the middle of a checkpoint that it fetches."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.resume = threading.Event()
        self.holds = False
        self._write_piece = relay.write_piece

    def write_piece(self, *piece: Any) -> None:
        if self.holds:
            self.is_held.set()
            assert self.resume.wait(PATIENCE)
        self._write_piece(*piece)


def tuner_of(place: Path, fleet: Fleet) -> tune.Tuner:
    return tune.Tuner(
        steps,
        param_space={"place": str(place), "steps": 6, "gates": (3, 5)},
        run_config=tune.RunConfig(
            storage_path=OWN_PLACE,
            name="run",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
        client=fleet.address,
    )


@pytest.mark.slow
def test_a_trial_moves_between_workers_that_see_the_storage_and_others(
    tmp_path: Path,
    driver: Path,
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    courier = Courier()
    monkeypatch.setattr(relay, "write_piece", courier.write_piece)
    fleet.keep(0)
    blind = fleet.add_worker(directory=directory(tmp_path, "blind"))
    with (
        caplog.at_level(logging.WARNING, logger="dasktune"),
        fitting(tuner_of(tmp_path, fleet)) as future,
    ):
        runs = driver / "runs"
        until(lambda: checkpoints(driver) == ["checkpoint_000001_i01"])
        # Killed when the driver has asked for the third one and not committed it.
        courier.holds = True
        (tmp_path / "gate-3").touch()
        assert courier.is_held.wait(PATIENCE)
        kill(blind)
        until(lambda: journal(runs, event="TrialLost"))
        courier.holds = False
        courier.resume.set()
        # The trial resumes from the second checkpoint on a worker that sees the storage, then on a
        # late one that does not.
        sighted = fleet.add_worker(directory=driver)
        until(lambda: len(journal(runs, event="ResultReported")) == 4)
        kill(sighted)
        fleet.add_worker(directory=directory(tmp_path, "late"))
        (tmp_path / "gate-5").touch()
        results = future.result(timeout=PATIENCE)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5, 6]]
    assert [iteration for _, iteration in restarts(runs)] == [0, 2, 4]
    checkpoint = results[0].checkpoint
    assert checkpoint is not None
    assert checkpoint.to_dict() == {"step": 6}
    # Retention has left one, and the workers have not written where they see something else.
    assert len(checkpoints(driver)) == 1
    assert not (tmp_path / "blind" / "runs").exists()
    assert not (tmp_path / "late" / "runs").exists()
    warnings = [one for one in caplog.messages if "is not shared by the workers on" in one]
    assert len(warnings) == 1
    assert "127.0.0.1" in warnings[0]
    # A later driver resumes the experiment.
    restored = tune.Tuner.restore(
        OWN_PLACE + "/run",
        steps,
        tune_config=tune.TuneConfig(num_samples=2),
        client=fleet.address,
    ).fit()
    assert histories(restored) == [[1, 2, 3, 4, 5, 6]] * 2


def test_a_driver_that_may_be_on_any_worker_needs_a_place_that_all_see(
    tmp_path: Path, driver: Path, fleet: Fleet
) -> None:
    fleet.keep(0)
    here, there = directory(tmp_path, "here"), directory(tmp_path, "there")
    for place in (here, there):
        fleet.add_worker(directory=place)
    with fleet.client() as client:
        client.wait_for_workers(2, timeout=PATIENCE)
    with pytest.raises(ConfigError, match=r"storage_path must be shared by all workers with submi"):
        tuner_of(tmp_path, fleet).submit()
    assert not list(tmp_path.glob("*/runs/run"))


def fails_once(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    note(place, f"{os.getpid()}")
    for step in range(done + 1, 4):
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if step == 2 and done == 0:
            raise ValueError("once")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_storage_in_the_memory_of_the_driver_is_for_every_cluster(
    tmp_path: Path, pair: LocalCluster, isolation: str
) -> None:
    results = tune.Tuner(
        fails_once,
        param_space={"place": str(tmp_path)},
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=tune.RunConfig(
            storage_path=f"memory://{tmp_path.name}",
            name="run",
            verbose=0,
            isolation=isolation,
            failure_config=tune.FailureConfig(max_failures=1),
        ),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3]] * 3
    for result in results:
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == {"step": 3}
    assert str(os.getpid()) not in notes(tmp_path)


class Exporter(tune.Trainable):
    """Counts on from where it begins, and exports how far it came."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        print("count", self.count)
        return {"count": self.count}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.count = checkpoint["count"]

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        Path(export_dir, "deep").mkdir()
        Path(export_dir, "deep", "model").write_text(str(self.count))
        return {"model": "deep"}


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_trials_begin_from_and_export_passes_the_driver(
    tmp_path: Path, driver: Path, fleet: Fleet, isolation: Any
) -> None:
    fleet.keep(0)
    fleet.add_worker(directory=directory(tmp_path, "blind"))
    results = tune.Tuner(
        Exporter,
        run_config=tune.RunConfig(
            storage_path=OWN_PLACE,
            name="run",
            verbose=0,
            isolation=isolation,
            stop={"training_iteration": 2},
            restore=tune.Checkpoint.from_dict({"count": 40}),
            export_formats=["model"],
            log_to_file=True,
        ),
        client=fleet.address,
    ).fit()
    assert [row["count"] for row in results[0].history] == [41, 42]
    (trial,) = (driver / "runs" / "run" / "trials").glob("[!.]*")
    assert (trial / "exported" / "deep" / "model").read_text() == "42"
    assert (trial / "stdout").read_text() == "count 41\ncount 42\n"
    assert Path(results[0].exported["model"], "model").read_text() == "42"
    assert not (tmp_path / "blind" / "runs").exists()


def talks(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    if tune.get_checkpoint() is None and not (place / "talked").exists():
        print("the words of a trial that dies")
        (place / "talked").touch()
        until((place / "never").exists)
    print("the words of its second start")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_words_of_a_trial_that_dies_with_its_worker_are_kept(
    tmp_path: Path, driver: Path, fleet: Fleet, isolation: Any
) -> None:
    fleet.keep(0)
    blind = fleet.add_worker(directory=directory(tmp_path, "blind"))
    tuner = tune.Tuner(
        talks,
        param_space={"place": str(tmp_path)},
        run_config=tune.RunConfig(
            storage_path=OWN_PLACE, name="run", verbose=0, isolation=isolation, log_to_file=True
        ),
        client=fleet.address,
    )

    def words() -> list[str]:
        return [one.read_text() for one in (driver / "runs" / "run").glob("trials/*/stdout")]

    with fitting(tuner) as future:
        # Without any word of the trial's to the driver, and well before its end.
        until(lambda: words() == ["the words of a trial that dies\n"])
        kill(blind)
        fleet.add_worker(directory=directory(tmp_path, "late"))
        assert statuses(future.result(timeout=PATIENCE)) == {"TERMINATED"}
    assert words() == ["the words of a trial that dies\nthe words of its second start\n"]


def begins_from(given: Any, place: str | Path, fleet: Fleet, name: str = "run") -> tune.Tuner:
    return tune.Tuner(
        Exporter,
        run_config=tune.RunConfig(
            storage_path=place, name=name, restore=given, stop={"training_iteration": 1}
        ),
        client=fleet.address,
    )


@pytest.mark.slow
def test_a_submitted_driver_takes_along_what_only_the_client_sees(
    tmp_path: Path, driver: Path, fleet: Fleet
) -> None:
    fleet.keep(0)
    fleet.add_worker(directory=directory(tmp_path, "there"))
    given = directory(driver, "given")
    tune.Checkpoint.from_dict({"count": 40}).to_directory(given)
    # It is below the worker's own directory for who has none of it.
    with begins_from("/proc/self/cwd/given", tmp_path / "shared", fleet).submit() as experiment:
        (result,) = experiment.result(timeout=PATIENCE)
        assert [row["count"] for row in result.history] == [41]
        experiment.forget()
    # What is too large for that is not looked for by a driver that has long begun.
    (given / "weights").write_bytes(bytes(17 << 20))
    tuner = begins_from("/proc/self/cwd/given", tmp_path / "shared", fleet, "large")
    with pytest.raises(ConfigError, match=r"restore must be seen by all workers.*17 MiB, which tcp:"):
        tuner.submit()
    assert not (tmp_path / "shared" / "large").exists()
    with begins_from(given, tmp_path / "shared", fleet, "seen").submit() as experiment:
        (result,) = experiment.result(timeout=PATIENCE)
        assert [row["count"] for row in result.history] == [41]
        experiment.forget()


@pytest.mark.slow
def test_a_relative_place_is_where_the_client_works(tmp_path: Path, driver: Path, fleet: Fleet) -> None:
    fleet.keep(0)
    fleet.add_worker(directory=directory(tmp_path, "there"))
    with begins_from(None, "mine", fleet).submit() as experiment:
        (result,) = experiment.result(timeout=PATIENCE)
        assert Path(result.path).is_relative_to(driver / "mine" / "run")
        experiment.forget()
    assert not (tmp_path / "there" / "mine").exists()
