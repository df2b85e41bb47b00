"""Opens a Dask client, in spite of a race between Dask's scheduler and a client that connects."""

from __future__ import annotations

import logging
from typing import Any, Final

from distributed import Client

__all__ = ["open_client"]

logger = logging.getLogger(__name__)

#: How many times a client is opened before the race counts as an error of its own.
_ATTEMPTS: Final = 5


def open_client(address: str, **options: Any) -> Client:
    """Open a client of the scheduler at an address.

    A client asserts that the scheduler's first message contains a greeting and nothing else. The
    scheduler sends the greeting together with whatever it has for its clients in the next
    milliseconds, for example an event that it logs for all of them. Then connecting fails, although
    nothing is wrong, and connecting again succeeds.

    Parameters
    ----------
    address : str
        The scheduler's address.
    **options
        Further arguments of :class:`distributed.Client`.

    Returns
    -------
    distributed.Client
        The client, which is connected.

    Raises
    ------
    AssertionError
        If each of five attempts met a greeting with other messages.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return Client(address, **options)
        except AssertionError:
            if attempt == _ATTEMPTS:
                raise
            logger.debug("the greeting of %s came with other messages, connecting again", address)
    raise AssertionError  # not reached
