from __future__ import annotations

import logging
import pickle
import sys
from functools import partial

import pytest

from dasktune import registry
from dasktune.errors import ConfigError
from dasktune.registry import (
    RegistrationError,
    get_env,
    get_trainable,
    register_env,
    register_trainable,
)
from dasktune.trainable import Trainable


def train(config):
    return {"loss": 0.0}


class Model(Trainable):
    def step(self):
        return {"loss": 0.0}


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_trainables", {})
    monkeypatch.setattr(registry, "_envs", {})


@pytest.mark.parametrize("trainable", [train, Model, partial(train), lambda config: None])
def test_whatever_can_be_called_can_be_named(trainable):
    register_trainable("mine", trainable)
    assert get_trainable("mine") is trainable


def test_trainables_and_envs_do_not_share_their_names():
    register_trainable("mine", train)
    register_env("mine", Model)
    assert get_trainable("mine") is train
    assert get_env("mine") is Model


class Plain:
    """A class of the user's that is no Trainable."""

    def step(self):
        return {"loss": 0.0}


@pytest.mark.parametrize("thing", [Plain, dict, Model({}), Plain(), None, 4, {"loss": 0.0}])
def test_a_trainable_is_a_function_or_a_class_of_ours(thing):
    rule = r"trainable 'mine' must be a function or a subclass of Trainable, got "
    with pytest.raises(RegistrationError, match=rule):
        register_trainable("mine", thing)
    with pytest.raises(ConfigError, match="nothing is registered"):
        get_trainable("mine")


def test_a_class_is_refused_even_before_any_trainable_was_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "dasktune.trainable.api.trainable")
    with pytest.raises(RegistrationError, match="subclass of Trainable"):
        register_trainable("mine", Plain)
    register_env("mine", Plain)


@pytest.mark.parametrize("register", [register_trainable, register_env])
@pytest.mark.parametrize(("name", "thing"), [(3, train), ("", train), ("mine", "train")])
def test_a_wrong_registration_is_a_type_error_and_a_config_error(register, name, thing):
    with pytest.raises(RegistrationError) as raised:
        register(name, thing)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ConfigError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_an_unknown_name_lists_the_known_ones():
    register_trainable("resnet", train)
    register_trainable("mlp", train)
    with pytest.raises(ConfigError, match=r"\('mlp', 'resnet'\), got 'gan'\. Call register_trainable"):
        get_trainable("gan")


def test_a_misspelt_name_is_corrected():
    register_trainable("resnet", train)
    with pytest.raises(ConfigError, match=r"got 'resent'\. Did you mean 'resnet'\?"):
        get_trainable("resent")


def test_an_empty_registry_says_so():
    with pytest.raises(ConfigError, match="nothing is registered"):
        get_env("cartpole")


def test_a_replaced_trainable_is_warned_about_once_it_is_another(caplog):
    with caplog.at_level(logging.WARNING):
        register_trainable("mine", train)
        register_trainable("mine", train)
        register_trainable("mine", Model, warn=False)
        assert not caplog.records
        register_trainable("mine", train)
    assert "'mine' now refers to another object" in caplog.text
    assert get_trainable("mine") is train
