"""The agent of a worker, with ranks that are no processes."""

from __future__ import annotations

import queue
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dasktune.isolation.process import ChildDied
from dasktune.isolation.ranks.fork_server import ForkServerLost
from dasktune.isolation.ranks.fork_server_process import Preloaded
from dasktune.isolation.ranks.rank_agent import RankAgent, hold_port
from dasktune.isolation.ranks.rank_messages import (
    AgentLost,
    DumpStacks,
    FromAgent,
    FromRank,
    HoldPort,
    KillRanks,
    PortHeld,
    RankBegan,
    RankDied,
    RankStart,
    StacksDumped,
    StartRanks,
)
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import RankInfo, RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.user_error import ErrorInfo

PATIENCE = 60.0


class Other:
    """The coordinator's end of the connection."""

    def __init__(self, host: str = "127.0.0.1", servers: Any = None, **options: Any) -> None:
        self.messages: queue.Queue[FromAgent] = queue.Queue()
        self.agent = RankAgent(host, self.messages.put, lambda config: SimpleNamespace(), servers, **options)

    def next(self) -> FromAgent:
        return self.messages.get(timeout=PATIENCE)


def start(ranks: int, **settings: Any) -> StartRanks:
    spec = TrialSpec(
        trial_id="a",
        incarnation=1,
        resources=PlacementGroupFactory([{"CPU": 1}]),
        storage=Storage("/tmp/runs"),
        trial_dir="a",
        experiment_name="e",
        trial_name="a",
        ranks=RankSettings(**settings),
    )
    size = {"world_size": ranks, "local_world_size": ranks, "node_rank": 0, "num_nodes": 1}
    infos = [RankInfo(world_rank=rank, local_rank=rank, **size) for rank in range(ranks)]
    starts = tuple(RankStart(info=info, environment={}) for info in infos)
    return StartRanks(spec=spec, config=b"", ranks=starts)


@pytest.mark.parametrize("keeps", [True, False], ids=["linux", "other"])
def test_a_port_is_held_until_the_end_only_where_servers_can_listen_at_it(keeps: bool):
    found: list[socket.socket] = []

    def hold(host: str) -> socket.socket:
        found.append(hold_port(host))
        return found[0]

    other = Other(hold=hold, keeps_port=keeps)
    other.agent.handle(HoldPort())
    held = other.next()
    assert isinstance(held, PortHeld)
    assert held.port > 0
    assert (found[0].fileno() != -1) is keeps
    other.agent.close()
    assert found[0].fileno() == -1


