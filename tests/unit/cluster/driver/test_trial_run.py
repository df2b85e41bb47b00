"""What a worker's messages mean to the experiment."""

from __future__ import annotations

from dasktune.cluster.driver.trial_run import TrialRun, event_from_message
from dasktune.trainable.reporting.trial_messages import Reported
from dasktune.trial.events import ResultReported


def test_nested_metrics_become_one_level():
    run = TrialRun(trial_id="a", incarnation=1, key="k", spec=None, config=b"")  # type: ignore[arg-type]
    event = event_from_message(Reported(seq=2, metrics={"loss": 0.5, "eval": {"acc": 1}}), run, 3.0)
    assert isinstance(event, ResultReported)
    assert event.metrics == {"loss": 0.5, "eval/acc": 1}
