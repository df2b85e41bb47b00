"""A trial leaves its worker, whose resources are due to another experiment, and continues later."""

from __future__ import annotations

from typing import Any

import pytest
from experiment_kit import TWO_CPUS, Lab, bring, kinds

from dasktune.schedulers.decision import Continue, Exploit, Pause, Resize, Stop
from dasktune.trial.actions import YieldTrial
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.events import TrialEnded, TrialPaused, TrialStopped
from dasktune.trial.status import PublicStatus, TrialStatus

S = TrialStatus


def test_a_trial_that_yields_saves_and_continues_before_the_others() -> None:
    lab = Lab(max_failures=0, max_worker_losses=0)
    trial, waiting = lab.running(), lab.add()
    [action] = lab.exceed_share(trial)
    assert action == YieldTrial(trial_id=trial.trial_id, incarnation=1, reason="a share")
    assert (action.save, action.kind) == (True, CheckpointKind.PERSISTENT)
    assert (trial.status, trial.public_status, trial.pause_reason) == (
        S.YIELDING,
        PublicStatus.RUNNING,
        "a share",
    )
    lab.result(trial, 1, checkpoint=0, awaits=False)
    assert lab.tell(trial, TrialPaused) == []
    assert list(lab.experiment.trial_index.pending.values()) == [trial, waiting]
    # Nothing is charged, and it continues where it was.
    assert (trial.failures, trial.losses, trial.worker_losses) == (0, 0, 0)
    start = lab.grant(trial)
    assert (start.checkpoint.iteration, start.incarnation) == (1, 2)


@pytest.mark.parametrize("status", [one for one in S if one is not S.RUNNING])
def test_only_a_running_trial_yields(status: TrialStatus) -> None:
    lab = Lab()
    trial = bring(lab, status)
    assert lab.exceed_share(trial) == []
    assert trial.status is status


def test_an_event_about_an_earlier_start_has_no_effect() -> None:
    lab = Lab()
    trial = lab.running()
    assert lab.exceed_share(trial, incarnation=0) == []
    assert trial.status is S.RUNNING


@pytest.mark.parametrize(
    ("decision", "done", "after"),
    [
        (Continue(), [], S.YIELDING),
        (Continue(save=True), [], S.YIELDING),
        (Pause("not now"), ["PauseTrial"], S.PAUSING),
        (Resize(TWO_CPUS, "there is room"), ["ResizeTrial"], S.RESIZING),
        (Stop("bad"), ["StopTrial"], S.STOPPING),
    ],
)
def test_policies_decide_on_results_that_cross_the_order(
    decision: Any, done: list[str], after: TrialStatus
) -> None:
    lab = Lab()
    trial = lab.running()
    lab.exceed_share(trial)
    lab.scheduler.decide = lambda *_: decision
    assert kinds(lab.result(trial, 1)) == done
    assert (trial.status, trial.awaiting_seq) == (after, 0)
    assert ("result 1", trial.trial_id) in lab.scheduler.calls


def test_a_trial_that_yields_becomes_a_clone() -> None:
    lab = Lab()
    donor, trial = lab.running(), lab.running()
    lab.result(donor, 1, checkpoint=0)
    lab.exceed_share(trial)
    lab.scheduler.decide = lambda *_: Exploit(donor.trial_id, {"lr": 2}, "bad")
    assert kinds(lab.result(trial, 1)) == ["ExploitTrial"]
    lab.tell(trial, TrialPaused)
    assert (trial.status, trial.config) == (S.PENDING, {"lr": 2})
    assert lab.grant(trial).checkpoint.path == donor.checkpoint.path


def test_a_stopper_that_raises_meanwhile_fails_the_trial() -> None:
    lab = Lab()
    trial = bring(lab, S.YIELDING)
    lab.stopper.breaks = True
    assert kinds(lab.result(trial, 1)) == ["FailTrial"]


def test_a_trial_that_yields_may_end_fail_be_lost_or_stopped() -> None:
    lab = Lab(max_failures=1, max_worker_losses=1)
    ended, failed, lost, stopped = (bring(lab, S.YIELDING) for _ in range(4))
    lab.save(ended, 0, 1)
    lab.tell(ended, TrialEnded)
    lab.fail(failed)
    lab.lose(lost)
    assert (ended.status, failed.status, lost.status) == (S.TERMINATED, S.PENDING, S.PENDING)
    lab.stop("enough")
    lab.tell(stopped, TrialStopped)
    assert stopped.status is S.TERMINATED


def test_a_user_pauses_a_trial_that_yields() -> None:
    lab = Lab()
    trial = bring(lab, S.YIELDING)
    assert kinds(lab.pause(trial)) == ["RecallTrial"]
    lab.tell(trial, TrialPaused)
    assert trial.status is S.SUSPENDED
