"""The command line on real clusters."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import PATIENCE, journal, until

import dasktune as tune
from dasktune.cli import main

pytestmark = pytest.mark.cluster

SCRIPT = """
import os, time
import dasktune as tune

def train(config):
    for step in range(1, 4):
        tune.report({"loss": config["x"] / step})

def fails(config):
    raise ValueError("no such luck")

def waits(config):
    while True:
        tune.report({"loss": config["x"]})
        if os.path.exists(config["gate"]):
            return
        time.sleep(0.05)
"""


def waits(config):
    tune.report({"loss": 1.0})
    while True:
        tune.report({"loss": 1.0})


def reports(place):
    return journal(place, event="ResultReported")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "cli_script.py").write_text(SCRIPT)
    return str(tmp_path / "cli_script.py")


def test_an_experiment_of_the_command_line_is_read_by_the_command_line(
    pair, script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    flags = ["--space", '{"x": ["uniform", 0, 1]}', "--metric", "loss", "--mode", "min", "--seed=1"]
    flags += ["--num-samples=6", "--scheduler=asha", "--scheduler-arg=max_t=3", "--quiet"]
    place = ["--storage-path", str(tmp_path / "res"), "--address", pair.scheduler_address]
    assert main(["run", f"{script}:train", *flags, *place, "--name=exp"]) == 0
    failing = ["--num-samples=1", "--quiet", *place, "--name=bad"]
    assert main(["run", f"{script}:fails", "--space", '{"x": 1}', *failing]) == 1
    assert capsys.readouterr().out == ""

    assert main(["ls", str(tmp_path / "res")]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[:4] for row in rows] == [
        ["bad", "finished", "1", "ERROR"],
        ["exp", "finished", "6", "TERMINATED"],
    ]
    where = str(tmp_path / "res" / "exp")
    assert main(["trials", where, "--filter", "x < 0.9", "--sort", "loss", "--format=json"]) == 0
    trials = json.loads(capsys.readouterr().out)
    assert main(["best", where, "--format=json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert (best["trial_id"], best["value"]) == (trials[0]["trial_id"], trials[0]["loss"])
    assert main(["show", where]) == 0
    shown = capsys.readouterr().out
    assert "scheduler    ASHAScheduler(max_t=3)" in shown
    assert "The experiment is finished." in shown
    assert main(["errors", str(tmp_path / "res" / "bad")]) == 0
    assert "ValueError: no such luck" in capsys.readouterr().out
    sys.modules.pop("cli_script", None)


def test_what_ctrl_c_has_ended_is_resumed(pair, script, tmp_path):
    gate = tmp_path / "gate"
    space = json.dumps({"x": ["grid_search", [1, 2]], "gate": str(gate)})
    flags = ["--space", space, "--metric", "loss", "--mode", "min", "--name", "run"]
    flags += ["--address", pair.scheduler_address]
    command = [sys.executable, "-m", "dasktune"]
    begun = [*command, "run", f"{script}:waits", "--storage-path", str(tmp_path), *flags]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: (tmp_path / "run" / "journal").exists())
        until(lambda: len({one["trial_id"] for one in reports(tmp_path)}) == 2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "dasktune show" in out
    where = str(tmp_path / "run")
    listed = subprocess.run([*command, "ls", where], capture_output=True, text=True, check=True)
    assert "interrupted" in listed.stdout
    gate.touch()
    resumed = [*command, "resume", where, f"{script}:waits", "--address", pair.scheduler_address]
    done = subprocess.run(resumed, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "unpickling" in done.stderr
    assert "2 TERMINATED" in done.stdout


def test_stop_ends_what_was_submitted(pair, tmp_path, capsys):
    tuner = tune.Tuner(
        waits,
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=tmp_path, name="cli-stopped", verbose=0),
        client=pair.scheduler_address,
    )
    with tuner.submit() as experiment:
        until(lambda: (tmp_path / "cli-stopped" / "journal").exists())
        flags = ["--address", pair.scheduler_address]
        assert main(["share", "cli-stopped", "--weight", "2", *flags]) == 0
        assert capsys.readouterr().out == "cli-stopped now has weight 2\n"
        until(lambda: journal(tmp_path, "cli-stopped", event="ShareRequested"))
        [share] = journal(tmp_path, "cli-stopped", event="ShareRequested")
        assert (share["weight"], share["priority"]) == (2.0, None)
        assert main(["stop", "cli-stopped", *flags]) == 0
        assert capsys.readouterr().out == "cli-stopped is being stopped\n"
        experiment.result(timeout=PATIENCE)
        assert main(["stop", "cli-stopped", *flags]) == 0
        assert capsys.readouterr().out == "cli-stopped has finished already\n"
        assert main(["stop", "another", *flags]) == 2
        assert "['cli-stopped']" in capsys.readouterr().err
        experiment.forget()


def test_doctor_finds_a_healthy_cluster_healthy_and_leaves_nothing_behind(pair, tmp_path, capsys):
    place = tmp_path / "storage"
    flags = ["--address", pair.scheduler_address, "--storage-path", str(place), "--timeout=60"]
    assert main(["doctor", *flags, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["level"] for one in found} == {"ok"}
    subjects = {one["subject"] for one in found}
    assert subjects >= {"connection", "workers", "python", "dasktune", "distributed", "clock"}
    assert [one["finding"] for one in found if one["subject"] == "storage"] == [
        f"{place} can be used from here",
        "1 host reads and writes the same",
    ]
    assert not place.exists()
    assert main(["doctor", *flags]) == 0
    assert "0 to fix" in capsys.readouterr().out


def test_doctor_says_what_a_sick_cluster_needs(fleet, tmp_path, capsys):
    fleet.add_worker(dasktune=False)
    fleet.add_worker()
    with fleet.client() as client:
        client.wait_for_workers(2, timeout=PATIENCE)
    (tmp_path / "file").touch()
    flags = ["--address", fleet.address, "--storage-path", str(tmp_path / "file"), "--timeout=60"]
    assert main(["doctor", *flags]) == 1
    out = capsys.readouterr().out
    assert "warn  workers      2 without a nanny" in out
    assert "fail  storage      storage_path must be" in out
    assert "\n                   -> " in out
    assert main(["doctor", "--address", "tcp://127.0.0.1:1", "--timeout=2"]) == 1
    assert capsys.readouterr().out.startswith("fail  connection   no Dask scheduler answered")


def test_doctor_warns_once_of_a_cluster_without_workers(fleet, capsys):
    fleet.keep(0)
    assert main(["doctor", "--address", fleet.address, "--timeout=60"]) == 0
    out = capsys.readouterr().out
    assert "warn  workers      there are none" in out
    assert out.endswith(" ok, 1 to improve, 0 to fix\n")


def test_doctor_imports_dasktune_on_each_worker(fleet, tmp_path, capsys):
    def spoil():
        import sys

        # As if something that it needs were missing.
        sys.modules["dasktune"] = None

    fleet.add_worker()
    with fleet.client() as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        client.run(spoil)
    flags = ["--address", fleet.address, "--storage-path", str(tmp_path), "--timeout=60"]
    assert main(["doctor", *flags]) == 1
    out = capsys.readouterr().out
    assert re.search(r"fail  dasktune     cannot be imported on \d: ModuleNotFoundError", out)
    # Nothing else is said to fail for that.
    assert out.endswith(", 1 to fix\n")
