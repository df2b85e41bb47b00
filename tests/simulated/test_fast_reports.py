from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import pytest

from dasktune import RunConfig, TuneConfig, grid_search
from dasktune.testing import simulate


def train(config: dict[str, Any]) -> Generator[tuple[dict[str, Any], float], None, None]:
    for _ in range(config["steps"]):
        yield {"loss": 1.0}, config["seconds"]


def test_a_trial_that_reports_faster_than_anything_can_use_is_named_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        results = simulate(
            train,
            tune_config=TuneConfig(metric="loss", mode="min"),
            run_config=RunConfig(),
            param_space={"steps": grid_search([30, 12_600]), "seconds": 0.004},
            slots=2,
        )
    assert [len(result.history) for result in results] == [30, 12_600]
    warnings = [one.getMessage() for one in caplog.records if "results per second" in one.getMessage()]
    assert len(warnings) == 1
    assert f"trial {results[1].trial_id} reports 250 results per second" in warnings[0]
    assert "if step % 25 == 0: tune.report(...)" in warnings[0]
