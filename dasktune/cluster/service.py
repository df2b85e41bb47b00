"""The conversations with the workers, on the client's event loop.

There is a :class:`~dasktune.cluster.line.Line` to each worker, and a seat on it for each trial that
runs at a time. This module brings the two together: it gets the seats ready, puts the trials on
them, and frees what they held when they have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import cloudpickle
from distributed import Client

from dasktune.cluster import plugin as plugin_module
from dasktune.cluster.large_objects import LargeObjects, PlacingFailed
from dasktune.cluster.lease import LeaseFailed
from dasktune.cluster.line import Line, WorkerLost
from dasktune.cluster.listener import Listener
from dasktune.cluster.memory_checkpoints import CheckpointGone, MemoryCheckpoints
from dasktune.cluster.pace import Pace
from dasktune.cluster.payload import Payload
from dasktune.cluster.plugin import ExperimentPlugin
from dasktune.cluster.relay import Relay
from dasktune.cluster.roll_call import despite_hung
from dasktune.cluster.run import Run, Seat
from dasktune.cluster.slot_handle import SlotFailed
from dasktune.cluster.slot_pool import SlotPool
from dasktune.cluster.sweep import plugin_name, sweep
from dasktune.trainable.messages import Answer, Committed, Returned, StopNow
from dasktune.trial.events import (
    AnyTrialEvent,
    ExecutorEvent,
    StartFailed,
    TrialLost,
)

__all__ = ["ServiceSettings", "TrialService"]

logger = logging.getLogger(__name__)

#: Seconds for the workers to take the plugin or to drop it. One that hangs is not waited for.
_PLUGIN_DEADLINE = 10.0

#: How often it is given to the workers before that fails: one may die at that moment, and the next.
_REGISTRATIONS = 5

#: Seconds between two calls to a worker without a bell, for few workers; a lost bell costs so much.
_POLL_INTERVAL = 1.0

#: Share of the loop that calls without need may take, in seconds per worker: one takes about 1 ms.
_CALL_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How patient to be, in seconds, whether slots take leases, and Dask's priority.

    `memory_limit` is the size in bytes up to which checkpoints are kept in memory; 0 for never, and
    with `disk_first` not while all workers are on one machine.
    """

    name: str
    heartbeat_timeout: float = 30.0
    driver_ttl: float = 30.0
    stop_grace: float = 10.0
    reuse_actors: bool = True
    leases: bool = True
    memory_limit: int = 0
    disk_first: bool = False
    priority: float = 0

    @property
    def fence_after(self) -> float:
        """Silence of the driver after which a worker commits no checkpoint."""
        return self.heartbeat_timeout / 3


