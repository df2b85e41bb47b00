"""Monitors the cluster: lists the workers, and detects lost workers and a lost scheduler.

The monitor runs on the client's event loop. It uses three signals of a loss: the scheduler's event
that a worker was removed (some 10 ms after a process dies), an overdue heartbeat (of a worker that
hangs or has lost its connection, which Dask itself detects after minutes), and the client's
connection to the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

from distributed import Client

from dasktune.cluster.membership.worker_list import KnownWorkers, read_cluster
from dasktune.cluster.sharing.share_reporter import ShareReporter
from dasktune.errors import ClusterLost
from dasktune.placement import WorkerCapacity

logger = logging.getLogger(__name__)

#: Seconds between two readings of the workers. On a large cluster there are more, so that regular
#: readings take at most this fraction of the time, but no more than that: the share plugin reserves
#: room for 2 s, and a driver learns of it by its next reading.
_INTERVAL = 1.0
_REGULARLY_OF_TIME = 0.02
_LONGEST_INTERVAL = 1.5

#: Seconds until an early reading of the workers, if they are about to change.
_SOON = 0.2

#: Least seconds between two readings, and largest fraction of the time for readings that are not
#: regular. A reading of a large cluster takes much of the scheduler's time.
_LEAST_PAUSE = 0.02
_MOST_OF_TIME = 0.05

#: Seconds for which the client collects messages to the scheduler. By default these are 10 ms, for
#: which each start and end of a trial would wait. Tasks that are submitted at the same time travel
#: in one message in any case.
_SEND_INTERVAL = 0.001

#: The topic on which nannies report that they kill a worker because it uses too much memory.
_MEMORY_RESTART_TOPIC = "worker-restart-memory"

#: Seconds that one reading of the workers may take.
_READ_DEADLINE = 10.0

#: Seconds between two attempts to reach a lost scheduler.
_RETRY_PAUSE = 0.1


class HeartbeatAges:
    """Counts each worker's silence from one reading to the next.

    The scheduler stamps heartbeats with the time of day. That clock may be set, and it continues
    while the scheduler, the driver or the whole machine sleeps and receives no heartbeat. So the
    age of the stamp is used only when a worker is seen for the first time. After that only a new
    stamp counts as a heartbeat. Each reading without a new stamp adds the time since the reading
    before to the silence, and at most the largest step.

    A worker that answers the driver is not silent either: after its clock was set back, it sends no
    heartbeat until the clock reaches the old time again.

    Examples
    --------
    >>> ages = HeartbeatAges()
    >>> def age(heartbeat: float, age: float, now: float) -> float:
    ...     return ages.update({"tcp://a:1": (heartbeat, age)}, now, 2.0)["tcp://a:1"]
    >>> age(heartbeat=1000.0, age=0.5, now=0.0)
    0.5
    >>> age(heartbeat=1000.0, age=3600.5, now=1.0)
    1.5
    >>> age(heartbeat=4601.0, age=0.25, now=2.0)
    0.25
    """

    def __init__(self) -> None:
        #: The last heartbeat of each worker, and the age that was counted.
        self._previous: dict[str, tuple[float, float]] = {}
        self._read_at = 0.0

    def update(
        self,
        heartbeats: Mapping[str, tuple[float, float]],
        now: float,
        max_step: float,
        answered_at: Callable[[str], float] = lambda _: -inf,
    ) -> dict[str, float]:
        """Return the counted silence of each worker in seconds, by address.

        Parameters
        ----------
        heartbeats : mapping
            For all workers by address the time of the last heartbeat and its age in seconds, both
            on the scheduler's clock.
        now : float
            Seconds on a monotonic clock.
        max_step : float
            Largest number of seconds to count since the last reading.
        answered_at : callable, optional
            Given an address, returns when that worker last answered a call, on the same clock.
        """
        passed = min(now - self._read_at, max_step)
        self._read_at = now
        ages = {}
        for address, (heartbeat, age) in heartbeats.items():
            if (before := self._previous.get(address)) is not None:
                age = before[1] + passed if before[0] == heartbeat else min(age, passed)
            ages[address] = min(age, now - answered_at(address))
        self._previous = {address: (heartbeats[address][0], age) for address, age in ages.items()}
        return ages


class WorkerMonitor:
    """Reads the workers regularly, and reports lost workers and a lost scheduler.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    scheduler_wait : float
        Seconds to wait for a lost scheduler to come back.
    own_prefix : str
        Prefix of the keys of the driver's own tasks, whose resources are not counted as used.
    answered_at : callable
        Given an address, returns when that worker last answered a call, on the loop's clock.
    on_workers : callable
        Called with all workers, by address, at each reading.
    on_removed : callable
        Called with the address of a removed worker, whether the removal was expected, and the bytes
        of memory that the worker used if its nanny killed it for that, else 0.
    on_disconnect : callable
        Called when the connection to the scheduler is lost.
    on_reconnect : async callable
        Awaited when the connection is back, to subscribe and register again.
    share : ShareReporter
        Gives each reading the experiment's demand, and gets the answer before `on_workers` is
        called.
    recent_s : float, default=0
        A heartbeat that is younger than this, in seconds, has the age 0.
    """

    def __init__(
        self,
        client: Client,
        *,
        scheduler_wait: float,
        own_prefix: str,
        answered_at: Callable[[str], float],
        on_workers: Callable[[Mapping[str, WorkerCapacity]], None],
        on_removed: Callable[[str, bool, int], None],
        on_disconnect: Callable[[], None],
        on_reconnect: Callable[[], Awaitable[None]],
        share: ShareReporter,
        recent_s: float = 0.0,
    ) -> None:
        self._client = client
        self._scheduler_wait = scheduler_wait
        self._own_prefix = own_prefix
        self._answered_at = answered_at
        self._on_workers = on_workers
        self._on_removed = on_removed
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._share = share
        self._heartbeats = HeartbeatAges()
        self._known = KnownWorkers(recent_s)
        self._read_now = asyncio.Event()
        #: When the last reading ended, on the loop's clock, and how long it took.
        self._read_at, self._read_seconds = 0.0, 0.0
        #: Seconds until the next reading.
        self._interval = _INTERVAL
        #: The workers whose topics are subscribed to.
        self._subscribed: set[str] = set()
        #: Bytes that workers used when their nannies killed them for it, by address.
        self._killed_for_memory: dict[str, int] = {}
        #: The connection on which the subscriptions were made.
        self._comm: Any = None
        self._closed = False

    def open(self) -> None:
        """Subscribe to the scheduler's events; called again after each reconnect."""
        self._comm = self._client.scheduler_comm
        # The connection may be lost already, before the first reading.
        if self._comm is not None:
            self._comm.interval = min(self._comm.interval, _SEND_INTERVAL)
        # The subscriptions of an earlier connection were lost with it.
        self._subscribed = set()
        self._client.subscribe_topic(_MEMORY_RESTART_TOPIC, self._on_killed_for_memory)

    async def run(self) -> None:
        """Read the workers until cancelled.

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
                await asyncio.wait_for(self._read_now.wait(), self._interval)
            except asyncio.TimeoutError:
                continue
            self._read_now.clear()

    def read_soon(self) -> None:
        """Read the workers again soon, before the next regular reading."""
        asyncio.get_running_loop().call_later(_SOON, self._read_now.set)

    def read_at_once(self) -> None:
        """Read the workers again now, because there is room for a trial or a trial's room is due.

        A call during a reading leads to another reading, because the first may be out of date.
        """
        loop = asyncio.get_running_loop()
        pause = max(_LEAST_PAUSE, self._read_seconds / _MOST_OF_TIME)
        loop.call_later(max(0.0, self._read_at + pause - loop.time()), self._read_now.set)

    def close(self) -> None:
        """Stop reading, and unsubscribe if the client is connected."""
        self._closed = True
        if self._client.status == "running":
            self._subscribe(())
            self._client.unsubscribe_topic(_MEMORY_RESTART_TOPIC)

    @property
    def is_connected(self) -> bool:
        """Whether the client still has the connection on which the subscriptions were made."""
        # If the connection broke and came back between two readings, the scheduler has dropped the
        # driver's futures.
        return self._client.status == "running" and self._client.scheduler_comm is self._comm

    def _subscribe(self, addresses: Iterable[str]) -> None:
        """Subscribe to the topics of these workers, and unsubscribe from all others.

        The topic ``"all"`` of all workers cannot be used: ``client.replicate`` logs values there
        that cannot be sent, and the scheduler then closes the connection of every subscriber.
        """
        wanted = set(addresses)
        for address in self._subscribed - wanted:
            self._client.unsubscribe_topic(address)
        for address in wanted - self._subscribed:
            self._client.subscribe_topic(address, partial(self._on_event, address))
        self._subscribed = wanted

    def _on_event(self, address: str, event: tuple[float, Any]) -> None:
        # A loss may be reported twice, by this event and by the next reading, in any order. Marking
        # a worker lost again has no effect.
        message = event[1]
        if isinstance(message, dict) and message.get("action") == "remove-worker":
            taken = self._killed_for_memory.pop(address, 0)
            self._on_removed(address, bool(message.get("expected", False)), taken)

    def _on_killed_for_memory(self, event: tuple[float, Any]) -> None:
        # This event comes before the worker's removal. It is missing if the nanny could not report.
        message = event[1]
        if isinstance(message, dict) and message.get("worker") in self._subscribed:
            self._killed_for_memory[message["worker"]] = int(message.get("rss", 0))

    async def read(self) -> bool:
        """Read the workers, and return whether the connection is still the same."""
        if not self.is_connected:
            return False
        loop = asyncio.get_running_loop()
        begun = loop.time()
        demand = self._share.demand()
        reading = read_cluster(self._client, self._own_prefix, demand, self._count_ages, self._known)
        try:
            workers, share = await asyncio.wait_for(reading, _READ_DEADLINE)
        except asyncio.TimeoutError:
            # A scheduler that is busy or suspended for a while loses no state, so nothing is marked
            # lost.
            logger.warning("the scheduler has not answered for %.0f s", _READ_DEADLINE)
            return self.is_connected
        except Exception as error:
            logger.info("the workers could not be read: %r", error)
            return self.is_connected
        self._read_at = loop.time()
        before, self._read_seconds = self._read_seconds, self._read_at - begun
        # A scheduler that was busy or suspended for a moment says nothing about the next reading.
        pause = min(before, self._read_seconds) / _REGULARLY_OF_TIME
        self._interval = min(max(_INTERVAL, pause), _LONGEST_INTERVAL)
        # Checked again: if the connection was lost during the reading, the result is out of date.
        if self.is_connected:
            self._subscribe(workers)
            self._share.on_answer(share)
            self._on_workers(workers)
        return self.is_connected

    def _count_ages(self, heartbeats: Mapping[str, tuple[float, float]]) -> Mapping[str, float]:
        now = asyncio.get_running_loop().time()
        return self._heartbeats.update(heartbeats, now, 2 * self._interval, self._answered_at)

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
