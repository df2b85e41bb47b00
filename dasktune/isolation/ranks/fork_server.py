"""Fork servers of a worker: processes that have imported what ranks need, and fork the ranks.

Four fresh interpreters take a second, and those that import PyTorch several. Four forks of a
process that has imported what they need take a tenth of a second. The program of a fork server is
`fork_server_process`.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import Any, Final

from dasktune.isolation.process import Interpreter, guarded, import_path, start_interpreter
from dasktune.isolation.process_mark import give_mark, kill_marked, new_mark
from dasktune.isolation.ranks.fork_server_process import (
    FORKER,
    Forked,
    ForkRank,
    Preload,
    Preloaded,
    Reaped,
    ReapRank,
)

logger = logging.getLogger(__name__)

#: Seconds that a fork or a reaping may take. A library may hang in its handlers of forks.
_ANSWER_LIMIT_S: Final = 30.0

#: Seconds that a server takes to exit after it has closed its connection.
_EXIT_SECONDS: Final = 1.0

#: Seconds for which the end of a killed server is waited for. One that waits for a device or a disk
#: ends late, and is not reaped then.
_EXIT_AFTER_KILL_SECONDS: Final = 30.0

#: Seconds between two looks whether the caller still waits for a server.
_LOOK_SECONDS: Final = 0.05


class ForkServerLost(Exception):
    """The fork server has ended, or does not answer."""


def can_fork() -> bool:
    """Whether this system has what fork servers need.

    A worker is not the parent of a forked rank. It needs a descriptor of the process to see its
    end, which Linux 5.3 and newer have.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class ForkedProcess:
    """A rank that a fork server has forked; see `StartedProcess`.

    Parameters
    ----------
    server : ForkServer
        The server, which is the parent of the process.
    pid : int
        The process id. It stays that of this process until the server reaps it.
    """

    #: Its end is visible without reaping it.
    can_look = True

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.parent = server.pid
        self._lock = threading.Lock()
        self._descriptor = os.pidfd_open(pid)

    def is_running(self, *, wait: bool = False) -> bool:
        """Return whether the process lives; with `wait`, return when it has ended."""
        # A copy for each look: `wait` closes its own while another thread waits for the death.
        with self._lock:
            if self._descriptor < 0:
                return False
            descriptor = os.dup(self._descriptor)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            return not ended.poll(None if wait else 0)
        finally:
            os.close(descriptor)

    def wait(self) -> int:
        """Wait for the end of the process, let the server reap it, and return its exit status."""
        self.is_running(wait=True)
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        return self._server.reap(self.pid)


