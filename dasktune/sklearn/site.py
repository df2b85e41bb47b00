"""Where the fits of a search run, and how what comes from a cluster gets into its hands."""

from __future__ import annotations

import sys
from typing import Any

from dasktune.errors import check
from dasktune.sklearn.engine import Site
from dasktune.trainable.session import current_context

__all__ = ["in_memory", "is_on_its_loop", "portable", "site_of"]


def site_of(client: Any, n_jobs: int | None) -> Site:
    """Return where fits run.

    A search inside a trial runs its fits there, one after the other: the trial holds the resources
    that they need, and to wait for others that other trials hold would never end.

    Parameters
    ----------
    client : object
        What names a cluster; None for the current one, if there is one.
    n_jobs : int, optional
        Most fits at a time, as scikit-learn has it; None and negative numbers are no limit.

    Raises
    ------
    ConfigError
        If `n_jobs` is 0, as in scikit-learn.
    """
    check(n_jobs != 0, "n_jobs", "None, -1 or a positive number, for 0 has no meaning", n_jobs)
    most = n_jobs if n_jobs is not None and n_jobs > 0 else None
    return Site(in_process=client is None and not _is_beside_cluster(), client=client, most=most)


def _is_beside_cluster() -> bool:
    # Who has not imported Dask has no client, and need not wait for the import.
    if "distributed" not in sys.modules or current_context() is not None:
        return False
    from dasktune.cluster.here import has_cluster

    return has_cluster()


def is_on_its_loop(client: Any) -> bool:
    """Whether this code runs on the event loop of the client that a search would use.

    Parameters
    ----------
    client : object
        What names a cluster; None for the current one, if there is one.
    """
    if "distributed" not in sys.modules:
        return False
    from dasktune.cluster.here import is_on_its_loop

    return is_on_its_loop(client)


def portable(client: Any) -> Any:
    """Return what names the same cluster in another process.

    Parameters
    ----------
    client : object
        What names a cluster.
    """
    if client is None or isinstance(client, str):
        return client
    scheduler = getattr(client, "scheduler", None)
    address = getattr(scheduler, "address", None) or getattr(client, "scheduler_address", None)
    return client if address is None else str(address)


def in_memory(
    client: Any, X: Any, y: Any, params: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return data with every Dask collection in it computed, all of them at once.

    Parameters
    ----------
    client : object
        What names the cluster that computes.
    X, y : object
        The data.
    params : dict
        What goes along with it.
    """
    if not any(hasattr(value, "__dask_graph__") for value in (X, y, *params.values())):
        return X, y, params
    from dasktune.cluster.collections import computed

    return computed(client, (X, y, params))  # type: ignore[no-any-return]
