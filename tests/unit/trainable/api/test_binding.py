from __future__ import annotations

import functools
import sys
import types

import cloudpickle
import pytest

from dasktune.config import RunConfig
from dasktune.errors import ConfigError, TuneError
from dasktune.trainable.api.binding import (
    code_address,
    default_resources,
    experiment_name,
    resource_help,
    trainable_name,
    validate_trainable,
    with_parameters,
    with_resources,
)
from dasktune.trainable.api.trainable import Trainable
from dasktune.trial.resources import PlacementGroupFactory, Resources


def train(config):
    return config["x"]


def train_on(config, data, *, scale=1):
    return config["x"] * sum(data) * scale


async def coroutine(config):
    return 1.0


async def asynchronous_generator(config):
    yield 1.0


class CallableObject:
    def __call__(self, config):
        return 1.0

    def method(self, config):
        return 2.0


class AsynchronousObject:
    async def __call__(self, config):
        return 1.0


class Model(Trainable):
    """A model."""

    def setup(self, config, data=(), scale=1):
        self.total = config["x"] * sum(data) * scale

    def step(self):
        return {"total": self.total}


class Greedy(Model):
    @classmethod
    def default_resource_request(cls, config):
        return PlacementGroupFactory([{"CPU": config["cpus"]}])


ONE_CPU = PlacementGroupFactory([{"CPU": 1}])
TWO_CPUS = PlacementGroupFactory([{"CPU": 2}])


@pytest.mark.parametrize(
    "trainable",
    [
        train,
        lambda config: 1.0,
        lambda config, verbose=False: 1.0,
        functools.partial(train_on, data=[1]),
        CallableObject(),
        CallableObject().method,
        with_parameters(train_on, data=[1]),
        with_resources(train, {"cpu": 1}),
        Model,
        with_parameters(Model, data=[1]),
    ],
)
def test_what_takes_one_configuration_can_be_tuned(trainable):
    validate_trainable(trainable)


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (lambda: 1.0, "exactly one positional argument"),
        (train_on, "exactly one positional argument"),
        (lambda *, config: 1.0, "exactly one positional argument"),
        (lambda config, reporter: 1.0, r"call dasktune\.report\(\{\.\.\.\}\) instead"),
        (lambda config, checkpoint_dir: 1.0, r"call dasktune\.get_checkpoint\(\) instead"),
        (lambda config, data: 1.0, r"Bind other arguments with with_parameters\(\)"),
        (coroutine, "a plain function, not a coroutine"),
        (asynchronous_generator, "a plain function, not a coroutine"),
        (functools.partial(coroutine), "a plain function, not a coroutine"),
        (AsynchronousObject(), "a plain function, not a coroutine"),
        ({}.update, "whose arguments are known"),
        (int, "a subclass of Trainable"),
        (Trainable, "that defines step"),
        (Model({"x": 1}), "Pass the class and not an object"),
        ("train", "a function or a subclass of Trainable"),
    ],
)
def test_anything_else_is_refused(trainable, message):
    with pytest.raises(ConfigError, match=message):
        validate_trainable(trainable)


@pytest.mark.parametrize(
    ("trainable", "name"),
    [
        (train, "train"),
        (lambda config: 1.0, "lambda"),
        (functools.partial(train_on, data=[1]), "train_on"),
        (with_parameters(train_on, data=[1]), "train_on"),
        (CallableObject(), "CallableObject"),
        (CallableObject().method, "method"),
        (Model, "Model"),
        (with_resources(with_parameters(Model, data=[1]), {"cpu": 2}), "Model"),
    ],
)
def test_a_trainable_has_a_name(trainable, name):
    assert trainable_name(trainable) == name


@pytest.mark.parametrize(
    "name", ["a/b", "../a", "a::b", "lr*2", "x\ny", "gro\u0308ße", "", "a" * 190, "é" * 300]
)
def test_an_experiment_is_named_safely_whatever_its_function_is_called(name):
    def train(config):
        pass

    train.__name__ = name
    given = experiment_name(train)
    assert RunConfig(name=given).name == given


def test_parameters_reach_a_function_and_add_up():
    bound = with_parameters(with_parameters(train_on, data=[1, 2]), scale=10)
    assert bound({"x": 2}) == 60
    assert cloudpickle.loads(cloudpickle.dumps(bound))({"x": 2}) == 60


