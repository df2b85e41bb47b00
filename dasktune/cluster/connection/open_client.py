"""Opens Dask clients: the driver's, and one that the trials of a process share.

Dask's own ``get_client()`` is not used in a task: its client becomes the default client of the
process, for all tasks on the worker, and stays until the worker ends.
"""

from __future__ import annotations

import copy
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Client

logger = logging.getLogger(__name__)

#: Dask's own limit of connections, and the largest one here.
_LEAST_CONNECTIONS: Final = 512
_MOST_CONNECTIONS: Final = 16_384

#: How many times a client is opened before the race counts as an error of its own.
_ATTEMPTS: Final = 5

#: Seconds to wait for the scheduler's first answer, and for the connection to close.
_TIMEOUT: Final = 30.0
_CLOSE: Final = 5.0


def security_of_worker(worker: Any) -> Any:
    """Return the worker's security, complete for a client on the worker.

    A worker of ``dask worker --tls-cert`` has only a worker's certificate. It also works for a
    client, because the scheduler checks only which authority has signed it.

    Parameters
    ----------
    worker : distributed.Worker
        The worker, whose own security is not changed.

    Returns
    -------
    distributed.Security
        A copy of the worker's security that has a client's certificate and key.
    """
    security = copy.copy(worker.security)
    if security.tls_client_cert is None:
        security.tls_client_cert = security.tls_worker_cert
        security.tls_client_key = security.tls_worker_key
    return security


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """The scheduler's address and the security to reach it; can be pickled for a child process.

    Parameters
    ----------
    address : str
        The scheduler's address.
    security : distributed.Security
        Contains the worker's keys, so it must not be shown or logged.
    """

    address: str
    security: Any = field(repr=False)

    @classmethod
    def of_worker(cls, worker: Any) -> ClusterAccess:
        """Return the address and security that a worker itself uses.

        Parameters
        ----------
        worker : distributed.Worker
            The worker.
        """
        return cls(address=worker.scheduler.address, security=security_of_worker(worker))


class SharedClient:
    """One synchronous client for all trials of a process, created at the first use.

    It pickles without the client, so it can be sent to a child process. The threads of several
    trials may use it at the same time; the lock makes them wait until one client is connected.

    Parameters
    ----------
    access : ClusterAccess
        How to reach the cluster.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._client: Client | None = None

    def __reduce__(self) -> tuple[type[SharedClient], tuple[ClusterAccess]]:
        return SharedClient, (self._access,)

    def get(self) -> Client:
        """Return the client; a new one if user code has closed it."""
        with self._lock:
            if self._client is None or self._client.status == "closed":
                self._client = open_client(
                    self._access.address,
                    security=self._access.security,
                    timeout=_TIMEOUT,
                    set_as_default=False,
                    direct_to_workers=True,
                    name="dasktune-trials",
                )
            return self._client

    def close(self) -> None:
        """Close the client, if there is one. It blocks, so it must not run on an event loop."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(timeout=_CLOSE)
