"""Experiments whose driver was really killed, or interrupted, and drivers that resume them."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE,
    Fleet,
    Tally,
    assert_clean,
    histories,
    journal,
    kill,
    note,
    notes,
    restarts,
    run_config,
    statuses,
    steps,
    until,
)
from distributed import LocalCluster

import dasktune as tune
from dasktune.dashboard.model.load import load_projection
from dasktune.errors import ConfigError, StorageError
from dasktune.tuner.tuner import Tuner

pytestmark = pytest.mark.cluster

#: Trains `steps` of the kit, which wait at their gates. Takes a directory, an address and this one.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import dasktune as tune
from cluster_kit import steps
place, address = Path(sys.argv[1]), sys.argv[2]
if __name__ == "__main__":
    tune.Tuner(
        steps,
        param_space={
            "place": str(place),
            "steps": 6,
            "gates": (4,),
            "x": tune.grid_search([1, 2, 3]),
            "y": tune.uniform(0, 1),
        },
        tune_config=tune.TuneConfig(metric="step", mode="max"),
        run_config=tune.RunConfig(storage_path=place, name="run", verbose=0, driver_ttl=1.0),
        client=address,
    ).fit()
"""


def begin(place: Path, address: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(place), address, here])


def reported(place: Path, step: int) -> int:
    """Return how many trials have reported a step, as the journal knows."""
    if not (place / "run" / "experiment.json").exists():
        return 0
    results = journal(place, event="ResultReported")
    return len({one["trial_id"] for one in results if one["metrics"]["step"] >= step})


@pytest.fixture
def killed(tmp_path: Path, fleet: Fleet) -> Path:
    """An experiment whose driver was killed when two of its three trials stood at a gate."""
    fleet.keep(2)
    driver = begin(tmp_path, fleet.address)
    until(lambda: reported(tmp_path, 3) == 2)
    kill(driver)
    (tmp_path / "gate-4").touch()
    return tmp_path


def test_an_experiment_resumes_after_its_driver_was_killed(killed: Path, fleet: Fleet):
    before = {one["trial_id"]: one["config"] for one in journal(killed, event="Suggested")}
    tuner = Tuner.restore(killed / "run", steps, client=fleet.address)
    assert histories(tuner.get_results())[:2] == [[1, 2, 3], [1, 2, 3]]
    results = tuner.fit()
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 3
    assert statuses(results) == {"TERMINATED"}
    assert [result.config["x"] for result in results] == [1, 2, 3]
    # As the user's code had it, which JSON cannot tell.
    assert {result.config["gates"] for result in results} == {(4,)}
    ids = [result.trial_id for result in results]
    assert {key: before[key]["y"] for key in ids[:2]} == {
        result.trial_id: result.config["y"] for result in list(results)[:2]
    }
    # From their last checkpoints, and in their old order.
    assert restarts(killed)[2:4] == [(ids[0], 3), (ids[1], 3)]
    with fleet.client() as client:
        assert_clean(client)


def test_checkpoints_that_a_dead_driver_had_yet_to_delete_are_deleted(fleet: Fleet, tmp_path: Path):
    fleet.keep(1)
    keep_one = tune.CheckpointConfig(num_to_keep=1)
    tune.Tuner(
        steps,
        param_space={"place": str(tmp_path), "steps": 4},
        run_config=run_config(tmp_path, checkpoint_config=keep_one),
        client=fleet.address,
    ).fit()
    [kept] = tmp_path.glob("run/trials/*/checkpoint_*")
    assert kept.name == "checkpoint_000003_i01"
    shutil.copytree(kept, kept.with_name("checkpoint_000002_i01"))
    Tuner.restore(tmp_path / "run", steps, client=fleet.address).fit()
    assert list(tmp_path.glob("run/trials/*/checkpoint_*")) == [kept]


@pytest.mark.slow
def test_what_a_dead_driver_has_left_is_passed_to_the_cluster(killed: Path, fleet: Fleet):
    ids = [one["trial_id"] for one in journal(killed, event="Suggested") if one["config"]]
    tuner = Tuner.restore(killed / "run", steps, client=fleet.address)
    tuner.submit().close()
    with pytest.raises(ConfigError, match="must be called once"):
        tuner.fit()
    with tune.attach("run", client=fleet.address) as experiment:
        results = experiment.result(timeout=PATIENCE)
        assert experiment.status == "finished"
        experiment.forget()
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 3
    assert statuses(results) == {"TERMINATED"}
    assert restarts(killed)[2:4] == [(ids[0], 3), (ids[1], 3)]
    with fleet.client() as client:
        assert_clean(client)


