"""A lease: a trial's resources in Dask's own books, for as long as the trial's slot is in use.

Dask counts the resources of an actor only while its constructor runs. So every slot has a task at
its side that holds them: pinned to the slot's worker, a coroutine, and seceded, so that it takes no
thread from anybody. Everybody else's tasks then wait for what a trial holds, and adaptive scaling
ends no worker with a busy trial.

This is the one module that uses internal parts of Dask. A task cannot secede in a coroutine by the
public function, and Dask does not cancel coroutines: one whose key is released would hold its
resources for ever. So the task tells the worker itself that it has seceded, and the experiment's
plugin wakes it when its key is released. A worker whose Dask has no such parts says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from distributed import Client
from distributed.worker import get_worker

from dasktune.cluster.claims import claim_devices, free_devices
from dasktune.cluster.opaque import opaque
from dasktune.placement import Claim

__all__ = ["Lease", "LeaseFailed", "LeaseUnsupported", "hold"]

logger = logging.getLogger(__name__)

#: Seconds that a worker may take to grant a lease. The ledger chose a worker with room, so a lease
#: that has to wait longer has lost a race for it.
_GRANT_DEADLINE: Final = 10.0

#: Seconds to tell the scheduler that a lease is not needed any more.
_RELEASE_DEADLINE: Final = 5.0

#: Seconds between two looks of a lease at whether Dask still wants it, if nobody wakes it.
_LOOK_INTERVAL: Final = 1.0

#: Seconds between the first two looks at whether a trial's thread has ended, and between the last.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 0.5

#: Seconds between two questions of a lease whether its trial on another worker still has a driver,
#: and for the answer.
_ASK_INTERVAL: Final = 5.0

#: Questions in a row without an answer after which nobody is left to ask.
_MOST_UNANSWERED: Final = 6

#: What Dask takes off a fraction: sums of such have an error, and ten tenths must fit into 1.
_SLACK: Final = 1e-9

#: What a task's state is called while somebody wants it and it runs.
_WANTED: Final = frozenset({"executing", "long-running"})


class LeaseFailed(Exception):
    """A lease was not granted. The worker may still be healthy.

    Parameters
    ----------
    message : str
        What happened.
    address : str
        The worker.
    contended : bool
        Whether it was merely late: somebody else holds what the lease needs.
    """

    def __init__(self, message: str, address: str, contended: bool) -> None:
        super().__init__(message)
        self.address = address
        self.contended = contended


class DevicesTaken(Exception):
    """The GPUs that are free on the worker do not suit, though there are enough of them."""


class LeaseUnsupported(Exception):
    """The Dask on the worker lacks what a lease needs."""


class Lease:
    """The driver's end of a lease; lives on the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    address : str
        The worker.
    slot : str
        The slot's key in Dask. The lease's own key is made from it and never used again.
    claim : Claim
        What to hold. Its resources are some that the worker declares; Dask never runs a task that
        asks for others.
    home : str
        The worker that the slot is on.
    priority : float, default=0
        Dask's priority of the task.
    """

    def __init__(
        self,
        client: Client,
        address: str,
        slot: str,
        claim: Claim,
        *,
        home: str,
        priority: float = 0,
    ) -> None:
        self.key = f"{slot}-lease-{uuid4().hex}"
        self.address = address
        self.claim = claim
        #: The GPUs of each share of the claim, once granted.
        self.devices: tuple[tuple[str, ...], ...] = ()
        self._client = client
        self._slot = slot
        self._home = home
        self._priority = priority
        self._future: Any = None
        self._granted = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """Whether the worker holds it, which it does no longer if its driver has been silent."""
        return self._future is not None and self._future.status == "pending"

    def grant(self, devices: Iterable[Iterable[str]] = ()) -> None:
        """Take note that the worker holds the resources, and which GPUs these are."""
        self.devices = tuple(map(tuple, devices))
        self._granted.set()

    async def take(self, plugin: str, topic: str) -> None:
        """Ask for the resources and wait until the worker holds them.

        Parameters
        ----------
        plugin : str
            Name of the experiment's worker plugin.
        topic : str
            Where the grant is told.

        Raises
        ------
        LeaseFailed
            If they are not granted before the deadline.
        LeaseUnsupported
            If this Dask cannot do it.
        """
        self._future = self._client.submit(
            opaque(hold, self.claim),
            self.key,
            self._slot,
            self._home,
            plugin,
            topic,
            key=self.key,
            pure=False,
            retries=0,
            workers=[self.address],
            allow_other_workers=False,
            priority=self._priority,
            resources={k: _asked(v) for k, v in self.claim.resources.items()} or None,
        )
        granted = asyncio.ensure_future(self._granted.wait())
        ended = asyncio.ensure_future(_result(self._future))
        try:
            await asyncio.wait(
                (granted, ended), timeout=_GRANT_DEADLINE, return_when=asyncio.FIRST_COMPLETED
            )
            if not self._granted.is_set():
                raise self._why_not(ended)
        finally:
            granted.cancel()
            ended.cancel()
            ended.add_done_callback(_look_at)

    async def release(self) -> None:
        """Give the resources back, however far it has come; they are free when the thread ends."""
        future, self._future = self._future, None
        if future is None or future.cancelled():
            return
        try:
            await asyncio.wait_for(_cancel(future), _RELEASE_DEADLINE)
        except Exception as error:
            # A scheduler that is gone has forgotten it already.
            logger.info("the lease %s could not be given back: %r", self.key, error)

    def _why_not(self, ended: asyncio.Future[Any]) -> Exception:
        asked = f"{self.address} did not grant {dict(self.claim.resources)}"
        if not ended.done():
            return LeaseFailed(f"{asked} within {_GRANT_DEADLINE:.0f} s", self.address, True)
        error = None if ended.cancelled() else ended.exception()
        if isinstance(error, LeaseUnsupported):
            return error
        contended = isinstance(error, DevicesTaken)
        return LeaseFailed(f"{asked}: {error!r}", self.address, contended)


async def hold(key: str, slot: str, home: str, plugin: str, topic: str, claim: Claim) -> None:
    """Hold this task's resources until its key is released and the slot's trial has ended.

    Runs on the worker's event loop.

    Parameters
    ----------
    key : str
        This task's key.
    slot : str
        Key of the slot at whose side it is.
    home : str
        The worker that the slot is on: this one, or another one whose trial needs this one, too.
    plugin : str
        Name of the experiment's worker plugin.
    topic : str
        Where the grant is told.
    claim : Claim
        What it holds.

    Raises
    ------
    LeaseUnsupported
        If the worker's Dask lacks what is needed.
    DevicesTaken
        If what is free of its GPUs is in too small pieces.
    """
    worker = get_worker()
    ours = worker.plugins[plugin]
    released = ours.leases[key] = asyncio.Event()
    asking = asyncio.ensure_future(_ask_home(worker, home, slot, released))
    try:
        _secede(worker, key)
        devices = claim_devices(worker.address, key, claim)
        if devices is None:
            raise DevicesTaken(f"no GPU has room for {[amount for amount, _ in claim.shares]}")
        worker.log_event(topic, {"lease": key, "devices": devices})
        while not released.is_set() and _is_wanted(worker, key):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(released.wait(), _LOOK_INTERVAL)
        await _thread_end(ours, slot)
    finally:
        asking.cancel()
        del ours.leases[key]
        free_devices(worker.address, key)


def _secede(worker: Any, key: str) -> None:
    """Leave the worker's thread slots to others, but keep the resources."""
    try:
        from distributed.worker_state_machine import SecedeEvent

        worker.handle_stimulus(
            # The time until here: no reason for an adaptive cluster to grow.
            SecedeEvent(key=key, compute_duration=0.0, stimulus_id=f"dasktune-lease-{key}")
        )
        state = worker.state.tasks[key].state
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise LeaseUnsupported(f"a task cannot secede by itself: {error!r}") from None
    if state != "long-running":
        raise LeaseUnsupported(f"a task that has seceded is {state!r}")


