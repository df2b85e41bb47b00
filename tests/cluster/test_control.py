"""A run on a real cluster, commanded through its control server."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from control_kit import told_client

import dasktune as tune
from dasktune.cli import main
from dasktune.errors import ConfigError, ControlError

pytestmark = pytest.mark.cluster


def train(config):
    """Report until somebody has put a file there that lets it end."""
    step = 0
    while not Path(config["end"]).exists():
        step += 1
        tune.report({"loss": config["x"] / step})
        time.sleep(0.02)


class Run:
    """An experiment in a thread, and the client that its driver's notice names."""

    def __init__(self, cluster, tmp_path, capsys, trainable=train, num_samples=3):
        self.end = tmp_path / "end"
        self.capsys = capsys
        self.tuner = tune.Tuner(
            trainable,
            param_space={"x": tune.uniform(0.5, 1), "end": self.end},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=num_samples, seed=1),
            run_config=tune.RunConfig(name="controlled", storage_path=tmp_path, server_port=True, verbose=0),
            client=cluster,
        )
        self.results = None
        self.thread = threading.Thread(target=self._fit)
        self.thread.start()

    def _fit(self):
        self.results = self.tuner.fit()

    def client(self):
        return told_client(self.capsys, self.thread.is_alive)

    def wait(self):
        self.thread.join(120)
        assert not self.thread.is_alive()
        return self.results


def until(condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        # Else it would keep the driver, which is in the same process, from its work.
        threading.Event().wait(0.1)
    return found


def with_status(client, status, count=1):
    def found():
        trials = client.get_all_trials(status=status)
        return trials if len(trials) >= count else None

    return until(found)


def test_a_run_is_commanded_by_a_client(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys)
    client = run.client()
    first, second = (one["trial_id"] for one in with_status(client, "RUNNING", 2)[:2])
    # A trial rests, and its place goes to the next one.
    client.pause_trial(first)
    with_status(client, "PAUSED")
    client.stop_trial(second)
    until(lambda: client.get_trial(second)["status"] == "TERMINATED")
    [third] = until(
        lambda: [one for one in with_status(client, "RUNNING") if one["trial_id"] not in (first, second)]
    )
    assert client.get_trial(first)["paused_by_user"]
    # One of the user's own waits while new ones are held.
    client.hold()
    with pytest.raises(ControlError, match="Missing"):
        client.add_trial({"x": 1.0})
    added = client.add_trial({"x": 1.0, "end": str(run.end)})["trial_id"]
    assert client.get_trial(added)["status"] == "PENDING"
    client.stop_trial(added)
    client.unpause_trial(first)
    assert client.get_trial(first)["status"] == "PENDING"
    client.release()
    until(lambda: client.get_trial(first)["status"] == "RUNNING")
    assert client.get_experiment()["counts"]["TERMINATED"] == 2
    run.end.touch()
    results = run.wait()
    status = {one.trial_id: one.status for one in results}
    assert status == dict.fromkeys((first, second, third["trial_id"], added), "TERMINATED")
    assert results.num_errors == 0
    with pytest.raises(ControlError) as caught:
        client.get_experiment()
    assert caught.value.kind == "unreachable"


class Saves(tune.Trainable):
    """Trains until the file is there, and saves nothing unless requested."""

    def setup(self, config):
        self.end, self.count = config["end"], 0

    def step(self):
        self.count += 1
        time.sleep(0.02)
        return {"loss": 1 / self.count, "count": self.count, "done": Path(self.end).exists()}

    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count}


def test_a_trial_saves_a_checkpoint_when_a_client_requests_it(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys, trainable=Saves, num_samples=1)
    client = run.client()
    [first] = with_status(client, "RUNNING")
    key = first["trial_id"]
    client.checkpoint_trial(key)
    folder = tmp_path / "controlled" / "trials" / key
    until(lambda: list(folder.glob("checkpoint_*")))
    run.end.touch()
    [result] = run.wait()
    # The other one is that of its end.
    (requested, metrics), (_, at_end) = sorted(result.best_checkpoints, key=lambda pair: pair[1]["count"])
    assert requested.to_dict() == {"count": metrics["count"]}
    assert first["training_iteration"] <= metrics["count"] < at_end["count"] == result.metrics["count"]


def test_a_run_is_cancelled_and_gone_on_with(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys)
    client = run.client()
    first = with_status(client, "RUNNING", 2)[0]["trial_id"]
    client.pause_trial(first)
    with_status(client, "PAUSED")
    client.hold()
    client.cancel_experiment()
    assert {one.status for one in run.wait()} <= {"PENDING", "PAUSED"}
    run.end.touch()
    results = tune.Tuner.restore(tmp_path / "controlled", train, client=pair).fit()
    assert [one.status for one in results] == ["TERMINATED"] * 3


def test_a_run_is_stopped(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys)
    client = run.client()
    with_status(client, "RUNNING", 2)
    client.stop_experiment()
    assert {one.status for one in run.wait()} == {"TERMINATED"}


def test_a_run_is_stopped_from_its_directory(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys)
    client = run.client()
    with_status(client, "RUNNING", 2)
    assert main(["stop", str(tmp_path / "controlled"), "--token", client._token]) == 0
    assert capsys.readouterr().out == f"{client.url} is being stopped\n"
    assert {one.status for one in run.wait()} == {"TERMINATED"}
    assert main(["stop", str(tmp_path / "controlled")]) == 0
    assert capsys.readouterr().out == "controlled is not running: it is finished\n"


def test_a_submitted_driver_cannot_have_a_server(pair, tmp_path):
    tuner = tune.Tuner(
        train,
        param_space={"x": 1, "end": tmp_path / "end"},
        run_config=tune.RunConfig(name="far", storage_path=tmp_path, server_port=0),
        client=pair,
    )
    with pytest.raises(ConfigError, match="server_port must be left out"):
        tuner.submit()


class Counting(tune.Trainable):
    """Counts its steps until somebody has put a file there that lets it end."""

    def setup(self, config):
        self.count, self.restored = 0, False

    def step(self):
        self.count += 1
        time.sleep(0.02)
        done = Path(self.config["end"]).exists() and self.restored
        return {"loss": 1 / self.count, "restored": self.restored, "done": done}

    def save_checkpoint(self, directory):
        (Path(directory) / "count").write_text(str(self.count))

    def load_checkpoint(self, directory):
        self.count, self.restored = int((Path(directory) / "count").read_text()), True


def test_a_trial_that_was_paused_resumes_where_it_was(pair, tmp_path, capsys):
    run = Run(pair, tmp_path, capsys, trainable=Counting, num_samples=1)
    client = run.client()
    key = with_status(client, "RUNNING")[0]["trial_id"]
    until(lambda: client.get_trial(key)["training_iteration"] > 2)
    client.pause_trial(key)
    [paused] = with_status(client, "PAUSED")
    assert not paused["last_result"]["restored"]
    client.unpause_trial(key)
    run.end.touch()
    [result] = run.wait()
    assert result.metrics["restored"]
    iterations = [row["training_iteration"] for row in result.history]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) > paused["training_iteration"]
    assert [row["restored"] for row in result.history].count(False) == paused["training_iteration"]
