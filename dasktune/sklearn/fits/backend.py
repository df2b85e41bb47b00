"""The choice of the backend that runs the fits of a search, and access to Dask collections."""

from __future__ import annotations

import sys
from typing import Any

from dasktune.errors import check
from dasktune.sklearn.fits.engine import Backend
from dasktune.trainable.api.session import current_context


def choose_backend(client: Any, n_jobs: int | None) -> Backend:
    """Return the backend that runs the fits of a search.

    A search inside a trial runs its fits in that trial's process, one after the other. On the
    cluster the fits could wait for ever: the trials of the outer search may hold all resources
    while they wait for their fits.

    Parameters
    ----------
    client : object
        A client, a cluster object or an address; None for the current client, if there is one.
    n_jobs : int, optional
        Maximum number of fits at a time, as in scikit-learn; None and negative numbers mean no
        limit.

    Raises
    ------
    ConfigError
        If `n_jobs` is 0, as in scikit-learn.
    """
    check(n_jobs != 0, "n_jobs", "None, -1 or a positive number", n_jobs)
    max_concurrent = n_jobs if n_jobs is not None and n_jobs > 0 else None
    return Backend(
        in_process=client is None and not _has_current_cluster(), client=client, max_concurrent=max_concurrent
    )


def _has_current_cluster() -> bool:
    # If Dask has not been imported, there is no current client. The import here would be slow.
    if "distributed" not in sys.modules or current_context() is not None:
        return False
    from dasktune.cluster.connection.task_context import has_cluster

    return has_cluster()


def is_on_client_loop(client: Any) -> bool:
    """Whether this code runs on the event loop of the client that a search would use.

    Parameters
    ----------
    client : object
        A client, a cluster object or an address; None for the current client, if there is one.
    """
    if "distributed" not in sys.modules:
        return False
    from dasktune.cluster.connection.task_context import on_event_loop

    return on_event_loop(client)


def picklable_client(client: Any) -> Any:
    """Return a value for the argument `client` that can be pickled: the scheduler's address.

    Parameters
    ----------
    client : object
        A client, a cluster object, an address or None.
    """
    if client is None or isinstance(client, str):
        return client
    scheduler = getattr(client, "scheduler", None)
    address = getattr(scheduler, "address", None) or getattr(client, "scheduler_address", None)
    return client if address is None else str(address)


def compute_collections(
    client: Any, X: Any, y: Any, params: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return data with all Dask collections computed, in one call.

    Parameters
    ----------
    client : object
        The client, the cluster object or the address of the cluster that computes.
    X, y : object
        The samples and their targets.
    params : dict
        The metadata.
    """
    if not any(is_lazy(value) for value in (X, y, *params.values())):
        return X, y, params
    from dasktune.cluster.data.collections import compute

    return compute(client, (X, y, params))  # type: ignore[no-any-return]


def is_collection(value: Any) -> bool:
    """Whether a value is a Dask collection with blocks: an array or a data frame.

    Parameters
    ----------
    value : object
        Any value.

    Examples
    --------
    >>> is_collection([1, 2])
    False
    """
    if "dask" not in sys.modules:
        return False
    from dasktune.cluster.data.collections import is_collection

    return is_collection(value)


def is_delayed(value: Any) -> bool:
    """Whether a value is an object of ``dask.delayed``.

    Parameters
    ----------
    value : object
        Any value.

    Examples
    --------
    >>> is_delayed([1, 2])
    False
    """
    if not is_lazy(value):
        return False
    from dasktune.cluster.data.collections import is_delayed

    return is_delayed(value)


def is_lazy(value: Any) -> bool:
    """Whether Dask has yet to compute a value: any collection, or a delayed object.

    Parameters
    ----------
    value : object
        Any value.

    Examples
    --------
    >>> is_lazy([1, 2])
    False
    """
    return hasattr(value, "__dask_graph__")