class ForkServer:
    """A process that has imported some modules and forks ranks.

    Parameters
    ----------
    environment : mapping
        The environment variables with which the modules are imported.
    modules : sequence of str
        The modules.
    answer_limit_s : float, default=30.0
        Seconds that a fork or a reaping may take.

    Raises
    ------
    OSError
        If no process can be started.
    """

    # The server answers one request after another, and the lock lets one thread at a time ask.
    # The server dies with the worker, and its ranks die with it (`PR_SET_PDEATHSIG`).
    #
    # - The server dies: the kernel kills its ranks, which their descriptors show. The system reaps
    #   them, so a rank's id may belong to another process afterwards. `ChildProcess` kills the
    #   group of a rank at once when it sees the death, as the guard of a group does.
    # - A request gets no answer in time: the server is killed, and with it all its ranks.
    #
    # Modules may start processes when they are imported. They belong to the server's process group,
    # which a thread kills as soon as the server has died, and a guard if the worker has. The server
    # is reaped only in `_end`, after the last kill of the group, so the number of the group cannot
    # belong to another one. Those that have left the group have the server's mark; a rank has a
    # mark of its own (`rewrite_mark`).

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        *,
        answer_limit_s: float = _ANSWER_LIMIT_S,
    ) -> None:
        self._answer_limit_s = answer_limit_s
        self._lock = threading.Lock()
        self._environment = dict(environment)
        #: The answer to the first request; None before it has come.
        self._preloaded: Preloaded | None = None
        self._is_lost = False
        #: Why it is lost.
        self._loss = ""
        #: Number of trials that use the server.
        self.users = 0
        self._reaping = threading.Lock()
        self._is_reaped = False
        self._mark = new_mark()
        #: Set when the server has died, and what it had started was killed.
        self._has_died = threading.Event()
        self._link: Connection
        self._link, theirs = Pipe()
        try:
            with theirs:
                program = "dasktune.isolation.ranks.fork_server_process"
                marked = {**environment, **give_mark(os.environ, self._mark)}
                self._process = Interpreter(start_interpreter(program, theirs.fileno(), marked))
            self._guard = guarded(self.pid, self._mark)
        except BaseException:
            # A server without its connection exits.
            self._link.close()
            raise
        threading.Thread(target=self._wait_for_death, name="dasktune-death", daemon=True).start()
        # If it has died already, the wait for its answer finds that.
        with suppress(OSError):
            self._link.send(import_path(environment))
            self._link.send(Preload(parent=os.getpid(), modules=tuple(modules)))

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether the server can fork, has refused to fork, or still imports."""
        if self._preloaded is not None and self._preloaded.error is not None:
            return False
        if self._preloaded is not None and self._preloaded.refusal:
            return True
        return not self._is_lost and self._process.is_running()

    @property
    def is_ready(self) -> bool:
        """Whether the modules are imported, or have failed, as far as a trial has waited for it."""
        return self._preloaded is not None

    def wait_until_ready(self, is_needed: Callable[[], bool]) -> Preloaded | None:
        """Wait until the modules are imported, and return how that ended.

        Parameters
        ----------
        is_needed : callable
            Returns whether the caller still waits. If not, the result is None.

        Raises
        ------
        ForkServerLost
            If the server has ended.
        """
        while is_needed():
            with self._lock:
                if self._preloaded is not None:
                    return self._preloaded
                if self._is_lost:
                    raise ForkServerLost(self._loss)
                if not self._poll(_LOOK_SECONDS):
                    continue
                answer = self._receive()
                assert isinstance(answer, Preloaded), answer
                self._preloaded = answer
                if answer.error is not None or answer.refusal:
                    self._end("it is not needed")
                if answer.refusal:
                    logger.warning("ranks start as fresh interpreters: %s", answer.refusal)
        return None

    def fork(self, variables: Mapping[str, str], link: int, crash_file: int) -> ForkedProcess:
        """Fork a rank.

        Parameters
        ----------
        variables : mapping
            Environment variables in addition to those of the server, or instead of them.
        link, crash_file : int
            Descriptors of this process that the rank gets: of its connection to the worker, and of
            the file for the tracebacks of crashes.

        Raises
        ------
        ForkServerLost
            If the server has ended or does not answer.
        """
        # Not the equal ones: a module may have changed them while it was imported, and in a fresh
        # interpreter its change would stand.
        own = {name: value for name, value in variables.items() if self._environment.get(name) != value}
        with self._lock:
            answer = self._ask(ForkRank(variables=own), link, crash_file)
            assert isinstance(answer, Forked), answer
            if answer.error:
                raise OSError(answer.error)
            # The server reaps it only when `reap` asks for it, so this is the right process.
            return ForkedProcess(self, answer.pid)

    def reap(self, pid: int) -> int:
        """Return the exit status of a rank that has ended; its process id is free then.

        Without the server the status is not known; the rank has been killed with it.
        """
        try:
            with self._lock:
                answer = self._ask(ReapRank(pid=pid))
        except ForkServerLost:
            return -signal.SIGKILL
        assert isinstance(answer, Reaped), answer
        return answer.status

    def close(self) -> None:
        """Kill the server, and with it its ranks and what modules have started."""
        # Not under the lock: a thread may wait for an answer, which the kill ends.
        self._kill_group()
        with self._lock:
            self._end("the experiment has ended on this worker")

    def _ask(self, request: object, *descriptors: int) -> object:
        if self._is_lost:
            raise ForkServerLost(self._loss)
        try:
            self._link.send(request)
            for descriptor in descriptors:
                send_handle(self._link, descriptor, self.pid)
        except OSError as error:
            self._end()
            raise ForkServerLost(self._loss) from error
        if not self._poll(self._answer_limit_s):
            self._end(f"{FORKER} has not answered for {self._answer_limit_s:g} s")
            raise ForkServerLost(self._loss)
        return self._receive()

    def _poll(self, seconds: float) -> bool:
        try:
            return self._link.poll(seconds)
        except OSError:
            return True  # `_receive` notes the loss.

    def _receive(self) -> object:
        try:
            return pickle.loads(self._link.recv_bytes())
        except (EOFError, OSError) as error:
            self._end()
            raise ForkServerLost(self._loss) from error

    def _end(self, loss: str = "") -> None:
        """Kill the process and forget it: it has died, or for the given loss; under the lock."""
        if self._is_lost:
            return
        self._is_lost = True
        if not loss:
            # It has closed the connection, so it ends at once, and its status says of what.
            self._has_died.wait(_EXIT_SECONDS)
        self._kill_group()
        status: int | None = None
        if self._has_died.wait(_EXIT_AFTER_KILL_SECONDS):
            with self._reaping:
                self._is_reaped = True
            self._guard.release()
            status = self._process.wait()
        self._loss = loss or f"{FORKER} has ended with status {status}"
        self._link.close()

    def _wait_for_death(self) -> None:
        """Kill what modules have started as soon as the server has died."""
        self._process.is_running(wait=True)
        self._kill_group()
        kill_marked(self._mark)
        self._has_died.set()

    def _kill_group(self) -> None:
        with self._reaping, suppress(OSError):
            # The number of a group without a member may belong to another one.
            if not self._is_reaped:
                os.killpg(self.pid, signal.SIGKILL)


class ForkServers:
    """The fork servers of an experiment on one worker; thread-safe.

    There is one for each environment in which modules are imported. Trials with equal resources
    have equal environments, but for what differs between their ranks.

    Parameters
    ----------
    make_server : callable, default=ForkServer
        Starts the server for an environment and modules.
    """

    def __init__(
        self, make_server: Callable[[Mapping[str, str], Sequence[str]], ForkServer] = ForkServer
    ) -> None:
        self._make_server = make_server
        self._lock = threading.Lock()
        self._servers: dict[Any, ForkServer] = {}
        self._is_closed = False

    def acquire(self, environment: Mapping[str, str], modules: Sequence[str]) -> ForkServer:
        """Return the server for an environment; the caller releases it when its ranks have ended.

        Parameters
        ----------
        environment : mapping
            The environment variables.
        modules : sequence of str
            The modules that it has imported.

        Raises
        ------
        OSError
            If none can be started.
        """
        unused: list[ForkServer] = []
        try:
            with self._lock:
                return self._acquire(environment, modules, unused)
        finally:
            # Not under the lock, for which a worker's event loop waits in `release`: a killed
            # process that waits for a device or a disk ends late.
            for one in unused:
                one.close()

    def release(self, server: ForkServer) -> None:
        """End the use of a server, which is kept for the next trial."""
        with self._lock:
            server.users -= 1

    def _acquire(
        self, environment: Mapping[str, str], modules: Sequence[str], unused: list[ForkServer]
    ) -> ForkServer:
        """Return the server, and add those to `unused` that are to be closed; under the lock."""
        if self._is_closed:
            raise OSError("the experiment has ended on this worker")
        key = tuple(sorted(environment.items())), tuple(modules)
        server = self._servers.get(key)
        # One that no trial has waited for to the end may hang, so the next trial gets another.
        if server is None or not server.is_usable or not (server.users or server.is_ready):
            # Each holds the memory of what it has imported.
            old = [one for one, held in self._servers.items() if not held.users or one == key]
            unused += map(self._servers.pop, old)
            server = self._servers[key] = self._make_server(environment, modules)
        server.users += 1
        return server

    def close(self) -> None:
        """Kill all servers, and with them what is left of their ranks."""
        with self._lock:
            self._is_closed = True
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.close()
