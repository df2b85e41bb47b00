"""Retries operations of a storage that fails for a while, with increasing intervals."""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property
from random import Random
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts, at first and at most.
_FIRST: Final = 0.5
_LONGEST: Final = 15.0
#: Seconds between two checks whether the result is still needed.
_POLL_SECONDS: Final = 0.5

#: Errors that a retry cannot change: definite answers of the storage, or mistakes in the call.
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


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later.

    Each store's client has its own exceptions. So an error counts as transient unless it is known
    to be permanent, and is retried for a limited time.

    Examples
    --------
    >>> is_transient(ConnectionResetError()), is_transient(FileNotFoundError())
    (True, False)
    """
    if isinstance(error, _LASTING):
        return False
    return not (isinstance(error, OSError) and error.errno in _LASTING_NUMBERS)


#: Parts of the names of exceptions with which clients of stores say that the store is away.
_OUTAGE_NAMES: Final = re.compile(
    "connect|timeout|timedout|unavailable|unreachable|throttl|slowdown|toomanyrequests|transport",
    re.IGNORECASE,
)
#: Statuses of HTTP below 500 that say "try again later".
_OUTAGE_STATUSES: Final = frozenset({408, 425, 429})


def is_outage(error: BaseException) -> bool:
    """Whether an error says that the storage is away or overloaded, which may last for long.

    Other transient errors may well be permanent: their class says nothing.

    Examples
    --------
    >>> is_outage(ConnectionResetError()), is_outage(RuntimeError())
    (True, False)
    """
    if isinstance(error, Exception) and not is_transient(error):
        return False
    if isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) is not None:
        return True
    if any(_OUTAGE_NAMES.search(kind.__name__) for kind in type(error).__mro__):
        return True
    status = _http_status(error)
    return status >= 500 or status in _OUTAGE_STATUSES


def _http_status(error: BaseException) -> int:
    """Return the status of HTTP in an exception of a store's client; 0 without one."""
    response = getattr(error, "response", None)
    meta = response.get("ResponseMetadata") if isinstance(response, dict) else None
    found = [meta.get("HTTPStatusCode") if isinstance(meta, dict) else None]
    found += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((int(one) for one in found if isinstance(one, int)), 0)


class RetrySchedule:
    """Schedules repeated attempts with growing, random delays. The caller passes the time.

    The delays double from half a second to 15 s. Each is shortened at random by up to a half, so
    that a hundred workers do not retry at the same moment. The last attempt is made `retry_seconds`
    after the first failure.

    Parameters
    ----------
    retry_seconds : float
        Seconds from the first failure to the last attempt. 0 allows no second attempt.
    seed : int or str, optional
        Seed of the random delays; by default each schedule draws one.

    Examples
    --------
    >>> outage = RetrySchedule(10.0, seed=0)
    >>> outage.failed(100.0), outage.is_due(100.0), outage.is_due(100.5), outage.wait(110.0)
    (True, False, True, 0.0)
    >>> outage.failed(110.0)
    False

    Two experiments wait differently for the same worker, and each repeatably:

    >>> def delay(name: str) -> float:
    ...     return RetrySchedule(10.0, seed=name).next_delay()
    >>> delay("one") == delay("one") != delay("other")
    True
    """

    def __init__(self, retry_seconds: float, *, seed: int | str | None = None) -> None:
        self.retry_seconds = retry_seconds
        self._seed = seed
        #: Time of the first failure; None while the operation works.
        self.since: float | None = None
        self._next = 0.0
        self._longest = _FIRST

    @cached_property
    def _random(self) -> Random:
        # Most schedules need none, and to make one takes longer than to read a small file.
        return Random(self._seed)

    @property
    def until(self) -> float:
        """The time of the last attempt."""
        return (self.since or 0.0) + self.retry_seconds

    def failed(self, now: float) -> bool:
        """Note a failure, and return whether another attempt follows."""
        if self.since is None:
            self.since = now
        self._next = min(now + self.next_delay(), self.until)
        return now < self.until

    def next_delay(self) -> float:
        """Return the next delay in seconds; the following one may be twice as long."""
        longest, self._longest = self._longest, min(2 * self._longest, _LONGEST)
        return self._random.uniform(longest / 2, longest)

    def is_due(self, now: float) -> bool:
        """Whether the next attempt is due."""
        return self.since is None or now >= self._next

    def wait(self, now: float) -> float:
        """Return the seconds to the next attempt."""
        return 0.0 if self.since is None else max(0.0, self._next - now)

    def end(self) -> None:
        """Note a success, so that the delays start again at half a second."""
        self.since, self._longest = None, _FIRST


def retry(
    attempt: Callable[[], T],
    retry_seconds: float,
    *,
    what: str,
    explain: Callable[[Exception], str] = repr,
    still_needed: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `attempt` until it succeeds, fails permanently, or has failed for too long.

    Parameters
    ----------
    attempt : callable
        An operation that may be repeated.
    retry_seconds : float
        Seconds from the first failure to the last attempt.
    what : str
        The operation, for the log: "Writing x".
    explain : callable, default=repr
        Returns the text of an exception for the log, without secrets.
    still_needed : callable, optional
        Called twice a second between two attempts; if it returns False, there is no further one.
    clock, sleep : callable
        Return the time in seconds, and wait for a number of seconds.

    Raises
    ------
    Exception
        The error of the last attempt.
    """
    outage = RetrySchedule(retry_seconds)
    while True:
        try:
            result = attempt()
        except Exception as error:
            first = outage.since is None
            if not is_transient(error) or not outage.failed(clock()):
                raise
            if first:
                warn_of_outage(what, explain(error), retry_seconds)
            if not _wait(outage.wait(clock()), still_needed, sleep):
                raise
        else:
            if outage.since is not None:
                logger.info("%s works again after %.1f s", what, clock() - outage.since)
            return result


def _wait(seconds: float, wanted: Callable[[], bool] | None, sleep: Callable[[float], None]) -> bool:
    """Wait while the result is still needed, and return whether it is."""
    if wanted is None:
        sleep(seconds)
        return True
    while wanted() and seconds > 0:
        nap = min(seconds, _POLL_SECONDS)
        sleep(nap)
        seconds -= nap
    return wanted()


def warn_of_outage(what: str, error: str, retry_seconds: float) -> None:
    """Log that an operation failed, and until when it is retried."""
    end = datetime.now().astimezone() + timedelta(seconds=retry_seconds)
    logger.warning(
        "%s failed with %s. Nothing is lost: it is retried until %s (%.0f s, "
        "RunConfig(storage_patience=...)).",
        what,
        error,
        end.strftime("%H:%M:%S"),
        retry_seconds,
    )
