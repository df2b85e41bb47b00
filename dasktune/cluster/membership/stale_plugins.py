"""Removes the worker plugins that drivers left on the cluster when they died.

Dask gives a plugin to every worker that joins, even if the plugin's client is gone. The plugin then
only uses memory, because it holds the user's code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from distributed import Client

from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.membership.ping import wait_unless_hung

logger = logging.getLogger(__name__)

#: Seconds that the workers may take to drop a plugin.
_DEADLINE: Final = 10.0


def plugin_name(experiment: str, client_id: str) -> str:
    """Return the name of an experiment's plugin, which contains the id of the driver's client.

    Parameters
    ----------
    experiment : str
        The unique name of the experiment on the cluster; it begins with ``dasktune-``.
    client_id : str
        The id of the driver's client.
    """
    return f"{experiment}@{client_id}"


@pickled_once
def _abandoned() -> Callable[..., list[str]]:
    """Return a function that finds stale plugins on the scheduler; nested, to pickle by value."""

    def names(dask_scheduler: Any = None) -> list[str]:
        return [
            name
            for name in dask_scheduler.worker_plugins
            if name.startswith("dasktune-") and name.partition("@")[2] not in dask_scheduler.clients
        ]

    return names


async def remove_stale_plugins(client: Client) -> None:
    """Unregister the plugins whose driver is gone.

    Await it on the client's loop. If two drivers do this at the same time, the second one finds a
    plugin missing. Nothing depends on the result, so a failure is only logged.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    """
    try:
        names = await asyncio.wait_for(client.run_on_scheduler(_abandoned()), _DEADLINE)
        for name in names:
            work = client.unregister_worker_plugin(name)
            await wait_unless_hung(client, work, deadline_s=_DEADLINE)
    except Exception as error:
        logger.info("stale plugins of other drivers could not be removed: %r", error)
