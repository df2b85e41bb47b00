"""What travels with the trainable, and what apart from it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

import dasktune as tune
from dasktune.cluster.protocol.payload import Payload, pack_trainable
from dasktune.errors import ConfigError
from dasktune.trainable.data.shared_objects import RemoteObject, loads_with

LARGE = np.zeros(200_000)
OTHER = np.ones(200_000)


def train(config: dict[str, Any], data: Any, **more: Any) -> Any:
    return data, more


class Model(tune.Trainable):
    def setup(self, config: dict[str, Any], data: Any = None, more: Any = None) -> None:
        self.got = data, more

    def step(self) -> dict[str, Any]:
        return {}


def opened(payload: Payload) -> Any:
    return loads_with(payload.blob, payload.objects.__getitem__)["trainable"]


def test_a_large_object_is_not_in_the_pickle_and_a_small_one_is() -> None:
    payload = pack_trainable(tune.with_parameters(train, data=LARGE, small=np.zeros(3)))
    assert len(payload.blob) < 10_000
    assert list(payload.objects) == ["data-0"]
    assert payload.objects["data-0"] is LARGE
    assert payload.size > LARGE.nbytes
    data, more = opened(payload)({})
    assert data is LARGE
    np.testing.assert_array_equal(more["small"], np.zeros(3))


@pytest.mark.parametrize(
    "thing", [LARGE.tolist(), b"x" * 2_000_000, {"a": [LARGE]}], ids=["list", "bytes", "dict"]
)
def test_it_does_not_matter_what_makes_it_large(thing: Any) -> None:
    payload = pack_trainable(tune.with_parameters(train, data=thing))
    assert opened(payload)({})[0] is thing


def test_an_object_that_is_bound_twice_travels_once() -> None:
    payload = pack_trainable(tune.with_parameters(train, data=LARGE, again=LARGE))
    assert list(payload.objects) == ["data-0"]
    data, more = opened(payload)({})
    assert data is more["again"]


@pytest.mark.parametrize(
    "bound",
    [
        tune.with_parameters(tune.with_parameters(Model, data=LARGE), more=OTHER),
        tune.with_resources(tune.with_parameters(Model, data=LARGE, more=OTHER), {"cpu": 2}),
    ],
    ids=["bound twice", "with resources"],
)
def test_what_is_bound_to_a_class_travels_apart_too(bound: Any) -> None:
    payload = pack_trainable(bound)
    assert len(payload.blob) < 20_000
    data, more = opened(payload)().got
    assert data is LARGE
    assert more is OTHER


class There(RemoteObject):
    size = 10
    rebuild_seconds = 7.0

    def begin(self, client: Any, key: str, address: str) -> Any:
        raise NotImplementedError


def test_what_is_on_the_cluster_travels_apart_however_small_it_is() -> None:
    there = There()
    payload = pack_trainable(tune.with_parameters(train, data=there, more=LARGE))
    assert payload.remote == {"data-0": there}
    assert list(payload.frames()) == ["more-1"]
    assert payload.rebuild_seconds == 7.0
    assert payload.size > LARGE.nbytes
    assert opened(payload)({})[0] is there


def test_a_value_that_was_bound_over_is_not_in_the_pickle_either() -> None:
    bound = tune.with_parameters(tune.with_parameters(Model, data=LARGE), data=OTHER)
    payload = pack_trainable(bound)
    assert len(payload.blob) < 20_000
    assert opened(payload)().got[0] is OTHER


def test_a_trainable_without_parameters_has_no_objects() -> None:
    assert pack_trainable(len) == Payload(blob=pack_trainable(len).blob)


def test_what_cannot_be_pickled_is_named_as_ever() -> None:
    with pytest.raises(ConfigError, match=r"trainable must be picklable.*lock"):
        pack_trainable(tune.with_parameters(train, data=threading.Lock()))


def test_large_objects_elsewhere_get_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    huge = np.zeros(2_000_000)
    with caplog.at_level(logging.WARNING):
        pack_trainable(lambda config: huge.sum())
    assert "16 MB" in caplog.text
    assert "with_parameters()" in caplog.text


def test_frames_are_those_of_the_objects_and_are_no_copies() -> None:
    payload = pack_trainable(tune.with_parameters(train, data=LARGE))
    [frames] = payload.frames().values()
    assert np.shares_memory(np.frombuffer(frames[1]), LARGE)
