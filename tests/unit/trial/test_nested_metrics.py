"""Nested metrics can be read as they were reported."""

import pickle

import pytest

from dasktune.results.result import Result
from dasktune.trial.metrics import with_nested_names
from dasktune.trial.status import PublicStatus

FLAT = {"loss": 1.0, "n/a": 1, "n/b/c": 2, "n/a/x": 3}


def test_metrics_are_read_by_flat_and_by_nested_names():
    metrics = with_nested_names(FLAT)
    assert metrics == FLAT
    assert metrics["n"]["a"] == metrics["n/a"] == 1
    assert metrics["n"]["b"]["c"] == metrics.get("n")["b"]["c"] == 2
    assert metrics["n/b"] == {"c": 2}
    assert "n" in metrics
    assert "m" not in metrics
    assert metrics.get("m", 5) == 5
    with pytest.raises(KeyError, match="m"):
        metrics["m"]
    assert metrics.copy()["n"]["a"] == 1
    assert pickle.loads(pickle.dumps(metrics))["n"]["a"] == 1


def test_a_result_has_its_metrics_nested_as_in_ray():
    result = Result(
        trial_id="a",
        config={},
        history=[{"n/a": 1}],
        status=PublicStatus.TERMINATED,
        path="",
        load_checkpoint=print,
    )
    assert result.metrics["n"]["a"] == 1
    assert result.last_result["n"] == {"a": 1}