def test_parameters_reach_the_setup_of_a_class_and_add_up():
    bound = with_parameters(with_parameters(Model, scale=10), data=[1, 2])
    assert bound is not Model
    assert bound.__doc__ == "A model."
    restored = cloudpickle.loads(cloudpickle.dumps(bound))
    for trainable in (bound, restored):
        assert trainable({"x": 2}).train()["total"] == 60
    assert Model({"x": 2}).train()["total"] == 0


@pytest.mark.parametrize(
    ("trainable", "parameters"),
    [
        (train, {"data": 1}),
        (train_on, {"scale": 1}),
        (train_on, {"data": 1, "more": 2}),
        (3, {}),
        (Model, {"more": 1}),
    ],
)
def test_parameters_that_do_not_fit_are_refused(trainable, parameters):
    with pytest.raises(ConfigError, match="trainable must be"):
        with_parameters(trainable, **parameters)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpu": 2}, TWO_CPUS),
        (Resources(cpu=2), TWO_CPUS),
        (TWO_CPUS, TWO_CPUS),
        (lambda config: {"cpu": config["cpus"]}, TWO_CPUS),
        (lambda config: TWO_CPUS, TWO_CPUS),
    ],
)
@pytest.mark.parametrize("trainable", [train, Model, with_parameters(train_on, data=[1])])
def test_resources_are_attached_to_any_trainable(trainable, resources, expected):
    bound = with_resources(trainable, resources)
    assert default_resources(bound, {"cpus": 2}) == expected
    assert default_resources(trainable, {"cpus": 2}) == ONE_CPU
    restored = cloudpickle.loads(cloudpickle.dumps(bound))
    assert default_resources(restored, {"cpus": 2}) == expected


def test_a_class_states_its_own_needs():
    assert default_resources(Greedy, {"cpus": 2}) == TWO_CPUS


def test_needs_stated_twice_are_refused():
    bound = with_resources(Greedy, {"cpu": 1})
    with pytest.raises(TuneError, match=r"in one place.*Greedy"):
        default_resources(bound, {"cpus": 2})


def test_resources_keep_the_parameters_and_the_other_way_round():
    one = with_resources(with_parameters(train_on, data=[3]), {"cpu": 2})
    two = with_parameters(with_resources(train_on_default, {"cpu": 2}), data=[3])
    for bound in (one, two):
        assert bound({"x": 1}) == 3
        assert default_resources(bound, {}) == TWO_CPUS


def train_on_default(config, data=()):
    return config["x"] * sum(data)


def test_resources_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="resources must be"):
        with_resources(train, 3)


class TestResourceHelp:
    def test_a_class_may_have_something_to_say_and_no_other_has(self):
        class Helpful(Trainable):
            def step(self):
                return {}

            @classmethod
            def resource_help(cls, config):
                return f"Lower {sorted(config)[0]}."

        assert resource_help(Helpful, {"layers": 3}) == "Lower layers."
        assert resource_help(len, {"layers": 3}) == ""
        assert "raised IndexError" in resource_help(Helpful, {})


def test_a_class_must_be_built_of_a_configuration_alone():
    class TakesNothing(Trainable):
        def __init__(self):
            super().__init__({})

        def step(self):
            return {}

    class TakesMore(TakesNothing):
        def __init__(self, config, data):
            super().__init__()

    class TakesAnything(TakesNothing):
        def __init__(self, *args, **kwargs):
            super().__init__()

    for wrong in (TakesNothing, TakesMore):
        match = rf"built of a configuration alone, got {wrong.__name__}\(.*setup\(self, config\)"
        with pytest.raises(ConfigError, match=match):
            validate_trainable(wrong)
    validate_trainable(TakesAnything)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ({"__file__": "/lab/train.py", "__spec__": None}, "/lab/train.py:run"),
        ({"__spec__": types.SimpleNamespace(name="lab.train")}, "lab.train:run"),
        # In a notebook, or after `python -c`.
        ({"__spec__": None}, None),
    ],
)
def test_the_address_of_a_function_of_the_main_program_is_its_script(monkeypatch, module, expected):
    def run(config):
        return config

    run.__module__, run.__qualname__ = "__main__", "run"
    main = types.ModuleType("__main__")
    vars(main).update(module, run=run)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert code_address(run) == expected


def test_what_no_name_leads_to_has_no_address():
    assert code_address(train) == f"{__name__}:train"
    assert code_address(with_parameters(train_on, data=[1])) is None
    assert code_address(functools.partial(train_on, data=[1])) is None
    assert code_address(lambda config: config) is None
