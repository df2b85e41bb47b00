"""`with_ranks`: which arguments it takes, and what a trial of it requests."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import FIFOScheduler, ResourceChangingScheduler
from dasktune.trainable.api.binding import default_resources
from dasktune.trainable.api.distributed import rank_settings
from dasktune.trial.resources import ElasticPlacement, HostPlacement


def train(config: dict[str, Any]) -> None:
    """Do nothing."""


def halved(config: dict[str, Any]) -> int:
    """Return the number of ranks."""
    return config["n"] // 2


def test_each_rank_is_a_bundle() -> None:
    trainable = tune.with_ranks(train, 3, {"cpu": 2, "gpu": 1})
    assert default_resources(trainable, {}).bundles == [{"CPU": 2, "GPU": 1}] * 3
    assert default_resources(tune.with_ranks(train, 2), {}).bundles == [{"CPU": 1}] * 2


def test_the_layout_counts_hosts() -> None:
    assert default_resources(tune.with_ranks(train, 2), {}) == HostPlacement([{"CPU": 1}] * 2)
    spread = tune.PlacementGroupFactory([{"GPU": 1}], strategy="SPREAD")
    trainable = tune.with_ranks(train, halved, spread, per_host=2)
    assert default_resources(trainable, {"n": 8}) == HostPlacement([{"GPU": 1}] * 4, "SPREAD", per_host=2)
    with pytest.raises(ConfigError, match="per_host must be a divisor of the number of ranks, 3, got 2"):
        default_resources(trainable, {"n": 6})
    for wrong in (0, True, 1.5):
        with pytest.raises(ConfigError, match="per_host must be an integer of at least 1, or None"):
            tune.with_ranks(train, 2, per_host=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "strategy", "message"),
    [
        (4, "STRICT_PACK", "per_host must be 4 with the strategy STRICT_PACK, got 2. Leave out STRICT_PACK"),
        (4, "STRICT_SPREAD", "per_host must be 1 with the strategy STRICT_SPREAD, got 2"),
        (halved, "STRICT_SPREAD", "per_host must be 1 with the strategy STRICT_SPREAD, got 2"),
    ],
)
def test_a_strict_strategy_that_contradicts_the_layout_is_refused(
    ranks: Any, strategy: str, message: str
) -> None:
    one = tune.PlacementGroupFactory([{"CPU": 1}], strategy=strategy)
    with pytest.raises(ConfigError, match=message):
        tune.with_ranks(train, ranks, one, per_host=2)


def test_a_strict_strategy_that_agrees_with_the_layout_is_accepted() -> None:
    one = tune.PlacementGroupFactory([{"CPU": 1}], strategy="STRICT_PACK")
    assert default_resources(tune.with_ranks(train, 2, one, per_host=2), {}).strategy == "STRICT_PACK"
    varying = tune.with_ranks(train, halved, one, per_host=2)
    assert len(default_resources(varying, {"n": 4}).bundles) == 2
    with pytest.raises(ConfigError, match="per_host must be 4 with the strategy STRICT_PACK, got 2"):
        default_resources(varying, {"n": 8})


def test_the_number_of_ranks_may_depend_on_the_configuration() -> None:
    trainable = tune.with_ranks(train, halved)
    assert len(default_resources(trainable, {"n": 8}).bundles) == 4
    with pytest.raises(ConfigError, match=r"ranks\(config\) must be an integer of at least 1, got 0"):
        default_resources(trainable, {"n": 1})


def test_parameters_and_ranks_are_bound_in_any_order() -> None:
    def needy(config: dict[str, Any], data: int) -> None:
        """Take a parameter."""

    first = tune.with_ranks(tune.with_parameters(needy, data=1), 2)
    last = tune.with_parameters(tune.with_ranks(lambda config, data=0: None, 2), data=1)
    assert [dict(one.parameters) for one in (first, last)] == [{"data": 1}, {"data": 1}]
    assert None not in (rank_settings(first), rank_settings(last))


def test_a_distributed_trainable_is_pickled_whole() -> None:
    copy = pickle.loads(pickle.dumps(tune.with_ranks(train, halved, reduce=max, env={"A": "1"})))
    assert copy.ranks.reduce is max
    settings = rank_settings(copy)
    assert settings is not None
    assert (settings.reduction, settings.env) == ("function", {"A": "1"})


class Whole(tune.Trainable):
    """A class trainable."""

    def step(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((Whole, 2), "must be a function for with_ranks"),
        ((train, 0), "ranks must be an integer of at least 1"),
        ((train, True), "ranks must be an integer of at least 1"),
        ((train, 2, {"gpu": 0.5}), "must be a whole number, got 0.5"),
        ((train, 2, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])), "must be one bundle"),
        ((tune.with_resources(train, {"cpu": 1}), 2), "resources must be given once"),
    ],
    ids=["class", "none", "bool", "half-a-gpu", "two-bundles", "resources"],
)
def test_a_wrong_request_is_refused(arguments: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        tune.with_ranks(*arguments)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"reduce": "max"}, "reduce must be 'rank0', 'mean' or a function"),
        ({"start_timeout_s": 0}, "start_timeout_s must be a number of seconds above 0"),
        ({"report_timeout_s": float("nan")}, "report_timeout_s must be a number of seconds above 0"),
        ({"rendezvous_timeout_s": 0}, "rendezvous_timeout_s must be a number of seconds above 0"),
        ({"report_timeout_s": "1"}, "report_timeout_s must be a number of seconds above 0"),
        ({"wait_for_ranks_s": -1}, "wait_for_ranks_s must be a number of seconds, at least 0"),
        ({"grow_after_s": "60"}, "grow_after_s must be a number of seconds, at least 0"),
        ({"env": {"A": 1}}, "env must be a dict of strings"),
        ({"env": [("A", "1")]}, "env must be a dict of strings"),
        ({"env": {"RANK": "1"}}, r"env must be free of .*, got \['RANK'\]"),
    ],
    ids=["reduce", "zero", "nan", "rendezvous", "text", "wait", "grow", "number", "list", "reserved"],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        tune.with_ranks(train, 2, **options)


def test_resources_cannot_replace_those_of_ranks() -> None:
    with pytest.raises(ConfigError, match="must be one process for with_resources"):
        tune.with_resources(tune.with_ranks(train, 2), {"cpu": 1})


@pytest.mark.parametrize("wrong", ["torch", ["torch", 1], [""], ["a b"], 1, {"torch"}])
def test_preload_is_a_list_of_modules(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="preload must be a list of names of modules"):
        tune.with_ranks(train, 2, preload=wrong)
    settings = rank_settings(tune.with_ranks(train, 2, preload=["torch", "torch.distributed"]))
    assert settings is not None
    assert settings.preload == ("torch", "torch.distributed")
    settings = rank_settings(tune.with_ranks(train, 2, preload=None))
    assert settings is not None
    assert settings.preload is None


def test_fewer_ranks_may_be_enough() -> None:
    four = HostPlacement([{"CPU": 1}] * 4)
    assert default_resources(tune.with_ranks(train, 4, min_ranks=2), {}) == ElasticPlacement(four, 2, 4)
    assert default_resources(tune.with_ranks(train, 4, min_ranks=4), {}) == four
    varying = tune.with_ranks(train, halved, min_ranks=4)
    assert default_resources(varying, {"n": 8}) == four
    with pytest.raises(ConfigError, match="min_ranks must be from 1 to the number of ranks, 2, got 4"):
        default_resources(varying, {"n": 4})
    with pytest.raises(ConfigError, match="min_ranks must be an integer of at least 1, or None, got 0"):
        tune.with_ranks(train, 4, min_ranks=0)


def test_two_may_not_change_the_number_of_ranks() -> None:
    trainable = tune.with_ranks(train, 4, min_ranks=2)
    config = tune.TuneConfig(scheduler=ResourceChangingScheduler())
    with pytest.raises(ConfigError, match="min_ranks must be None with ResourceChangingScheduler, got 2"):
        tune.Tuner(trainable, tune_config=config)
    tune.Tuner(tune.with_ranks(train, 4), tune_config=config)
    tune.Tuner(trainable, tune_config=tune.TuneConfig(scheduler=FIFOScheduler()))