@pytest.mark.slow
def test_a_directory_that_was_moved_is_restored_where_it_is(
    killed: Path, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
):
    moved = tmp_path_factory.mktemp("elsewhere") / "renamed"
    shutil.move(killed / "run", moved)
    assert Tuner.can_restore(moved)
    assert not Tuner.can_restore(killed / "run")
    results = Tuner.restore(moved, steps, client=fleet.address).fit()
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 3
    assert Path(results[0].checkpoint.path).is_relative_to(moved)


#: Runs a class that never ends; takes a directory. Its cluster is its own.
CLASS_SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import dasktune as tune
from cluster_kit import Tally
if __name__ == "__main__":
    place = Path(sys.argv[1])
    results = tune.Tuner(
        Tally,
        param_space={"place": str(place), "last": 10**9},
        run_config=tune.RunConfig(storage_path=place, name="run", verbose=0),
    ).fit()
    print("RETURNED", len(results))
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_gets_a_signal_has_its_trials_save_first(
    tmp_path: Path, pair: LocalCluster, number: signal.Signals
):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CLASS_SCRIPT, str(tmp_path), here]
    # As a shell in the foreground would start it.
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: notes(tmp_path).count("step") >= 3)
    driver.send_signal(number)
    told, _ = driver.communicate(timeout=PATIENCE)
    # A batch system must not take it for complete, and start what depends on it.
    ends = number == signal.SIGTERM
    assert driver.returncode == (128 + number if ends else 0), told
    assert ("RETURNED 1" in told) != ends
    assert f"Resume with Tuner.restore('{tmp_path / 'run'}', Tally).fit()" in told
    tuner = Tuner.restore(tmp_path / "run", Tally, client=pair)
    [history] = histories(tuner.get_results())
    assert restarts(tmp_path) == [(tuner.get_results()[0].trial_id, 0)]
    done = notes(tmp_path).count("step")
    (tmp_path / "enough").touch()
    [result] = tuner.fit()
    # Not a step was computed twice.
    assert notes(tmp_path).count("step") == len(result.history) == done + 1
    assert len(history) == done


class Dies(tune.Callback):
    """Ends a driver that has stored its experiment and not begun its first trial."""

    def setup(self, *args: Any, **info: Any) -> None:
        raise KeyboardInterrupt


def test_a_driver_may_die_before_its_first_trial(tmp_path: Path, pair: LocalCluster):
    config = {"place": str(tmp_path), "steps": 2}
    dies = run_config(tmp_path, "run", callbacks=[Dies()])
    with pytest.raises(KeyboardInterrupt):
        Tuner(steps, param_space=config, run_config=dies, client=pair).fit()
    assert journal(tmp_path) == []
    results = Tuner.restore(tmp_path / "run", steps, run_config=run_config(tmp_path), client=pair).fit()
    assert histories(results) == [[1, 2]]


def test_a_finished_experiment_is_extended_and_its_trials_are_left_alone(tmp_path: Path, pair: LocalCluster):
    space = {"place": str(tmp_path), "steps": 2, "x": tune.uniform(0, 1)}
    config = {"metric": "step", "mode": "max"}
    first = Tuner(
        steps,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=2, **config),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    more = tune.TuneConfig(num_samples=4, **config)
    tuner = Tuner.restore(tmp_path / "run", steps, tune_config=more, client=pair)
    results = tuner.fit()
    assert histories(results) == [[1, 2]] * 4
    xs = [result.config["x"] for result in results]
    assert xs[:2] == [result.config["x"] for result in first]
    assert len(set(xs)) == 4
    assert len([text for text in notes(tmp_path) if "starts" in text]) == 4
    # And a third driver knows of the change.
    assert len(Tuner.restore(tmp_path / "run", steps, client=pair).fit()) == 4


def fails_at_first(config: dict[str, Any]) -> None:
    if config["x"] == 0 and not (Path(config["place"]) / "mended").exists():
        raise ValueError("not yet")
    tune.report({"step": 1})


@pytest.mark.parametrize("how", ["resume_errored", "restart_errored"])
def test_a_restored_experiment_counts_its_trials_right(
    how: str, tmp_path: Path, pair: LocalCluster, capsys: Any
):
    def configs(num_samples: int) -> dict[str, Any]:
        run = tune.RunConfig(storage_path=tmp_path, name="run", progress_reporter=tune.CLIReporter())
        return {"tune_config": tune.TuneConfig(num_samples=num_samples), "run_config": run}

    space = {"place": str(tmp_path), "x": tune.grid_search([0, 1])}
    results = Tuner(fails_at_first, param_space=space, **configs(1), client=pair).fit()
    assert results.num_errors == 1
    assert "Trials: 2 of 2 (1 TERMINATED, 1 ERROR)" in capsys.readouterr().err
    (tmp_path / "mended").touch()
    shown = []
    for number in (3, 2):
        tuner = Tuner.restore(tmp_path / "run", fails_at_first, **configs(number), client=pair, **{how: True})
        results = tuner.fit()
        assert (len(results), results.num_errors) == (6, 0)
        assert "Trials: 6 of 6 (6 TERMINATED)" in capsys.readouterr().err
        projection = load_projection(str(tmp_path / "run"))
        shown.append((projection.num_finished, projection.total))
    assert shown == [(6, 6)] * 2


