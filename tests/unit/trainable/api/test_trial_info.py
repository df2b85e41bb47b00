"""Which trial it is, in one value."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from trial_run_kit import Driver, make_spec

import dasktune as tune
from dasktune.trainable.api.session import TrialInfo, TuneContext
from dasktune.trial.resources import PlacementGroupFactory

HERE = TrialInfo(
    experiment_name="exp",
    trial_id="t1",
    trial_name="train_t1",
    trial_resources=PlacementGroupFactory([{"CPU": 1}]),
)


def told(trainable: Any) -> list[Any]:
    """Run a trial, and return what it has put into a list of its configuration."""
    notes: list[Any] = []
    Driver(trainable, config={"notes": notes}).end()
    return notes


def test_it_says_what_the_context_says():
    context = TuneContext(make_spec())
    assert context.trial_info == HERE
    assert context.trial_info.experiment_name == context.get_experiment_name()
    assert context.trial_info.trial_resources == context.get_trial_resources()


def test_a_function_has_its_own_and_may_hand_it_to_a_thread():
    def train(config: dict[str, Any]) -> None:
        info = tune.get_context().trial_info
        with ThreadPoolExecutor(1) as pool:
            # There is no trial around that thread, and the value needs none.
            config["notes"].append(pool.submit(lambda: (info.trial_name, info)).result())

    assert told(train) == [("train_t1", HERE)]


def test_a_class_has_it_from_its_setup_on():
    class Model(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            config["notes"].append(self.trial_info)

        def step(self) -> dict[str, Any]:
            self.config["notes"].append(self.trial_info)
            return {"done": True}

    assert told(Model) == [HERE, HERE]


def test_outside_of_a_trial_a_class_has_none():
    class Model(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {}

    assert Model().trial_info is None


def test_it_is_a_value_that_travels():
    again = pickle.loads(pickle.dumps(HERE))
    assert again == HERE
    assert hash(again) == hash(HERE)
    assert len({HERE, again}) == 1
    assert "trial_id='t1'" in repr(HERE)
    with pytest.raises(FrozenInstanceError):
        HERE.trial_id = "t2"  # type: ignore[misc]
    with pytest.raises(TypeError):
        TrialInfo("exp", "t1", "train_t1", HERE.trial_resources)  # type: ignore[call-arg, misc]
