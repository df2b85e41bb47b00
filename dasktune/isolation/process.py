"""A child process as its worker sees it: started, talked to, killed."""

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

from dasktune.isolation.wire import FromChild, Hello, Leave, ToChild
from dasktune.trial.events import ErrorInfo

__all__ = ["ChildDied", "ChildProcess"]

#: What the child runs first. `-c` puts the working directory in front of the path, where any file
#: may have the name of a module. A `__main__` without a file is not run once more when user code
#: starts processes by `multiprocessing`.
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

#: Seconds between two looks at whether a silent child still lives: what user code has forked may
#: hold the child's end of the link open.
_LOOK: Final = 1.0

#: Seconds that a child has to run its exit handlers.
_FAREWELL: Final = 1.0

#: What is told of a crash at most, in bytes.
_LONGEST_TRACEBACK: Final = 1 << 14

#: Starts all children. On Linux a child dies with the *thread* that started it, and this one lives
#: as long as the process.
_starter: Final = ThreadPoolExecutor(1, thread_name_prefix="process-starter")


class ChildDied(Exception):
    """The child has ended, and not because it was told to.

    Parameters
    ----------
    error : ErrorInfo
        What it died of.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error)
        self.error = error


class ChildProcess:
    """A process for trials, and the link to it.

    It has a process group of its own, which dies with it: what user code starts there does not
    survive, unless it takes pains to.

    Parameters
    ----------
    environment : mapping
        Variables that it has beside those of this process.

    Raises
    ------
    OSError
        If it cannot be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        #: Whether the next trial would find it as the last one did.
        self.is_reusable = False
        #: Whether it has been given the user's code.
        self.has_payload = False
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
        # Connection.poll() makes one of its own each time.
        self._readable = select.poll()
        self._readable.register(self._link.fileno(), select.POLLIN)
        self._lock = threading.Lock()
        self._buried = False
        self._gone = threading.Event()
        self._outgoing: queue.SimpleQueue[object | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="dasktune-link", daemon=True)
        self._writer.start()
        self._outgoing.put(list(sys.path))
        self.post(Hello(parent=os.getpid(), crash_file=self._crash_file.fileno()))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def finished(self) -> bool:
        """Whether it is gone, with all that it held."""
        return self._gone.is_set()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until it is gone, and say whether it is."""
        return self._gone.wait(timeout)

    def post(self, message: ToChild) -> None:
        """Send a message, as soon as the child reads; return at once."""
        self._outgoing.put(message)

    def receive(self) -> FromChild:
        """Wait for what the child says next.

        Raises
        ------
        ChildDied
            If it says nothing more; nothing is left of it then.
        """
        try:
            while not self._readable.poll(_LOOK * 1000):
                if not self.is_alive:
                    raise EOFError
            message: FromChild = pickle.loads(self._link.recv_bytes())
        except (EOFError, OSError):
            raise ChildDied(self._obituary()) from None
        return message

    def kill(self) -> None:
        """Kill the child and what it has started; from any thread."""
        with self._lock:
            # The number of a buried process may be another one's.
            if not self._buried:
                self._kill_group()

    def retire(self) -> None:
        """Let the child exit, and kill it if it does not; returns when it is gone."""
        if self._buried:
            return
        self.post(Leave())
        with suppress(EOFError, OSError):
            # Until it hangs up, which it does by ending.
            while self._link.poll(_FAREWELL):
                self._link.recv()
        self._bury()
        self._crash_file.close()

    def _start(self, link: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(link)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            pass_fds=(link, self._crash_file.fileno()),
            # A process group of its own, which also keeps Ctrl-C of a terminal away.
            start_new_session=True,
        )

    def _write(self) -> None:
        # A child that is gone is noticed where its words are waited for.
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._link.send(message)

    def _kill_group(self) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _bury(self) -> int:
        """Kill what is left, and return how the child ended."""
        with self._lock:
            self._kill_group()
            self._buried = True
        status = self._process.wait()
        self._gone.set()
        self._outgoing.put(None)
        # It cannot wait for a reader any more, unless user code has hidden one from the kill.
        self._writer.join(_FAREWELL)
        self._link.close()
        return status

    def _obituary(self) -> ErrorInfo:
        message = f"the trial's process {_cause(self._bury())}"
        with self._crash_file as file:
            file.seek(0)
            crash = file.read(_LONGEST_TRACEBACK).decode(errors="replace")
        return ErrorInfo(message=message, traceback=f"{crash}\n{message}\n" if crash else "")


def _cause(status: int) -> str:
    """Say what a process died of.

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
