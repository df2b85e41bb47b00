"""The coordinator of the ranks, with agents that a test plays."""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.isolation.ranks.rank_group import (
    AgentLost,
    FullReport,
    NewCheckpointAsked,
    RankFailed,
    RankGroup,
    RanksKilled,
    owners_of_files,
)
from dasktune.isolation.ranks.rank_messages import (
    AskCheckpoint,
    CheckpointLoaded,
    DumpStacks,
    FromAgent,
    FromRank,
    HoldPort,
    KillRanks,
    NewestCheckpoint,
    OfferedFile,
    PortHeld,
    RankBegan,
    RankDied,
    RankEnded,
    RankReport,
    Reduced,
    ReduceMetrics,
    Release,
    RendezvousLate,
    ShardWritten,
    StacksDumped,
    StartRanks,
    TellRanks,
    ToAgent,
    WordOfRank,
    WriteShard,
    pack_metrics,
    unpack_metrics,
)
from dasktune.isolation.ranks.shard_transfers import WorkerGone
from dasktune.storage.checkpoints.manifest import FileEntry
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.user_error import ErrorInfo

A, B = "tcp://a:1", "tcp://b:1"


class Agents:
    """Two agents with a rank each: a link that answers as far as the test has told it."""

    def __init__(self, answers: dict[type, Callable[[Agents, str], None]] | None = None) -> None:
        self.sent: list[tuple[str, ToAgent]] = []
        self.closed = False
        self.answers = {HoldPort: _hold, StartRanks: _begin, KillRanks: _die, **(answers or {})}
        self.dead: set[int] = set()

    def open(self, addresses: Sequence[str], receive: Callable[[str, FromAgent | AgentLost], None]) -> None:
        """Remember who listens."""
        assert tuple(addresses) == (A, B)
        self._receive = receive

    def send(self, address: str, message: ToAgent) -> None:
        """Answer at once."""
        self.sent.append((address, message))
        told = message.message if isinstance(message, TellRanks) else message
        if (answer := self.answers.get(type(told))) is not None:
            answer(self, address)

    def close(self) -> None:
        """Note the end."""
        self.closed = True

    def say(self, address: str, message: FromAgent | AgentLost) -> None:
        """Let an agent send a message."""
        self._receive(address, message)

    def word(self, rank: int, message: WordOfRank) -> None:
        """Let a rank send a message."""
        self.say((A, B)[rank], FromRank(rank=rank, message=message))

    def report(self, number: int, *ranks: int, **metrics: Any) -> None:
        """Let ranks come to a report."""
        for rank in ranks or (0, 1):
            self.word(rank, RankReport(number=number, metrics=pack_metrics({**metrics, "rank": rank})))

    def told(self, kind: type) -> list[Any]:
        """Return the messages of a kind that ranks or agents got."""
        inner = [one.message if isinstance(one, TellRanks) else one for _, one in self.sent]
        return [one for one in inner if isinstance(one, kind)]


def _hold(agents: Agents, address: str) -> None:
    agents.say(address, PortHeld(port=1234))


def _begin(agents: Agents, address: str) -> None:
    agents.word((A, B).index(address), RankBegan(pid=7))


def _die(agents: Agents, address: str) -> None:
    rank = (A, B).index(address)
    if rank not in agents.dead:
        agents.dead.add(rank)
        agents.say(address, RankDied(rank=rank, error=ErrorInfo(message="the trial's process died")))


def _show(agents: Agents, address: str) -> None:
    agents.say(address, StacksDumped(stacks={(A, B).index(address): "in hang"}))


def silent(agents: Agents, address: str) -> None:
    """Answer nothing."""


class Clock:
    """A clock that advances with each look."""

    def __init__(self, step: float = 0.001) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        """Return the time, which passes."""
        self.now += self.step
        return self.now


def started(agents: Agents, *, timer: Callable[[], float] | None = None, **settings: Any) -> RankGroup:
    """Return a group whose ranks run."""
    group = made(agents, timer=timer, **settings)
    group.start()
    return group


