"""The Dask actor on a worker: a slot that runs one trial after the other.

Its methods for the driver are coroutines, short, and idempotent, because Dask may issue a call
again after a broken connection. User code never runs on the worker's event loop nor on Dask's
single actor thread: a `TrialRun` gives it a thread of its own, a `ProcessRun` a process.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from distributed.worker import get_worker

from dasktune.cluster.envelope import Carriage, Reply, Request, enveloped
from dasktune.cluster.memory_checkpoints import key_of
from dasktune.cluster.station import Station
from dasktune.cluster.turn import Turn
from dasktune.cluster.unpack import Unpacker
from dasktune.errors import StorageError
from dasktune.isolation.environment import needs_process
from dasktune.isolation.nursery import Nursery
from dasktune.isolation.process import ChildProcess
from dasktune.isolation.process_run import ProcessRun
from dasktune.trainable.checkpoint_port import CheckpointPort
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.keeper import Farewell, Keeper
from dasktune.trainable.messages import PauseNow, StopNow
from dasktune.trainable.outbox import Urgency
from dasktune.trainable.relay import Haul
from dasktune.trainable.run import TrialRun
from dasktune.trainable.trial_thread import TrialThread

__all__ = ["TrialSlot"]

logger = logging.getLogger(__name__)

#: Seconds that a trial may run while others wait for its slot. They were sent ahead to save the way
#: of a trial that takes milliseconds; behind a longer one they would only be kept from other slots.
_LONGEST_AHEAD: Final = 0.1

#: Seconds at most that interrupted user code has before its process is killed.
_LONGEST_CHANCE: Final = 1.0

#: Trials with which a slot has enough to do until the driver comes.
_ENOUGH_AHEAD: Final = 4


class TrialSlot:
    """Runs the trials that the driver assigns, one at a time.

    Parameters
    ----------
    key : str
        The slot's key in Dask: when Dask forgets it, the driver is gone.
    plugin : str
        Name of the experiment's worker plugin, which holds the trainable.
    topic : str
        Where to ring.
    driver_ttl : float
        A driver that is silent for so many seconds is gone: the trial is stopped.
    fence_after : float
        No checkpoint is committed when the driver has been silent for so many seconds.
    stop_grace : float
        Seconds from asking user code to stop to interrupting it.
    reuse : bool, default=True
        Whether the object of a class trainable is kept for the next trial, if it can be reset.
    """

    def __init__(
        self,
        key: str,
        *,
        plugin: str,
        topic: str,
        driver_ttl: float,
        fence_after: float,
        stop_grace: float,
        reuse: bool = True,
    ) -> None:
        self._worker = get_worker()
        self.key = key
        self._plugin = self._worker.plugins[plugin]
        self._driver_ttl = driver_ttl
        self._stop_grace = stop_grace
        self._reuse = reuse
        self._keeper = Keeper(stop_grace)
        #: Runs now, or ran last.
        self._turn: Turn | None = None
        #: Those that wait for it to end.
        self._queue: deque[Turn] = deque()
        self._orphaned_at: float | None = None
        self._unpacker = Unpacker(self._worker, self._plugin, self, 2 * stop_grace)
        self._nursery = Nursery()
        self._station = Station.of(self._worker, self._plugin, topic, fence_after)
        self._plugin.slots[key] = self
        self._station.watch()

    # What the driver calls

    @enveloped
    async def exchange(self, request: Request) -> Reply:
        """Take what the driver says to this worker, and return what it does not have."""
        return self._station.exchange(request)

    @enveloped
    async def carry(self, carriage: Carriage) -> Haul | bytes | None:
        """Take a step of carrying something for a trial of this worker."""
        return await self._station.carry(carriage)

    async def is_driven(self) -> bool:
        """Whether the driver cares; the leases of the trial's further bundles ask that."""
        return not self._is_abandoned

    # What happens on the worker's event loop

    def take(self, turn: Turn) -> None:
        """Begin a trial as soon as those before it have ended."""
        self._queue.append(turn)
        self._advance()

    @property
    def is_busy(self) -> bool:
        """Whether user code is still running, wanted or not."""
        return self._is_running or self.is_cleaning

    @property
    def is_cleaning(self) -> bool:
        """Whether a trainable that was kept is being cleaned up."""
        return self._keeper.is_cleaning

    @property
    def is_forgotten(self) -> bool:
        """Whether Dask has dropped the slot: its driver is gone, or done with it."""
        return self.key not in self._worker.state.actors

    @property
    def is_needed(self) -> bool:
        """Whether a trial runs here, or its last word has not been fetched by its driver."""
        owes = self._turn is not None and not self._turn.delivered
        return self.is_busy or (owes and not self.is_forgotten)

    def retire(self) -> None:
        """Make the trials save and leave, because the worker does."""
        self._keeper.close()
        order = PauseNow(save=True, reason="its worker is retiring")
        for turn in (self._turn, *self._queue):
            if turn is not None:
                turn.leave(order)
        self._nursery.close()

    def vacate(self) -> Sequence[TrialThread | Farewell | ChildProcess]:
        """Give up what is kept for the next trial, and return what still runs."""
        self._keeper.close()
        self._nursery.vacate()
        return self._tenants()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the end of user code here. For any thread."""
        deadline = time.monotonic() + timeout
        for tenant in self._tenants():
            tenant.join(max(0.0, deadline - time.monotonic()))

    def leave(self) -> None:
        """Keep nothing of the experiment: somebody may still refer to this slot for long."""
        self._nursery.close()
        self._unpacker.close()
        self._turn = None
        self._plugin.slots.pop(self.key, None)

    def watch_driver(self) -> None:
        """Stop a trial whose driver is gone or silent, and end with a driver that is gone."""
        forgotten = self.is_forgotten
        if self._turn and self._is_abandoned:
            if self._turn.is_busy:
                silence = self._station.contact.silence
                why = "Dask has forgotten it" if forgotten else f"silent for {silence:.0f} s"
                self._orphan(self._turn, why)
            # A driver that hangs is still a client of Dask's, which keeps for it what it asked for.
            for key, released in self._plugin.leases.items():
                if key.startswith(f"{self.key}-lease-"):
                    released.set()
        if forgotten:
            self._keeper.close()
        self._keeper.urge()
        if forgotten and not self.is_busy:
            self.leave()

    @property
    def _is_abandoned(self) -> bool:
        """Whether the driver is gone, or silent although it should be fetching what there is."""
        turn = self._turn
        awaited = turn is not None and (turn.is_busy or not turn.delivered)
        is_silent = self._station.contact.silence > self._driver_ttl
        return awaited and (self.is_forgotten or is_silent)

    @property
    def _is_running(self) -> bool:
        return self._turn is not None and self._turn.is_busy

    def _tenants(self) -> list[TrialThread | Farewell | ChildProcess]:
        """Return what is in use: by the trial, and by what earlier ones left to be cleaned up."""
        run = None if self._turn is None else self._turn.run
        runs = [run] if run is not None and run.in_use else []
        return [*runs, *self._keeper.farewells, *self._nursery.leaving]

    def _advance(self) -> None:
        """Begin the next trial if there is room, and see that none waits for long."""
        if self._keeper.is_occupied:
            self._return_queue()
        while self._queue and not self._is_running:
            turn = self._queue.popleft()
            if turn.may_begin:
                self._begin(turn)
        if self._queue and self._turn is not None:
            self._worker.loop.call_later(_LONGEST_AHEAD, self._give_back, self._turn)

    def _begin(self, turn: Turn) -> None:
        self._turn = turn
        self._orphaned_at = None
        turn.begin(self._make_run(turn))

    def _make_run(self, turn: Turn) -> TrialThread:
        spec, config = turn.assignment.spec, turn.assignment.config
        ring = functools.partial(self._ring, turn)
        port = CheckpointPort(
            fence=functools.partial(self._fence, turn), keep=self._keep, packed=turn.packed
        )
        on_end = functools.partial(self._on_end, turn)
        if needs_process(spec):
            # A child's memory is its own, even where this process shares the driver's.
            relayed = spec.relayed or spec.storage.is_process_private
            return ProcessRun(
                replace(spec, relayed=relayed),
                functools.partial(self._unpacker.parcel, config),
                self._nursery,
                ring,
                port,
                on_end=on_end,
                reuse=self._reuse,
                # The driver gives the trial up when it has waited for its grace once more.
                chance=min(_LONGEST_CHANCE, self._stop_grace / 2),
            )
        if self._reuse:
            self._keeper.open()
        opener = functools.partial(self._unpacker.open, config)
        return TrialRun(spec, opener, ring, port, keeper=self._keeper, on_end=on_end)

    def _on_end(self, turn: Turn) -> None:
        # Called in the trial's own thread.
        turn.note_end()
        self._worker.loop.add_callback(self._advance)

    def _give_back(self, turn: Turn) -> None:
        """Give back what still waits for a trial that takes its time."""
        if turn is self._turn and turn.is_busy:
            self._return_queue()

    def _return_queue(self) -> None:
        if self._queue:
            for waiting in self._queue:
                waiting.give_back()
            self._queue.clear()
            self._station.ring_now()

    def _orphan(self, turn: Turn, why: str) -> None:
        now = time.monotonic()
        if self._orphaned_at is None:
            self._orphaned_at = now
            incarnation = turn.assignment.incarnation
            logger.warning("The driver of %s is gone (%s); stopping it.", incarnation, why)
            for orphan in (turn, *self._queue):
                orphan.leave(StopNow(reason="its driver is gone"))
                if orphan.run is not None:
                    orphan.run.dock.close(StorageError("the driver is gone"))
        elif now - self._orphaned_at > self._stop_grace:
            turn.interrupt()

    # What happens in a trial's thread

    def _ring(self, turn: Turn, urgency: Urgency) -> None:
        """Tell the driver that there is news; of a trial's end soon if few others follow it."""
        if turn.has_ended and len(self._queue) > _ENOUGH_AHEAD:
            urgency = min(urgency, Urgency.WHENEVER)
        self._station.ring(turn, urgency)

    def _keep(self, path: str, packed: bytes) -> None:
        """Keep a checkpoint until Dask takes it."""
        self._plugin.kept[key_of(self._plugin.name, path)] = packed

    def _fence(self, turn: Turn) -> None:
        """Let a checkpoint be committed only under the eyes of the driver."""
        contact = self._station.contact
        if contact.wait() and not self.is_forgotten:
            return
        reason = f"the driver has been silent for {contact.silence:.0f} s"
        # An order to leave, or it would look like a failure of user code.
        turn.leave(StopNow(reason=reason))
        raise TrialInterrupted(reason)
