"""Whole experiments that end at a plateau, and resume with what their stoppers knew."""

from __future__ import annotations

from typing import Any

import pytest
from test_replay import Recorder

from dasktune.config import RunConfig, TuneConfig
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.space import grid_search
from dasktune.stopper import ExperimentPlateauStopper, TrialPlateauStopper
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import simulate


def halving(config: dict[str, Any]) -> Any:
    """Come nearer to a floor of its own, in 30 epochs of a second."""
    for epoch in range(30):
        yield {"eval": {"loss": config["floor"] + 2.0**-epoch}}, 1.0


def parts(stop: Any) -> dict[str, Any]:
    return {
        "tune_config": TuneConfig(metric="eval/loss", mode="min", seed=1),
        "run_config": RunConfig(stop=stop),
        "param_space": {"floor": grid_search([0.0, 1.0, 2.0])},
    }


STOPS = {
    "trial": lambda: TrialPlateauStopper(
        "eval/loss", std=1e-3, grace_period=6, metric_threshold=1.5, mode="min"
    ),
    "experiment": lambda: ExperimentPlateauStopper("eval/loss", std=1e-3, top=5, patience=4),
}


def test_each_trial_ends_at_its_plateau_if_it_is_good_enough():
    results = simulate(halving, **parts(STOPS["trial"]()), slots=2)
    # Four results up to 2 ** -n deviate by 2.68 * 2 ** -n: below 1e-3 for the first time at n = 12.
    assert [len(result.history) for result in results] == [13, 13, 30]
    assert "the standard deviation of the last 4 results of eval/loss is" in results[0].reason


def test_everything_ends_when_the_best_results_of_all_are_alike():
    results = simulate(halving, **parts(STOPS["experiment"]()), slots=3)
    lengths = [len(result.history) for result in results]
    assert max(lengths) < 30
    assert any("the best 5 results of eval/loss" in result.reason for result in results)


@pytest.mark.parametrize("stop", STOPS)
def test_a_restored_experiment_resumes_with_what_its_stopper_knew(stop):
    store = Recorder()
    simulate(halving, **parts(STOPS[stop]()), slots=2, store=store)
    records = store.records
    for cut in range(0, len(records), 5):
        live, restored = (build_experiment(*parts(STOPS[stop]()).values()) for _ in range(2))
        replay(live, records[:cut], lambda trial_id: {})
        restored.load_state_dict(decode(encode(live.state_dict())))
        for experiment in (live, restored):
            replay(experiment, records[cut:], lambda trial_id: {})
        assert encode(restored.state_dict()) == encode(live.state_dict())
