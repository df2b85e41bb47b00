"""Reads the shares of the experiments on a cluster from the plugin on its scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasktune.cluster.connection.connect import connect
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME


def read_shares(client: Any, *, timeout_s: float) -> dict[str, Any]:
    """Return what each running experiment of a cluster has and waits for.

    Parameters
    ----------
    client, timeout_s
        As for :func:`~dasktune.cluster.connection.connect.connect`.

    Returns
    -------
    dict
        As for :meth:`~dasktune.cluster.sharing.share_plugin.SharePlugin.summary`, without
        experiments if no driver has registered the plugin.

    Raises
    ------
    ClusterError
        If no scheduler answers.
    """
    connection = connect(client, timeout_s=timeout_s)
    try:
        found: dict[str, Any] = connection.client.run_on_scheduler(_summary(), PLUGIN_NAME)
    finally:
        connection.close()
    return found


def _summary() -> Callable[..., dict[str, Any]]:
    """Return a function that calls the plugin on the scheduler; nested, to pickle by value."""

    def summary(plugin: str, dask_scheduler: Any) -> dict[str, Any]:
        share = dask_scheduler.plugins.get(plugin)
        return {"totals": {}, "experiments": []} if share is None else share.summary()

    return summary
