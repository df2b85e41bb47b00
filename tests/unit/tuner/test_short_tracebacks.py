"""Errors that a sentence explains come without the way to where they were noticed."""

from __future__ import annotations

import traceback

import pytest

import dasktune as tune
from dasktune.errors import ConfigError, PreflightError, StorageError, TrialError
from dasktune.tuner.short_tracebacks import short_tracebacks


def _raise(error: Exception) -> None:
    raise error


def test_what_users_see_of_an_error_is_the_line_that_they_called_and_the_sentence(tmp_path):
    with pytest.raises(StorageError) as raised:
        tune.Tuner.restore(tmp_path / "nothing", lambda config: None)
    told = "".join(traceback.format_exception(raised.value))
    assert str(tmp_path / "nothing") in told
    assert "direct cause" not in told
    assert "During handling" not in told
    assert len(traceback.extract_tb(raised.value.__traceback__)) <= 3


def test_a_way_through_code_of_the_user_s_stays():
    @short_tracebacks
    def call(function):
        function()

    with pytest.raises(ConfigError) as raised:
        call(lambda: _raise(ConfigError("x must be 1, got 2")))
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-1] == "_raise"


def test_ctrl_c_shows_the_line_that_was_interrupted_and_not_where_dasktune_waited():
    twice = compile("try: raise KeyboardInterrupt\nfinally: raise KeyboardInterrupt", "<string>", "exec")

    @short_tracebacks
    def call() -> None:
        exec(twice)

    with pytest.raises(KeyboardInterrupt) as raised:
        call()
    told = "".join(traceback.format_exception(raised.value))
    assert "During handling" not in told
    assert "<string>" not in told


def test_a_cause_that_the_user_s_code_has_raised_stays():
    def theirs() -> None:
        raise KeyError("depth")

    @short_tracebacks
    def call() -> None:
        try:
            theirs()
        except KeyError as error:
            raise PreflightError("resources must be given") from error

    with pytest.raises(PreflightError) as raised:
        call()
    assert isinstance(raised.value.__cause__, KeyError)


def test_the_story_of_a_trial_stays():
    @short_tracebacks
    def call() -> None:
        raise ConfigError("lr must be small, got 2") from TrialError("a", "ConfigError: lr", "...")

    with pytest.raises(ConfigError) as raised:
        call()
    assert isinstance(raised.value.__cause__, TrialError)


def test_what_was_cut_away_stands_in_the_log(caplog):
    run_config = tune.RunConfig(storage_path="nosuch://x/y", name="e", verbose=0)
    tuner = tune.Tuner(lambda config: {"loss": 1}, run_config=run_config)
    with caplog.at_level("DEBUG", "dasktune"), pytest.raises(PreflightError) as raised:
        tuner.fit()
    told = "".join(traceback.format_exception(raised.value))
    assert "probe.py" not in told
    assert len(told.splitlines()) < 20
    assert "storage_path must be" in told
    assert "probe.py" in caplog.text


def test_other_errors_and_results_pass_as_they_are():
    @short_tracebacks
    def call(value):
        return 1 / value

    assert call(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        call(0)


def test_a_circle_of_causes_has_an_end():
    error = ConfigError("x must be 1, got 2")
    other = ValueError("of it")
    error.__cause__, other.__cause__ = other, error

    @short_tracebacks
    def call() -> None:
        raise error

    with pytest.raises(ConfigError):
        call()
