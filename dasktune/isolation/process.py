"""The worker's handle of a child process: starts it, exchanges messages with it, kills it."""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, Protocol

from dasktune.isolation.group_guard import GroupGuard
from dasktune.isolation.process_mark import give_mark, kill_marked, new_mark
from dasktune.isolation.process_messages import InitChild, StopChild
from dasktune.trial.user_error import ErrorInfo

#: The code that the child runs first. `-c` puts the working directory first in `sys.path`, and a
#: file there could hide any module, so this entry is removed. A `__main__` without a file is not
#: run again when user code starts processes by `multiprocessing`.
_BOOT: Final = """\
import sys
module, link = sys.argv[1:]
del sys.argv[1:]
sys.path[:] = [entry for entry in sys.path if entry]
from multiprocessing.connection import Connection
link = Connection(int(link))
sys.path[:] = link.recv()
from importlib import import_module
import_module(module).main(link)
"""

#: Makes a rank of a distributed trial write the stacks of its threads.
STACKS_SIGNAL: Final = signal.SIGUSR2

#: Seconds between two checks whether a silent child lives. A process that user code has forked may
#: keep the child's end of the connection open, so the connection may outlive the child.
_POLL_SECONDS: Final = 1.0

#: Seconds that a child has to run its exit handlers, however many messages it sends meanwhile.
_EXIT_SECONDS: Final = 1.0

#: Longest traceback of a crash that is reported, in bytes.
_LONGEST_TRACEBACK: Final = 1 << 14


def _block_termination() -> None:
    """Block SIGTERM in this thread, and so in the processes that it starts."""
    # A batch system sends the signal to all processes of a job, and it may come while a child still
    # imports what handles it. It stays pending then. The child unblocks it with its handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


#: Starts all children. On Linux a child dies with the *thread* that started it, and this one lives
#: as long as the worker.
_starter: Final = ThreadPoolExecutor(1, thread_name_prefix="process-starter", initializer=_block_termination)


