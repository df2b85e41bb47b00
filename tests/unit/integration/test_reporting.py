from __future__ import annotations

import pytest
from trial_run_kit import Driver

from dasktune.errors import ConfigError
from dasktune.integration.reporting import BoostingReporter, MetricNames, report_result
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable.reporting.trial_messages import Ended

TOLD = {"eval-loss": 0.5, "eval-error": 0.1}


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        (None, TOLD),
        ((), TOLD),
        ("eval-loss", {"eval-loss": 0.5}),
        (["eval-error", "eval-loss"], TOLD),
        ({"loss": "eval-loss"}, {"loss": 0.5}),
    ],
)
def test_metrics_are_chosen_and_named_as_the_user_says(metrics, reported):
    assert MetricNames(metrics, "XGBoost").select(TOLD) == reported


@pytest.mark.parametrize("metrics", [3, [3], {"loss": 3}, {3: "loss"}, "", {"loss"}])
def test_what_names_no_metrics_is_refused(metrics):
    with pytest.raises(ConfigError, match="metrics must be a name, a list of names, or a dict"):
        MetricNames(metrics, "XGBoost")


def test_a_metric_that_the_package_does_not_know_is_refused_with_those_that_it_knows():
    names = MetricNames({"loss": "eval-los"}, "XGBoost")
    with pytest.raises(ConfigError, match=r"got \['eval-los'\].*\['eval-error', 'eval-loss'\]"):
        names.select(TOLD)
    assert names.select_available(TOLD) == {}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"frequency": -1}, "frequency must be a number of rounds, or 0, got -1"),
        ({"frequency": True}, "frequency must be"),
        ({"filename": "models/a"}, "filename must be the name of a file"),
        ({"filename": None}, "filename must be"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_training(change, text):
    arguments = {"filename": "model", "frequency": 0, **change}
    with pytest.raises(ConfigError, match=text):
        BoostingReporter(
            MetricNames(None, "XGBoost"),
            checkpoint_at_end=True,
            results_postprocessing_fn=None,
            **arguments,
        )


def test_a_checkpoint_comes_with_its_result_and_has_its_metadata():
    def save(directory):
        with open(f"{directory}/model", "w") as stream:
            stream.write("trained")

    def train(config):
        report_result({"loss": 1.0})
        report_result({"loss": 0.5}, save, metadata={"epoch": 2})

    driver = Driver(train)
    assert isinstance(driver.end(), Ended)
    assert driver.values("loss") == [1.0, 0.5]
    first, second = (result.checkpoint for result in driver.results)
    assert first is None
    place = driver.run.spec.storage.child(*second.path.split("/"))
    assert place.read_bytes("model") == b"trained"
    assert Checkpoint(place.path(), place.fs).get_metadata() == {"epoch": 2}
