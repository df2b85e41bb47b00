"""An error that one sentence explains, without the forty lines of where it was noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache, wraps
from os import sep
from pathlib import Path
from traceback import walk_tb
from typing import ParamSpec, TypeVar

from dasktune.errors import ClusterError, ConfigError, StorageError, TrialError

__all__ = ["plain_errors"]

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


@cache
def _not_theirs() -> tuple[str, ...]:
    """Return where code lies that the reader of an error has not written."""
    # Not needed before there is one.
    from sysconfig import get_path

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    here = f"{Path(__file__).parent}{sep}"
    return (here, *(f"{get_path(name)}{sep}" for name in names), "<frozen", "<string>")


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise what is wrong with arguments, cluster or storage from its own line.

    Such errors say in words what was wrong and what to do. The way through threads and event loops
    to the place that noticed it only hides that, so it is logged at DEBUG instead. Where code of
    the user's is on that way, all of it stays.

    Parameters
    ----------
    function : callable
        What users call.

    Returns
    -------
    callable
        The same, but for the tracebacks of ConfigError, ClusterError and StorageError.

    Examples
    --------
    >>> @plain_errors
    ... def open_it(path):
    ...     raise StorageError(f"nothing is stored at {path}")
    >>> open_it.__name__
    'open_it'
    """

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ConfigError, ClusterError, StorageError) as error:
            if _concerns_user_code(error):
                raise
            logger.debug("where it was noticed:", exc_info=True)
            raise error.with_traceback(None) from None

    return plain


def _concerns_user_code(error: BaseException) -> bool:
    for number, cause in enumerate(_causes(error)):
        if isinstance(cause, TrialError):
            return True
        # The first two frames of the error itself are `plain` and the function that it stands for.
        frames = list(walk_tb(cause.__traceback__))[0 if number else 2 :]
        if any(not frame.f_code.co_filename.startswith(_not_theirs()) for frame, _ in frames):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it; a cause may have been made to lead to itself."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
