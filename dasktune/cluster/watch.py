"""Watches the cluster: which workers are there, which are gone, and whether the scheduler answers.

Runs on the client's event loop. Three signals of a loss are joined: the scheduler's own event that
a worker was removed (some 10 ms after a process dies), a heartbeat that is overdue (a hung or cut
off worker, which Dask itself notices after minutes), and the client's own connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from distributed import Client

from dasktune.cluster.pulse import Pulse
from dasktune.cluster.workers import read_workers
from dasktune.errors import ClusterLost
from dasktune.placement import WorkerCapacity

__all__ = ["ClusterWatch"]

logger = logging.getLogger(__name__)

#: Seconds between two readings of the workers.
_INTERVAL = 1.0

#: Seconds until the next one, when something is about to change.
_SOON = 0.2

#: Where nannies tell that they end a worker that takes too much memory.
_TOO_LARGE = "worker-restart-memory"

#: Seconds that one reading may take.
_READ_DEADLINE = 10.0

#: Seconds between two looks at whether a lost scheduler is back.
_RETRY_PAUSE = 0.1


class ClusterWatch:
    """Keeps the executor's picture of the cluster true.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    scheduler_wait : float
        Seconds that a lost scheduler may take to come back.
    ours : str
        What the keys of our own tasks begin with; the workers are read without what they hold.
    answered : callable
        Given an address, returns when the worker there last answered a call, on the loop's clock.
    on_workers : callable
        Called with all workers, by address, at each reading.
    on_removed : callable
        Called with the address of a worker that is gone, whether that was meant, and how many bytes
        it had taken if its nanny has ended it for that, else 0.
    on_disconnect : callable
        Called when the connection to the scheduler is lost.
    on_reconnect : async callable
        Awaited when it is back, to subscribe and to register anew.
    """

    def __init__(
        self,
        client: Client,
        *,
        scheduler_wait: float,
        ours: str,
        answered: Callable[[str], float],
        on_workers: Callable[[Mapping[str, WorkerCapacity]], None],
        on_removed: Callable[[str, bool, int], None],
        on_disconnect: Callable[[], None],
        on_reconnect: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._scheduler_wait = scheduler_wait
        self._ours = ours
        self._answered = answered
        self._on_workers = on_workers
        self._on_removed = on_removed
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._pulse = Pulse(2 * _INTERVAL)
        self._look_now = asyncio.Event()
        #: The workers whose topics we listen to.
        self._heard: set[str] = set()
        #: What workers had taken that were ended for it, in bytes.
        self._too_large: dict[str, int] = {}
        #: The connection that our subscriptions were made on.
        self._comm: Any = None
        self._closed = False

    def open(self) -> None:
        """Begin to listen."""
        self._comm = self._client.scheduler_comm
        # What was subscribed to was lost with the connection before.
        self._heard = set()
        self._client.subscribe_topic(_TOO_LARGE, self._on_too_large)

    async def run(self) -> None:
        """Watch until cancelled.

        Raises
        ------
        ClusterLost
            If the scheduler does not come back in time.
        """
        while not self._closed:
            if not await self.read():
                await self._reconnect()
                continue
            try:
                await asyncio.wait_for(self._look_now.wait(), _INTERVAL)
            except asyncio.TimeoutError:
                continue
            self._look_now.clear()

    def look_soon(self) -> None:
        """Read the workers again before it is time."""
        asyncio.get_running_loop().call_later(_SOON, self._look_now.set)

    def close(self) -> None:
        """Stop watching, and listening if there is anything to hear."""
        self._closed = True
        if self._client.status == "running":
            self._listen_to(())
            self._client.unsubscribe_topic(_TOO_LARGE)

    @property
    def is_connected(self) -> bool:
        """Whether the connection is still the one that we listen on."""
        # One that broke and came back between two looks has lost our futures all the same.
        return self._client.status == "running" and self._client.scheduler_comm is self._comm

    def _listen_to(self, addresses: Iterable[str]) -> None:
        """Listen to what the scheduler tells of these workers, and of no others.

        Not to the topic of all workers, ``"all"``: ``client.replicate`` puts on it what cannot be
        sent, and the scheduler then cuts off everybody who listens.
        """
        wanted = set(addresses)
        for address in self._heard - wanted:
            self._client.unsubscribe_topic(address)
        for address in wanted - self._heard:
            self._client.subscribe_topic(address, partial(self._on_event, address))
        self._heard = wanted

    def _on_event(self, address: str, event: tuple[float, Any]) -> None:
        told = event[1]
        if isinstance(told, dict) and told.get("action") == "remove-worker":
            taken = self._too_large.pop(address, 0)
            self._on_removed(address, bool(told.get("expected", False)), taken)

    def _on_too_large(self, event: tuple[float, Any]) -> None:
        told = event[1]
        if isinstance(told, dict) and told.get("worker") in self._heard:
            self._too_large[told["worker"]] = int(told.get("rss", 0))

    async def read(self) -> bool:
        """Read the workers, and say whether the scheduler answered."""
        if not self.is_connected:
            return False
        try:
            workers = await asyncio.wait_for(read_workers(self._client, self._ours), _READ_DEADLINE)
        except asyncio.TimeoutError:
            # A scheduler that is busy or stopped for a while loses nothing by itself.
            logger.warning("the scheduler has not answered for %.0f s", _READ_DEADLINE)
            return self.is_connected
        except Exception as error:
            logger.info("the workers could not be read: %r", error)
            return self.is_connected
        if self.is_connected:
            self._listen_to(workers)
            now = asyncio.get_running_loop().time()
            self._on_workers(self._pulse.read(workers, now, self._answered))
        return self.is_connected

    async def _reconnect(self) -> None:
        logger.warning("the connection to the Dask scheduler is lost; waiting for it to come back")
        self._on_disconnect()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._scheduler_wait
        while not await self._is_back():
            if self._client.status == "closed" or loop.time() > deadline:
                raise ClusterLost(
                    f"the Dask scheduler has not come back within {self._scheduler_wait:.0f} s. "
                    "Nothing that was recorded is lost; start the cluster again and run the "
                    "experiment under the same name, or raise RunConfig(scheduler_wait=...)."
                )
            await asyncio.sleep(_RETRY_PAUSE)
        logger.warning("the Dask scheduler is back")

    async def _is_back(self) -> bool:
        if self._client.status != "running":
            return False
        # The subscriptions were lost with the connection.
        self.open()
        try:
            await self._on_reconnect()
        except Exception as error:
            logger.info("the Dask scheduler was lost again: %r", error)
            return False
        return self.is_connected