async def _ask_home(worker: Any, home: str, slot: str, released: asyncio.Event) -> None:
    """Give a lease back whose trial, on another worker, has lost its driver.

    A driver that hangs is still a client of Dask's, which keeps for it what it asked for. It talks
    with the worker of user code alone, so only that one can know.
    """
    unanswered = 0
    while home != worker.address and unanswered < _MOST_UNANSWERED:
        await asyncio.sleep(_ASK_INTERVAL)
        asked = worker.rpc(home).actor_execute(actor=slot, function="is_driven", args=(), kwargs={})
        try:
            is_driven = (await asyncio.wait_for(asked, _ASK_INTERVAL))["result"]
        except Exception:  # no slot, no worker, or no way to it
            unanswered += 1
            continue
        unanswered = 0 if is_driven else _MOST_UNANSWERED
    if unanswered:
        released.set()


def _is_wanted(worker: Any, key: str) -> bool:
    task = worker.state.tasks.get(key)
    return task is not None and task.state in _WANTED


async def _thread_end(plugin: Any, slot: str) -> None:
    """Wait for user code, which may not have left yet and still uses what is held for it."""
    # Those of now: the slot may get its next trial, with a lease of its own, while we wait.
    tenants = plugin.slots[slot].vacate() if slot in plugin.slots else []
    wait = _FIRST_WAIT
    while not all(tenant.finished for tenant in tenants):
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def _asked(amount: float) -> float:
    return amount if amount == int(amount) else amount - _SLACK


async def _result(future: Any) -> Any:
    return await future


async def _cancel(future: Any) -> None:
    await future.cancel()


def _look_at(task: asyncio.Future[Any]) -> None:
    # asyncio complains of an exception that nobody asked for.
    if not task.cancelled():
        task.exception()
