"""Which workers an experiment may use."""

from __future__ import annotations

import pickle

import pytest

from dasktune.config import RunConfig
from dasktune.config.worker_filter import WorkerInfo, worker_allowed
from dasktune.errors import ConfigError

ONE = WorkerInfo(address="tcp://a:1", name="gpu-1", host="a", resources={"GPU": 1})
TWO = WorkerInfo(address="tcp://a:2", name="2", host="a")


def no_decision(worker: WorkerInfo) -> bool:
    raise KeyError("GPU")


@pytest.mark.parametrize(
    ("workers", "allowed"),
    [
        (None, [True, True]),
        (["tcp://a:1"], [True, False]),
        (("2", "tcp://a:1"), [True, True]),
        ({"gpu-1"}, [True, False]),
        (["tcp://b:1"], [False, False]),
        (lambda worker: worker.resources.get("GPU", 0) > 0, [True, False]),
        (lambda worker: worker.host, [True, True]),
    ],
)
def test_workers_are_allowed_by_address_by_name_or_by_a_function(workers, allowed):
    config = RunConfig(workers=workers)
    assert [worker_allowed(config.workers, worker) for worker in (ONE, TWO)] == allowed


@pytest.mark.parametrize("wrong", [[], "gpu-1", [1], [""], WorkerInfo, 3, b"a"])
def test_what_names_no_workers_is_refused(wrong):
    with pytest.raises(ConfigError, match="workers must be None, a list of at least one address"):
        RunConfig(workers=wrong)


def test_a_function_that_raises_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match=r"workers must be .* got KeyError\('GPU'\) .*tcp://a:1"):
        worker_allowed(no_decision, ONE)


def test_what_the_user_sees_of_a_worker_is_a_value():
    assert pickle.loads(pickle.dumps(ONE)) == ONE


@pytest.mark.parametrize("wrong", [True, "high", float("nan"), float("inf"), None])
def test_a_priority_is_a_number(wrong):
    with pytest.raises(ConfigError, match="priority must be a finite number"):
        RunConfig(priority=wrong)


@pytest.mark.parametrize("wrong", [True, 0, -1, "high", float("nan"), float("inf"), None])
def test_a_weight_is_a_positive_number(wrong):
    with pytest.raises(ConfigError, match=r"weight must be a positive finite number, got"):
        RunConfig(weight=wrong)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", None, True])
def test_the_time_until_trials_yield_is_a_number_of_seconds(wrong):
    with pytest.raises(ConfigError, match=r"yields_after must be a number of seconds, at least 0, got"):
        RunConfig(yields_after=wrong)
    assert RunConfig(yields_after=0).yields_after == 0


@pytest.mark.parametrize("wrong", ["", 1, True, "x" * 201])
def test_a_group_has_a_name(wrong):
    with pytest.raises(ConfigError, match=r"share_group must be None or a text of 1 to 200 characters, got"):
        RunConfig(share_group=wrong)
    assert RunConfig(share_group="team").share_group == "team"
