"""The actors of an experiment: created when a trial needs one, and kept for a while for the next.

Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Client

from dasktune.cluster.connection.batched_tasks import BatchedTasks
from dasktune.cluster.connection.futures import consume_exception
from dasktune.cluster.data.broadcast import BroadcastFailed, ObjectBroadcast
from dasktune.cluster.driver.actor_handle import ActorCallFailed, ActorHandle
from dasktune.cluster.driver.start_pacer import StartPacer
from dasktune.cluster.resources.resource_lease import LeaseFailed, LeaseUnsupported, ResourceLease
from dasktune.placement import Placement

logger = logging.getLogger(__name__)

#: Largest number of actors that are made ready on one worker at the same time. A worker creates
#: actors one after another. With hundreds at once, the deadline of each would include the time of
#: all others.
_MAX_OPENING = 32

#: Seconds that a lease that overtakes tasks may wait until one of these tasks has ended, while it
#: keeps no room idle.
_LONGEST_TASK = 3600.0


class WorkerSlow(Exception):
    """A worker that was not marked lost has missed a deadline.

    It gets more time the next time. If it has had the longest time, it gets a pause.

    Parameters
    ----------
    message : str
        What happened.
    pause_s : float, default=0
        Seconds for which the worker should get no trial.
    """

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Time limits of the actors, in seconds. A slow worker gets a multiple of the first two.

    Parameters
    ----------
    open_timeout : float
        How long a worker may take to create an actor.
    lease_timeout : float
        How long a worker may take to grant a lease.
    idle_time : float
        How long an idle actor is kept.
    idle_lease_time : float
        How long an idle actor keeps its lease.
    """

    open_timeout: float
    lease_timeout: float
    idle_time: float
    idle_lease_time: float


