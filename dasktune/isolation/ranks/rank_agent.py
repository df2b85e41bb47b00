"""Starts the ranks of a distributed trial on one worker, passes their messages, and kills them."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dasktune.isolation.process import ChildDied, ChildProcess
from dasktune.isolation.ranks.fork_server import ForkServer, ForkServerLost, ForkServers
from dasktune.isolation.ranks.rank_layout import inherited_environment, shared_environment
from dasktune.isolation.ranks.rank_messages import (
    AgentLost,
    DropShards,
    DumpStacks,
    FromAgent,
    FromRank,
    HoldPort,
    KillRanks,
    Ping,
    PortHeld,
    RankBegan,
    RankDied,
    RankStart,
    RunRank,
    ShardsStaged,
    ShardsUploaded,
    StacksDumped,
    StageShards,
    StartRanks,
    TellRanks,
    ToAgent,
    UploadShards,
)
from dasktune.isolation.ranks.shard_staging import ShardStaging
from dasktune.storage.fs.local_files import is_disk_full
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.running.error_info import error_info
from dasktune.trial.user_error import ErrorInfo

logger = logging.getLogger(__name__)

#: The module whose `main` a rank runs.
_RANK_MODULE: Final = "dasktune.isolation.ranks.rank_process"

#: Whether a server can listen at a port that is held. Systems other than Linux refuse that, or let
#: both sockets have the port; there it is free again once it is known.
_KEEPS_PORT: Final[bool] = sys.platform.startswith("linux")

#: Pings of a rank during the time after which it counts its worker as lost.
_PINGS: Final = 6

#: What is shown of a rank whose stacks did not come. They come even if C code holds the lock.
_NO_STACKS: Final = "no answer: the process is suspended, or waits for a device or a disk"


def hold_port(host: str) -> socket.socket:
    """Return a socket that reserves a free port of this host for another process.

    It is bound and does not listen. The system gives its port to no other program that asks for a
    free one, but a server that names the port, and sets ``SO_REUSEADDR`` as servers do, gets it. So
    no other program can take the port between now and the rendezvous.

    Parameters
    ----------
    host : str
        The address that other hosts will connect to.

    Examples
    --------
    >>> with hold_port("127.0.0.1") as held, socket.socket() as server:
    ...     server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ...     server.bind(held.getsockname())
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(address)
        except OSError:
            # Other hosts reach this one by an address that it does not have itself.
            held.bind(("", 0))
    except BaseException:
        held.close()
        raise
    return held


class _PreloadFailed(Exception):
    """The modules of `preload` could not be imported.

    Parameters
    ----------
    cause : ErrorInfo
        What the import has raised.
    modules : sequence of str
        The modules.
    """

    def __init__(self, cause: ErrorInfo, modules: Sequence[str]) -> None:
        super().__init__(cause, modules)
        message = f"the modules of preload ({', '.join(modules)}) could not be imported: {cause.message}"
        self.error = replace(cause, message=message)


