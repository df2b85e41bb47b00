"""Credentials in search spaces: their names are everywhere, their values nowhere."""

from __future__ import annotations

import copy
import pickle

import pytest

from dasktune.errors import ConfigError
from dasktune.space import choice, resolve, secret, to_json, uniform
from dasktune.space.secret import Secret, conceal, credential_names, reveal, secrets_in
from dasktune.storage.journal.json_lines import plain

VALUES = {"A": "first", "B": "second"}


def test_a_secret_has_a_name_and_no_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A", "hunter2")
    one = secret("A")
    for copied in (one, copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert (repr(copied), copied) == ("secret('A')", Secret("A"))
    assert b"hunter2" not in pickle.dumps(one)
    assert plain({"key": one}) == {"key": {"$repr": "secret('A')"}}
    assert to_json({"key": one}) == {"key": {"$object": "secret('A')"}}


@pytest.mark.parametrize("given", ["hunter2!", "", "1A", "a b", None, 3, "x" * 300, "sk-abc"])
def test_a_value_in_place_of_a_name_is_refused_and_not_repeated(given: object):
    with pytest.raises(ConfigError, match="name must be the name of an environment variable") as caught:
        secret(given)  # type: ignore[arg-type]
    assert not given or repr(given) not in str(caught.value)


def test_values_are_put_in_wherever_secrets_are_and_the_original_stays():
    config = {"a": secret("A"), "deep": [1, (secret("B"), {"c": secret("A")})], "same": [1, 2]}
    before = copy.deepcopy(config)
    revealed = reveal(config, VALUES.__getitem__)
    assert revealed == {"a": "first", "deep": [1, ("second", {"c": "first"})], "same": [1, 2]}
    assert revealed["same"] is config["same"]
    assert config == before


def test_values_in_any_copy_of_a_configuration_become_names_again():
    revealed = {"a": "first", "deep": [1, ("second", {"c": "first"})], "same": "text"}
    shown = {"a": "secret('A')", "deep": [1, ("secret('B')", {"c": "secret('A')"})], "same": "text"}
    assert conceal(revealed, {"first": "A", "second": "B"}) == shown


def test_secrets_of_a_space_are_found_in_choices_too():
    space = {"a": choice([secret("A"), "none"]), "b": {"grid_search": [secret("B")]}, "x": uniform(0, 1)}
    assert sorted(one.name for one in secrets_in(space)) == ["A", "B"]


def test_a_secret_is_a_constant_of_each_configuration():
    config = resolve({"x": uniform(0, 1), "key": secret("A")}, random_state=0)
    assert config["key"] == secret("A")


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("password", True),
        ("db_password", True),
        ("API_KEY", True),
        ("token", True),
        ("auth_token", True),
        ("hf_token", True),
        ("client_secret", True),
        ("aws-secret-access-key", True),
        ("credentials", True),
        ("tokenizer", False),
        ("max_tokens", False),
        ("pad_token", False),
        ("key", False),
        ("monkey", False),
        ("activation", False),
    ],
)
def test_names_of_credentials_are_recognised(name: str, warned: bool):
    assert list(credential_names({"deep": [{name: "text"}]})) == [name] * warned
    assert list(credential_names({name: 5})) == []
    assert list(credential_names({name: secret("A")})) == []
