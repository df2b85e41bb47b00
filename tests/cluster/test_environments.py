"""Environments that the driver has registered, in trials on workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import Fleet

import dasktune as tune
from dasktune import registry

pytestmark = pytest.mark.cluster


class Pendulum:
    def __init__(self, config: dict[str, Any]) -> None:
        self.length = config["length"]


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_envs", {})
    tune.register_env("pendulum", Pendulum)


def train(config: dict[str, Any]) -> dict[str, Any]:
    from dasktune import registry as mine

    env = tune.get_env(config["env"])({"length": config["x"]})
    # What was sent is still pickled.
    return {"length": env.length, "by_itself": not isinstance(mine.registered_envs()["pendulum"], bytes)}


def tuner(place: Path, client: Any, trainable: Any = train, **more: Any) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        param_space={"env": "pendulum", "x": tune.grid_search([1, 2, 3])},
        run_config=tune.RunConfig(storage_path=str(place), name="envs", verbose=0, **more),
        client=client,
    )


def lengths(results: tune.ResultGrid) -> list[int]:
    assert not results.errors
    # Nothing was registered there.
    assert not any(result.metrics["by_itself"] for result in results)
    return [result.metrics["length"] for result in results]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_trials_know_what_the_driver_has_registered(tmp_path: Path, pair: Any, isolation: Any):
    assert lengths(tuner(tmp_path, pair, isolation=isolation).fit()) == [1, 2, 3]


@pytest.mark.slow
def test_so_do_those_of_a_driver_that_lives_on_the_cluster(tmp_path: Path, fleet: Fleet):
    fleet.keep(2)
    with tuner(tmp_path, fleet.address).submit() as experiment:
        assert lengths(experiment.result(timeout=90)) == [1, 2, 3]


def test_what_a_trial_registers_itself_is_newer(tmp_path: Path, pair: Any):
    def newer(config: dict[str, Any]) -> dict[str, Any]:
        tune.register_env("pendulum", lambda config: "mine")
        return {"env": tune.get_env("pendulum")({})}

    # Each process has a registry of its own, so that it leaves nothing to other tests.
    results = tuner(tmp_path, pair, newer, isolation="process").fit()
    assert [result.metrics["env"] for result in results] == ["mine"] * 3


def test_one_that_cannot_travel_costs_a_warning(tmp_path: Path, pair: Any, caplog: pytest.LogCaptureFixture):
    lock = threading.Lock()
    tune.register_env("locked", lambda config: lock)
    assert lengths(tuner(tmp_path, pair).fit()) == [1, 2, 3]
    assert "trials cannot use the environment 'locked'" in caplog.text
