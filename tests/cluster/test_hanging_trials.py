"""Trials whose code hangs, on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dasktune as tune
from dasktune.trial.status import PublicStatus


def hang_at_first(config: dict[str, Any]) -> None:
    import time

    tune.report({"x": 1})
    begun = Path(config["marks"]) / tune.get_context().get_trial_id()
    if not begun.exists():
        begun.touch()
        # A stop does not cut it short; long enough for the other attempt, not for ever.
        end = time.monotonic() + 8.0
        while time.monotonic() < end:
            try:
                time.sleep(8.0)
            except BaseException:
                continue
        tune.report({"x": 99})
    tune.report({"x": 2})


@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_a_trial_that_hangs_is_tried_again_elsewhere(pair, tmp_path, isolation):
    marks = tmp_path / "marks"
    marks.mkdir()
    results = tune.Tuner(
        hang_at_first,
        param_space={"marks": str(marks)},
        tune_config=tune.TuneConfig(num_samples=1),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            name="hangs",
            isolation=isolation,
            stop_grace=0.5,
            failure_config=tune.FailureConfig(max_failures=1, report_timeout_s=1.5),
            verbose=0,
        ),
        client=pair,
    ).fit()
    (result,) = results
    assert result.status is PublicStatus.TERMINATED
    assert [row["x"] for row in result.history] == [1, 2]
    (error,) = Path(result.path).glob("error.txt")
    told = error.read_text()
    assert "no result for 1.5 s" in told
    assert "hang_at_first" in told
