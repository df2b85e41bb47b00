"""The Dask client that the trials of a process share for their own tasks.

Dask's own ``get_client()`` is not used in a task: its client becomes the default client of the
process, for all tasks on the worker, and stays until the worker ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Client

from dasktune.cluster.connection.open_client import open_client
from dasktune.cluster.connection.worker_security import security_of_worker

#: Seconds to wait for the scheduler's first answer, and for the connection to close.
_TIMEOUT: Final = 30.0
_CLOSE: Final = 5.0


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
