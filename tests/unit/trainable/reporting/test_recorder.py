"""What a process of the trial tells about the checkpoint from which it should resume."""

from __future__ import annotations

import pytest
from trial_run_kit import make_spec

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.recorder import CheckpointHooks, Recorder, Unusable
from dasktune.trainable.reporting.report_timeout import ReportTimeout
from dasktune.trainable.reporting.trial_messages import StopAnswer
from dasktune.trial.checkpoint_record import CheckpointRecord

RECORD = CheckpointRecord(path="trials/a/checkpoint_000000_i01", index=0, iteration=1)


def recorder(gate: MilestoneGate, checkpoint: CheckpointRecord | None) -> Recorder:
    """Return a recorder of a trial that resumes."""
    spec = make_spec(checkpoint=checkpoint)
    return Recorder(
        spec,
        outbox=Outbox(lambda urgency: None),
        gate=gate,
        store=CheckpointStore(spec.storage),
        hooks=CheckpointHooks(),
        report_timeout=ReportTimeout(None, lambda ident: None),
    )


def test_a_lost_checkpoint_lets_the_trial_resume_from_an_older_one() -> None:
    one = recorder(MilestoneGate(()), RECORD)
    one.lose("a file is missing")
    assert one.ending == Unusable(RECORD, "a file is missing")


def test_a_lost_initial_checkpoint_fails_the_trial() -> None:
    with pytest.raises(StorageError, match="a file is missing"):
        recorder(MilestoneGate(()), None).lose("a file is missing")


def test_a_stop_counts_more_than_a_lost_checkpoint() -> None:
    gate = MilestoneGate(())
    gate.answer(StopAnswer(reason="its experiment has ended"))
    one = recorder(gate, RECORD)
    with pytest.raises(TrialInterrupted):
        one.lose("a file is missing")
    assert one.ending is None
