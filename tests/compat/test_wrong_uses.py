"""Wrong uses by beginners: each message says what is wrong, where, and the right spelling."""

from __future__ import annotations

import re
from typing import Any

import pytest

import dasktune as tune
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.search import QuasiRandomSearch

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connected")]


def train(config):
    tune.report({"loss": config.get("x", 1)})


def square(config):
    return config["x"] ** 2


def keyword_metrics(config):
    tune.report(loss=1)


def keyword_steps(config):
    tune.report(loss=1, step=2)


def mixed_metrics(config):
    tune.report({"loss": 1}, acc=2)


def number_reported(config):
    tune.report(0.5)


def path_as_checkpoint(config):
    tune.report({"loss": 1}, checkpoint="model.pt")


def fails(config):
    tune.report({"loss": config["lr"]})


def two_arguments(config, reporter):
    reporter(loss=1)


class Model(tune.Trainable):
    def step(self):
        return {"loss": 1}


class WithoutStep(tune.Trainable):
    pass


class WithoutSuper(tune.Trainable):
    def __init__(self, config):
        self.x = 1

    def step(self):
        return {"loss": 1}


class NumberReturned(tune.Trainable):
    def step(self):
        return 0.5


class Program:
    """What a program may do with the directory of this test."""

    def __init__(self, run_config: Any) -> None:
        self.run_config = run_config

    def fit(self, trainable: Any = train, *, run: Any = None, space: Any = None, **tune_config: Any) -> Any:
        config = tune.TuneConfig(**tune_config)
        run = self.run_config(**(run or {}))
        return tune.Tuner(trainable, param_space=space, tune_config=config, run_config=run).fit()

    def error(self, trainable: Any, **more: Any) -> None:
        raise self.fit(trainable, **more).errors[0]


ONCE = {"stop": {"training_iteration": 1}}
GOAL = {"metric": "loss", "mode": "min"}

