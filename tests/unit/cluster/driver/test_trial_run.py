"""What a worker's messages mean to the experiment."""

from __future__ import annotations

from dasktune.cluster.driver.trial_run import TrialRun, event_from_message
from dasktune.trainable.reporting.trial_messages import ContinueAnswer, Reported
from dasktune.trial.events import ResultReported


def test_nested_metrics_become_one_level():
    run = TrialRun(trial_id="a", incarnation=1, key="k", spec=None, config=b"")  # type: ignore[arg-type]
    event = event_from_message(Reported(seq=2, metrics={"loss": 0.5, "eval": {"acc": 1}}), run, 3.0)
    assert isinstance(event, ResultReported)
    assert event.metrics == {"loss": 0.5, "eval/acc": 1}


def test_an_answer_that_is_given_during_a_call_is_sent_with_the_next_one():
    first, second = ContinueAnswer(seq=1, milestones=()), ContinueAnswer(seq=2, milestones=())
    run = TrialRun(trial_id="a", incarnation=1, key="k", spec=None, config=b"", assigned=True)  # type: ignore[arg-type]
    run.answers.append(first)
    update = run.pending_update()
    assert update is not None
    run.answers.append(second)
    run.confirm(update)
    following = run.pending_update()
    assert following is not None
    assert following.answers == (second,)
