"""Describes exceptions of user code as text that can be sent and stored."""

from __future__ import annotations

import pickle
import platform
import sys
import traceback
from pathlib import Path
from types import TracebackType

import cloudpickle

from dasktune.errors import ReportError
from dasktune.trial.user_error import ErrorInfo

#: A pickled exception beyond this many bytes stays on the worker.
MAX_PICKLED = 1 << 20

_HERE = str(Path(__file__).parents[1])


def error_info(error: BaseException) -> ErrorInfo:
    """Describe an exception, even one that fails when it is printed or pickled.

    Examples
    --------
    >>> error_info(ValueError("no such loss")).message
    'ValueError: no such loss'
    """
    return ErrorInfo(
        message=_message(error),
        traceback=_traceback(error),
        pickled=_pickled(error),
        fails_all_trials=isinstance(error, ReportError),
    )


def timeout_info(seconds: float, ident: int) -> ErrorInfo:
    """Describe user code that reported nothing for so many seconds, with its current stack.

    Parameters
    ----------
    seconds : float
        The limit.
    ident : int
        Identity of the thread of user code.

    Examples
    --------
    >>> timeout_info(60.0, ident=0).message
    'no result for 60 s (report_timeout_s)'
    """
    message = f"no result for {seconds:g} s (report_timeout_s)"
    frame = sys._current_frames().get(ident)
    if frame is None:
        return ErrorInfo(message=message)
    stack = traceback.extract_stack(frame)
    last = max((at for at, one in enumerate(stack) if one.filename.startswith(_HERE)), default=-1)
    # If the last frame is one of dasktune, which should not happen, the whole stack is shown.
    frames = "".join(traceback.format_list(stack[last + 1 :] or stack))
    return ErrorInfo(message=message, traceback=f"Traceback (most recent call last):\n{frames}{message}\n")


def _message(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        return f"{name}: <str() of the exception failed>"
    return f"{name}: {text}" if text else name


def _traceback(error: BaseException) -> str:
    try:
        frames = _from_user_code(error.__traceback__)
        return "".join(traceback.format_exception(type(error), error, frames)) + _advice(error)
    except BaseException as failure:
        return f"{_message(error)}\n(no traceback: {type(failure).__name__} while formatting it)\n"


def _advice(error: BaseException) -> str:
    """Return advice for a module that this worker lacks; empty for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    # A worker does not know what lies beside the script. So this names no command of pip, which
    # could install a stranger's package with the name of the user's module.
    package = error.name.partition(".")[0]
    return (
        f"\nThe Python of this worker ({sys.executable} on {platform.node()}) lacks {package!r}. "
        "If it is a module of your own, import it at the top of the script and not inside a function, so "
        f"that it travels with the trainable, or send it with client.upload_file({package + '.py'!r}), "
        "a package as a .zip file. If it is an installed package, install it in the workers' image or "
        "environment.\n"
    )


def _from_user_code(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames without the leading ones of dasktune; all if there are no others."""
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_HERE):
        first = first.tb_next
    return first or frames


def _pickled(error: BaseException) -> bytes:
    """Return the pickled exception; empty if it cannot be pickled and unpickled."""
    try:
        data: bytes = cloudpickle.dumps(error)
        if len(data) <= MAX_PICKLED and type(pickle.loads(data)) is type(error):
            return data
    except BaseException:
        # Pickling may run user code, which may raise anything; the text suffices.
        return b""
    return b""
