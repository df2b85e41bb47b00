"""Short tracebacks for errors whose message says what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache, wraps
from os import sep
from pathlib import Path
from traceback import walk_tb
from typing import ParamSpec, TypeVar

from dasktune.errors import ClusterError, ConfigError, StorageError, TrialError

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


@cache
def _library_paths() -> tuple[str, ...]:
    """Return the directories of dasktune, the standard library and installed packages."""
    # Importing sysconfig is slow, and only errors need it.
    from sysconfig import get_path

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    here = f"{Path(__file__).parents[1]}{sep}"
    return (here, *(f"{get_path(name)}{sep}" for name in names), "<frozen", "<string>")


def short_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise ConfigError, ClusterError and StorageError without internal frames.

    The messages of these errors say what is wrong and what to do, and the user knows why there is a
    KeyboardInterrupt. Frames of threads and event loops only hide that, so the full traceback is
    logged at DEBUG instead. A traceback with frames of the user's code stays complete.

    Parameters
    ----------
    function : callable
        A function that users call.

    Returns
    -------
    callable
        The function with shortened tracebacks.

    Examples
    --------
    >>> @short_tracebacks
    ... def open_it(path):
    ...     raise StorageError(f"nothing is stored at {path}")
    >>> open_it.__name__
    'open_it'
    """

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ConfigError, ClusterError, StorageError, KeyboardInterrupt) as error:
            if _concerns_user_code(error):
                raise
            logger.debug("full traceback:", exc_info=True)
            raise error.with_traceback(None) from None

    return plain


def _concerns_user_code(error: BaseException) -> bool:
    for number, cause in enumerate(_causes(error)):
        if isinstance(cause, TrialError):
            return True
        # The first two frames of the error itself are `plain` and the function that it wraps.
        frames = list(walk_tb(cause.__traceback__))[0 if number else 2 :]
        if any(not frame.f_code.co_filename.startswith(_library_paths()) for frame, _ in frames):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; user code may have made a cycle of them."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