def test_a_host_without_a_name_is_an_error_of_rank_0_and_is_not_looked_up_by_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
):
    threads: list[int] = []

    def fail(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    other = Other(host="nowhere")
    other.agent.handle(HoldPort())
    died = other.next()
    assert isinstance(died, RankDied)
    assert died.rank == 0
    assert died.error.message.startswith("no port for the rendezvous could be reserved on nowhere: gaierror")
    assert threads != [threading.get_ident()]
    other.agent.close()


def test_a_port_that_is_found_after_the_end_is_closed():
    closing = threading.Event()
    found: list[socket.socket] = []

    def late(host: str) -> socket.socket:
        assert closing.wait(PATIENCE)
        found.append(hold_port(host))
        return found[0]

    other = Other(hold=late)
    other.agent.handle(HoldPort())
    other.agent.close()
    closing.set()
    other.next()
    assert found[0].fileno() == -1


def test_no_rank_is_started_after_a_kill():
    started: list[Any] = []

    class Process:
        finished = True

        def __init__(self, *arguments: Any, **options: Any) -> None:
            started.append(self)
            # The kill comes while the first rank is being started.
            other.agent.handle(KillRanks())

        def post(self, message: Any) -> None:
            """Send nothing."""

        def kill(self) -> None:
            """Kill nothing."""

        def receive(self) -> Any:
            raise ChildDied(ErrorInfo(message="killed"))

    other = Other(make_process=Process)
    other.agent.handle(start(3))
    died = sorted((other.next() for _ in range(3)), key=lambda one: one.rank)
    assert len(started) == 1
    # The coordinator waits for the death of each rank that was to start.
    assert [(one.rank, one.error.message) for one in died] == [
        (0, "killed"),
        (1, "it was killed before it was started"),
        (2, "it was killed before it was started"),
    ]
    other.agent.close()


class FakeProcess:
    """A rank that a test controls."""

    made: ClassVar[list[Any]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.made.append(self)
        self.finished = False
        self.messages: queue.Queue[Any] = queue.Queue()

    def post(self, message: Any) -> None:
        """Send nothing."""

    def kill(self) -> None:
        """Do not die yet."""

    def receive(self) -> Any:
        """Return what the test says next, or raise it."""
        message = self.messages.get(timeout=PATIENCE)
        if isinstance(message, Exception):
            self.finished = True
            raise message
        return message

    def die(self) -> None:
        """End at last."""
        self.messages.put(ChildDied(ErrorInfo(message="killed")))


def test_an_agent_has_not_finished_before_the_last_process_is_gone():
    starting, gate = threading.Event(), threading.Event()

    class Slow(FakeProcess):
        made: ClassVar[list[Any]] = []

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__()
            starting.set()
            assert gate.wait(PATIENCE)

    other = Other(make_process=Slow)
    assert not other.agent.finished  # ranks may still come
    other.agent.handle(start(1))
    assert starting.wait(PATIENCE)
    other.agent.close()
    # The process may run already, although the agent does not know it yet.
    assert not other.agent.finished
    gate.set()
    [process] = Slow.made
    process.die()
    assert isinstance(other.next(), RankDied)
    assert other.agent.finished


def test_ranks_that_end_with_their_worker_have_not_failed():
    class Killable(FakeProcess):
        made: ClassVar[list[Any]] = []

        def kill(self) -> None:
            self.die()

    other = Other(make_process=Killable)
    other.agent.handle(start(1))
    list(_say_began(Killable.made, 1))
    assert isinstance(other.next(), FromRank)
    other.agent.leave("tcp://127.0.0.1:1")
    # The loss of the worker comes before the death.
    assert other.next() == AgentLost("tcp://127.0.0.1:1", "the worker is closing")
    assert isinstance(other.next(), RankDied)
    assert other.agent.finished


def test_a_rank_that_cannot_answer_holds_up_no_stacks_of_others():
    second_is_asked = threading.Event()

    class Hanging(FakeProcess):
        made: ClassVar[list[Any]] = []

        def dump_stacks(self) -> str:
            if self is self.made[0]:
                assert second_is_asked.wait(PATIENCE)
                return ""
            second_is_asked.set()
            return "in hang"

    other = Other(make_process=Hanging)
    other.agent.handle(start(2))
    began = [other.next() for _ in _say_began(Hanging.made, 2)]
    assert len(began) == 2
    other.agent.handle(DumpStacks(ranks=frozenset({0, 1})))
    dumped = other.next()
    assert isinstance(dumped, StacksDumped)
    assert dumped.stacks[1] == "in hang"
    assert dumped.stacks[0].startswith("no answer")
    for process in Hanging.made:
        process.die()
    other.agent.close()


def _say_began(made: list[Any], count: int) -> list[Any]:
    """Let so many ranks say that they call user code, once they are started."""
    deadline = time.monotonic() + PATIENCE
    while len(made) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for process in made:
        process.messages.put(RankBegan(pid=7))
    return made


def test_a_rank_without_a_thread_for_its_messages_is_ended(monkeypatch: pytest.MonkeyPatch):
    stopped: list[Any] = []

    class Process(FakeProcess):
        made: ClassVar[list[Any]] = []

        def stop(self) -> None:
            self.finished = True
            stopped.append(self)

    other = Other(make_process=Process)

    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        # The agent's thread starts the rank, and the agent can have no other.
        if threading.current_thread().name == "dasktune-ranks":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    other.agent.handle(start(1))
    died = other.next()
    assert isinstance(died, RankDied)
    assert "can't start new thread" in died.error.message
    assert stopped == Process.made
    other.agent.close()
    assert other.agent.finished


class FakeServers:
    """Fork servers without processes, of which each imports for as long as a test says."""

    def __init__(self, preloaded: Any = None, is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self.preloaded = preloaded or Preloaded()
        self.imported = threading.Event()
        self.acquired = threading.Event()
        self.may_acquire = threading.Event()
        self.may_acquire.set()
        self.users = 0

    def acquire(self, environment: Any, modules: Any) -> Any:
        assert environment["OMP_NUM_THREADS"] == "2"
        assert "RANK" not in environment
        assert modules == ("torch",)
        assert self.may_acquire.wait(PATIENCE)
        self.users += 1
        self.acquired.set()
        return self

    def release(self, server: Any) -> None:
        assert server is self
        self.users -= 1

    def wait_until_ready(self, is_needed: Any) -> Any:
        while is_needed():
            if self.imported.wait(0.001):
                if isinstance(self.preloaded, ForkServerLost):
                    raise self.preloaded
                return self.preloaded
        return None

    def fork(self, variables: Any, link: int, crash_file: int) -> Any:
        if self.is_lost:
            raise ForkServerLost("it has ended")
        return variables["RANK"]


class Forking(FakeProcess):
    """A rank that is started as its agent says, or is a fresh interpreter."""

    made: ClassVar[list[Any]] = []

    def __init__(self, environment: Any, *, start: Any = None, **options: Any) -> None:
        self.forked = None if start is None else start(environment, 3, 4)
        super().__init__()

    def kill(self) -> None:
        self.die()


@pytest.fixture
def forking() -> type[Forking]:
    """Return the ranks of agents that start no processes."""
    Forking.made = []
    return Forking


def start_with_preload(ranks: int) -> StartRanks:
    order = start(ranks, preload=("torch",))
    starts = [
        replace(one, environment={"RANK": str(number), "OMP_NUM_THREADS": "2"})
        for number, one in enumerate(order.ranks)
    ]
    return replace(order, ranks=tuple(starts))


@pytest.mark.parametrize(
    ("preloaded", "is_lost", "forked"),
    [
        (Preloaded(), False, ["0", "1"]),
        (Preloaded(), True, [None, None]),
        (ForkServerLost("it has ended with status -9"), True, [None, None]),
        (Preloaded(refusal="it has threads"), False, [None, None]),
    ],
    ids=["forks", "lost", "lost-early", "refusal"],
)
def test_ranks_are_fresh_interpreters_if_they_cannot_be_forked(
    forking: type[Forking], preloaded: Any, is_lost: bool, forked: list[Any]
):
    servers = FakeServers(preloaded, is_lost)
    servers.imported.set()
    other = Other(servers=servers, make_process=forking)
    other.agent.handle(start_with_preload(2))
    for _ in _say_began(forking.made, 2):
        assert isinstance(other.next(), FromRank)
    assert [one.forked for one in forking.made] == forked
    assert servers.users == 1
    other.agent.close()
    assert servers.users == 0


def test_ranks_are_fresh_interpreters_if_the_user_says_so(forking: type[Forking]):
    servers = FakeServers(Preloaded())
    other = Other(servers=servers, make_process=forking)
    other.agent.handle(start(2, preload=None))
    for _ in _say_began(forking.made, 2):
        assert isinstance(other.next(), FromRank)
    assert [one.forked for one in forking.made] == [None, None]
    assert not servers.acquired.is_set()
    other.agent.close()


def test_modules_that_cannot_be_imported_fail_all_ranks(forking: type[Forking]):
    servers = FakeServers(Preloaded(error=ErrorInfo(message="ImportError: no torch")))
    servers.imported.set()
    other = Other(servers=servers, make_process=forking)
    other.agent.handle(start_with_preload(2))
    for rank in range(2):
        died = other.next()
        assert isinstance(died, RankDied)
        assert died.rank == rank
        message = "the modules of preload (torch) could not be imported: ImportError: no torch"
        assert died.error.message == message
    assert forking.made == []
    other.agent.close()


def test_a_kill_does_not_wait_for_imports(forking: type[Forking]):
    servers = FakeServers()
    other = Other(servers=servers, make_process=forking)
    other.agent.handle(start_with_preload(1))
    assert servers.acquired.wait(PATIENCE)
    other.agent.close()
    died = other.next()
    assert isinstance(died, RankDied)
    assert "killed before it was started" in died.error.message
    assert (forking.made, servers.users) == ([], 0)
    assert other.agent.finished


def test_a_server_that_comes_after_the_end_is_released(forking: type[Forking]):
    servers = FakeServers()
    servers.may_acquire.clear()
    other = Other(servers=servers, make_process=forking)
    other.agent.handle(start_with_preload(1))
    other.agent.close()
    servers.may_acquire.set()
    assert isinstance(other.next(), RankDied)
    assert (forking.made, servers.users) == ([], 0)
