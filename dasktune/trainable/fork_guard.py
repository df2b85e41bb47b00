"""Keeps processes that user code has forked away from the trial, which belongs to their parent.

A fork copies the memory of the trial's process, with its locks and messages, but none of its other
threads. So in the fork a report would never reach the driver, and would wait for ever for an answer
or for a lock that another thread held at the time of the fork.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, ParamSpec, TypeVar

from dasktune.errors import TuneError

P = ParamSpec("P")
T = TypeVar("T")


def check_not_forked(pid: int, function: str, remedy: str) -> None:
    """Check that user code calls a function in the process of its trial. Takes no lock.

    Parameters
    ----------
    pid : int
        The id of the trial's process.
    function : str
        The function that user code has called.
    remedy : str
        What to do instead.

    Raises
    ------
    TuneError
        In a process that user code has forked.

    Examples
    --------
    >>> check_not_forked(os.getpid(), "report()", "Send the values to that process.")
    """
    if os.getpid() != pid:
        raise TuneError(
            f"{function} must be called in the process of the trial (pid {pid}), got a call in a process "
            f"that it has forked (pid {os.getpid()}). {remedy}"
        )


def call_and_end_forks(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call user code, and end each process that it forks and that comes back from it.

    Without this a fork that returns, or raises, would finish the trial a second time: it would save
    checkpoints and delete files of its parent.
    """
    pid = os.getpid()
    try:
        return function(*args, **kwargs)
    finally:
        if os.getpid() != pid:
            _end_fork(sys.exc_info()[1])


def _end_fork(error: BaseException | None) -> NoReturn:
    """End this process as Python would end it, but without its exit handlers.

    Exit handlers are the parent's, as in processes of `multiprocessing`.
    """
    status = 0
    # The streams may be closed or replaced. The process must end in any case.
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        os._exit(status & 0xFF)