class RankAgent:
    """The ranks of one trial on this worker. They live no longer than the agent.

    Parameters
    ----------
    host : str
        The host in the worker's address.
    send : callable
        Sends a message to the coordinator; thread-safe, and returns at once.
    open_payload : callable
        Given a pickled configuration, returns what a child process unpickles. It may block.
    fork_servers : ForkServers, optional
        The worker's processes that fork ranks; without them ranks are fresh interpreters.
    make_process : callable, default=ChildProcess
        Starts the process of a rank.
    hold : callable, default=hold_port
        Given the host, returns a socket that reserves a port of it. It may block.
    keeps_port : bool, optional
        Whether a port is held until the end. The default is whether a server can listen at a port
        that is held, which only Linux allows.
    """

    # The connection's reader calls `handle` and `close`, which return at once. One thread starts
    # the ranks, one pings them, and each rank has a thread that reads its messages.
    #
    # - A kill while the ranks are being started: both sides take `_lock`. Either the kill finds the
    #   new process in `_ranks`, or the starting thread finds `_killed` and starts no process, or
    #   kills the one that it has just started.
    # - Messages of a rank and its death: one thread sends both, in the order of the connection. So
    #   no death overtakes the rank's last message.
    # - A lease asks `finished` while a rank is being started: its process may run, but is not in
    #   `_ranks` yet. `_starting` is set meanwhile.

    def __init__(
        self,
        host: str,
        send: Callable[[FromAgent], None],
        open_payload: Callable[[bytes], ChildPayload],
        fork_servers: ForkServers | None = None,
        *,
        make_process: Callable[..., ChildProcess] = ChildProcess,
        hold: Callable[[str], socket.socket] = hold_port,
        keeps_port: bool = _KEEPS_PORT,
    ) -> None:
        self._host = host
        self._send = send
        self._open_payload = open_payload
        self._fork_servers = fork_servers
        self._make_process = make_process
        self._hold = hold
        self._keeps_port = keeps_port
        #: The server that the trial uses until the agent is closed.
        self._server: ForkServer | None = None
        self._lock = threading.Lock()
        self._ranks: dict[int, ChildProcess] = {}
        #: The ranks that call user code: only these know the signal for stacks.
        self._began: set[int] = set()
        self._killed = False
        #: Whether a process may run that is not in `_ranks` yet.
        self._starting = False
        self._closed = threading.Event()
        self._port: socket.socket | None = None
        #: The copies of checkpoints; None before the ranks are started.
        self._staging: ShardStaging | None = None

    def handle(self, message: ToAgent) -> None:
        """Handle a message of the coordinator; return at once."""
        match message:
            case HoldPort():
                self._in_thread(self._hold_port)
            case StartRanks():
                with self._lock:
                    self._staging = ShardStaging(message.spec.storage)
                self._in_thread(self._start_all, message)
            case TellRanks(message=told, rank=rank):
                for number, process in self._processes():
                    if rank in (None, number):
                        process.post(told)
            case DumpStacks(ranks=ranks):
                self._in_thread(self._dump, ranks)
            case StageShards():
                self._in_thread(self._stage, message)
            case UploadShards():
                self._in_thread(self._upload, message)
            case DropShards(number=number):
                self._in_thread(self._shards().drop, number)
            case KillRanks(and_uploads=and_uploads):
                self.kill()
                if and_uploads:
                    self._drop_shards()

    def kill(self) -> None:
        """Kill all ranks with what they have started; thread-safe."""
        with self._lock:
            self._killed = True
            processes = list(self._ranks.values())
        for process in processes:
            process.kill()

    def close(self) -> None:
        """Kill all ranks: the trial has ended, or the coordinator is gone."""
        self.kill()
        self._drop_shards()
        with self._lock:
            self._closed.set()
            port = self._port
            server, self._server = self._server, None
        if port is not None:
            port.close()
        if server is not None and self._fork_servers is not None:
            self._fork_servers.release(server)

    def leave(self, address: str) -> None:
        """Kill all ranks because their worker ends, which is no failure of the trial.

        Parameters
        ----------
        address : str
            The worker's address.
        """
        # First, so that no death by this kill counts as a failure.
        self._send(AgentLost(address, "the worker is closing"))
        self.close()

    @property
    def finished(self) -> bool:
        """Whether the agent is closed and no process of a rank is left or still to come."""
        with self._lock:
            if self._starting or not self._closed.is_set():
                return False
            return all(process.finished for process in self._ranks.values())

    def _processes(self) -> list[tuple[int, ChildProcess]]:
        with self._lock:
            return list(self._ranks.items())

    def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="dasktune-ranks", daemon=True).start()

    def _shards(self) -> ShardStaging:
        with self._lock:
            assert self._staging is not None, "ranks that were not started have no checkpoints"
            return self._staging

    def _drop_shards(self) -> None:
        with self._lock:
            staging = self._staging
        if staging is None:
            return
        numbers = staging.close()
        if numbers:
            # In a thread: deleting a large copy takes time.
            self._in_thread(_drop_all, staging, numbers)

    def _stage(self, message: StageShards) -> None:
        number = message.number
        try:
            self._shards().stage(number, message.shards)
        except Exception as error:
            is_full = is_disk_full(error)
            self._send(ShardsStaged(number=number, error=error_info(error), is_full=is_full))
        else:
            self._send(ShardsStaged(number=number))

    def _upload(self, message: UploadShards) -> None:
        try:
            entries = self._shards().upload(message.number, message.path)
        except Exception as error:  # the store's client may raise any exception
            self._send(ShardsUploaded(number=message.number, error=error_info(error)))
        else:
            self._send(ShardsUploaded(number=message.number, entries=entries))

    def _hold_port(self) -> None:
        # In a thread: the name of the host may have to be looked up, which takes long if the name
        # server does not answer.
        try:
            held = self._hold(self._host)
        except Exception as error:
            # Rank 0 needs the port, so this is the reason why it does not start.
            info = error_info(error)
            message = f"no port for the rendezvous could be reserved on {self._host}: {info.message}"
            self._send(RankDied(rank=0, error=replace(info, message=message)))
            return
        number = held.getsockname()[1]
        with self._lock:
            # The agent may have been closed meanwhile; then `close` has not seen the port.
            is_kept = self._keeps_port and not self._closed.is_set()
            if is_kept:
                self._port = held
        if not is_kept:
            held.close()
        self._send(PortHeld(port=number))

    def _start_all(self, message: StartRanks) -> None:
        waiting = list(message.ranks)
        failure = ErrorInfo(message="it was killed before it was started")
        try:
            payload = self._open_payload(message.config)
            server = self._open_fork_server(message)
            # Starting a process takes time, so a kill may come between two of them.
            while waiting and self._start(waiting[0], message, payload, server):
                del waiting[0]
        except _PreloadFailed as failed:
            failure = failed.error
        except Exception as error:
            failure = error_info(error)
        for rank in waiting:
            self._send(RankDied(rank=rank.info.world_rank, error=failure))
        if message.spec.ranks is not None:
            self._ping(message.spec.ranks.lost_after_s / _PINGS)

    def _open_fork_server(self, message: StartRanks) -> ForkServer | None:
        """Return a process that has imported what ranks need; None for fresh interpreters.

        It may take seconds. A kill ends the wait, and so does the death of that process.
        """
        settings, servers = message.spec.ranks, self._fork_servers
        assert settings is not None
        if settings.preload is None or not message.ranks or servers is None:
            return None
        shared = shared_environment(message.ranks[0].environment)
        server = servers.acquire({**inherited_environment(os.environ), **shared}, settings.preload)
        with self._lock:
            # `close` releases it, unless it has come already.
            is_kept = not self._closed.is_set()
            if is_kept:
                self._server = server
        if not is_kept:
            servers.release(server)
            return None
        try:
            preloaded = server.wait_until_ready(lambda: not self._is_killed())
        except ForkServerLost as loss:
            # Not the trial's failure: nothing of it has run there.
            logger.warning("ranks start as fresh interpreters: %s", loss)
            return None
        if preloaded is None or preloaded.refusal:
            return None
        if preloaded.error is not None:
            raise _PreloadFailed(preloaded.error, settings.preload)
        return server

    def _start(
        self, rank: RankStart, message: StartRanks, payload: ChildPayload, server: ForkServer | None
    ) -> bool:
        """Start a rank; return False if the ranks were killed before."""
        settings = message.spec.ranks
        assert settings is not None
        with self._lock:
            if self._killed:
                return False
            self._starting = True
        try:
            process = self._new_process(rank.environment, server)
            with self._lock:
                self._ranks[rank.info.world_rank] = process
        finally:
            with self._lock:
                self._starting = False
        process.post(
            RunRank(spec=message.spec, info=rank.info, payload=payload, lost_after_s=settings.lost_after_s)
        )
        if self._is_killed():
            process.kill()
        try:
            self._in_thread(self._listen, rank.info.world_rank, process)
        except RuntimeError:  # the system has no thread left
            process.stop()
            raise
        return True

    def _new_process(self, environment: Mapping[str, str], server: ForkServer | None) -> ChildProcess:
        if server is not None:
            try:
                return self._make_process(environment, start=server.fork)
            except ForkServerLost as loss:
                logger.warning("a rank starts as a fresh interpreter: %s", loss)
        inherited = inherited_environment(os.environ)
        return self._make_process(environment, module=_RANK_MODULE, inherited=inherited)

    def _is_killed(self) -> bool:
        with self._lock:
            return self._killed

    def _listen(self, rank: int, process: ChildProcess) -> None:
        try:
            while True:
                message = process.receive()
                if isinstance(message, RankBegan):
                    self._began.add(rank)
                self._send(FromRank(rank=rank, message=message))
        except ChildDied as death:
            self._send(RankDied(rank=rank, error=death.error))
        except Exception as error:  # a message that this process cannot unpickle
            process.kill()
            process.stop()
            self._send(RankDied(rank=rank, error=error_info(error)))

    def _ping(self, interval: float) -> None:
        # A worker that is suspended sends no pings, so its ranks exit by themselves.
        while not self._closed.wait(interval):
            for _, process in self._processes():
                process.post(Ping())

    def _dump(self, ranks: frozenset[int]) -> None:
        # At the same time: a rank that waits for a device or a disk does not answer, and the
        # coordinator does not wait for long.
        stacks: dict[int, str] = {}
        asked = [
            threading.Thread(target=self._dump_one, args=(rank, process, stacks), daemon=True)
            for rank, process in self._processes()
            if rank in ranks and rank in self._began
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
        self._send(StacksDumped(stacks=stacks))

    @staticmethod
    def _dump_one(rank: int, process: ChildProcess, stacks: dict[int, str]) -> None:
        with suppress(OSError, ValueError):  # it has died, and its file is closed
            stacks[rank] = process.dump_stacks() or _NO_STACKS


def _drop_all(staging: ShardStaging, numbers: Sequence[int]) -> None:
    for number in numbers:
        staging.drop(number)
