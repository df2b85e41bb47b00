"""The conversations with the workers, on the client's event loop.

Each trial on a worker has one coroutine, :meth:`TrialService._serve`. It opens a slot, assigns the
trial, and then fetches messages and passes on answers, one call at a time, until the worker has
said its last word or is lost. Whatever else is known (a bell, an answer, a loss) only wakes it.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle
from distributed import Client

from dasktune.cluster import plugin as plugin_module
from dasktune.cluster.envelope import Assignment, Refused, Reply, Request
from dasktune.cluster.lease import Lease, LeaseFailed, LeaseUnsupported
from dasktune.cluster.plugin import ExperimentPlugin
from dasktune.cluster.run import TERMINAL, Run, event_of
from dasktune.cluster.slot_handle import SlotFailed, SlotHandle
from dasktune.cluster.sweep import plugin_name, sweep
from dasktune.trainable.messages import Answer, PauseNow, StopNow
from dasktune.trial.events import (
    AnyTrialEvent,
    ErrorInfo,
    StartFailed,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialStopped,
)

__all__ = ["ServiceSettings", "TrialService"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts to reach a slot that did not answer.
_RETRY_PAUSE = 0.2

#: Seconds for the workers to take the plugin or to drop it. One that hangs would take for ever.
_PLUGIN_DEADLINE = 10.0

#: Seconds that a slot with nothing to do is kept.
_IDLE_TIME = 5.0

#: Seconds that such a slot keeps its lease for the next trial, which mostly comes within
#: milliseconds. All the while others wait, and Dask does not scale the worker down.
_IDLE_LEASE_TIME = 0.25

#: Seconds between two polls without a bell, for few trials; a lost bell costs so much.
_POLL_INTERVAL = 1.0

#: Share of the loop that polls without a bell may take, in seconds per running trial.
_POLL_COST = 0.01


class _Lost(Exception):
    """The worker of a trial is lost."""

    def __init__(self, reason: str, charged: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.charged = charged


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How patient to be, all in seconds, see `RunConfig`; and whether slots take leases."""

    name: str
    heartbeat_timeout: float = 30.0
    driver_ttl: float = 30.0
    stop_grace: float = 10.0
    reuse_actors: bool = True
    leases: bool = True

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
    payload : bytes
        The pickled trainable, for the worker plugin.
    now : callable
        Seconds on the runner's clock, for the events.
    emit : callable
        Takes an event of a trial.
    on_free : callable
        Called with a run when its resources are free again, before its last event.
    on_trouble : callable
        Called with a run that did not get going or was lost.
    on_crash : callable
        Called with an exception that nobody expected: a bug, and better than a silent hang.
    """

    def __init__(
        self,
        client: Client,
        settings: ServiceSettings,
        *,
        payload: bytes,
        now: Callable[[], float],
        emit: Callable[[AnyTrialEvent], None],
        on_free: Callable[[Run], None],
        on_trouble: Callable[[Run], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._plugin = ExperimentPlugin(plugin_name(settings.name, client.id), payload)
        self._now = now
        self._emit = emit
        self._on_free = on_free
        self._on_trouble = on_trouble
        self._on_crash = on_crash
        self._runs: dict[str, Run] = {}
        self._by_slot: dict[int, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: defaultdict[str, list[SlotHandle]] = defaultdict(list)
        self._slots = 0
        #: Whether slots take leases; not any more once a worker's Dask turned out not to know how.
        self._leases = settings.leases
        #: Leases that were asked for, by key.
        self._asked: dict[str, Lease] = {}

    # What the executor calls

    async def open(self) -> None:
        """Put the plugin on the workers and listen for bells; again after a lost connection."""
        # For good: several experiments of one process may be at this point at the same time.
        cloudpickle.register_pickle_by_value(plugin_module)
        await sweep(self._client)
        registering = _awaited(self._client.register_plugin(self._plugin))
        try:
            await asyncio.wait_for(registering, _PLUGIN_DEADLINE)
        except asyncio.TimeoutError:
            # The scheduler has it and gives it to every worker that comes.
            logger.warning("some worker has not taken the experiment's plugin; does it hang?")
        self._client.subscribe_topic(self._settings.name, self._on_bell)

    def serve(self, run: Run) -> None:
        """Take a trial to its worker."""
        self._runs[run.key] = run
        self._spawn(self._serve(run))

    def answer(self, run: Run, answer: Answer) -> None:
        """Pass an answer on to a run."""
        run.answers.append(answer)
        if isinstance(answer, StopNow | PauseNow):
            run.order = answer
            run.patience = asyncio.get_running_loop().time() + self._settings.stop_grace
        run.wake.set()

    def lose(self, address: str | None, reason: str, *, charged: bool = True) -> None:
        """Give up the runs on a worker, or all of them."""
        for run in tuple(self._runs.values()):
            if address is None or address in run.placement.addresses:
                run.blamed = run.blamed or address or ""
                run.lose(reason, charged=charged)
        for gone in tuple(self._idle) if address is None else (address,):
            # Dask would grant their leases anew on a worker that comes back at the same address.
            for slot in self._idle.pop(gone, ()):
                self._spawn(slot.close())

    def trim(self) -> None:
        """Give back the slots that have had nothing to do for a while."""
        long_ago = asyncio.get_running_loop().time() - _IDLE_TIME
        for address, slots in tuple(self._idle.items()):
            for slot in slots:
                if slot.idle_since < long_ago:
                    self._spawn(slot.close())
            self._idle[address] = [slot for slot in slots if slot.idle_since >= long_ago]

    async def close(self) -> None:
        """Stop what runs, as far as it obeys, and take everything off the cluster."""
        for run in self._runs.values():
            self.answer(run, StopNow(reason="the experiment was closed"))
        await self._let_finish()
        # The tasks are not cancelled: `asyncio.wait_for` loses that when it is woken by the way.
        self.lose(None, "the experiment was closed", charged=False)
        # Ending tasks spawn others, which close slots; each of those has its own deadline.
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if self._client.status == "running":
            self._client.unsubscribe_topic(self._settings.name)
            await self._unregister()

    async def _let_finish(self) -> None:
        """Wait for the runs to obey; those that were left behind are not waited for again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * self._settings.stop_grace + 1
        while any(not run.told for run in self._runs.values()) and loop.time() < deadline:
            await asyncio.wait(tuple(self._tasks), timeout=0.1, return_when=asyncio.FIRST_COMPLETED)

    async def _unregister(self) -> None:
        work = _awaited(self._client.unregister_worker_plugin(self._plugin.name))
        try:
            await asyncio.wait_for(work, _PLUGIN_DEADLINE)
        except Exception as error:
            # A worker that hangs, or a scheduler that came back without knowing of us.
            logger.info("the plugin could not be taken off every worker: %r", error)

    # One run

    async def _serve(self, run: Run) -> None:
        slot = self._slot_for(run)
        end: AnyTrialEvent | None = None
        try:
            await self._unless_lost(run, self._make_ready(run, slot))
            self._by_slot[slot.number] = run
            end = await self._converse(run, slot)
        except _Lost as loss:
            # A worker that died before it was asked to run the trial did not die of it.
            charged = loss.charged and run.assigned
            end = self._event(run, TrialLost, reason=loss.reason, charged=charged)
        except (LeaseFailed, SlotFailed, Refused) as failure:
            if isinstance(failure, LeaseFailed):
                run.blamed, run.contended = failure.address, failure.contended
            kind = TrialLost if run.have else StartFailed
            end = self._event(run, kind, reason=str(failure), charged=not run.contended)
        finally:
            self._part(run, slot, end)

    def _slot_for(self, run: Run) -> SlotHandle:
        idle = self._idle[run.address]
        # One that holds what is needed already, else the last one.
        idle.sort(key=lambda slot: slot.lease is not None and slot.lease.claim.is_like(run.claim))
        if idle:
            slot = idle.pop()
            # Several leases are taken in a certain order, and none of them is there before.
            alone = len(run.placement.addresses) == 1
            if slot.lease is not None and not (alone and slot.lease.claim.is_like(run.claim)):
                self._give_lease_back(slot)
            return slot
        self._slots += 1
        key = f"{self._settings.name}-slot-{self._slots}"
        return SlotHandle(self._client, run.address, key, self._slots)

    async def _make_ready(self, run: Run, slot: SlotHandle) -> None:
        if self._leases and slot.lease is None:
            for address in run.placement.addresses:
                for idle in self._idle[address]:
                    # The ledger counts what they hold as free, and this trial may need it.
                    self._give_lease_back(idle)
            await self._take_leases(run, slot)
        if slot.lease is not None:
            run.use_devices_of(slot.lease)
        if not slot.is_open:
            await self._open_slot(slot)

    async def _take_leases(self, run: Run, slot: SlotHandle) -> None:
        leases = [
            Lease(self._client, address, slot.key, run.placement.claim_on(address))
            # In the same order for every driver, or two could wait for each other.
            for address in sorted(run.placement.addresses)
        ]
        slot.lease = next(lease for lease in leases if lease.address == run.address)
        run.leases = [lease for lease in leases if lease is not slot.lease]
        self._asked.update((lease.key, lease) for lease in leases)
        try:
            for lease in leases:
                await lease.take(self._plugin.name, self._settings.name)
        except LeaseUnsupported as error:
            if self._leases:
                self._leases = False
                logger.warning(
                    "trials run without leases, so other users of the cluster do not see what they "
                    "use, and adaptive scaling may end their workers: on %s, %s",
                    run.address,
                    error,
                )
            self._give_lease_back(slot)
            self._give_leases_back(run)
        finally:
            for lease in leases:
                del self._asked[lease.key]

    def _give_lease_back(self, slot: SlotHandle) -> None:
        lease, slot.lease = slot.lease, None
        if lease is not None:
            self._spawn(lease.release())

    def _give_leases_back(self, run: Run) -> None:
        leases, run.leases = run.leases, []
        for lease in leases:
            self._spawn(lease.release())

    def _end_idle_lease(self, slot: SlotHandle, since: float) -> None:
        if slot.idle_since == since and slot in self._idle.get(slot.address, ()):
            self._give_lease_back(slot)

    async def _open_slot(self, slot: SlotHandle) -> None:
        settings = self._settings
        await slot.open(
            plugin=self._plugin.name,
            topic=settings.name,
            driver_ttl=settings.driver_ttl,
            fence_after=settings.fence_after,
            stop_grace=settings.stop_grace,
        )

    async def _converse(self, run: Run, slot: SlotHandle) -> AnyTrialEvent | None:
        """Talk until the last word, and return what it means; None if it was told already."""
        assignment = Assignment(incarnation=run.key, spec=run.spec, config=run.config)
        run.assigned = True
        reply = await self._call(run, slot, "assign", assignment)
        while True:
            end = self._absorb(run, reply)
            if run.over:
                return None if run.told else end
            await self._wake(run)
            answers = tuple(run.answers)
            run.acked = run.ack
            run.calls += 1
            request = Request(
                incarnation=run.key,
                number=run.calls,
                ack=run.ack,
                have=run.have,
                answers=answers,
            )
            reply = await self._call(run, slot, self._method(run), request)
            del run.answers[: len(answers)]

    async def _wake(self, run: Run) -> None:
        """Wait until there is something to fetch or to tell, or it is time to look anyway."""
        timeout = min(
            max(_POLL_INTERVAL, _POLL_COST * len(self._runs)), self._settings.fence_after / 2
        )
        if run.order is not None and not run.told:
            timeout = min(timeout, max(0.0, run.patience - asyncio.get_running_loop().time()))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(run.wake.wait(), timeout)
        # Cleared before the call: a bell during the call must lead to another one.
        run.wake.clear()

    def _method(self, run: Run) -> str:
        """Choose the call that is due; user code that does not leave is interrupted, then left."""
        loop = asyncio.get_running_loop()
        if run.order is None or run.told or loop.time() < run.patience:
            return "decide" if run.answers else "poll"
        run.patience = loop.time() + self._settings.stop_grace
        if not run.tainted:
            run.tainted = True
            return "revoke"
        logger.warning(
            "trial %s does not obey its stop; its resources on %s stay taken until its thread ends",
            run.trial_id,
            run.address,
        )
        run.told = True
        kind = TrialStopped if isinstance(run.order, StopNow) else TrialPaused
        self._emit(self._event(run, kind))
        return "revoke"

    def _absorb(self, run: Run, reply: Reply) -> AnyTrialEvent | None:
        """Pass the new messages on, all but the last word of the run, which is returned."""
        for seq, blob in reply.messages:
            if seq <= run.have:
                continue
            run.have = seq
            try:
                message = pickle.loads(blob)
            except Exception as error:
                return self._unreadable(run, seq, error)
            event = event_of(message, run, self._now())
            if isinstance(message, TERMINAL):
                run.over = True
                return event
            if not run.told:
                self._emit(event)
        return None

    def _unreadable(self, run: Run, seq: int, error: Exception) -> AnyTrialEvent:
        run.over = run.tainted = True
        info = ErrorInfo(
            message=f"what the trial reported cannot be read by the driver: {error!r}. "
            "Report numbers, strings, lists and dicts."
        )
        return self._event(run, TrialFailed, seq=seq, error=info)

    async def _call(self, run: Run, slot: SlotHandle, method: str, value: Any) -> Reply:
        """Call the slot until it answers; a failed call alone proves nothing."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            try:
                return await self._unless_lost(run, slot.call(method, value))
            except SlotFailed as failure:
                silent = loop.time() - since
                logger.info("trial %s: %s (%.1f s)", run.trial_id, failure, silent)
                if silent > self._settings.heartbeat_timeout:
                    raise _Lost(str(failure)) from failure
                await self._unless_lost(run, asyncio.sleep(_RETRY_PAUSE))

    async def _unless_lost(self, run: Run, work: Awaitable[T]) -> T:
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        # What it raises after the loss is of no interest, but asyncio complains if nobody asks.
        task.add_done_callback(_look_at)
        try:
            first: set[asyncio.Future[Any]] = {task, run.lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if run.lost.done():
                raise _Lost(*run.lost.result())
            return task.result()
        finally:
            task.cancel()

    def _part(self, run: Run, slot: SlotHandle, end: AnyTrialEvent | None) -> None:
        """Free what the run held, and only then tell how it ended."""
        del self._runs[run.key]
        self._by_slot.pop(slot.number, None)
        clean = run.over and not run.tainted and not run.lost.done()
        if clean and self._settings.reuse_actors:
            loop = asyncio.get_running_loop()
            slot.idle_since = loop.time()
            self._idle[run.address].append(slot)
            loop.call_later(_IDLE_LEASE_TIME, self._end_idle_lease, slot, slot.idle_since)
        else:
            self._spawn(slot.close())
        self._give_leases_back(run)
        if isinstance(end, TrialLost | StartFailed):
            self._on_trouble(run)
        self._on_free(run)
        if end is not None:
            self._emit(end)

    def _event(self, run: Run, kind: Callable[..., AnyTrialEvent], **facts: Any) -> AnyTrialEvent:
        return kind(trial_id=run.trial_id, incarnation=run.incarnation, time=self._now(), **facts)

    def _on_bell(self, event: tuple[float, Any]) -> None:
        told = event[1]
        if isinstance(told, dict):
            if told["lease"] in self._asked:
                self._asked[told["lease"]].grant(told["devices"])
            return
        run = self._by_slot.get(told)
        if run is not None:
            run.wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)


async def _awaited(work: Awaitable[T]) -> T:
    # Dask returns whatever can be awaited, asyncio wants a coroutine.
    return await work


def _look_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
