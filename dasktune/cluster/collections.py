"""Dask collections as what they stand for."""

from __future__ import annotations

from typing import Any

import dask

from dasktune.cluster.connect import connect
from dasktune.cluster.here import has_cluster, leaving_the_pool

__all__ = ["computed"]


def computed(client: Any, value: Any) -> Any:
    """Return a value with every Dask collection in it computed, all of them at once.

    Parameters
    ----------
    client : object
        What names the cluster that computes; without any, Dask's own scheduler in this process.
    value : object
        Tuples, lists and dicts are looked into.

    Examples
    --------
    >>> import dask.bag
    >>> computed(None, {"numbers": dask.bag.from_sequence([1, 2])})
    {'numbers': [1, 2]}
    """
    if client is None and not has_cluster():
        # Clients that were closed in another order than they were opened leave their name there.
        is_gone = dask.config.get("scheduler", None) in ("dask.distributed", "distributed")
        return dask.compute(value, scheduler="threads" if is_gone else None)[0]
    with leaving_the_pool(), connect(client) as connection:
        return dask.compute(value, scheduler=connection.client)[0]
