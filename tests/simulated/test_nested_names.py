"""Stop functions, callbacks and results read nested metrics as in Ray Tune."""

from __future__ import annotations

from typing import Any

from dasktune.callback import Callback
from dasktune.config import RunConfig, TuneConfig
from dasktune.testing import simulate


class Reads(Callback):
    seen: list[Any]

    def __init__(self) -> None:
        self.seen = []

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.seen.append((result["n"]["a"], trial.last_result["n"]["a"]))


def train(config: dict[str, Any]) -> Any:
    for epoch in range(9):
        yield {"n": {"a": epoch}}, 1.0


def test_nested_metrics_are_read_as_they_were_reported():
    reads = Reads()
    results = simulate(
        train,
        tune_config=TuneConfig(metric="n/a", mode="max"),
        run_config=RunConfig(stop=lambda trial_id, result: result["n"]["a"] >= 3, callbacks=[reads]),
    )
    assert results[0].error is None
    assert results[0].metrics["n"]["a"] == results[0].metrics["n/a"] == 3
    assert reads.seen == [(epoch, epoch) for epoch in range(4)]
