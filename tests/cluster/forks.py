"""Processes that begin as forks of one that has imported everything.

Importing Dask and dasktune takes each new process two seconds of processor time, a fork hardly any;
a storm kills a process each second or so.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: A guard against hanging, not an expectation: two busy cores are slow.
PATIENCE = 90.0

#: The program of the process that forks. Takes the paths that this module needs; a fork that needs
#: them says so.
SERVER = """
import sys
import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import dasktune.cluster.driver.launch
try:
    import s3fs
except ImportError:
    pass
before = sys.path[:]
sys.path[:0] = sys.argv[1:]
from forks import serve
sys.path[:] = before
# The child returns from here, so that it ends as every program does.
task = serve()
if task is not None:
    task()
"""


def serve() -> Callable[[], None] | None:
    """Fork for each line on stdin, until it is closed; return the task in each child.

    Writes a line for each process that has begun, with its number and process id, and for each that
    has ended, with its exit code.
    """
    gc.collect()
    gc.freeze()
    waiting = b""
    while True:
        _reap()
        if not select.select([0], [], [], 0.05)[0]:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return None
        *lines, waiting = (waiting + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                return _become(request)
            _say({"number": request["number"], "pid": pid})


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any]) -> Callable[[], None]:
    """Turn a fork into the process that was asked for, and return what it does."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for theirs, ours in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(theirs, ours)
    os.chdir(request["directory"])
    sys.path[:0] = request["paths"]
    os.environ.clear()
    os.environ.update(request["environment"])
    module, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    arguments = pickle.loads(bytes.fromhex(request["arguments"]))
    return lambda: function(*arguments)


class Fork:
    """A process of a `ForkServer`; as much of `subprocess.Popen` as tests need."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._server.codes.get(self.pid)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the process and return its exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} does not end"
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it has not ended."""
        if self.poll() is None:
            # The process is a child of the fork server, so it may end, and its number be free, now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """Starts processes; `leftover_processes.guarded_run` ends it, and them, after the last test."""

    def __init__(self) -> None:
        # Here, because programs of tests import this module without the folder of that one.
        from leftover_processes import TEST

        here = Path(__file__).parent
        paths = [str(here), str(here.parent)]
        #: Exit codes of the processes that have ended.
        self.codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._changed = threading.Condition()
        # Tests share it, so it must not end with the one that happens to start it.
        environment = {name: value for name, value in os.environ.items() if name != TEST}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def start(
        self, function: str, *arguments: Any, log: Path, directory: Path, paths: Sequence[Path] = ()
    ) -> Fork:
        """Start a process that calls ``module:function``, in the environment of this process.

        Parameters
        ----------
        function : str
            The names of the module and of the function.
        *arguments : object
            What the function is called with.
        log : Path
            Where the process writes stdout and stderr, after what is there.
        directory : Path
            The working directory.
        paths : sequence of Path
            From where it may import besides what is installed.
        """
        with self._changed:
            number = len(self._pids) + 1
            self._pids[number] = 0
        request = {
            "number": number,
            "function": function,
            "arguments": pickle.dumps(arguments).hex(),
            "log": str(log),
            "directory": str(directory),
            "paths": [str(path) for path in paths],
            "environment": dict(os.environ),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        with self._changed:
            assert self._changed.wait_for(lambda: self._pids[number] or not self.is_alive, PATIENCE)
            assert self._pids[number], "the process that forks has ended; stderr says why"
            return Fork(self, self._pids[number])

    @property
    def is_alive(self) -> bool:
        """Whether it can start processes."""
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "pid" in message:
                    # The system may have given the id of an ended process once more.
                    self.codes.pop(message["pid"], None)
                    self._pids[message["number"]] = message["pid"]
                else:
                    self.codes[message["ended"]] = message["code"]
                self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._changed.notify_all()


_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """Return the server that all tests of this process share; a new one if it has ended."""
    if not _servers or not _servers[-1].is_alive:
        _servers.append(ForkServer())
    return _servers[-1]
