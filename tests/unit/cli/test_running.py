"""What run and resume make of their arguments; nothing here needs a cluster."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

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
    """What a run came to."""

    experiment_path = "/somewhere/exp"

    def __init__(self, num_errors=0):
        self.num_errors = num_errors

    def __repr__(self):
        return "the results \x1b[31m"


@pytest.fixture
def fitted(monkeypatch):
    """Keep what would be run, and let it come to what a test wants."""
    kept = SimpleNamespace(tuner=None, outcome=Outcome(), interrupted=False)

    def fit(tuner):
        kept.tuner = tuner
        tuner._runner = SimpleNamespace(interrupted=kept.interrupted)
        if isinstance(kept.outcome, Exception):
            raise kept.outcome
        return kept.outcome

    monkeypatch.setattr(Tuner, "fit", fit)
    return kept


def test_every_flag_of_run_comes_to_the_tuner(script, fitted, tmp_path, dasktune):
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
    tune, run = fitted.tuner._tune_config, fitted.tuner._run_config
    assert code == 0
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
    assert fitted.tuner._trainable.resources.required_resources == {"CPU": 2, "GPU": 0.5}
    assert fitted.tuner._client == "tcp://host:8786"
    assert out == "the results ?[31m\nMore: dasktune best /somewhere/exp\n"


@pytest.mark.parametrize(
    ("outcome", "interrupted", "code", "hint"),
    [
        (Outcome(), False, 0, "dasktune best"),
        (Outcome(num_errors=1), False, 1, "dasktune errors"),
        (Outcome(), True, 130, "dasktune show"),
        (KeyboardInterrupt(), False, 130, ""),
        (TrialError("t", "ValueError: \x1b[31m no", "trace"), False, 1, ""),
    ],
)
def test_the_exit_code_tells_how_it_ended(
    outcome, interrupted, code, hint, script, fitted, dasktune, monkeypatch
):
    fitted.outcome, fitted.interrupted = outcome, interrupted
    if isinstance(outcome, KeyboardInterrupt):
        monkeypatch.setattr(Tuner, "fit", lambda tuner: (_ for _ in ()).throw(outcome))
    found, out, err = dasktune("run", script, "--space", '{"x": 1}')
    assert found == code
    assert hint in out
    assert "\x1b" not in out + err
    assert not dasktune("run", script, "--quiet", "--space", '{"x": 1}')[1]


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
def test_a_wrong_flag_costs_one_line_and_starts_nothing(flags, message, script, fitted, dasktune):
    code, out, err = dasktune("run", script, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert fitted.tuner is None


def test_resume_says_that_it_unpickles_and_hands_on_what_becomes_of_trials(
    script, fitted, path, dasktune, monkeypatch
):
    asked = {}

    def restore(where, trainable, **options):
        asked.update(options, where=where, trainable=trainable.__name__)
        return Tuner(trainable)

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
