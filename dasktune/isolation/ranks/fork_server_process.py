"""The program of a fork server: it imports modules once, and forks a rank at each request."""

# The process has one thread, as far as Python is concerned, so a fork finds no lock taken. It never
# runs user code but the imports. A forked rank leaves `main` like a fresh one, so that it ends like
# a fresh process, with exit handlers and the end of threads.
#
# SIGTERM stays blocked here, as the worker has started this process; a rank unblocks it when it has
# its handler. The server reaps a rank only when the worker says so. Until then the rank's id is its
# own, and the worker may send signals to it.

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Final

from dasktune.isolation.child import die_with
from dasktune.isolation.process_mark import MARK, rewrite_mark
from dasktune.isolation.ranks import rank_process
from dasktune.trainable.running.error_info import error_info
from dasktune.trial.user_error import ErrorInfo

#: The fork server in messages to users.
FORKER: Final = "the process that forks the ranks"

#: The devices of NVIDIA and AMD. A process that has one open has initialised CUDA or ROCm, and its
#: forks cannot use it any more.
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/kfd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """The first request: import modules."""

    #: Process id of the worker; the server dies with it.
    parent: int
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloaded:
    """The answer to `Preload`. With an error or a refusal it is the last one."""

    #: Why a module could not be imported; None if all could.
    error: ErrorInfo | None = None
    #: Why this process must not fork; empty if it may.
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRank:
    """Fork a rank. The descriptors of its connection and its crash file follow."""

    #: The environment variables in which it differs from the server.
    variables: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The answer to `ForkRank`."""

    pid: int = 0
    #: Why there is no process; empty if there is.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapRank:
    """Reap a rank that has ended."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """The answer to `ReapRank`: the exit status, as `subprocess` gives it."""

    status: int


def main(link: Connection) -> None:
    """Import modules and fork ranks until the worker closes the connection.

    Parameters
    ----------
    link : Connection
        The connection to the worker.
    """
    # Ctrl-C in a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Processes that modules or ranks start must not keep it open.
    os.set_inheritable(link.fileno(), False)
    request: Preload = link.recv()
    die_with(request.parent)
    answer = _preload(request.modules)
    link.send(answer)
    if answer.error is None and not answer.refusal:
        rank = _serve(link)
        if rank is not None:
            _run(*rank)


def _preload(modules: tuple[str, ...]) -> Preloaded:
    try:
        for module in modules:
            importlib.import_module(module)
    except BaseException as error:  # a module may raise anything, or exit
        return Preloaded(error=error_info(error))
    refusal = fork_refusal()
    for stream in (sys.stdout, sys.stderr):
        # What is left in a buffer would be written by each fork.
        with suppress(Exception):
            stream.flush()
    # What is here now stays, so no collection touches its memory, which the ranks share.
    gc.collect()
    gc.freeze()
    return Preloaded(refusal=refusal)


def fork_refusal(gpu_devices: str | tuple[str, ...] = _GPU_DEVICES) -> str:
    """Return why a fork of this process could not work; empty if it can.

    Parameters
    ----------
    gpu_devices : str or tuple of str, optional
        How the paths of GPUs begin; by default those of NVIDIA and AMD.
    """
    threads = sorted(one.name for one in threading.enumerate() if one is not threading.main_thread())
    if threads:
        return f"{FORKER} has threads ({', '.join(threads)}), which a fork would not have"
    if any(name.startswith(gpu_devices) for name in _open_files()):
        return f"{FORKER} has opened a GPU, which a fork cannot use"
    return ""


def _open_files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the list itself
            continue
    return names


def _serve(link: Connection) -> tuple[Connection, int] | None:
    """Answer requests; in a forked rank, return its connection and the number of its crash file."""
    while True:
        try:
            request = link.recv()
        except EOFError:
            return None
        if isinstance(request, ForkRank):
            own, crash_file = recv_handle(link), recv_handle(link)
            try:
                answer = _fork()
            except OSError as error:
                answer = Forked(error=str(error))
            if answer is None:
                link.close()
                rewrite_mark(request.variables[MARK])
                os.environ.update(request.variables)
                return Connection(own), crash_file
            os.close(own)
            os.close(crash_file)
            link.send(answer)
        else:
            assert isinstance(request, ReapRank), request
            link.send(Reaped(status=_reap(request.pid)))


def _fork() -> Forked | None:
    """Fork; return None in the new process, which has a process group of its own."""
    began, begin = os.pipe()
    with warnings.catch_warnings():
        # Libraries such as OpenBLAS have threads, and handlers that end them before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            pid = os.fork()
        except OSError:  # the system has no room for one more process
            os.close(began)
            os.close(begin)
            raise
    if pid == 0:
        os.setsid()
        # The worker may kill the group from now on.
        os.write(begin, b"\0")
        os.close(began)
        os.close(begin)
        return None
    os.close(begin)
    os.read(began, 1)
    os.close(began)
    return Forked(pid=pid)


def _reap(pid: int) -> int:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        # The system has reaped it, because a module, or what has started the worker, ignores the
        # ends of child processes. `subprocess` gives this status, too.
        return 0
    return os.waitstatus_to_exitcode(status)


def _run(link: Connection, crash_file: int) -> None:
    """Run a rank in this fork."""
    _draw_own_random_numbers()
    sys.path[:] = link.recv()
    # Python remembers for ever which directories of the path did not exist. A fresh interpreter
    # looks again.
    for place in [place for place, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[place]
    rank_process.main(link, crash_file)


def _draw_own_random_numbers() -> None:
    """Seed numpy's generator, or all ranks would draw the same numbers.

    Python seeds its own after each fork. PyTorch's has the same seed in all fresh processes.
    """
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
