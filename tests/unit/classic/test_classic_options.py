"""What ``tune.run`` takes, and where it belongs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dasktune.classic.options import (
    FIELD_CONFIGS,
    OLD_NAMES,
    REFUSED_OPTIONS,
    build_configs,
    normalize_options,
)
from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError


def test_each_field_of_each_configuration_is_an_argument_and_no_two_are_alike():
    kinds = TuneConfig, RunConfig, CheckpointConfig, FailureConfig
    names = [one.name for kind in kinds for one in fields(kind)]
    assert len(names) == len(set(names))
    assert set(names) - {"failure_config"} == set(FIELD_CONFIGS)
    assert set(OLD_NAMES.values()) <= set(FIELD_CONFIGS)
    assert not set(REFUSED_OPTIONS) & (set(FIELD_CONFIGS) | set(OLD_NAMES))


def test_arguments_reach_the_configurations_that_they_are_fields_of():
    options = {
        "metric": "loss",
        "mode": "min",
        "num_samples": 3,
        "max_concurrent_trials": 0,
        "name": "first",
        "local_dir": "/data",
        "stop": {"training_iteration": 3},
        "keep_checkpoints_num": 2,
        "checkpoint_score_attr": "min-eval/loss",
        "checkpoint_freq": 5,
        "checkpoint_at_end": True,
        "max_failures": 4,
        "verbose": None,
        "config": {"x": 1},
    }
    tune, run = build_configs(normalize_options(options))
    assert tune == TuneConfig(metric="loss", mode="min", num_samples=3)
    assert (run.name, run.storage_path) == ("first", "/data")
    assert run.failure_config.max_failures == 4
    assert run.checkpoint_config == CheckpointConfig(
        num_to_keep=2,
        checkpoint_score_attribute="eval/loss",
        checkpoint_score_order="min",
        checkpoint_frequency=5,
        checkpoint_at_end=True,
    )


def test_checkpoints_may_be_one_argument():
    for whole in (CheckpointConfig(num_to_keep=1), {"num_to_keep": 1}):
        _, run = build_configs(normalize_options({"checkpoint_config": whole}))
        assert run.checkpoint_config.num_to_keep == 1
    with pytest.raises(ConfigError, match="checkpoint_config must be left out with num_to_keep"):
        build_configs(normalize_options({"checkpoint_config": {}, "keep_checkpoints_num": 2}))


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_what_makes_no_sense_on_dask_is_refused_with_what_to_use(name):
    assert normalize_options({name: None}) == {}
    with pytest.raises(ConfigError) as caught:
        normalize_options({name: "something"})
    assert str(caught.value).startswith(f"{name} must be left out, got 'something'. ")
    assert REFUSED_OPTIONS[name] in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_sample": 3}, "Did you mean 'num_samples'"),
        ({"zzz": 3}, "got 'zzz'. See TuneConfig"),
        ({"failure_config": FailureConfig()}, "got 'failure_config'"),
        ({"storage_path": "a", "local_dir": "b"}, "storage_path must be given once"),
        ({"checkpoint_score_attr": 3}, "checkpoint_score_attr must be the name of a metric"),
        ({"checkpoint_score_attr": ""}, "checkpoint_score_attr must be"),
        (
            {"checkpoint_score_attr": "min-x", "checkpoint_score_order": "max"},
            "checkpoint_score_order must be given once",
        ),
    ],
)
def test_what_cannot_be_meant_raises(options, told):
    with pytest.raises(ConfigError, match=told):
        normalize_options(options)