def other(config: dict[str, Any]) -> None:
    """Train something else."""


def test_what_cannot_be_restored_is_refused_with_what_to_do(tmp_path: Path, pair: LocalCluster):
    space = {"place": str(tmp_path), "steps": 1}
    Tuner(steps, param_space=space, run_config=run_config(tmp_path), client=pair).fit()
    with pytest.raises(ConfigError, match="trainable must be 'steps' as at the start, got 'other'"):
        Tuner.restore(tmp_path / "run", other)
    with pytest.raises(StorageError, match="no experiment is stored at"):
        Tuner.restore(tmp_path, steps)
    with pytest.raises(ConfigError, match="restart_errored must be False"):
        Tuner.restore(tmp_path / "run", steps, resume_errored=True, restart_errored=True)


class Unpicklable(tune.schedulers.FIFOScheduler):
    """Holds what no process can pass on."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot leave this process")


def test_what_cannot_be_pickled_is_asked_for(
    tmp_path: Path, pair: LocalCluster, caplog: pytest.LogCaptureFixture
):
    space = {"place": str(tmp_path), "steps": 1}
    config = tune.TuneConfig(scheduler=Unpicklable())
    with caplog.at_level(logging.WARNING):
        Tuner(
            steps,
            param_space=space,
            tune_config=config,
            run_config=run_config(tmp_path),
            client=pair,
        ).fit()
    assert "tune_config.scheduler cannot be pickled" in caplog.text
    with pytest.raises(StorageError, match=r"tune_config.scheduler .* Give tune_config="):
        Tuner.restore(tmp_path / "run", steps)
    again = tune.TuneConfig(scheduler=Unpicklable())
    assert len(Tuner.restore(tmp_path / "run", steps, tune_config=again).get_results()) == 1


def test_a_second_driver_is_refused_while_the_first_one_lives(tmp_path: Path, fleet: Fleet):
    fleet.keep(2)
    driver = begin(tmp_path, fleet.address)
    until(lambda: reported(tmp_path, 3) == 2)
    tuner = Tuner.restore(tmp_path / "run", steps, client=fleet.address)
    with pytest.raises(StorageError, match=rf"another driver \(pid {driver.pid} on host"):
        tuner.fit()
    assert driver.poll() is None
    (tmp_path / "gate-4").touch()
    assert driver.wait(timeout=PATIENCE) == 0
    results = Tuner.restore(tmp_path / "run", steps, client=fleet.address).fit()
    assert histories(results) == [[1, 2, 3, 4, 5, 6]] * 3


def train_until_damaged(config: dict[str, Any]) -> None:
    """Save at each step; in the first start, damage or delete the newest checkpoint, and fail."""
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    note(Path(config["place"]), f"starts after {done}")
    for step in range(done + 1, 5):
        if done == 0 and step == 4:
            newest = sorted(Path(tune.get_context().get_trial_dir()).glob("checkpoint_*"))[-1]
            victim = {"content": "_dict_checkpoint.pkl", "manifest": ".manifest.json"}[config["damage"]]
            if config["damage"] == "content":
                (newest / victim).write_bytes(b"?")
            else:
                (newest / victim).unlink()
            raise ValueError("the disk broke")
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("damage", ["content", "manifest"])
def test_a_trial_resumes_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, pair: Any, damage: str, isolation: Any
) -> None:
    failures = tune.FailureConfig(max_failures=1)
    tuner = Tuner(
        train_until_damaged,
        param_space={"place": str(tmp_path), "damage": damage},
        run_config=run_config(tmp_path, failure_config=failures, isolation=isolation),
        client=pair,
    )
    results = tuner.fit()
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4]]
    assert notes(tmp_path) == ["starts after 0", "starts after 2"]
    [found] = journal(tmp_path, event="RestoreFailed")
    assert found["path"].endswith("checkpoint_000002_i01")
    assert len(journal(tmp_path, event="TrialFailed")) == 1
    assert journal(tmp_path, event="TrialLost") == []
