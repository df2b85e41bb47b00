"""Processes that begin as forks of one that has imported everything.

A storm kills a process each second or so. Importing Dask and dasktune takes each new process two
seconds of processor time, a fork hardly any.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster_kit import PATIENCE, Fleet

#: The program of the process that forks. Takes paths to import from.
SERVER = """
import sys
sys.path[:0] = sys.argv[1:]
import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import s3fs
import dasktune.cluster.driver.launch
import driver_kills
from forks import serve
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
    _say({"ready": True})
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
    module, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    arguments = pickle.loads(bytes.fromhex(request["arguments"]))
    return lambda: function(*arguments)


class Fork:
    """A process of a `ForkServer`; as much of `subprocess.Popen` as a fleet needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._server.codes.get(self.pid)

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


class ForkServer:
    """Starts processes; to be closed when they have ended."""

    def __init__(self, directory: Path) -> None:
        here = Path(__file__).parent
        paths = [str(here), str(here.parent / "cluster"), str(here.parent)]
        #: Exit codes of the processes that have ended.
        self.codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._is_ready = False
        self._changed = threading.Condition()
        with (directory / "forks.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, function: str, *arguments: Any, log: Path, directory: Path) -> Fork:
        """Start a process that calls ``module:function`` with some arguments."""
        with self._changed:
            number = len(self._pids) + 1
            self._pids[number] = 0
        request = {
            "number": number,
            "function": function,
            "arguments": pickle.dumps(arguments).hex(),
            "log": str(log),
            "directory": str(directory),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        with self._changed:
            assert self._changed.wait_for(lambda: self._pids[number], PATIENCE), "no process was forked"
            return Fork(self, self._pids[number])

    def wait_until_ready(self) -> None:
        """Wait until everything is imported."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_ready, PATIENCE), "the imports take too long"

    def close(self) -> None:
        """End the server; its processes must have ended."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "ready" in message:
                    self._is_ready = True
                elif "pid" in message:
                    # The system may have given the id of an ended process once more.
                    self.codes.pop(message["pid"], None)
                    self._pids[message["number"]] = message["pid"]
                else:
                    self.codes[message["ended"]] = message["code"]
                self._changed.notify_all()


class ForkedFleet(Fleet):
    """A fleet whose processes are forks."""

    def __init__(self, directory: Path) -> None:
        self.forks = ForkServer(directory)
        super().__init__(directory)

    def close(self) -> None:
        """End all processes."""
        super().close()
        self.forks.close()

    def _start(self, role: str, prelude: str, *arguments: str, directory: Path | None = None) -> Any:
        assert not prelude, "forks have imported everything already"
        process: Any = self.forks.start(
            f"distributed.cli.dask_{role}:main",
            list(arguments),
            log=self._directory / f"process-{len(self._processes)}.log",
            directory=directory or self._directory,
        )
        self._processes.append(process)
        return process