def made(
    agents: Agents,
    *,
    timer: Callable[[], float] | None = None,
    checkpoint: CheckpointRecord | None = None,
    **settings: Any,
) -> RankGroup:
    """Return a group of two ranks on two hosts."""
    spec = TrialSpec(
        trial_id="a",
        incarnation=1,
        resources=PlacementGroupFactory([{"CPU": 1}] * 2),
        storage=Storage("/tmp/runs"),
        trial_dir="a",
        experiment_name="e",
        trial_name="a",
        checkpoint=checkpoint,
        bundle_workers=(A, B),
        ranks=RankSettings(**settings),
    )
    return RankGroup(spec, b"", agents, timer or Clock())


def failure(call: Callable[[], object]) -> str:
    """Return the message of the failure of a call."""
    with pytest.raises(RankFailed) as caught:
        call()
    return caught.value.error.message


def test_a_report_is_complete_when_the_last_rank_comes() -> None:
    agents = Agents()
    group = started(agents)
    agents.report(1, 1, loss=2.0)
    agents.report(1, 0, loss=1.0)
    event = group.next_event()
    assert isinstance(event, FullReport)
    assert (event.number, event.metrics, event.checkpoint) == (1, {"loss": 1.0, "rank": 0}, None)
    # Rank 1 waited for rank 0, for one step of the clock.
    assert (event.slowest_rank, event.rank_wait_s) == (0, pytest.approx(0.001))
    group.release(1)
    assert agents.told(Release) == [Release(number=1)] * 2
    for rank in (0, 1):
        agents.word(rank, RankEnded())
    assert group.next_event() is None


def test_a_question_before_the_last_rank_has_begun_is_kept() -> None:
    def ask(agents: Agents, address: str) -> None:
        if address == A:
            agents.word(0, RankBegan(pid=7))
            agents.word(0, AskCheckpoint())
        else:
            agents.word(1, RankBegan(pid=7))

    group = started(Agents({StartRanks: ask}))
    assert group.next_event() == NewCheckpointAsked(0)


def test_rank_0_reduces_by_the_function_of_the_user() -> None:
    def reduce(agents: Agents, address: str) -> None:
        agents.word(0, Reduced(number=1, metrics=pack_metrics({"loss": 7})))

    agents = Agents({ReduceMetrics: reduce})
    group = started(agents, reduction="function")
    agents.report(1, loss=1)
    event = group.next_event()
    assert isinstance(event, FullReport)
    assert event.metrics == {"loss": 7}
    [asked] = agents.told(ReduceMetrics)
    assert [unpack_metrics(one)["rank"] for one in asked.metrics] == [0, 1]


def test_without_a_port_the_trial_fails_with_the_error_of_rank_0() -> None:
    def refuse(agents: Agents, address: str) -> None:
        agents.say(address, RankDied(rank=0, error=ErrorInfo(message="gaierror: no such host")))

    agents = Agents({HoldPort: refuse})
    with pytest.raises(RankFailed) as raised:
        started(agents)
    assert raised.value.error.message == "rank 0: gaierror: no such host"
    assert not agents.told(StartRanks)


def test_an_error_of_the_function_that_reduces_is_raised_on_all_ranks() -> None:
    error = ErrorInfo(message="ZeroDivisionError: division by zero")

    def reduce(agents: Agents, address: str) -> None:
        agents.word(0, Reduced(number=1, error=error))
        # User code has caught it on all ranks, and ends.
        agents.word(0, RankEnded())
        agents.word(1, RankEnded())

    agents = Agents({ReduceMetrics: reduce})
    group = started(agents, reduction="function")
    agents.report(1)
    assert group.next_event() is None
    told = [message for _, message in agents.sent if isinstance(message, TellRanks)]
    assert told[-2:] == [TellRanks(message=Release(number=1, error=error))] * 2


def test_the_mean_is_over_all_ranks() -> None:
    agents = Agents()
    group = started(agents, reduction="mean")
    agents.report(1)
    event = group.next_event()
    assert isinstance(event, FullReport)
    assert event.metrics == {"rank": 0.5}


