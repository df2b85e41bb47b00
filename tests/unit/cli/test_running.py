"""What run and resume make of their arguments; nothing here needs a cluster."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dasktune.cli.commands import run as run_command
from dasktune.cli.fitting import fit
from dasktune.config.resume_config import ResumeConfig, ResumeType
from dasktune.errors import TrialError
from dasktune.schedulers import AsyncHyperBandScheduler
from dasktune.search import QuasiRandomSearch
from dasktune.tuner.tuner import Tuner

SCRIPT = """
def train(config):
    return {"loss": config["x"]}
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    place = tmp_path / "cli_script_to_run.py"
    place.write_text(SCRIPT)
    yield f"{place}:train"
    sys.modules.pop("cli_script_to_run", None)


class Outcome:
    """The results of a run."""

    experiment_path = "/somewhere/exp"

    def __init__(self, num_errors=0):
        self.num_errors = num_errors

    def __repr__(self):
        return "the results \x1b[31m"


class FakeTuner:
    """Keeps its arguments, and its run ends in the way that a test wants."""

    def __init__(self, trainable=None, *, outcome=None, interrupted=False, **given):
        self.trainable, self.given = trainable, given
        self.outcome = Outcome() if outcome is None else outcome
        self.runner = SimpleNamespace(interrupted=interrupted)

    def fit(self):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Made(list):
    """The tuners that ``run`` has made, all with one outcome."""

    outcome = None


@pytest.fixture
def made(monkeypatch):
    """The tuners that ``run`` has made, none of which runs anything."""
    tuners = Made()

    def make(*args, **given):
        Tuner(*args, **given)  # which checks its arguments
        tuners.append(FakeTuner(*args, outcome=tuners.outcome, **given))
        return tuners[-1]

    monkeypatch.setattr(run_command, "Tuner", make)
    return tuners


def test_every_flag_of_run_reaches_the_tuner(script, made, tmp_path, dasktune):
    flags = {
        "--space": '{"x": ["uniform", 0, 1]}',
        "--metric": "loss",
        "--mode": "max",
        "--num-samples": "7",
        "--scheduler": "asha",
        "--searcher": "quasi_random",
        "--address": "tcp://host:8786",
        "--name": "exp",
        "--storage-path": str(tmp_path),
        "--stop": "training_iteration=9",
        "--max-concurrent": "3",
        "--time-budget": "60",
        "--resources": "cpu=2,gpu=0.5",
        "--max-failures": "2",
        "--seed": "5",
    }
    given = [word for pair in flags.items() for word in pair]
    given += ["--scheduler-arg", "max_t=27", "--scheduler-arg", "grace_period=3"]
    code, out, _ = dasktune("run", script, *given, "--searcher-arg", "seed=1")
    assert code == 0
    [tuner] = made
    tune, run = tuner.given["tune_config"], tuner.given["run_config"]
    assert (tune.metric, tune.mode, tune.num_samples, tune.seed) == ("loss", "max", 7, 5)
    assert isinstance(tune.scheduler, AsyncHyperBandScheduler)
    assert tune.scheduler.max_t == 27
    assert isinstance(tune.search_alg, QuasiRandomSearch)
    assert (tune.max_concurrent_trials, tune.time_budget) == (3, 60.0)
    assert (run.name, run.storage_path, run.failure_config.max_failures) == (
        "exp",
        str(tmp_path),
        2,
    )
    assert run.stop == {"training_iteration": 9}
    assert tuner.trainable.resources.required_resources == {"CPU": 2, "GPU": 0.5}
    assert tuner.given["client"] == "tcp://host:8786"
    assert out == "the results ?[31m\nMore: dasktune best /somewhere/exp\n"


def test_run_learns_from_each_place(script, made, tmp_path, dasktune):
    flags = ["--space", '{"x": ["uniform", 0, 1]}', "--metric", "loss", "--mode", "min"]
    here, there = str(tmp_path), str(tmp_path / "there")
    places = ["--learn-from", here, "--learn-from", there]
    assert dasktune("run", script, *flags, *places)[0] == 0
    assert made[-1].given["tune_config"].learn_from == [here, there]
    code, _, err = dasktune("run", script, *flags, *places, "--searcher", "optuna")
    assert code == 2
    assert "--searcher must be left out with --learn-from" in err


@pytest.mark.parametrize(
    ("outcome", "interrupted", "code", "hint"),
    [
        (Outcome(), False, 0, "dasktune best"),
        (Outcome(num_errors=1), False, 1, "dasktune errors"),
        (Outcome(), True, 130, "dasktune show"),
        (TrialError("t", "ValueError: \x1b[31m no", "trace"), False, 1, ""),
    ],
)
def test_the_exit_code_tells_how_it_ended(outcome, interrupted, code, hint, capsys):
    tuner = FakeTuner(outcome=outcome, interrupted=interrupted)
    assert fit(tuner, quiet=False) == code
    out, err = capsys.readouterr()
    assert hint in out
    assert "\x1b" not in out + err
    assert fit(tuner, quiet=True) == code
    assert not capsys.readouterr().out


def test_a_ctrl_c_that_nothing_has_handled_ends_the_command(script, made, dasktune):
    made.outcome = KeyboardInterrupt()
    code, out, _ = dasktune("run", script, "--space", '{"x": 1}')
    assert (code, out) == (130, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scheduler", "nope"], "scheduler must be one of fifo"),
        (["--scheduler", "asha", "--scheduler-arg", "maxt=3"], "max_t"),
        (["--scheduler-arg", "max_t=3"], "--scheduler must be given with --scheduler-arg"),
        (["--num-samples", "0"], "num_samples must be a positive int"),
        (["--num-samples", "many"], "invalid int value: 'many'"),
        (["--mode", "maximum"], "invalid choice: 'maximum'"),
        (["--resources", "cpu"], "--resources must be KEY=VALUE, got 'cpu'"),
        (["--resources", "cpu=lots"], "lots"),
        (["--metric", "loss"], "mode must be 'min' or 'max', got None"),
        (["--spac", "{}"], "unrecognized arguments: --spac"),
    ],
)
def test_a_wrong_flag_costs_one_line_and_starts_nothing(flags, message, script, made, dasktune):
    code, out, err = dasktune("run", script, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert made == []


def test_resume_says_that_it_unpickles_and_passes_on_the_flags_for_trials(
    script, path, dasktune, monkeypatch
):
    asked = {}

    def restore(where, trainable, **options):
        asked.update(options, where=where, trainable=trainable.__name__)
        return FakeTuner(trainable)

    monkeypatch.setattr(Tuner, "restore", restore)
    code, _, err = dasktune("resume", path, script, "--errored", "restart", "--address", "tcp://a:1")
    assert code == 0
    assert "unpickling" in err
    assert "directories that you trust" in err
    assert (asked["where"], asked["trainable"], asked["client"]) == (path, "train", "tcp://a:1")
    assert asked["resume_config"] == ResumeConfig(errored=ResumeType.RESTART)


def test_resume_of_nothing_is_a_users_mistake(script, tmp_path, dasktune):
    code, _, err = dasktune("resume", str(tmp_path / "no"), script)
    assert code == 2
    assert "no experiment is stored at" in err
