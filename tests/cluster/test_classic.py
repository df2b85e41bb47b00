"""``tune.run`` on a real cluster: begun, failed, gone on with, and several at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import dasktune as tune


class Moody(tune.Trainable):
    """Fails at its second step as long as a file is not there."""

    def setup(self, config):
        self.config = config
        self.at = 0

    def step(self):
        self.at += 1
        if self.config["x"] == 2 and self.at == 2 and not Path(self.config["flag"]).exists():
            raise ValueError("in a bad mood")
        return {"loss": self.config["x"] / self.at}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def test_an_experiment_is_run_and_its_failures_are_gone_on_with(pair, tmp_path):
    arguments = {
        "name": "moody",
        "config": {"x": tune.grid_search([1, 2]), "flag": str(tmp_path / "flag")},
        "metric": "loss",
        "mode": "min",
        "stop": {"training_iteration": 3},
        "storage_path": str(tmp_path),
        "checkpoint_freq": 1,
        "keep_checkpoints_num": 1,
        "checkpoint_score_attr": "min-loss",
        "verbose": 0,
        "client": pair,
    }
    with pytest.raises(tune.TuneError, match="1 trial failed:") as caught:
        tune.run(Moody, **arguments)
    assert "in a bad mood" in str(caught.value)
    analysis = tune.run(Moody, **arguments, resume="AUTO", raise_on_failed_trial=False)
    assert [trial.status.value for trial in analysis.trials] == ["TERMINATED", "ERROR"]
    (tmp_path / "flag").touch()
    analysis = tune.run(Moody, **arguments, resume="AUTO+ERRORED")
    assert [len(trial.history) for trial in analysis.trials] == [3, 3]
    assert analysis.best_config["x"] == 1
    assert analysis.best_checkpoint is not None
    again = tune.ExperimentAnalysis(tmp_path / "moody")
    assert again.results == analysis.results
    for key in (0, 1):
        paths = [one.path for one in again.trials[key].records]
        assert paths == [one.path for one in analysis.trials[key].records]
        with again.get_last_checkpoint(again.trials[key]).as_directory() as directory:
            assert any(Path(directory).iterdir())


@pytest.mark.parametrize("concurrent", [True, False])
def test_several_experiments_share_a_cluster(pair, tmp_path, concurrent):
    def train(config):
        return {"loss": config["x"]}

    trials = tune.run_experiments(
        {
            "first": {"run": train, "config": {"x": tune.grid_search([1, 2])}},
            "second": {"run": train, "config": {"x": 3}, "resources_per_trial": {"cpu": 1}},
        },
        concurrent=concurrent,
        storage_path=str(tmp_path),
        verbose=0,
        client=pair,
    )
    assert [trial.metrics["loss"] for trial in trials] == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}


def test_two_experiments_cannot_have_one_name(pair, tmp_path):
    one = tune.Experiment("one", lambda config: 1.0, storage_path=str(tmp_path))
    with pytest.raises(tune.ConfigError, match="names of experiments must be different"):
        tune.run_experiments([one, one], client=pair)
