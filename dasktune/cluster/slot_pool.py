"""The slots of an experiment: opened when a trial needs one, and kept a while for the next.

Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from distributed import Client

from dasktune.cluster.large_objects import LargeObjects
from dasktune.cluster.lease import Lease, LeaseUnsupported
from dasktune.cluster.slot_handle import SlotHandle
from dasktune.placement import Placement

__all__ = ["SlotPool"]

logger = logging.getLogger(__name__)

#: Seconds that a slot with nothing to do is kept. It is an actor, and Dask does not retire a worker
#: that has one in peace; an adaptive cluster decides within 3 s to end an idle worker.
_IDLE_TIME = 1.0

#: Seconds that such a slot keeps its lease for the next trial, which mostly comes within
#: milliseconds. All the while others wait, and Dask does not scale the worker down.
_IDLE_LEASE_TIME = 0.25

#: Slots that are made ready on a worker at a time. A worker that is to have hundreds makes them one
#: after the other, and each has a deadline, which is not to count the time of all the others.
_MOST_OPENING = 32


class SlotPool:
    """Opens slots, takes leases for them, and keeps those that have nothing to do.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    name : str
        Prefix of all keys, and the topic on which grants are told.
    plugin : str
        Name of the experiment's worker plugin.
    slot_settings : mapping
        Further keyword arguments of :class:`~dasktune.cluster.slot.TrialSlot`.
    objects : LargeObjects
        What trials need on their worker.
    priority : float
        Dask's priority of the tasks.
    leases : bool
        Whether slots take leases.
    spawn : callable
        Runs a coroutine.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        plugin: str,
        slot_settings: Mapping[str, Any],
        objects: LargeObjects,
        priority: float,
        leases: bool,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._client = client
        self._name = name
        self._plugin = plugin
        self._slot_settings = slot_settings
        self._objects = objects
        self._priority = priority
        #: Not any more once a worker's Dask turned out not to know how.
        self._leases = leases
        self._spawn = spawn
        self._idle: defaultdict[str, list[SlotHandle]] = defaultdict(list)
        self._opened = 0
        self._doors: dict[str, asyncio.Semaphore] = {}
        #: Leases that were asked for, by key.
        self._asked: dict[str, Lease] = {}

    def take(self, placement: Placement) -> SlotHandle:
        """Return a slot where user code is to run, if possible one that holds what it needs."""
        claim = placement.claim_on(placement.address)
        # Several leases are taken in a certain order, and none of them is there before.
        alone = len(placement.addresses) == 1

        def is_suited(slot: SlotHandle) -> bool:
            held = slot.lease is not None and slot.lease.is_held and slot.lease.claim.is_like(claim)
            return alone and held

        idle = self._idle[placement.address]
        idle.sort(key=is_suited)
        if idle:
            slot = idle.pop()
            if not is_suited(slot):
                self._give_leases_back(slot)
            return slot
        self._opened += 1
        key = f"{self._name}-slot-{self._opened}"
        return SlotHandle(self._client, placement.address, key, priority=self._priority)

    def is_ready(self, slot: SlotHandle) -> bool:
        """Whether a slot can run a trial at once."""
        return slot.is_open and (slot.lease is not None or not self._leases)

    async def make_ready(self, slot: SlotHandle, placement: Placement) -> None:
        """Take what a trial needs on all its workers, bring the large objects, and open the slot.

        Raises
        ------
        LeaseFailed
            If they are not granted in time.
        PlacingFailed
            If the objects do not come to the worker.
        SlotFailed
            If it cannot be opened.
        """
        for address in placement.addresses if slot.lease is None else ():
            for idle in self._idle[address]:
                # The ledger counts what they hold as free, and this trial may need it.
                self._give_leases_back(idle)
        async with self._doors.setdefault(slot.address, asyncio.Semaphore(_MOST_OPENING)):
            if self._leases and slot.lease is None:
                await self._take_leases(slot, placement)
            slot.check_wanted()
            await self._objects.bring(slot.address)
            if not slot.is_open:
                slot.check_wanted()
                await slot.open(plugin=self._plugin, topic=self._name, **self._slot_settings)

    def keep(self, slot: SlotHandle) -> None:
        """Keep a slot whose trial has ended well for the next one."""
        loop = asyncio.get_running_loop()
        slot.idle_since = loop.time()
        self._idle[slot.address].append(slot)
        if slot.helpers:
            self._give_leases_back(slot)
        loop.call_later(_IDLE_LEASE_TIME, self._end_idle_lease, slot, slot.idle_since)

    def close(self, slot: SlotHandle) -> None:
        """Give a slot back."""
        self._spawn(slot.close())

    def drop(self, address: str | None) -> None:
        """Give the idle slots of a worker back, or all of them."""
        for gone in tuple(self._idle) if address is None else (address,):
            self._doors.pop(gone, None)
            for slot in self._idle.pop(gone, ()):
                self.close(slot)

    def trim(self) -> None:
        """Give back the slots that have had nothing to do for a while."""
        long_ago = asyncio.get_running_loop().time() - _IDLE_TIME
        for address, slots in tuple(self._idle.items()):
            for slot in slots:
                if slot.idle_since < long_ago:
                    self.close(slot)
            self._idle[address] = [slot for slot in slots if slot.idle_since >= long_ago]

    def grant(self, key: str, devices: Iterable[Iterable[str]]) -> None:
        """Take note that a lease was granted, with these GPUs."""
        lease = self._asked.get(key)
        if lease is not None:
            lease.grant(devices)

    async def _take_leases(self, slot: SlotHandle, placement: Placement) -> None:
        """Take all of a placement's leases or none."""
        leases = [
            Lease(
                self._client,
                address,
                slot.key,
                placement.claim_on(address),
                home=slot.address,
                priority=self._priority,
            )
            # In the same order for every driver, or two could wait for each other.
            for address in sorted(placement.addresses)
        ]
        slot.lease = next(lease for lease in leases if lease.address == slot.address)
        slot.helpers = [lease for lease in leases if lease is not slot.lease]
        self._asked.update((lease.key, lease) for lease in leases)
        try:
            for lease in leases:
                slot.check_wanted()
                await lease.take(self._plugin, self._name)
        except LeaseUnsupported as error:
            if self._leases:
                self._leases = False
                logger.warning(
                    "trials run without leases, so other users of the cluster do not see what they "
                    "use, and adaptive scaling may end their workers: on %s, %s",
                    slot.address,
                    error,
                )
            self._give_leases_back(slot)
        finally:
            for lease in leases:
                del self._asked[lease.key]

    def _give_leases_back(self, slot: SlotHandle) -> None:
        for lease in slot.hand_over_leases():
            self._spawn(lease.release())

    def _end_idle_lease(self, slot: SlotHandle, since: float) -> None:
        if slot.idle_since == since and slot in self._idle.get(slot.address, ()):
            self._give_leases_back(slot)
