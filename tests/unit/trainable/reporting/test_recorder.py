"""Checkpoints of several processes: those from which a trial resumes, and those that it saves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest
from trial_run_kit import make_spec

from dasktune.errors import StorageError
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.storage.checkpoints.sharded import ShardedCheckpoint, StagedShards
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.recorder import CheckpointHooks, Recorder, Unusable
from dasktune.trainable.reporting.report_timeout import ReportTimeout
from dasktune.trainable.reporting.trial_messages import Reported, StopAnswer
from dasktune.trial.checkpoint_record import CheckpointRecord

RECORD = CheckpointRecord(path="trials/a/checkpoint_000000_i01", index=0, iteration=1)


def recorder(
    gate: MilestoneGate, checkpoint: CheckpointRecord | None = None, outbox: Outbox | None = None
) -> Recorder:
    """Return a recorder of a trial whose storage is slow."""
    spec = make_spec(checkpoint=checkpoint)
    return Recorder(
        spec,
        outbox=outbox or Outbox(lambda urgency: None),
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


def no_ranks(path: str) -> NoReturn:
    raise AssertionError("the ranks themselves are not to write")


def test_shards_are_uploaded_while_user_code_continues_one_checkpoint_at_a_time(tmp_path: Path) -> None:
    go_on, done = threading.Event(), []

    def write(path: str) -> Mapping[str, FileEntry]:
        assert go_on.wait(60)
        done.append(path[-10:])
        return {}

    def stage() -> StagedShards:
        done.append("copied")
        return StagedShards(str(tmp_path), write, lambda: done.append("discarded"))

    outbox = Outbox(lambda urgency: None)
    one = recorder(MilestoneGate(()), outbox=outbox)
    for step in (1, 2):
        result = {"training_iteration": step, "done": False}
        saved = one.save(ShardedCheckpoint(str(tmp_path), no_ranks, stage), result)
        one.publish(result, saved)
        if step == 1:
            # The driver must not see a result before its checkpoint exists.
            assert outbox.collect(0, 0) == []
            threading.Timer(0.01, go_on.set).start()
    one.finish()
    # The second one was copied when the first one was complete.
    assert done == ["copied", "000000_i01", "discarded", "copied", "000001_i01", "discarded"]
    messages = [decode(*entry) for entry in outbox.collect(0, 0)]
    assert [type(message) for message in messages] == [Reported, Reported]
    # It belongs to user code.
    assert tmp_path.exists()


def test_without_room_for_a_copy_the_ranks_write_their_shards_while_user_code_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(lambda urgency: None)
    one = recorder(MilestoneGate(()), outbox=outbox)
    result = {"training_iteration": 1, "done": False}
    written: list[str] = []

    def write(path: str) -> Mapping[str, FileEntry]:
        written.append(path)
        return {}

    saved = one.save(ShardedCheckpoint(str(tmp_path), write, lambda: None), result)
    assert written == [saved.record.path]
    assert "the local disk is full" in caplog.text
    one.publish(result, saved)
    assert len(outbox.collect(0, 0)) == 1
    one.finish()


def test_a_failed_upload_of_shards_withdraws_their_result(tmp_path: Path) -> None:
    outbox = Outbox(lambda urgency: None)
    one = recorder(MilestoneGate(()), outbox=outbox)
    discarded: list[bool] = []

    def write(path: str) -> Mapping[str, FileEntry]:
        raise StorageError("the bucket is gone")

    staged = StagedShards(str(tmp_path), write, lambda: discarded.append(True))
    result = {"training_iteration": 1, "done": False}
    saved = one.save(ShardedCheckpoint(str(tmp_path), no_ranks, lambda: staged), result)
    one.publish(result, saved)
    with pytest.raises(StorageError, match="the bucket is gone"):
        one.finish()
    assert outbox.collect(0, 0) == []
    assert discarded == [True]
