"""The driver reads secrets from its environment, and says what it lacks."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.runner.secret_values import check_secrets, names_by_value, with_secrets
from dasktune.space import secret


def test_a_trial_gets_the_value_of_the_driver_s_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DASKTUNE_A_SECRET", "value")
    config = {"x": 1, "key": secret("DASKTUNE_A_SECRET")}
    assert with_secrets(config) == {"x": 1, "key": "value"}
    assert names_by_value(config) == (("value", "DASKTUNE_A_SECRET"),)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DASKTUNE_A_SECRET", raising=False)
    for use in (check_secrets, with_secrets):
        with pytest.raises(ConfigError, match=r"secret\('DASKTUNE_A_SECRET'\) must be a variable"):
            use({"key": secret("DASKTUNE_A_SECRET")})


def test_a_credential_that_will_be_stored_is_warned_of_without_its_value(caplog: pytest.LogCaptureFixture):
    check_secrets({"lr": 0.1, "login": {"password": "hunter2"}})
    assert "called like credentials: password. They are stored in plain text" in caplog.text
    assert "hunter2" not in caplog.text
