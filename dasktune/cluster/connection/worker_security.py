"""The certificates with which code on a worker connects to the worker's scheduler as a client."""

from __future__ import annotations

import copy
from typing import Any


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
