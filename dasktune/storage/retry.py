"""Storage that fails for a while: when to try again, and when to give up."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Final, TypeVar

__all__ = ["Outage", "is_passing", "keep_trying", "warn_of_outage"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts, at first and at most.
_FIRST: Final = 0.5
_LONGEST: Final = 15.0
#: Seconds after which it is noticed that nobody wants the outcome any more.
_NAP: Final = 0.5

#: What an answer of the storage says, or a mistake of ours: to ask again changes nothing.
_LASTING: Final = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    AttributeError,
)
_LASTING_NUMBERS: Final = frozenset(
    {errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.EBADF, errno.ELOOP, errno.EFBIG}
)


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed later, with nothing changed in it.

    Each store's client has exceptions of its own, so what is not known to last is thought to pass:
    it is tried again for a limited time.

    Examples
    --------
    >>> is_passing(ConnectionResetError()), is_passing(FileNotFoundError())
    (True, False)
    """
    if isinstance(error, _LASTING):
        return False
    return not (isinstance(error, OSError) and error.errno in _LASTING_NUMBERS)


class Outage:
    """Plans the attempts at something that fails. It is told the time, and has no clock.

    The waits double from half a second to 15 s, and each is shortened at random by up to a half, so
    that a hundred workers do not come back at the same moment. The last attempt is made when the
    patience is over.

    Parameters
    ----------
    patience : float
        Seconds from the first failure to the last attempt. 0 for no second one.
    seed : int, optional
        Of the shortening; by default each outage has its own.

    Examples
    --------
    >>> outage = Outage(10.0, seed=0)
    >>> outage.failed(100.0), outage.is_due(100.0), outage.is_due(100.5), outage.wait(110.0)
    (True, False, True, 0.0)
    >>> outage.failed(110.0)
    False
    """

    def __init__(self, patience: float, *, seed: int | None = None) -> None:
        self.patience = patience
        self._random = Random(seed)
        #: When it began, None while all is well.
        self.since: float | None = None
        self._next = 0.0
        self._longest = _FIRST

    @property
    def until(self) -> float:
        """When the last attempt is made."""
        return (self.since or 0.0) + self.patience

    def failed(self, now: float) -> bool:
        """Note a failure, and return whether there is to be another attempt."""
        if self.since is None:
            self.since = now
        longest, self._longest = self._longest, min(2 * self._longest, _LONGEST)
        self._next = min(now + self._random.uniform(longest / 2, longest), self.until)
        return now < self.until

    def is_due(self, now: float) -> bool:
        """Whether it is time for an attempt."""
        return self.since is None or now >= self._next

    def wait(self, now: float) -> float:
        """Return the seconds until :meth:`is_due`."""
        return 0.0 if self.since is None else max(0.0, self._next - now)

    def end(self) -> None:
        """Note a success."""
        self.since, self._longest = None, _FIRST


def keep_trying(
    attempt: Callable[[], T],
    patience: float,
    *,
    what: str,
    explain: Callable[[Exception], str] = repr,
    wanted: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `attempt` until it succeeds, fails for good, or has failed for too long.

    Parameters
    ----------
    attempt : callable
        What may be done twice.
    patience : float
        Seconds from the first failure to the last attempt.
    what : str
        What is tried, for the log: "Writing x".
    explain : callable, default=repr
        Gives the text of an exception for the log, without secrets.
    wanted : callable, optional
        Asked every second or so between two attempts; when it says no, there is no further one.
    clock, sleep : callable
        Seconds, and how to wait for some.

    Raises
    ------
    Exception
        What the last attempt raised.
    """
    outage = Outage(patience)
    while True:
        try:
            result = attempt()
        except Exception as error:
            first = outage.since is None
            if not is_passing(error) or not outage.failed(clock()):
                raise
            if first:
                warn_of_outage(what, explain(error), patience)
            if not _rest(outage.wait(clock()), wanted, sleep):
                raise
        else:
            if outage.since is not None:
                logger.info("%s works again after %.1f s", what, clock() - outage.since)
            return result


def _rest(
    seconds: float, wanted: Callable[[], bool] | None, sleep: Callable[[float], None]
) -> bool:
    """Wait for as long as somebody wants the outcome, and return whether anybody does."""
    if wanted is None:
        sleep(seconds)
        return True
    while wanted() and seconds > 0:
        nap = min(seconds, _NAP)
        sleep(nap)
        seconds -= nap
    return wanted()


def warn_of_outage(what: str, error: str, patience: float) -> None:
    """Say that something failed, and until when it is tried again."""
    end = datetime.now().astimezone() + timedelta(seconds=patience)
    logger.warning(
        "%s failed with %s. Nothing is lost: it is tried again until %s (%.0f s, "
        "RunConfig(storage_patience=...)).",
        what,
        error,
        end.strftime("%H:%M:%S"),
        patience,
    )
