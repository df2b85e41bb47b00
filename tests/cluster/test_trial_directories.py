"""What trials are called, and what their directories hold, on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dasktune as tune


class Talker(tune.Trainable):
    """Says what it does, and fails at its second step as long as a file is not there."""

    def setup(self, config: dict[str, Any]) -> None:
        self.at = 0
        print(f"{tune.get_context().get_trial_name()} begins")

    def step(self) -> dict[str, Any]:
        self.at += 1
        print(f"step {self.at} of {self.config['x']}")
        if self.at == 2 and self.config["x"] == 2 and not Path(self.config["flag"]).exists():
            raise ValueError("not yet")
        return {"loss": self.config["x"] / self.at}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"at": self.at}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.at = checkpoint["at"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_directories_have_the_users_names_and_all_that_trials_say(pair: Any, tmp_path: Path, isolation: str):
    asked = tmp_path / "asked"

    def dirname(trial: Any) -> str:
        with asked.open("a") as file:
            file.write(f"{trial.trial_id}\n")
        return f"x={trial.config['x']}"

    arguments = {
        "name": "named",
        "config": {"x": tune.grid_search([1, 2]), "flag": str(tmp_path / "flag")},
        "stop": {"training_iteration": 3},
        "storage_path": str(tmp_path),
        "checkpoint_freq": 1,
        "trial_name_creator": lambda trial: f"number {trial.config['x']}",
        "trial_dirname_creator": dirname,
        "log_to_file": True,
        "isolation": isolation,
        "verbose": 0,
        "client": pair,
    }
    tune.run(Talker, **arguments, raise_on_failed_trial=False)
    place = tmp_path / "named" / "trials"
    assert sorted(one.name for one in place.iterdir()) == ["x=1", "x=2"]
    assert "not yet" in (place / "x=2" / "error.txt").read_text()
    (tmp_path / "flag").touch()
    analysis = tune.run(Talker, **arguments, resume="AUTO+ERRORED")
    assert [len(trial.history) for trial in analysis.trials] == [3, 3]
    assert [Path(trial.path).name for trial in analysis.trials] == ["x=1", "x=2"]
    assert tune.Result.from_path(place / "x=2").config["x"] == 2
    # The function named each trial once, although two drivers ran it.
    assert asked.read_text().split() == [trial.trial_id for trial in analysis.trials]
    assert (place / "x=1" / "stdout").read_text() == (
        "number 1 begins\nstep 1 of 1\nstep 2 of 1\nstep 3 of 1\n"
    )
    assert (place / "x=2" / "stdout").read_text() == (
        "number 2 begins\nstep 1 of 2\nstep 2 of 2\nnumber 2 begins\nstep 2 of 2\nstep 3 of 2\n"
    )


def test_a_name_that_cannot_be_ends_the_experiment_before_the_trial_starts(pair: Any, tmp_path: Path):
    with pytest.raises(tune.ConfigError, match="trial_dirname_creator must be a function"):
        tune.run(
            Talker,
            config={"x": 1, "flag": ""},
            name="wrong",
            storage_path=str(tmp_path),
            trial_dirname_creator=lambda trial: "../elsewhere",
            verbose=0,
            client=pair,
        )
    assert not (tmp_path / "wrong" / "trials").exists()


class Greedy(Talker):
    """Asks for more than any worker has."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([{"CPU": 512}])

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        return "Make x smaller."


def test_what_a_class_says_of_its_resources_is_shown_when_they_do_not_suffice(pair: Any, tmp_path: Path):
    with pytest.raises(tune.PreflightError, match=r"512[^$]*Make x smaller\.$"):
        tune.run(Greedy, config={"x": 1}, storage_path=str(tmp_path), verbose=0, client=pair)


class Whereabouts(tune.Callback):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_trial_start(self, trial: Any, **info: Any) -> None:
        self.found.append(trial.location)

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        self.found += [trial.location, trial.last_result]


def test_a_trial_says_where_it_is(pair: Any, tmp_path: Path):
    callback = Whereabouts()
    tune.run(
        lambda config: {"loss": 1.0},
        callbacks=[callback],
        storage_path=str(tmp_path),
        verbose=0,
        client=pair,
    )
    before, location, result = callback.found
    assert before is None
    assert (location.pid, location.hostname) == (result["pid"], result["hostname"])
    assert str(location) == f"{result['node_ip']}:{result['pid']}"
    assert location.worker in {worker.worker_address for worker in pair.workers.values()}
