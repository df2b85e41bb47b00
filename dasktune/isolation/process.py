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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Final

from dasktune.isolation.process_messages import FromChild, InitChild, StopChild, ToChild
from dasktune.trial.events import ErrorInfo

__all__ = ["ChildDied", "ChildProcess"]

#: The code that the child runs first. `-c` puts the working directory first in `sys.path`, and a
#: file there could hide any module, so this entry is removed. A `__main__` without a file is not
#: run again when user code starts processes by `multiprocessing`.
_BOOT: Final = """\
import sys
link = sys.argv.pop()
sys.path[:] = [entry for entry in sys.path if entry]
from multiprocessing.connection import Connection
link = Connection(int(link))
sys.path[:] = link.recv()
from dasktune.isolation.child import main
main(link)
"""

#: Seconds between two checks whether a silent child lives. A process that user code has forked may
#: keep the child's end of the connection open, so the connection may outlive the child.
_POLL_SECONDS: Final = 1.0

#: Seconds that a child has to run its exit handlers.
_EXIT_SECONDS: Final = 1.0

#: Longest traceback of a crash that is reported, in bytes.
_LONGEST_TRACEBACK: Final = 1 << 14

#: Starts all children. On Linux a child dies with the *thread* that started it, and this one lives
#: as long as the worker.
_starter: Final = ThreadPoolExecutor(1, thread_name_prefix="process-starter")


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


class ChildProcess:
    """A process for trials, and the connection to it.

    It has its own process group, which is killed with it. So processes that user code starts do not
    survive, unless they leave the group.

    Parameters
    ----------
    environment : mapping
        Variables in addition to those of this process.

    Raises
    ------
    OSError
        If the process cannot be started.
    """

    # One thread at a time calls `receive` and `stop` (`WarmProcess` lends the child to one trial).
    # Any thread calls `post` and `kill`. `post` only queues; the writer thread sends, so a child
    # that does not read blocks no other thread.
    #
    # The child ends in one of three ways:
    # - It closes the connection: `receive` has read all messages before, then raises.
    # - It dies, but a process that it has forked keeps the connection open: `receive` sees that it
    #   is dead when nothing was readable for `_POLL_SECONDS`.
    # - `kill`: as above, from another thread.
    # In each case `_reap` kills the rest of the process group and waits for the child. `kill` and
    # `_reap` exclude each other by the lock: after `_reap` the system may reuse the process id, so
    # `kill` does nothing then.

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        #: Whether the last trial left the process unchanged, so that another trial may run there.
        self.is_reusable = False
        #: Whether the user's code was sent to the child.
        self.has_code = False
        self._crash_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._link: Connection
        self._link, theirs = Pipe()
        try:
            with theirs:
                self._process = _starter.submit(self._start, theirs.fileno()).result()
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
        self._outgoing.put(list(sys.path))
        self.post(InitChild(parent=os.getpid(), crash_file=self._crash_file.fileno()))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child has not ended yet."""
        return self._process.poll() is None

    @property
    def finished(self) -> bool:
        """Whether the child has ended and its resources are released."""
        return self._gone.is_set()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the child, and return whether it has ended."""
        return self._gone.wait(timeout)

    def post(self, message: ToChild) -> None:
        """Queue a message for the child; return at once."""
        self._outgoing.put(message)

    def receive(self) -> FromChild:
        """Wait for the next message of the child.

        Raises
        ------
        ChildDied
            If the child has ended; its process group is gone then.
        """
        try:
            while not self._readable.poll(_POLL_SECONDS * 1000):
                if not self.is_alive:
                    raise EOFError
            message: FromChild = pickle.loads(self._link.recv_bytes())
        except (EOFError, OSError):
            raise ChildDied(self._death_info()) from None
        return message

    def kill(self) -> None:
        """Kill the child and the processes that it has started; from any thread."""
        with self._lock:
            # The system may have given the id of a reaped process to another one.
            if not self._reaped:
                self._kill_group()

    def stop(self) -> None:
        """Ask the child to exit, and kill it if it does not; returns when it has ended."""
        if self._reaped:
            return
        self.post(StopChild())
        with suppress(EOFError, OSError):
            # Read until the child's end closes the connection, or the child is silent for too long.
            while self._link.poll(_EXIT_SECONDS):
                self._link.recv()
        self._reap()
        self._crash_file.close()

    def _start(self, link: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(link)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            pass_fds=(link, self._crash_file.fileno()),
            # A new process group, which also does not get Ctrl-C of a terminal.
            start_new_session=True,
        )

    def _write(self) -> None:
        # `receive` detects a child that has ended.
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._link.send(message)

    def _kill_group(self) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> int:
        """Kill the rest of the process group, and return the exit status of the child."""
        with self._lock:
            self._kill_group()
            self._reaped = True
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