class ActorPool:
    """Creates actors, acquires leases for them, and keeps idle actors for a while.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    name : str
        Prefix of all keys, and the topic of the notifications.
    plugin : str
        Name of the experiment's worker plugin.
    actor_settings : mapping
        Further keyword arguments of :class:`~dasktune.cluster.worker.trial_actor.TrialActor`.
    objects : ObjectBroadcast
        The large objects that trials need on their worker.
    priority : float
        Dask's priority of the tasks.
    leases : bool
        Whether actors hold leases.
    limits : PoolLimits
        Time limits of the actors and leases.
    spawn : callable
        Runs a coroutine in the background.
    distributed : bool, default=False
        Whether user code runs on all workers of a trial, which then all need the objects.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        plugin: str,
        actor_settings: Mapping[str, Any],
        objects: ObjectBroadcast,
        priority: float,
        leases: bool,
        limits: PoolLimits,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        distributed: bool = False,
    ) -> None:
        self._client, self._tasks = client, BatchedTasks(client)
        self._distributed = distributed
        self._name = name
        self._plugin = plugin
        self._actor_settings = actor_settings
        self._objects = objects
        #: Dask's priority of the tasks that are submitted from now on.
        self.priority = priority
        #: Whether actors hold leases. Set to False once a worker's Dask does not support leases.
        self._leases = leases
        self._limits = limits
        self._spawn = spawn
        self._idle: defaultdict[str, list[ActorHandle]] = defaultdict(list)
        self._opened = 0
        self._opening: dict[str, asyncio.Semaphore] = {}
        self._pacer = StartPacer(limits.open_timeout, timer=lambda: asyncio.get_running_loop().time())
        #: Leases that have been requested and not granted, by key.
        self._pending_leases: dict[str, ResourceLease] = {}

    def acquire(self, placement: Placement) -> ActorHandle:
        """Return an actor on the placement's worker, if possible an idle one with its lease."""
        claim = placement.claim_on(placement.address)
        # The leases of a placement on several workers are acquired in a fixed order, so its actor
        # must not hold one already.
        alone = len(placement.addresses) == 1

        def is_suited(actor: ActorHandle) -> bool:
            held = actor.lease is not None and actor.lease.is_held and actor.lease.claim.same_amounts(claim)
            return alone and held

        idle = self._idle[placement.address]
        idle.sort(key=is_suited)
        if idle:
            actor = idle.pop()
            if not is_suited(actor):
                self._release_leases(actor)
            return actor
        self._opened += 1
        key = f"{self._name}-actor-{self._opened}"
        return ActorHandle(self._client, self._tasks, placement.address, key, priority=self.priority)

    def is_ready(self, actor: ActorHandle) -> bool:
        """Whether an actor can run a trial at once."""
        return actor.is_open and (actor.lease is not None or not self._leases)

    async def make_ready(
        self, actor: ActorHandle, placement: Placement, *, patience_s: float | None = None
    ) -> None:
        """Acquire the leases on all workers, send the large objects, and create the actor.

        The actor may be closed at each ``await``; see :meth:`ActorHandle.close`.

        Parameters
        ----------
        actor : ActorHandle
            The actor.
        placement : Placement
            Where it goes.
        patience_s : float, optional
            Given if the leases overtake tasks of other programs, and so wait until some have ended:
            the seconds for which they may keep room idle meanwhile.

        Raises
        ------
        LeaseFailed
            If a lease is not granted in time.
        BroadcastFailed
            If the objects do not reach the worker.
        ActorCallFailed
            If the actor cannot be created, or was closed meanwhile.
        WorkerSlow
            In place of the last two if only a deadline was missed.
        """
        for address in placement.addresses if actor.lease is None else ():
            for idle in self._idle[address]:
                # The ledger counts an idle actor's resources as free, so this trial may need them.
                self._release_leases(idle)
        opening = self._opening.setdefault(actor.address, asyncio.Semaphore(_MAX_OPENING))
        async with opening, self._pacer.turn(actor.address) as attempt:
            pause_s = self._pacer.rest_of_pause(actor.address)
            if pause_s:
                # Another start has missed the longest deadline while this one waited for its turn.
                raise WorkerSlow(f"{actor.address} could not start the trial before", pause_s)
            try:
                await self._prepare(actor, placement, attempt.factor, patience_s)
            except LeaseFailed as failure:
                # It is retried without a charge in any case: whether another client holds the
                # resources or the worker is slow is not known.
                # A worker whose tasks have not ended is not slow.
                if failure.timed_out and patience_s is None:
                    self._pacer.on_missed(attempt, failure.address, pauses=False)
                raise
            except (BroadcastFailed, ActorCallFailed) as failure:
                if not failure.timed_out:
                    raise
                pause_s = self._pacer.on_missed(attempt, actor.address)
                raise WorkerSlow(str(failure), pause_s) from failure
            self._pacer.on_started(attempt)

    async def _prepare(
        self, actor: ActorHandle, placement: Placement, factor: float, patience_s: float | None
    ) -> None:
        """Acquire the leases, send the objects, and create the actor, each with its deadline."""
        opening: asyncio.Future[None] | None = None
        needs_lease = self._leases and actor.lease is None
        try:
            if needs_lease and patience_s is None:
                # A worker mostly grants a lease at once, so the actor is created meanwhile. The two
                # together get as much time as one after another. If the lease is refused, the
                # caller of `make_ready` closes the actor.
                opening = self._open(actor, factor * (self._limits.lease_timeout + self._limits.open_timeout))
            if needs_lease:
                await self._acquire_leases(actor, placement, patience_s)
            actor.check_not_closed()
            for address in placement.addresses if self._distributed else (actor.address,):
                await self._objects.ensure_on(address, factor)
            await (opening or self._open(actor, factor * self._limits.open_timeout))
        finally:
            if opening is not None:
                opening.cancel()
                opening.add_done_callback(consume_exception)

    def _open(self, actor: ActorHandle, timeout_s: float) -> asyncio.Future[None]:
        """Begin to create an actor, if that has not been done."""

        async def create() -> None:
            if not actor.is_open:
                actor.check_not_closed()
                await actor.open(timeout_s, plugin=self._plugin, topic=self._name, **self._actor_settings)

        return asyncio.ensure_future(create())

    def keep_idle(self, actor: ActorHandle, *, keeps_lease: bool = True) -> None:
        """Keep an actor whose trial has ended normally for the next trial.

        Parameters
        ----------
        actor : ActorHandle
            The actor.
        keeps_lease : bool, default=True
            Whether it keeps its lease for a short time. False if another experiment or another
            client waits for the resources.
        """
        loop = asyncio.get_running_loop()
        actor.idle_since = loop.time()
        self._idle[actor.address].append(actor)
        if actor.helper_leases or not keeps_lease:
            self._release_leases(actor)
        loop.call_later(self._limits.idle_lease_time, self._end_idle_lease, actor, actor.idle_since)

    def close(self, actor: ActorHandle) -> None:
        """Close an actor in the background."""
        self._spawn(actor.close())

    def drop_idle(self, address: str | None) -> None:
        """Close the idle actors of a worker; of all workers if `address` is None."""
        self._pacer.forget_worker(address)
        for gone in tuple(self._idle) if address is None else (address,):
            self._opening.pop(gone, None)
            for actor in self._idle.pop(gone, ()):
                self.close(actor)

    def trim_idle(self) -> None:
        """Close the actors that have been idle for longer than ``limits.idle_time``."""
        long_ago = asyncio.get_running_loop().time() - self._limits.idle_time
        for address, actors in tuple(self._idle.items()):
            for actor in actors:
                if actor.idle_since < long_ago:
                    self.close(actor)
            self._idle[address] = [actor for actor in actors if actor.idle_since >= long_ago]

    def on_lease_granted(self, key: str, devices: Iterable[Iterable[str]]) -> None:
        """Handle a worker's notification that it holds a lease, with the lease's GPUs.

        The notification may be late: a lease whose deadline is over is no longer pending.
        """
        lease = self._pending_leases.get(key)
        if lease is not None:
            lease.grant(devices)

    async def _acquire_leases(
        self, actor: ActorHandle, placement: Placement, patience_s: float | None
    ) -> None:
        """Acquire all of a placement's leases or none."""
        leases = [
            ResourceLease(
                self._tasks,
                address,
                actor.key,
                placement.claim_on(address),
                home=actor.address,
                priority=self.priority,
            )
            # Sorted, so that every driver acquires leases in the same order. Otherwise two drivers
            # could each hold a lease that the other driver waits for.
            for address in sorted(placement.addresses)
        ]
        actor.lease = next(lease for lease in leases if lease.address == actor.address)
        actor.helper_leases = [lease for lease in leases if lease is not actor.lease]
        self._pending_leases.update((lease.key, lease) for lease in leases)
        idle_since: float | None = None
        loop = asyncio.get_running_loop()
        try:
            for lease in leases:
                actor.check_not_closed()
                if patience_s is None:
                    timeout_s = self._pacer.factor(lease.address) * self._limits.lease_timeout
                else:
                    # A worker starts the waiting task with the highest priority first. While the
                    # lease waits for several tasks, none of those behind it uses what is free.
                    if idle_since is None and max(lease.claim.resources.values(), default=0) > 1:
                        idle_since = loop.time()
                    left = None if idle_since is None else idle_since + patience_s - loop.time()
                    timeout_s = _LONGEST_TASK if left is None else left
                await lease.acquire(self._plugin, self._name, timeout_s=timeout_s)
                # From now on this worker waits for the others.
                idle_since = loop.time() if idle_since is None else idle_since
        except LeaseUnsupported as error:
            if self._leases:
                self._leases = False
                logger.warning(
                    "trials run without leases, so other clients of the cluster do not see the "
                    "resources in use, and adaptive scaling may end their workers: on %s, %s",
                    actor.address,
                    error,
                )
            self._release_leases(actor)
        finally:
            for lease in leases:
                del self._pending_leases[lease.key]

    def _release_leases(self, actor: ActorHandle) -> None:
        for lease in actor.detach_leases():
            self._spawn(lease.release())

    def _end_idle_lease(self, actor: ActorHandle, since: float) -> None:
        # The actor may have been used and become idle again since the timer was set.
        if actor.idle_since == since and actor in self._idle.get(actor.address, ()):
            self._release_leases(actor)
