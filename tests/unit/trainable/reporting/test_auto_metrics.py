from __future__ import annotations

import os

import pytest

from dasktune.errors import ConfigError
from dasktune.trainable.reporting.auto_metrics import AutoMetrics


@pytest.fixture
def fill():
    return AutoMetrics("t1", wall_clock=lambda: 1_000_000.5)


def test_a_result_gets_all_fields(fill):
    result = fill({"loss": 1.0}, 2.5)
    date, hostname, node_ip = (result.pop(name) for name in ("date", "hostname", "node_ip"))
    assert date.startswith("1970-01-1")
    assert hostname
    assert node_ip.count(".") == 3
    assert result == {
        "loss": 1.0,
        "trial_id": "t1",
        "timestamp": 1_000_000,
        "time_this_iter_s": 2.5,
        "time_total_s": 2.5,
        "time_since_restore": 2.5,
        "iterations_since_restore": 1,
        "training_iteration": 1,
        "done": False,
        "pid": os.getpid(),
    }


def test_users_may_override_iteration_time_and_timestamp(fill):
    fill({}, 1.0)
    result = fill({"training_iteration": 10, "time_this_iter_s": 4, "timestamp": 7}, 1.0)
    assert result["timestamp"] == 7
    assert result["time_total_s"] == 5.0
    assert result["iterations_since_restore"] == 2
    assert fill({}, 1.0)["training_iteration"] == 11


def test_steps_and_episodes_are_counted_only_if_they_are_reported(fill):
    assert "timesteps_total" not in fill({}, 0.0)
    result = fill({"timesteps_this_iter": 100, "episodes_this_iter": 2}, 0.0)
    assert result["timesteps_total"] == result["timesteps_since_restore"] == 100
    assert fill({"timesteps_this_iter": 50}, 0.0)["timesteps_total"] == 150
    assert fill({"timesteps_total": 9}, 0.0)["timesteps_total"] == 9
    assert fill({}, 0.0)["episodes_total"] == 2


def test_totals_count_on_after_a_restore_and_the_rest_restarts(fill):
    fill({"timesteps_this_iter": 3}, 1.0)
    before = fill({"timesteps_this_iter": 3, "episodes_this_iter": 1}, 1.0)
    again = AutoMetrics("t1", before)
    assert again.state() == fill.state()
    result = again({"timesteps_this_iter": 1}, 2.0)
    assert (result["training_iteration"], result["iterations_since_restore"]) == (3, 1)
    assert (result["time_total_s"], result["time_since_restore"]) == (4.0, 2.0)
    assert (result["timesteps_total"], result["timesteps_since_restore"]) == (7, 1)
    assert result["episodes_total"] == 1


@pytest.mark.parametrize("iteration", [1.5, True, "3", None])
def test_an_iteration_must_be_an_int(fill, iteration):
    with pytest.raises(ConfigError, match=r"training_iteration.* must be an int"):
        fill({"training_iteration": iteration}, 0.0)


@pytest.mark.parametrize("name", ["time_this_iter_s", "timesteps_this_iter"])
def test_what_is_counted_must_be_a_number(fill, name):
    with pytest.raises(ConfigError, match=f"{name}.* must be a number, got 'x'"):
        fill({name: "x"}, 0.0)
