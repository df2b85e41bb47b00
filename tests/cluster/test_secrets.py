"""A secret of a configuration reaches the trial, and no file of the experiment."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback

VALUE = "correct horse battery staple"
VARIABLE = "DASKTUNE_TEST_PASSWORD"


def train(config):
    digest = hashlib.sha256(config["login"]["password"].encode()).hexdigest()
    for step in range(2):
        tune.report({"loss": config["x"] + step, "digest": digest})


def tuner(cluster, tmp_path):
    return tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1), "login": {"user": "me", "password": tune.secret(VARIABLE)}},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
        run_config=tune.RunConfig(
            name="exp",
            storage_path=tmp_path,
            log_to_file=True,
            callbacks=[CSVLoggerCallback(), JsonLoggerCallback()],
        ),
        client=cluster,
    )


def test_a_secret_is_read_by_trials_and_is_in_no_file_and_no_log(pair, tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level(logging.DEBUG, logger="dasktune")
    monkeypatch.setenv(VARIABLE, VALUE)
    results = tuner(pair, tmp_path).fit()
    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    assert [one.metrics["digest"] for one in results] == [digest] * 2
    assert results[0].config["login"] == {"user": "me", "password": tune.secret(VARIABLE)}
    files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert len(files) > 10
    for form in (VALUE, VALUE.replace(" ", "+")):
        assert [path for path in files if form.encode() in path.read_bytes()] == []
    told = capsys.readouterr()
    assert VALUE not in caplog.text + told.out + told.err
    # A restored experiment reads the variable again: it may have changed.
    monkeypatch.setenv(VARIABLE, "changed")
    more = tune.TuneConfig(metric="loss", mode="min", num_samples=3)
    restored = tune.Tuner.restore(tmp_path / "exp", train, tune_config=more, client=pair)
    digests = {one.metrics["digest"] for one in restored.fit()}
    assert digests == {digest, hashlib.sha256(b"changed").hexdigest()}


def test_an_experiment_without_its_secret_does_not_start(pair, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=rf"secret\('{VARIABLE}'\) must be a variable in the environment"):
        tuner(pair, tmp_path).fit()