def test_the_death_of_a_rank_goes_before_the_error_that_it_causes() -> None:
    agents = Agents()
    group = started(agents)
    agents.word(0, RankEnded(error=ErrorInfo(message="ConnectionError: closed by peer")))
    agents.say(B, RankDied(rank=1, error=ErrorInfo(message="the trial's process died of signal 9")))
    assert failure(group.next_event) == "rank 1: its process died of signal 9"


def test_an_error_alone_names_its_rank() -> None:
    agents = Agents()
    group = started(agents)
    agents.word(1, RankEnded(error=ErrorInfo(message="ValueError: no")))
    # The other rank's later error and the end of the first one change nothing.
    agents.word(0, RankEnded(error=ErrorInfo(message="ConnectionError")))
    agents.say(B, RankDied(rank=1, error=ErrorInfo(message="exited")))
    assert failure(group.next_event) == "rank 1: ValueError: no"


def test_the_errors_of_all_ranks_are_shown() -> None:
    # Rank 1 has closed its connections before it could say why.
    agents = Agents()
    group = started(agents)
    agents.word(0, RankEnded(error=ErrorInfo(message="EOFError", traceback="in recv\nEOFError\n")))
    agents.word(
        1, RankEnded(error=ErrorInfo(message="ValueError: no", traceback="in step\nValueError: no\n"))
    )
    with pytest.raises(RankFailed) as caught:
        group.next_event()
    error = caught.value.error
    assert error.message == "rank 0: EOFError"
    assert error.traceback == (
        "At the same time rank 1 failed:\nin step\nValueError: no\n\n\n"
        f"Rank 0 ran on worker {A} in process 7.\n\nin recv\nEOFError\n"
    )


def test_an_error_before_the_death_of_another_rank_is_shown() -> None:
    agents = Agents()
    group = started(agents)
    agents.word(0, RankEnded(error=ErrorInfo(message="EOFError")))
    agents.say(B, RankDied(rank=1, error=ErrorInfo(message="the trial's process died of signal 9")))
    with pytest.raises(RankFailed) as caught:
        group.next_event()
    assert caught.value.error.traceback == (
        "At the same time rank 0 failed:\nEOFError\n\n"
        f"Rank 1 ran on worker {B} in process 7.\n\nrank 1: its process died of signal 9\n"
    )


def test_a_rank_that_ends_early_is_named() -> None:
    agents = Agents()
    group = started(agents)
    agents.word(0, RankEnded())
    agents.report(1, 1)
    assert re.match(r"rank 0 ended, but rank 1 called report\(\)", failure(group.next_event))


def test_late_ranks_are_named_with_their_stacks() -> None:
    def dump(agents: Agents, address: str) -> None:
        agents.say(address, StacksDumped(stacks={1: "in hang"} if address == B else {}))

    agents = Agents({DumpStacks: dump})
    group = started(agents, report_timeout_s=0.05)
    agents.report(1, 0)
    with pytest.raises(RankFailed) as caught:
        group.next_event()
    assert "rank 1 did not come to report 1" in caught.value.error.message
    assert f"Rank 1 on worker {B} in process 7:\nin hang" in caught.value.error.traceback


RENDEZVOUS = '  File "/torch/distributed/distributed_c10d.py", line 7 in init_process_group'


@pytest.mark.parametrize("all_came", [True, False])
def test_a_rendezvous_that_does_not_come_about_names_who_is_missing(all_came: bool) -> None:
    def dump(agents: Agents, address: str) -> None:
        # Both ranks notice at nearly the same time.
        agents.word(1, RendezvousLate())
        stacks = {1: RENDEZVOUS} if address == B else {0: RENDEZVOUS if all_came else "in download"}
        agents.say(address, StacksDumped(stacks=stacks))

    agents = Agents({DumpStacks: dump})
    group = started(agents, rendezvous_timeout_s=90.0)
    agents.word(1, RendezvousLate())
    with pytest.raises(RankFailed) as caught:
        group.next_event()
    error = caught.value.error
    if all_came:
        assert error.message.startswith("ranks 0, 1 waited for 90 s in a rendezvous")
        assert "connect to port 1234 of a (MASTER_ADDR)" in error.message
    else:
        assert error.message.startswith("rank 1 waited for 90 s in a rendezvous")
        assert "rank 0 did not come to it" in error.message
        assert "in download" in error.traceback
    assert f"Rank 1 on worker {B} in process 7:" in error.traceback