class TrialService:
    """Serves the trials that run on the workers.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    settings : ServiceSettings
        Limits.
    payload : Payload
        The trainable.
    now : callable
        Seconds on the runner's clock, for the events.
    emit : callable
        Takes events, those of a trial in order.
    on_free : callable
        Called with a run that has ended, before its last event; says whether its seat is free again
        because nobody follows on it.
    on_trouble : callable
        Called with a run that did not get going or was lost, and whether that was charged.
    on_crash : callable
        Called with an exception that nobody expected: a bug, and better than a silent hang.
    """

    def __init__(
        self,
        client: Client,
        settings: ServiceSettings,
        *,
        payload: Payload,
        now: Callable[[], float],
        emit: Callable[[Sequence[ExecutorEvent]], None],
        on_free: Callable[[Run], bool],
        on_trouble: Callable[[Run, bool], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.pace = Pace()
        self._client = client
        self._settings = settings
        self._plugin = ExperimentPlugin(plugin_name(settings.name, client.id), payload.blob)
        self._objects = LargeObjects(
            client,
            payload,
            name=settings.name,
            plugin=self._plugin.name,
            priority=settings.priority,
        )
        self._now = now
        self._emit = emit
        self._on_free = on_free
        self._on_trouble = on_trouble
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[None]] = set()
        self.memory = self._new_memory()
        self._lines: dict[str, Line] = {}
        self._listener = Listener(
            emit=emit, on_end=self._part, on_haul=self._carry, on_memory=self._on_memory
        )
        self._relay = Relay()
        self._pool = self._new_pool()

    def _new_memory(self) -> MemoryCheckpoints:
        settings = self._settings
        return MemoryCheckpoints(
            self._client,
            plugin=self._plugin.name,
            limit=settings.memory_limit,
            disk_first=settings.disk_first,
            emit=self._emit,
            now=self._now,
            spawn=self._spawn,
            priority=settings.priority,
        )

    def _new_pool(self) -> SlotPool:
        settings = self._settings
        return SlotPool(
            self._client,
            name=settings.name,
            plugin=self._plugin.name,
            slot_settings={
                "driver_ttl": settings.driver_ttl,
                "fence_after": settings.fence_after,
                "stop_grace": settings.stop_grace,
                "reuse": settings.reuse_actors,
            },
            objects=self._objects,
            priority=settings.priority,
            leases=settings.leases,
            spawn=self._spawn,
        )

    # What the executor calls

    async def open(self) -> None:
        """Put the plugin on the workers and listen for bells; again after a lost connection."""
        # For good: several experiments of one process may be at this point at the same time.
        cloudpickle.register_pickle_by_value(plugin_module)
        await sweep(self._client)
        await self._register()
        self._client.subscribe_topic(self._settings.name, self._on_bell)

    def serve(self, run: Run) -> None:
        """Take a trial to its seat."""
        seat = run.seat
        line = self._line(seat.address)
        line.runs[run.key] = run
        if seat.slot is None:
            seat.slot = self._pool.take(seat.placement)
            seat.ready = self._pool.is_ready(seat.slot)
            if not seat.ready:
                self._spawn(self._make_ready(seat, line))
        if run.starts_from_memory:
            run.fetching = True
            self._spawn(self._fetch(run, line))
        self._assign_if_ready(run, line)

    def answer(self, run: Run, answer: Answer) -> None:
        """Pass an answer on to a run."""
        line = self._lines.get(run.address)
        if line is not None and run.key in line.runs:
            line.answer(run, answer)

    def withdraw(self) -> None:
        """Have all runs save what they can and end."""
        for run in reversed(self._runs()):
            line = self._lines[run.address]
            # Those that follow another one end with it.
            if run.key in line.runs:
                line.withdraw(run)

    def store(self, path: str) -> None:
        """Write a checkpoint in memory to the storage, because the driver leaves."""
        self._spawn(self.memory.store(path))

    def wake(self, run: Run) -> None:
        """Tell a run's worker soon what it should know."""
        line = self._lines.get(run.address)
        if line is not None:
            line.wake()

    def lose(self, address: str | None, reason: str, *, charged: bool = True) -> None:
        """Give up the runs on a worker, or all of them."""
        for gone in tuple(self._lines) if address is None else (address,):
            line = self._lines.pop(gone, None)
            helped = [] if address is None else self._helped_by(address)
            suspects = len(helped) + (0 if line is None else line.suspects)
            if line is not None:
                line.lose(reason, charged=charged, shared=bool(helped))
            for run in helped:
                # Those that follow another one end with it.
                if run.key in self._lines[run.address].runs:
                    run.seat.blamed = gone
                    self._lines[run.address].abandon(
                        run, reason, charged=charged, shared=suspects > 1
                    )
        # Dask would grant their leases anew on a worker that comes back at the same address.
        self._pool.drop(address)
        self._objects.lose(address)
        self.memory.lose(address, reason)

    def _helped_by(self, address: str) -> list[Run]:
        """Return the runs elsewhere that need a worker besides their own."""
        return [run for run in self._runs() if address in run.seat.placement.addresses]

    def answered(self, address: str) -> float:
        """Return when a worker last answered a call, on the loop's clock."""
        line = self._lines.get(address)
        return -inf if line is None else line.answered

    def trim(self) -> None:
        """Give back the slots that have had nothing to do for a while."""
        self._pool.trim()

    async def close(self) -> None:
        """Stop what runs, as far as it obeys, and take everything off the cluster."""
        for run in self._runs():
            self.answer(run, StopNow(reason="the experiment was closed"))
        await self._let_finish()
        self.memory.close()
        # The tasks are not cancelled: `asyncio.wait_for` loses that when it is woken by the way.
        self.lose(None, "the experiment was closed", charged=False)
        # Ending tasks spawn others, which close slots; each of those has its own deadline.
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        self._relay.close()
        if self._client.status == "running":
            await self._objects.close()
            self._client.unsubscribe_topic(self._settings.name)
            await self._unregister()

    async def _let_finish(self) -> None:
        """Wait for the runs to obey; those that were left behind are not waited for again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * self._settings.stop_grace + 1
        while any(not run.told for run in self._runs()) and loop.time() < deadline:
            await asyncio.wait(tuple(self._tasks), timeout=0.1, return_when=asyncio.FIRST_COMPLETED)

    async def _register(self) -> None:
        for left in reversed(range(_REGISTRATIONS)):
            registering = self._client.register_plugin(self._plugin)
            try:
                await despite_hung(self._client, registering, deadline_s=_PLUGIN_DEADLINE)
                break
            except asyncio.TimeoutError:
                # The scheduler has it and gives it to every worker that comes.
                logger.warning("some worker has not taken the experiment's plugin; does it hang?")
                break
            except OSError:
                # A worker has died over it, and perhaps not all others have been told.
                if not left:
                    raise
                self._plugin.idempotent = False
        self._plugin.idempotent = True

    async def _unregister(self) -> None:
        work = self._client.unregister_worker_plugin(self._plugin.name)
        try:
            await despite_hung(self._client, work, deadline_s=_PLUGIN_DEADLINE)
        except Exception as error:
            # A worker that hangs, or a scheduler that came back without knowing of us.
            logger.info("the plugin could not be taken off every worker: %r", error)

    # Lines and seats

    def _runs(self) -> list[Run]:
        return [run for line in self._lines.values() for run in line.runs.values()]

    def _line(self, address: str) -> Line:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = Line(
                address,
                heartbeat_timeout=self._settings.heartbeat_timeout,
                stop_grace=self._settings.stop_grace,
                now=self._now,
                interval=self._interval,
                listener=self._listener,
            )
            self._spawn(self._talk(line))
        return line

    async def _talk(self, line: Line) -> None:
        await line.talk()
        # It may have found out by itself.
        if self._lines.get(line.address) is line:
            del self._lines[line.address]

    def _interval(self) -> tuple[float, float]:
        """Return seconds between calls without a bell, and for which results are collected."""
        longest = self._settings.fence_after / 2
        share = _CALL_SHARE * len(self._lines)
        return min(max(_POLL_INTERVAL, share), longest), min(share, longest)

    async def _make_ready(self, seat: Seat, line: Line) -> None:
        slot = seat.slot
        assert slot is not None
        try:
            await line.unless_lost(self._pool.make_ready(slot, seat.placement))
        except (LeaseFailed, PlacingFailed, SlotFailed) as failure:
            if isinstance(failure, LeaseFailed):
                seat.blamed, seat.contended = failure.address, failure.contended
            # None is left if the seat was given up meanwhile, with another worker that it needs.
            for run in [run for run in line.runs.values() if run.seat is seat][:1]:
                line.fail(run, str(failure), charged=not seat.contended)
        except WorkerLost:
            # The line ends the runs, and with the last one the slot is given back.
            pass
        else:
            seat.ready = True
            for run in line.runs.values():
                if run.seat is seat:
                    self._assign_if_ready(run, line)

    async def _fetch(self, run: Run, line: Line) -> None:
        """Bring the checkpoint that a run goes on from to its worker."""
        record = run.spec.checkpoint
        assert record is not None
        try:
            run.memory, run.copy = await line.unless_lost(
                self.memory.bring(record.path, run.address)
            )
        except CheckpointGone as gone:
            logger.info("trial %s goes on from an older checkpoint: %s", run.trial_id, gone)
            line.give_back(run)
        except WorkerLost:
            pass  # The line ends the runs.
        else:
            run.fetching = False
            if run.key in line.runs:
                self._assign_if_ready(run, line)
            else:
                run.let_go()

    def _assign_if_ready(self, run: Run, line: Line) -> None:
        if run.seat.ready and not run.fetching:
            line.assign(run)

    def _on_memory(self, run: Run, message: Committed | Returned) -> None:
        record = run.spec.checkpoint
        if isinstance(message, Committed):
            self.memory.keep(
                run.trial_id, message.checkpoint, message.size, run.address, run.spec.storage
            )
        elif record is not None:
            self.memory.give_up(record.path, f"{run.address} does not have it any more")

    def _part(self, line: Line, run: Run, end: AnyTrialEvent | None) -> None:
        """Free what the run held, and only then tell how it ended."""
        seat = run.seat
        failed = isinstance(end, TrialLost | StartFailed)
        usable = not failed and not run.tainted and seat.ready
        if not usable:
            self.pace.pause()
        elif run.seconds:
            self.pace.note(run.seconds)
        is_free = self._on_free(run)
        if seat.slot is not None and (is_free or not usable):
            slot, seat.slot, seat.ready = seat.slot, None, False
            if usable and self._settings.reuse_actors:
                self._pool.keep(slot)
            else:
                self._pool.close(slot)
        if not usable:
            # Those that were to follow on the slot, the last one first: each goes to the front.
            for other in reversed([other for other in line.runs.values() if other.seat is seat]):
                line.give_back(other)
        if isinstance(end, TrialLost | StartFailed):
            self._on_trouble(run, end.charged)
        if end is not None:
            self._emit([end])

    def _carry(self, line: Line, run: Run, number: int) -> None:
        self._spawn(self._relay.carry(line, run, number))

    def _on_bell(self, event: tuple[float, Any]) -> None:
        told = event[1]
        if isinstance(told, dict):
            self._pool.grant(told["lease"], told["devices"])
        elif told in self._lines:
            self._lines[told].wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)
