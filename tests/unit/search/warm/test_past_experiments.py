"""What is taken from earlier experiments."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from dasktune.errors import ConfigError
from dasktune.search.warm.past_experiments import PastExperiment, plain
from dasktune.trial.status import PublicStatus


def trial(loss, length=9, *, reason="by max_t", status=PublicStatus.TERMINATED, error=None, early=False):
    rows = [{"loss": loss, "training_iteration": length}] if length else []
    return SimpleNamespace(
        config={"x": loss}, history=rows, error=error, stopped_early=early, reason=reason, status=status
    )


def full(trials, metric="loss", mode="min", **about):
    given = SimpleNamespace(trials=trials, **about)
    return PastExperiment.of(given, "past[0]").full_trials(metric, mode)


def losses(trials, **about):
    return full(trials, **about)[1]


TEN = [trial(float(number)) for number in range(10)]


def test_full_trials_come_with_configuration_and_loss():
    configs, found = full(TEN)
    assert configs[3] == {"x": 3.0}
    assert found == [float(number) for number in range(10)]
    assert losses(TEN, mode="max") == [-value for value in found]


def test_trials_that_were_cut_short_are_left_out():
    cut = [
        trial(20.0, early=True),
        trial(20.0, error="broke", status=PublicStatus.ERROR),
        trial(20.0, status=PublicStatus.PAUSED),
        trial(20.0, length=8),
        trial(20.0, length=0),
        trial("low"),
    ]
    assert 20.0 not in losses([*TEN, *cut])


def test_a_trial_whose_code_returned_is_full_however_short_it_was():
    assert 20.0 in losses([*TEN, trial(20.0, length=2, reason="")])
    returned = [trial(float(number), length=number + 1, reason="") for number in range(12)]
    assert len(losses(returned)) == 12


def test_a_trial_that_diverged_is_the_worst():
    assert losses([*TEN, trial(nan)])[-1] == inf
    assert losses([*TEN, trial(-inf)], mode="max")[-1] == inf


def test_too_few_full_trials_are_refused_with_their_number():
    few = [*TEN[:9], *(trial(1.0, early=True) for _ in range(4))]
    with pytest.raises(
        ConfigError, match=r"past\[0\] must be an experiment with .* 10 full trials, got '9 of 13'"
    ):
        full(few)


def test_the_other_direction_is_refused():
    with pytest.raises(ConfigError, match=r"mode of past\[0\] must be 'min', got 'max'"):
        full(TEN, default_metric="loss", default_mode="max")
    # The other mode belongs to another metric.
    assert losses(TEN, default_metric="accuracy", default_mode="max")


def test_pairs_are_an_experiment_of_full_trials():
    pairs = [({"x": number}, np.float32(number)) for number in range(10)]
    configs, found = PastExperiment.of(pairs, "past[0]").full_trials("anything", "max")
    assert configs[2] == {"x": 2}
    assert found[2] == -2.0


def test_the_metric_may_have_had_another_name():
    experiment = PastExperiment.of(TEN, "past[0]", "loss")
    assert len(experiment.full_trials("val_loss", "min")[0]) == 10


@pytest.mark.parametrize("given", [3, {"x": 1}, [1], [({"x": 1}, "low")], [({"x": 1},)]])
def test_anything_else_is_refused(given):
    with pytest.raises(ConfigError, match=r"past\[0\]"):
        PastExperiment.of(given, "past[0]")


def test_values_that_json_lacks_are_as_in_a_journal():
    assert plain({1: [np.int64(2), (True, None)]}) == {"1": [2.0, [True, None]]}
    assert plain({"kind": dict}) == {"kind": {"$repr": "<class 'dict'>"}}