@pytest.mark.parametrize("found", [True, False])
def test_reading_and_waiting_for_a_checkpoint_do_not_count_as_silence(found: bool) -> None:
    record = CheckpointRecord(path="trials/a/checkpoint_000000_i01", index=0, iteration=1)
    clock = Clock()
    agents = Agents({DumpStacks: _show})
    group = started(agents, report_timeout_s=100.0, timer=clock)
    agents.word(1, AskCheckpoint())
    assert group.next_event() == NewCheckpointAsked(1)
    clock.now += 1000.0  # an upload ended
    group.answer_checkpoint(1, NewestCheckpoint(record=record if found else None))

    def ask_later() -> None:
        if found:
            agents.word(1, CheckpointLoaded())
        agents.word(0, AskCheckpoint())

    if found:
        clock.now += 1000.0  # the rank reads
    # The group already waits, or finds the messages: both are right, and the first is likely.
    threading.Timer(0.02, ask_later).start()
    assert group.next_event() == NewCheckpointAsked(0)
    group.answer_checkpoint(0, NewestCheckpoint(record=None))
    clock.now += 1000.0
    assert "ranks 0, 1 did not come to report 1" in failure(group.next_event)


def test_ranks_that_do_not_start_are_named() -> None:
    group = made(Agents({StartRanks: silent}), start_timeout_s=0.05)
    assert failure(group.start).startswith("ranks 0, 1 did not start within 0.05 s")
    group = made(Agents({HoldPort: silent}), start_timeout_s=0.05)
    assert "did not answer in time" in failure(group.start)


@pytest.mark.parametrize("early", [True, False], ids=["before-the-port", "while-running"])
def test_a_lost_worker_and_a_kill_are_distinct(early: bool) -> None:
    lost = AgentLost(B, "closed")

    def lose(agents: Agents, address: str) -> None:
        agents.say(B, lost)

    if early:
        with pytest.raises(WorkerGone, match="closed"):
            made(Agents({HoldPort: lose})).start()
        return
    agents = Agents()
    group = started(agents)
    agents.say(B, lost)
    with pytest.raises(WorkerGone, match="closed"):
        group.next_event()
    other = started(Agents())
    other.kill()
    # The deaths that the kill causes come first, but do not count as failures of their own.
    with pytest.raises(RanksKilled):
        other.next_event()


def test_a_kill_before_the_start_starts_no_rank() -> None:
    agents = Agents({HoldPort: silent})
    group = made(agents)
    group.kill()
    with pytest.raises(RanksKilled):
        group.start()
    assert agents.told(StartRanks) == []
    group.end()
    assert agents.closed


def test_the_end_waits_for_all_processes() -> None:
    agents = Agents()
    group = started(agents)
    for rank in (0, 1):
        agents.word(rank, RankEnded())
    assert group.next_event() is None
    group.end(0.05)
    group.end()
    assert agents.closed
    assert len(agents.told(KillRanks)) == 2


def test_a_process_that_cannot_be_killed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    agents = Agents({KillRanks: silent})
    group = started(agents, timer=Clock(50.0))
    assert not group.is_occupied
    group.end()
    assert "the processes of ranks 0, 1 of trial a could not be killed" in caplog.text
    # The trial has ended, but its room is not free.
    _die(agents, A)
    assert group.is_occupied
    assert not agents.closed
    _die(agents, B)
    deadline = time.monotonic() + 60
    while group.is_occupied:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert agents.closed