#: The program, and what its error must say.
WRONG = {
    "the function is called": (
        lambda _: tune.Tuner(square({"x": 1})),
        "Pass the function itself: train, not",
    ),
    "an object of the class": (lambda _: tune.Tuner(Model()), "Pass the class and not an object: Model."),
    "a space that is a list": (
        lambda _: tune.Tuner(train, param_space=[("lr", 1)]),
        "Write param_space={'lr': uniform(0, 1)}.",
    ),
    "a run_config that is a dict": (
        lambda _: tune.Tuner(train, run_config={"name": "x"}),
        "run_config must be a RunConfig, got {'name': 'x'}. Write run_config=RunConfig(...).",
    ),
    "failures that are a number": (
        lambda _: tune.RunConfig(failure_config=3),
        "Write failure_config=FailureConfig(...).",
    ),
    "a scheduler's class": (
        lambda _: tune.TuneConfig(scheduler=PopulationBasedTraining),
        "A class must be called: scheduler=PopulationBasedTraining().",
    ),
    "a callback without a list": (
        lambda _: tune.RunConfig(callbacks=tune.Callback()),
        "Write callbacks=[MyCallback()]",
    ),
    "an unknown mode": (
        lambda _: tune.TuneConfig(metric="loss", mode="maximize"),
        "'min' or 'max', got 'max",
    ),
    "a mistyped scheduler": (lambda it: it.fit(scheduler="ahsa", **GOAL), "Did you mean 'asha'?"),
    "a mistyped searcher": (lambda it: it.fit(search_alg="optunna", **GOAL), "Did you mean 'optuna'?"),
    "a mistyped argument": (lambda _: tune.run(train, num_sample=3), "Did you mean 'num_samples'?"),
    "a scheduler as the searcher": (
        lambda it: it.fit(search_alg=ASHAScheduler(), **GOAL),
        "search_alg must be a Searcher, a SearchAlgorithm or the name of one",
    ),
    "no metric": (lambda it: it.fit(scheduler=ASHAScheduler()), "Set them in TuneConfig or in Async"),
    "a grid for a searcher": (
        lambda it: it.fit(search_alg=QuasiRandomSearch(), space={"x": tune.grid_search([1])}, **GOAL),
        "param_space['x'] must be a domain or a plain value",
    ),
    "a metric that is not reported": (
        lambda it: it.fit(train, metric="acc", mode="max"),
        "metrics must hold 'acc', got ['loss']. Report it, or name another metric.",
    ),
    "the best by an unknown metric": (
        lambda it: it.fit(space={"x": tune.grid_search([1, 2])}).get_best_result("acc", "max"),
        "none of the 2 trials reported 'acc'; reported: loss",
    ),
    "the best by no metric": (
        lambda it: it.fit(space={"x": tune.grid_search([1, 2])}).get_best_result(),
        "Give it to get_best_result(), or to TuneConfig.",
    ),
    "the best of failures": (
        lambda it: it.fit(fails, space={"x": tune.grid_search([1, 2])}, **GOAL).get_best_result(),
        "All 2 trials failed, the first one (",
    ),
    "the cause of the failures": (
        lambda it: it.fit(fails, space={"x": tune.grid_search([1, 2])}, **GOAL).get_best_result(),
        ") with KeyError: 'lr'. Its traceback is in ",
    ),
    "the best of failures by no metric": (
        lambda it: it.fit(fails, space={"x": tune.grid_search([1, 2])}).get_best_result(),
        "all 2 trials failed, the first one (",
    ),
    "results by a metric's name": (lambda it: it.fit()["loss"], "the best trial is get_best_result()"),
    "keyword metrics": (lambda it: it.fit(keyword_metrics), 'Write report({"loss": 1}).'),
    "keyword metrics as steps": (
        lambda it: it.fit(keyword_steps),
        'Write report({"loss": 1, "step": 2}).',
    ),
    "keyword metrics beside a dict": (lambda it: it.fit(mixed_metrics), 'Write report({"acc": 2}).'),
    "a reported number": (lambda it: it.fit(number_reported), 'Write {"loss": value}.'),
    "a returned number": (lambda it: it.fit(NumberReturned, run=ONCE), 'Write {"loss": value}.'),
    "a path as checkpoint": (
        lambda it: it.fit(path_as_checkpoint),
        "Write Checkpoint.from_directory(path).",
    ),
    "the old reporter": (lambda it: it.fit(two_arguments), "call dasktune.report({...}) instead of reporter"),
    "a class without step": (lambda it: it.fit(WithoutStep), "a subclass of Trainable that defines step()"),
    "an __init__ without super": (
        lambda it: it.error(WithoutSuper, run=ONCE),
        "WithoutSuper.__init__() must call super().__init__(config)",
    ),
    "a stop that is a number": (lambda _: tune.RunConfig(stop=10), "stop={'training_iteration': 10}"),
    "a stop function of one argument": (
        lambda it: it.fit(Model, run={"stop": lambda result: True}),
        "Write def stop(trial_id, result):",
    ),
    "resources that are a number": (lambda _: tune.with_resources(train, 2), 'Write {"cpu": 2, "gpu": 1}.'),
    "a mistyped resource": (
        lambda it: it.fit(tune.with_resources(train, {"cpus": 1})),
        "did you mean 'CPU'?",
    ),
    "resources of ray.remote": (
        lambda _: tune.with_resources(train, {"num_gpus": 1}),
        "got {'num_gpus': 1}. Write {\"gpu\": 1}.",
    ),
    "resources_per_trial of ray.init": (
        lambda _: tune.run(train, resources_per_trial={"num_cpus": 2}),
        'Write {"cpu": 1}.',
    ),
    "a bundle of ray.remote": (
        lambda _: tune.PlacementGroupFactory([{"CPU": 1}, {"num_gpus": 1}]),
        "got 'num_gpus'. Write 'GPU'.",
    ),
    "choices without a list": (lambda _: tune.choice(0.1, 0.2), "Write choice([0.1, 0.2])."),
    "one choice without a list": (lambda _: tune.choice(0.1), "Write [0.1]."),
    "a grid without a list": (lambda _: tune.grid_search(1, 2), "Write grid_search([1, 2])."),
    "swapped bounds": (lambda _: tune.uniform(1, 0), "Write uniform(0, 1)."),
    "swapped bounds on a log scale": (lambda _: tune.loguniform(1, 0.1), "Write loguniform(0.1, 1)."),
    "swapped bounds of integers": (lambda _: tune.randint(10, 1), "Write randint(1, 10)."),
    "swapped bounds by name": (lambda _: tune.lograndint(upper=1, lower=9), "Write lograndint(1, 9)."),
    "swapped bounds of a quantum": (lambda _: tune.quniform(1, 0, 0.5), "Write quniform(0, 1, 0.5)."),
    "exponents for a log scale": (lambda _: tune.loguniform(-4, -1), "Give the bounds themselves, not"),
    "parameters that the function lacks": (
        lambda _: tune.with_parameters(train, data=[1]),
        "a function that takes data, which with_parameters() binds, got train(config). Add it after",
    ),
    "an unregistered name": (
        lambda _: tune.Tuner("no-such"),
        "Call register_trainable('no-such', ...) first.",
    ),
    "a wrong directory to restore": (
        lambda _: tune.Tuner.restore("/nowhere/at/all", train),
        "Give the experiment's own directory",
    ),
    "an address without a port": (
        lambda _: tune.Tuner(train, client="localhost").fit(),
        "an address such as 'tcp://host:8786'",
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_raises_with_the_right_spelling(name, run_config):
    program, message = WRONG[name]
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        program(Program(run_config))
    assert isinstance(caught.value, tune.TuneError), "an error of dasktune's own"
