"""The coordinator's part in checkpoints that agents upload, with agents that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dasktune.isolation.ranks.rank_messages import (
    DropShards,
    Shard,
    ShardsStaged,
    ShardsUploaded,
    StageShards,
    ToAgent,
    UploadShards,
)
from dasktune.isolation.ranks.shard_transfers import ShardTransfers, WorkerGone
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trial.user_error import ErrorInfo

A, B = "tcp://a:1", "tcp://b:1"
SHARDS = {
    A: {0: Shard(directory="/a", names=frozenset({"0.bin"}))},
    B: {1: Shard(directory="/b", names=frozenset({"1.bin"}))},
}
Answer = Callable[["Agents", str, Any], None]


class Agents:
    """Two agents that answer as the test has told them."""

    def __init__(self, kill_limit_s: float = 2.0, **answers: Answer) -> None:
        self.sent: list[tuple[str, ToAgent]] = []
        self._answers = {"StageShards": staged, "UploadShards": uploaded, **answers}
        self.transfers = ShardTransfers(self._send, kill_limit_s=kill_limit_s)

    def _send(self, address: str, message: ToAgent) -> None:
        self.sent.append((address, message))
        if (answer := self._answers.get(type(message).__name__)) is not None:
            answer(self, address, message)

    def dropped(self) -> list[str]:
        """Return the agents that were told to delete a copy."""
        return [address for address, message in self.sent if isinstance(message, DropShards)]


def staged(agents: Agents, address: str, message: StageShards) -> None:
    agents.transfers.take(address, ShardsStaged(number=message.number))


def uploaded(agents: Agents, address: str, message: UploadShards) -> None:
    name = {A: "0.bin", B: "1.bin"}[address]
    answer = ShardsUploaded(number=message.number, entries={name: FileEntry(1, 2)})
    agents.transfers.take(address, answer)


def silent(agents: Agents, address: str, message: Any) -> None:
    """Answer nothing."""


def test_all_agents_copy_and_then_upload() -> None:
    agents = Agents()
    number = agents.transfers.stage(SHARDS)
    assert number is not None
    assert not agents.transfers.is_idle
    entries = agents.transfers.upload(number, "trials/a/checkpoint_000000_i01")
    assert entries == {"0.bin": FileEntry(1, 2), "1.bin": FileEntry(1, 2)}
    agents.transfers.drop(number)
    assert agents.transfers.is_idle
    assert agents.transfers.stage(SHARDS) == number + 1


def test_without_room_on_one_disk_there_is_no_copy() -> None:
    def full(agents: Agents, address: str, message: StageShards) -> None:
        error = ErrorInfo(message="OSError: full") if address == B else None
        agents.transfers.take(
            address, ShardsStaged(number=message.number, error=error, is_full=error is not None)
        )

    agents = Agents(StageShards=full)
    assert agents.transfers.stage(SHARDS) is None
    assert agents.dropped() == [A, B]
    assert agents.transfers.is_idle


def test_an_error_of_one_agent_is_raised_when_all_have_answered() -> None:
    seen: list[str] = []

    def fail(agents: Agents, address: str, message: UploadShards) -> None:
        def answer() -> None:
            seen.append(address)
            error = ErrorInfo(message="OSError: no such bucket") if address == A else None
            agents.transfers.take(address, ShardsUploaded(number=message.number, error=error))

        if address == A:
            answer()
        else:
            threading.Timer(0.02, answer).start()

    agents = Agents(UploadShards=fail)
    number = agents.transfers.stage(SHARDS)
    assert number is not None
    with pytest.raises(Exception, match="no such bucket"):
        agents.transfers.upload(number, "trials/a/checkpoint_000000_i01")
    assert seen == [A, B]


@pytest.mark.parametrize("when", ["StageShards", "UploadShards"])
def test_a_lost_worker_ends_the_wait_and_the_others_stop_writing(when: str) -> None:
    def vanish(agents: Agents, address: str, message: StageShards | UploadShards) -> None:
        if address == B:
            agents.transfers.lose(B, "it was closed")

    def dropped(agents: Agents, address: str, message: DropShards) -> None:
        # The agent's thread has come to the end of its files.
        kind = ShardsStaged if when == "StageShards" else ShardsUploaded
        agents.transfers.take(address, kind(number=message.number, error=ErrorInfo(message="dropped")))

    agents = Agents(**{when: vanish, "DropShards": dropped})

    def save() -> None:
        number = agents.transfers.stage(SHARDS)
        assert number is not None
        agents.transfers.upload(number, "trials/a/checkpoint_000000_i01")

    with pytest.raises(WorkerGone, match=f"the connection to worker {B} was lost: it was closed"):
        save()
    assert A in agents.dropped()


def test_a_kill_ends_the_wait_although_an_agent_does_not_answer() -> None:
    def kill(agents: Agents, address: str, message: UploadShards) -> None:
        if address == B:
            threading.Timer(0.01, agents.transfers.kill).start()

    agents = Agents(kill_limit_s=0.01, UploadShards=kill)
    number = agents.transfers.stage(SHARDS)
    assert number is not None
    with pytest.raises(TrialInterrupted):
        agents.transfers.upload(number, "trials/a/checkpoint_000000_i01")
    with pytest.raises(TrialInterrupted):
        agents.transfers.stage(SHARDS)


def test_a_late_answer_about_a_dropped_copy_is_ignored() -> None:
    agents = Agents()
    number = agents.transfers.stage(SHARDS)
    assert number is not None
    agents.transfers.drop(number)
    agents.transfers.take(A, ShardsUploaded(number=number))
    assert agents.transfers._answers == {}


def test_an_upload_of_a_dropped_copy_ends_before_it_begins_and_while_it_waits() -> None:
    agents = Agents(UploadShards=lambda agents, address, message: agents.transfers.drop(message.number))
    number = agents.transfers.stage(SHARDS)
    assert number is not None
    # The first agent's order drops the copy, so no answer can come any more.
    with pytest.raises(TrialInterrupted):
        agents.transfers.upload(number, "trials/a/checkpoint")
    with pytest.raises(TrialInterrupted):
        agents.transfers.upload(number, "trials/a/checkpoint")
    assert agents.transfers.is_idle
