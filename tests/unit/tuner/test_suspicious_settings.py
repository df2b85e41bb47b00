"""Settings of Ray Tune's users that are valid, but not meant."""

from typing import Any

import pytest

import dasktune as tune
from dasktune.tuner.suspicious_settings import warn_of_constants, with_score_order


class Distribution:
    """Looks like a frozen distribution of scipy."""

    def rvs(self) -> float:
        return 0.5


@pytest.mark.parametrize(("mode", "warns"), [("min", True), ("max", False)])
def test_the_best_checkpoints_of_the_metric_are_kept(mode: Any, warns: bool, caplog: Any):
    kept = tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss")
    run = with_score_order(tune.RunConfig(checkpoint_config=kept), tune.TuneConfig(metric="loss", mode=mode))
    assert run.checkpoint_config.checkpoint_score_order == mode
    assert ("Write CheckpointConfig(checkpoint_score_order='min')" in caplog.text) == warns


def test_the_order_of_another_metric_stays():
    kept = tune.CheckpointConfig(checkpoint_score_attribute="acc")
    run = tune.RunConfig(checkpoint_config=kept)
    assert with_score_order(run, tune.TuneConfig(metric="loss", mode="min")) is run


@pytest.mark.parametrize(
    ("space", "num_samples", "message"),
    [
        ({"lr": Distribution()}, 1, r"param_space['lr'] is a scipy distribution"),
        ({"net": {"lr": lambda: 0.1}}, 1, r"param_space['net/lr'] is a function"),
        ({"lr": 0.1, "n": [1, 2]}, 3, "constants only (lr, n), so all 3 trials are equal"),
        ({"lr": 0.1, "n": [1, 2]}, 3, "write {'n': tune.choice([1, 2])} to try its values"),
        ({"n": range(5)}, 3, "write {'n': tune.choice(range(0, 5))}"),
        ({"n": list(range(100))}, 3, "write {'n': tune.choice([...])}"),
    ],
)
def test_what_is_a_constant_by_mistake_is_named(space: Any, num_samples: int, message: str, caplog: Any):
    tune.Tuner(lambda config: None, param_space=space, tune_config=tune.TuneConfig(num_samples=num_samples))
    assert message in caplog.text


@pytest.mark.parametrize(
    "space",
    [
        {},
        {"a": tune.uniform(0, 1)},
        {"a": tune.grid_search([1, 2])},
        {"a": [tune.choice([1])]},
        {"a": {"b": tune.sample_from(lambda config: 1)}},
        {"a": tune.uniform(0, 1), "hidden": [64, 32]},
    ],
)
def test_a_space_that_varies_gives_no_warning(space: Any, caplog: Any):
    warn_of_constants(space, tune.TuneConfig(num_samples=3))
    assert caplog.text == ""


def test_a_list_of_one_trial_is_a_constant_without_a_word(caplog: Any):
    warn_of_constants({"hidden": [64, 32]}, tune.TuneConfig(num_samples=1))
    assert caplog.text == ""


def test_equal_trials_without_a_list_get_no_advice_about_lists(caplog: Any):
    warn_of_constants({"lr": 0.1, "one": [64]}, tune.TuneConfig(num_samples=2))
    assert "so all 2 trials are equal" in caplog.text
    assert "A list is a constant" not in caplog.text