class ChildDied(Exception):
    """The child has ended without an order of the worker.

    Parameters
    ----------
    error : ErrorInfo
        The cause.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error)
        self.error = error


class StartedProcess(Protocol):
    """A process that runs, whichever way it was started."""

    #: The process id. It belongs to this process until `wait` has returned.
    pid: int
    #: Process id of the parent, with which it dies.
    parent: int

    @property
    def can_look(self) -> bool:
        """Whether its end can be seen without reaping it: Python 3.12 and older cannot on macOS."""

    def is_running(self, *, wait: bool = False) -> bool:
        """Return whether the process lives; with `wait`, return when it has ended."""

    def wait(self) -> int:
        """Wait for its end, reap it, and return its exit status as `subprocess` does."""


class Interpreter:
    """A fresh interpreter; see `StartedProcess`.

    Parameters
    ----------
    process : subprocess.Popen
        The process.
    """

    can_look: Final = hasattr(os, "waitid")

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.parent = os.getpid()

    def is_running(self, *, wait: bool = False) -> bool:
        """Return whether the process lives; with `wait`, return when it has ended."""
        if not self.can_look:
            # This system can only look at a child by reaping it.
            return self._process.poll() is None
        try:
            options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
            return os.waitid(os.P_PID, self.pid, options) is None
        except ChildProcessError:
            # It has been reaped.
            return False

    def wait(self) -> int:
        """Wait for its end, reap it, and return its exit status."""
        return self._process.wait()


def import_path(environment: Mapping[str, str]) -> list[str]:
    """Return the directories in which a child with these variables looks for modules.

    They are those of this process, which may have changed them after its start. A child with a
    ``PYTHONPATH`` of its own looks there first, as an interpreter does that is started with it.

    Parameters
    ----------
    environment : mapping
        The environment variables of the child; it inherits a ``PYTHONPATH`` that is not among them.

    Examples
    --------
    >>> import_path({"PYTHONPATH": "/opt/code"})[0], import_path({}) == sys.path
    ('/opt/code', True)
    """
    given = environment.get("PYTHONPATH")
    if given is None or given == os.environ.get("PYTHONPATH"):
        return list(sys.path)
    # Absolute, because the trial may change its working directory.
    first = [os.path.abspath(entry) for entry in given.split(os.pathsep) if entry]
    return list(dict.fromkeys([*first, *sys.path]))


def start_interpreter(
    module: str, link: int, environment: Mapping[str, str], descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start an interpreter that calls the ``main`` of a module with a connection.

    Parameters
    ----------
    module : str
        The module.
    link : int
        Descriptor of the connection. The result of `import_path` must be sent first.
    environment : mapping
        All its environment variables.
    descriptors : sequence of int
        Further descriptors that it gets.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    arguments = [sys.executable, "-c", _BOOT, module, str(link)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(link, *descriptors),
            # A new process group, which also does not get Ctrl-C of a terminal.
            start_new_session=True,
        )

    return _starter.submit(start).result()


def guarded(pid: int, mark: str) -> GroupGuard:
    """Start a guard of a child's process group.

    Parameters
    ----------
    pid : int
        Process id of the child, which leads the group and has not been reaped.
    mark : str
        The mark of the processes that the child starts.
    """
    # In this thread SIGTERM is blocked, which may come before the guard ignores it.
    return _starter.submit(GroupGuard, pid, mark).result()


#: Starts a process with the given environment variables, and with two descriptors of this one: of
#: its connection, and of the file for the tracebacks of crashes.
Start = Callable[[Mapping[str, str], int, int], StartedProcess]


class ChildProcess:
    """A process for trials, and the connection to it.

    It has its own process group, which is killed with it, also if the worker dies. So processes
    that user code starts do not survive. Those that leave the group are found by a mark in their
    environment (see `process_mark`).

    Parameters
    ----------
    environment : mapping
        Variables in addition to those of this process.
    module : str, default="dasktune.isolation.child"
        The module whose ``main`` the process calls with the connection.
    inherited : mapping, optional
        The variables of this process that it gets; all by default.
    start : callable, optional
        Starts the process; by default a fresh interpreter that calls the module's ``main``.

    Raises
    ------
    OSError
        If the process cannot be started.
    """

    # One thread at a time calls `receive` and `stop` (`WarmProcess` lends the child to one trial).
    # Any thread calls `post`, `kill` and `is_alive`. `post` only queues; the writer thread sends,
    # so a child that does not read blocks no other thread. One more thread waits for the child's
    # death.
    #
    # The child ends in one of three ways:
    # - It closes the connection: `receive` has read all messages before, then raises.
    # - It dies, but a process that it has forked keeps the connection open. The waiting thread
    #   kills the process group at once, which closes the connection, perhaps in the middle of a
    #   message. If a process outside of the group has the connection, `receive` sees that the child
    #   is dead when nothing was readable for `_POLL_SECONDS`.
    # - `kill`: as above, from another thread.
    # In each case `_reap` kills the rest of the process group, then what has left it, and waits for
    # the child. The guard is released after that: if the worker dies in between, the guard kills
    # both.
    #
    # The child may send its last message and die between the moment when `receive` found nothing
    # readable and the check whether it lives. What it has sent before its death is in the socket by
    # then, so `receive` looks once more after it has found the child dead.
    #
    # Reaping frees the process id, which the system may give to another process. So only `_reap`
    # reaps: it sets `_reaped` under the lock first, and `kill` does nothing then. `is_alive` and
    # the waiting thread look at a dead child without reaping it, so its id stays its own, and a
    # `kill` that comes after them hits the child's group or nothing.

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        module: str = "dasktune.isolation.child",
        inherited: Mapping[str, str] | None = None,
        start: Start | None = None,
    ) -> None:
        self.environment = environment
        self._module = module
        self._inherited = inherited
        self._mark = new_mark()
        #: Whether the last trial did not fail and left the process unchanged: it may run another.
        self.is_reusable = False
        #: Whether the user's code was sent to the child.
        self.has_code = False
        self._crash_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._link: Connection
        self._link, theirs = Pipe()
        try:
            with theirs:
                variables = {**environment, **give_mark(os.environ, self._mark)}
                self._process = (start or self._start)(variables, theirs.fileno(), self._crash_file.fileno())
                self._guard = self._guarded()
        except BaseException:
            self._link.close()
            self._crash_file.close()
            raise
        # Connection.poll() would create a poll object each time.
        self._readable = select.poll()
        self._readable.register(self._link.fileno(), select.POLLIN)
        self._lock = threading.Lock()
        self._reaped = False
        self._gone = threading.Event()
        self._outgoing: queue.SimpleQueue[object | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="dasktune-link", daemon=True)
        self._writer.start()
        if self._process.can_look:
            threading.Thread(target=self._wait_for_death, name="dasktune-death", daemon=True).start()
        self._outgoing.put(import_path(environment))
        self.post(InitChild(parent=self._process.parent, crash_file=self._crash_file.fileno()))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child has not ended yet."""
        with self._lock:
            if self._reaped:
                return False
            alive = self._process.is_running()
            if not alive and not self._process.can_look:
                # It has been reaped. The group is killed in the same breath, before its id can have
                # been given away, and never again.
                self._kill_group()
                self._reaped = True
            return alive

    @property
    def finished(self) -> bool:
        """Whether the child has ended and its resources are released."""
        return self._gone.is_set()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the child, and return whether it has ended."""
        return self._gone.wait(timeout)

    def post(self, message: object) -> None:
        """Queue a message for the child; return at once."""
        self._outgoing.put(message)

    def receive(self) -> Any:
        """Wait for the next message of the child.

        Raises
        ------
        ChildDied
            If the child has ended; its process group is gone then.
        """
        timeout = _POLL_SECONDS
        try:
            while not self._readable.poll(timeout * 1000):
                if timeout == 0.0:
                    raise EOFError
                if not self.is_alive:
                    # Its last message may have come since the poll: look once more.
                    timeout = 0.0
            message = pickle.loads(self._link.recv_bytes())
        except (EOFError, OSError):
            raise ChildDied(self._death_info()) from None
        return message

    def kill(self) -> None:
        """Kill the child and the processes that it has started; from any thread."""
        with self._lock:
            # The system may have given the id of a reaped process to another one.
            if not self._reaped:
                self._kill_group()

    def dump_stacks(self, timeout: float = 2.0) -> str:
        """Return the stacks of the child's threads, even if C code holds its interpreter lock.

        The child must have registered the signal of `STACKS_SIGNAL` with `faulthandler`.

        Parameters
        ----------
        timeout : float, default=2.0
            Seconds to wait for them.
        """
        file, text = self._crash_file.fileno(), b""
        before = os.fstat(file).st_size
        with self._lock:
            if self._reaped:
                return ""
            os.kill(self._process.pid, STACKS_SIGNAL)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # The child writes at an offset that both share, so read without moving it.
            earlier, text = text, os.pread(file, _LONGEST_TRACEBACK, before)
            if text and text == earlier:
                break
            time.sleep(0.02)
        return text.decode(errors="replace")

    def stop(self) -> None:
        """Ask the child to exit, and kill it if it does not; returns when it has ended.

        A child in the middle of a trial is killed, too, although it may send messages all the time.
        """
        if self.finished:
            return
        self.post(StopChild())
        deadline = time.monotonic() + _EXIT_SECONDS
        with suppress(EOFError, OSError):
            # Read until the child's end closes the connection, so that a child which sends does not
            # wait for a reader. The messages are dropped without unpickling, which may raise
            # anything and would leave the child unreaped.
            while (left := deadline - time.monotonic()) > 0 and self._link.poll(left):
                self._link.recv_bytes()
        self._reap()
        self._crash_file.close()

    def _start(self, variables: Mapping[str, str], link: int, crash_file: int) -> StartedProcess:
        inherited = os.environ if self._inherited is None else self._inherited
        environment = {**inherited, **variables}
        return Interpreter(start_interpreter(self._module, link, environment, [crash_file]))

    def _guarded(self) -> GroupGuard:
        try:
            return guarded(self._process.pid, self._mark)
        except BaseException:
            self._kill_group()
            self._process.wait()
            raise

    def _write(self) -> None:
        # `receive` detects a child that has ended.
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._link.send(message)

    def _wait_for_death(self) -> None:
        """Kill what the child has started as soon as the child has died."""
        # The rest of the group may hold the connection open in the middle of a message, for which
        # `receive` would wait for ever.
        self._process.is_running(wait=True)
        self.kill()

    def _kill_group(self) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> int:
        """Kill what the child has started, and return the exit status of the child."""
        with self._lock:
            if not self._reaped:
                self._kill_group()
                self._reaped = True
        # What has left the group may hold a GPU, too, so it ends before the child counts as ended.
        kill_marked(self._mark)
        # Before the child's id is free for another process group.
        self._guard.release()
        status = self._process.wait()
        self._gone.set()
        self._outgoing.put(None)
        # The writer cannot block any more, unless a process outside the group has the connection.
        self._writer.join(_EXIT_SECONDS)
        self._link.close()
        return status

    def _death_info(self) -> ErrorInfo:
        message = f"the trial's process {_cause(self._reap())}"
        with self._crash_file as file:
            file.seek(0)
            crash = file.read(_LONGEST_TRACEBACK).decode(errors="replace")
        return ErrorInfo(message=message, traceback=f"{crash}\n{message}\n" if crash else "")


def _cause(status: int) -> str:
    """Return the cause of a process's end.

    Examples
    --------
    >>> _cause(-11), _cause(3)
    ('died of signal 11 (SIGSEGV)', 'exited with code 3 in the middle of the trial')
    """
    if status >= 0:
        return f"exited with code {status} in the middle of the trial"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = ": was the memory of its machine or container used up?" if name == "SIGKILL" else ""
    return f"died of signal {-status} ({name}){hint}"
