"""Opens a Dask client, in spite of a race between Dask's scheduler and a client that connects."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from distributed import Client

logger = logging.getLogger(__name__)

#: Dask's own limit of connections, and the largest one here.
_LEAST_CONNECTIONS: Final = 512
_MOST_CONNECTIONS: Final = 16_384

#: How many times a client is opened before the race counts as an error of its own.
_ATTEMPTS: Final = 5


def connection_limit() -> int:
    """Return how many connections to workers a client may keep open.

    Dask keeps 512. With more workers than that, each call to a worker would open a connection and
    close another. Half of the files that the process may open are left for other uses.
    """
    if sys.platform == "win32":
        return _LEAST_CONNECTIONS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(soft // 2, _MOST_CONNECTIONS)
    return max(_LEAST_CONNECTIONS, most)


def open_client(address: str, *, make_client: Callable[..., Client] = Client, **options: Any) -> Client:
    """Open a client of the scheduler at an address.

    A client asserts that the scheduler's first message contains a greeting and nothing else. The
    scheduler sends the greeting together with whatever it has for its clients in the next
    milliseconds, for example an event that it logs for all of them. Then connecting fails, although
    nothing is wrong, and connecting again succeeds.

    Parameters
    ----------
    address : str
        The scheduler's address.
    make_client : callable, default=distributed.Client
        Makes the client, with the address and the options.
    **options
        Further arguments of :class:`distributed.Client`. By default it keeps as many connections
        open as :func:`connection_limit` says.

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
            return make_client(address, **{"connection_limit": connection_limit(), **options})
        except AssertionError:
            if attempt == _ATTEMPTS:
                raise
            logger.debug("the greeting of %s came with other messages, connecting again", address)
    raise AssertionError  # not reached
