"""Log an error that recurs at each update once, and how often it has occurred when it ends."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = re.compile(r"\d+")


@dataclass(slots=True)
class _Failure:
    """What fails, the error, and how often it has occurred."""

    error: object
    count: int = 1


class RepeatedErrors:
    """Logs the errors of what is tried again and again, such as the update of a page.

    An error is logged with its traceback when it occurs first and when it changes. When the
    attempts succeed again, the number of failures is logged.

    Different threads may use one object for different tasks: each call changes one entry of a dict.

    Parameters
    ----------
    logger : logging.Logger
        The logger.

    Examples
    --------
    >>> import sys
    >>> logger = logging.getLogger("example")
    >>> logger.addHandler(logging.StreamHandler(sys.stdout))
    >>> errors = RepeatedErrors(logger)
    >>> for divisor in (0, 0, 0, 1):
    ...     try:
    ...         _ = 1 / divisor
    ...     except ZeroDivisionError as error:
    ...         errors.failed("the figure could not be drawn", error)
    ...     else:
    ...         errors.succeeded("the figure could not be drawn")  # doctest: +ELLIPSIS
    the figure could not be drawn
    Traceback (most recent call last):
    ...
    ZeroDivisionError: division by zero
    no longer: the figure could not be drawn (it has failed 3 times)
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._failures: dict[str, _Failure] = {}

    def failed(self, what: str, error: BaseException) -> None:
        """Log an error unless it is the same as at the last attempt.

        Parameters
        ----------
        what : str
            What has failed, as a sentence for the log. It identifies the task.
        error : BaseException
            The error.
        """
        kind = _kind(error)
        failure = self._failures.get(what)
        if failure is not None and failure.error == kind:
            failure.count += 1
            return
        # The earlier error has ended: another one has taken its place.
        self.succeeded(what)
        self._failures[what] = _Failure(kind)
        self._logger.error("%s", what, exc_info=error)

    def succeeded(self, what: str) -> None:
        """Log how often a task has failed before; do nothing if it has not.

        Parameters
        ----------
        what : str
            The sentence that `failed` was given.
        """
        failure = self._failures.pop(what, None)
        # The only failure is in the log already.
        if failure is not None and failure.count > 1:
            self._logger.warning("no longer: %s (it has failed %d times)", what, failure.count)


def _kind(error: BaseException) -> tuple[object, ...]:
    """Return what is equal for two occurrences of one error.

    Numbers in its text, such as times and the ids of trials, may differ each time.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = None if place is None else (place.tb_frame.f_code.co_filename, place.tb_lineno)
    return type(error), where, _NUMBER.sub("0", str(error)[:500])
