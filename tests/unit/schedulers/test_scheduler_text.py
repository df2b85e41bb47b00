"""A scheduler's text is the call that made it."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from dasktune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    FunctionScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)
from dasktune.space import loguniform


def better_half(history):
    return {}


@pytest.mark.parametrize(
    ("scheduler", "text"),
    [
        (FIFOScheduler(), "FIFOScheduler()"),
        (
            ASHAScheduler(max_t=9, metric="loss", mode="min"),
            "ASHAScheduler(max_t=9, metric='loss', mode='min')",
        ),
        (MedianStoppingRule(), "MedianStoppingRule()"),
        (FunctionScheduler(better_half), "FunctionScheduler(better_half)"),
        (
            PopulationBasedTraining(hyperparam_mutations={"lr": loguniform(0.1, 1), "b": [1, 2]}),
            "PopulationBasedTraining(hyperparam_mutations={'b': [1, 2], "
            "'lr': Float(lower=0.1, upper=1.0, sampler=LogUniform())})",
        ),
        (
            ResourceChangingScheduler(ASHAScheduler(max_t=9)),
            "ResourceChangingScheduler(ASHAScheduler(max_t=9))",
        ),
    ],
)
def test_the_text_is_the_call_and_survives_copies(scheduler, text):
    assert repr(scheduler) == text
    assert repr(copy.deepcopy(scheduler)) == text
    assert repr(pickle.loads(pickle.dumps(scheduler))) == text


class Base(TrialScheduler):
    def __init__(self, low, *, high=3):
        self.low, self.high = low, high

    def on_trial_result(self, trial, result):
        raise NotImplementedError

    def choose_trial_to_run(self, waiting):
        raise NotImplementedError


class Derived(Base):
    def __init__(self, low, secret):
        super().__init__(low, high=secret)


class Plain(Derived):
    pass


def test_the_outermost_constructor_counts_and_keeps_its_signature():
    class Opaque:
        pass

    assert repr(Derived(1, Opaque())) == f"Derived(1, <{Opaque.__qualname__}>)"
    assert repr(Plain(1, secret=2)) == "Plain(1, secret=2)"
    assert (Derived(1, 5).low, Derived(1, 5).high) == (1, 5)
    assert str(inspect.signature(Base)) == "(low, *, high=3)"
    assert list(inspect.signature(Derived).parameters) == ["low", "secret"]


def test_a_subclass_of_asha_has_its_own_name():
    class Mine(ASHAScheduler):
        pass

    assert repr(Mine(max_t=5)) == "Mine(max_t=5)"


def test_a_scheduler_with_the_constructor_of_another_base_class_has_only_its_name():
    class Other:
        def __init__(self):
            self.mine = 1

    class Mine(Other, TrialScheduler):
        def on_trial_result(self, trial, result): ...

        def choose_trial_to_run(self, waiting): ...

    assert repr(Mine()) == "<Mine>"