def test_a_worker_lost_after_an_error_of_a_rank_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    agents = Agents()
    group = started(agents, timer=Clock(50.0))
    agents.word(0, RankEnded(error=ErrorInfo(message="ConnectionError: closed by peer")))
    agents.say(B, AgentLost(B, "closed"))
    with pytest.raises(WorkerGone, match=f"the connection to worker {B} was lost: closed"):
        group.next_event()
    agents.answers[KillRanks] = lambda agents, address: _die(agents, address) if address == A else None
    group.end()
    assert caplog.text == ""


class Harmful:
    """An object that cannot be unpickled."""

    def __reduce__(self) -> Any:
        """Be unpickled by an error."""
        return int, ("no number",)


def test_metrics_that_cannot_be_unpickled_fail_their_rank() -> None:
    agents = Agents()
    group = started(agents, reduction="mean")
    agents.word(0, RankReport(number=1, metrics=pack_metrics({})))
    harmful = RankReport(number=1, metrics=pack_metrics({"loss": Harmful()}))
    # A message passes through event loops, which unpickle it without its metrics.
    agents.word(1, pickle.loads(pickle.dumps(harmful)))
    text = "rank 1: its metrics could not be unpickled on the trial's worker: ValueError: invalid literal"
    assert failure(group.next_event).startswith(text)


def test_event_loops_unpickle_no_metrics_of_a_checkpoint() -> None:
    agents = Agents()
    record = CheckpointRecord(
        path="trials/a/checkpoint_000000_i01", index=0, iteration=1, metrics={"loss": Harmful()}
    )
    made(agents, checkpoint=record).start()
    messages = agents.told(StartRanks)
    assert messages
    for message in messages:
        assert pickle.loads(pickle.dumps(message)).spec.trial_id == "a"


def test_shards_are_written_by_their_owners() -> None:
    def write(agents: Agents, address: str) -> None:
        rank = (A, B).index(address)
        agents.word(rank, ShardWritten(entries={f"{rank}.bin": FileEntry(1, rank)}))

    agents = Agents({WriteShard: write})
    group = started(agents)
    owners = {0: frozenset({"0.bin"}), 1: frozenset({"1.bin"})}
    assert group.write_shards(owners, "trials/a") == {"0.bin": FileEntry(1, 0), "1.bin": FileEntry(1, 1)}


def test_a_shard_that_cannot_be_written_is_an_error() -> None:
    def fail(agents: Agents, address: str) -> None:
        agents.word((A, B).index(address), ShardWritten(error=ErrorInfo(message="OSError: full")))

    group = started(Agents({WriteShard: fail}))
    with pytest.raises(Exception, match="OSError: full"):
        group.write_shards({0: frozenset({"a"})}, "trials/a")


def _leave(agents: Agents, address: str) -> None:
    agents.word((A, B).index(address), RankEnded())


def _vanish(agents: Agents, address: str) -> None:
    agents.say(address, AgentLost(address, "closed"))


@pytest.mark.parametrize(("answer", "error"), [(_leave, RankFailed), (_vanish, WorkerGone)])
def test_no_rank_writes_any_more_when_a_save_has_failed(answer: Any, error: type[Exception]) -> None:
    agents = Agents({WriteShard: answer})
    group = started(agents)
    with pytest.raises(error):
        group.write_shards({1: frozenset({"a"})}, "trials/a")
    assert agents.told(KillRanks)
    assert agents.closed


def offer(*files: OfferedFile) -> RankReport:
    """Return a report with files."""
    return RankReport(number=1, metrics=pack_metrics({}), checkpoint="/tmp", files=files)


def test_each_file_has_one_writer() -> None:
    shared, own = OfferedFile(name="w", identity=("h", 1, 2)), OfferedFile(name="o", identity=("h", 1, 3))
    assert owners_of_files({0: offer(shared), 1: offer(shared, own)}) == {
        0: frozenset({"w"}),
        1: frozenset({"o"}),
    }
    other = OfferedFile(name="w", identity=("i", 1, 2))
    with pytest.raises(ConfigError, match="got 'w' from ranks 0 and 1"):
        owners_of_files({0: offer(shared), 1: offer(other)})
