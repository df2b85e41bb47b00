"""Takes off the cluster what drivers that died have left there: their worker plugins.

Dask gives a plugin to every worker that will ever come, whether its client still lives or not. It
does no harm, but it holds the user's code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from distributed import Client

from dasktune.cluster.roll_call import despite_hung

__all__ = ["plugin_name", "sweep"]

logger = logging.getLogger(__name__)

#: Seconds for the workers to drop a plugin.
_DEADLINE: Final = 10.0


def plugin_name(experiment: str, client_id: str) -> str:
    """Return the name of an experiment's plugin, which tells whose it is.

    Parameters
    ----------
    experiment : str
        Name of the experiment on the cluster, unique, beginning with ``dasktune-``.
    client_id : str
        Dask's name for the driver's client.
    """
    return f"{experiment}@{client_id}"


def _abandoned() -> Callable[..., list[str]]:
    """Return the function that finds such plugins on the scheduler; nested, to travel by value."""

    def names(dask_scheduler: Any = None) -> list[str]:
        return [
            name
            for name in dask_scheduler.worker_plugins
            if name.startswith("dasktune-") and name.partition("@")[2] not in dask_scheduler.clients
        ]

    return names


async def sweep(client: Client) -> None:
    """Unregister the plugins whose driver is gone.

    To be awaited on the client's loop. Nothing depends on it, so a failure is only logged.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    """
    try:
        names = await asyncio.wait_for(client.run_on_scheduler(_abandoned()), _DEADLINE)
        for name in names:
            work = client.unregister_worker_plugin(name)
            await despite_hung(client, work, deadline_s=_DEADLINE)
    except Exception as error:
        logger.info("what dead drivers left could not be swept: %r", error)
