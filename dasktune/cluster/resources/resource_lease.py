"""A lease: a Dask task that holds a trial's resources while the trial's actor is in use.

Dask counts the resources of an actor only while its constructor runs. So every actor has a task
that holds them: a coroutine, pinned to the actor's worker, and seceded, so that it occupies no
thread. Other clients' tasks then wait for the resources, and adaptive scaling retires no worker
that runs a trial.

This is the one module that uses internal parts of Dask. Dask's public ``secede`` does not work in a
coroutine, and Dask does not cancel a coroutine whose key is released, so it would hold its
resources for ever. So the task itself informs the worker's state machine that it has seceded, and
the experiment's plugin wakes it when its key is released. A worker whose Dask lacks these parts
raises `LeaseUnsupported`.

A grant and its deadline may race. The driver decides: if the deadline comes first it releases the
lease, whose task then ends although the worker had granted it. The late notification finds no
pending lease and is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from distributed.utils import wait_for
from distributed.worker import get_worker

from dasktune.cluster.connection.batched_tasks import BatchedTasks
from dasktune.cluster.connection.futures import cancel, consume_exception, result_of
from dasktune.cluster.protocol.wire_messages import LeaseGranted
from dasktune.placement import Claim
from dasktune.placement.devices import allocate_shares

logger = logging.getLogger(__name__)

#: Seconds that cancelling a lease's task on the scheduler may take.
_RELEASE_DEADLINE: Final = 5.0

#: Seconds between two checks of whether Dask still wants the lease, in case the wake-up was missed.
_LOOK_INTERVAL: Final = 1.0

#: Seconds between two checks of whether user code has ended: at first, and at most.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 0.5

#: Seconds between two calls that ask the actor's worker whether its driver is in contact, and also
#: the time that an answer may take.
_ASK_INTERVAL: Final = 5.0

#: Number of such calls in a row without an answer after which the actor's worker counts as lost.
_MOST_UNANSWERED: Final = 6

#: Subtracted from fractional amounts, because their sums have rounding errors: ten tenths must fit
#: into 1.
_SLACK: Final = 1e-9

#: States of a task on its worker while it runs and its key has not been released.
_WANTED: Final = frozenset({"executing", "long-running"})

#: The GPUs of each lease, by the worker's address: one process may have several workers.
_HELD: Final[defaultdict[str, dict[str, list[tuple[float, tuple[int, ...]]]]]] = defaultdict(dict)

#: The bytes of memory of each lease, in the same way.
_MEMORY: Final[defaultdict[str, dict[str, float]]] = defaultdict(dict)


class LeaseFailed(Exception):
    """A lease was not granted. The worker may still be healthy.

    Parameters
    ----------
    message : str
        What happened.
    address : str
        The address of the worker.
    contended : bool
        Whether the lease failed only because another client holds the resources.
    timed_out : bool, default=False
        Whether a deadline was missed: another client holds the resources, or the worker is slow.
    """

    def __init__(self, message: str, address: str, contended: bool, timed_out: bool = False) -> None:
        super().__init__(message)
        self.address = address
        self.contended = contended
        self.timed_out = timed_out


class DevicesTaken(Exception):
    """The worker has enough free GPU shares, but on no single GPU."""


class MemoryTaken(Exception):
    """Leases of other experiments hold so much memory that too little is left."""


class LeaseUnsupported(Exception):
    """The worker's version of Dask lacks the internal parts that a lease uses."""


class ResourceLease:
    """The driver's end of a lease. All methods run on the client's event loop.

    Parameters
    ----------
    tasks : BatchedTasks
        Submits its task. All methods must be called on the loop of its client.
    address : str
        The address of the worker that grants the lease.
    actor : str
        The actor's key in Dask. The lease's own key begins with it and is never used again.
    claim : Claim
        The resources and GPUs to hold. The worker must declare these resources: Dask never runs a
        task that requests others.
    home : str
        The address of the actor's worker.
    priority : float, default=0
        Dask's priority of the task.
    """

    def __init__(
        self,
        tasks: BatchedTasks,
        address: str,
        actor: str,
        claim: Claim,
        *,
        home: str,
        priority: float = 0,
    ) -> None:
        self.key = f"{actor}-lease-{uuid4().hex}"
        self.address = address
        self.claim = claim
        #: The GPUs of each share of the claim, once granted.
        self.devices: tuple[tuple[str, ...], ...] = ()
        self._tasks = tasks
        self._actor = actor
        self._home = home
        self._priority = priority
        self._future: Any = None
        self._is_released = False
        self._granted = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """Whether the lease has not ended. A worker ends the leases of a silent driver."""
        return self._future is not None and self._future.status == "pending"

    def grant(self, devices: Iterable[Iterable[str]] = ()) -> None:
        """Record that the worker holds the resources, with these GPUs."""
        self.devices = tuple(map(tuple, devices))
        self._granted.set()

    async def acquire(self, plugin: str, topic: str, *, timeout_s: float) -> None:
        """Request the resources and wait until the worker holds them.

        Parameters
        ----------
        plugin : str
            Name of the experiment's worker plugin.
        topic : str
            The topic on which the worker reports the grant.
        timeout_s : float
            Seconds that the worker may take to grant the lease.

        Raises
        ------
        LeaseFailed
            If the resources are not granted before the deadline.
        LeaseUnsupported
            If the worker's Dask lacks the internal parts that a lease uses.
        """
        self._future = await self._tasks.submit(
            hold,
            self.key,
            self._actor,
            self._home,
            plugin,
            topic,
            self.claim,
            key=self.key,
            address=self.address,
            priority=self._priority,
            resources={k: _requested(v) for k, v in self.claim.resources.items()},
            annotations=self.claim.annotations,
        )
        if self._is_released:
            # It was released while it was submitted.
            await self.release()
            raise LeaseFailed(f"the lease {self.key} was released", self.address, contended=False)
        # The notification and the task's end take different ways and arrive in any order. A grant
        # counts even if the task has ended since.
        granted = asyncio.ensure_future(self._granted.wait())
        ended = asyncio.ensure_future(result_of(self._future))
        try:
            await asyncio.wait((granted, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not self._granted.is_set():
                raise self._failure(ended, timeout_s)
        finally:
            granted.cancel()
            ended.cancel()
            ended.add_done_callback(consume_exception)

    async def release(self) -> None:
        """Release the resources, in any state; they are free once user code has ended."""
        self._is_released = True
        future, self._future = self._future, None
        if future is None or future.cancelled():
            return
        try:
            await wait_for(cancel(future), _RELEASE_DEADLINE)
        except Exception as error:
            # A scheduler that was lost or restarted no longer has the lease.
            logger.info("the lease %s could not be released: %r", self.key, error)

    def _failure(self, ended: asyncio.Future[Any], timeout_s: float) -> Exception:
        asked = f"{self.address} did not grant {dict(self.claim.resources)}"
        if not ended.done():
            reason = f"{asked} within {timeout_s:.0f} s"
            return LeaseFailed(reason, self.address, contended=True, timed_out=True)
        error = None if ended.cancelled() else ended.exception()
        if isinstance(error, LeaseUnsupported):
            return error
        contended = isinstance(error, DevicesTaken | MemoryTaken)
        return LeaseFailed(f"{asked}: {error!r}", self.address, contended)


async def hold(key: str, actor: str, home: str, plugin: str, topic: str, claim: Claim) -> None:
    """Hold this task's resources until its key is released and the actor's user code has ended.

    Runs on the worker's event loop.

    Parameters
    ----------
    key : str
        This task's key.
    actor : str
        Key of the actor that uses the resources.
    home : str
        The address of the actor's worker. It is another worker if the trial uses several workers.
    plugin : str
        Name of the experiment's worker plugin.
    topic : str
        The topic on which the grant is reported.
    claim : Claim
        The resources and GPUs to hold.

    Raises
    ------
    LeaseUnsupported
        If the worker's Dask lacks the internal parts that a lease uses.
    DevicesTaken
        If no single GPU has room for a share of the claim.
    MemoryTaken
        If other leases hold so much memory that too little is left.
    """
    worker = get_worker()
    ours = worker.plugins[plugin]
    released = ours.leases[key] = asyncio.Event()
    asking = asyncio.ensure_future(_watch_home(worker, home, actor, released))
    try:
        _secede(worker, key)
        limit = worker.memory_manager.memory_limit or 0
        if not allocate_memory(worker.address, key, claim.memory, limit):
            raise MemoryTaken(f"{claim.memory:.0f} of {limit} bytes of memory are not free")
        devices = allocate_gpus(worker.address, key, claim)
        if devices is None:
            raise DevicesTaken(f"no GPU has room for {[amount for amount, _ in claim.shares]}")
        worker.log_event(topic, LeaseGranted(key, devices).encode())
        reporter = ours.report_notices(worker, topic)
        # The key may have been released before the plugin could wake this task, so the task's state
        # is checked as well, first without waiting.
        while not released.is_set() and _is_wanted(worker, key):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(released.wait(), _LOOK_INTERVAL)
        await _wait_for_user_code(ours, actor)
        del reporter
    finally:
        asking.cancel()
        del ours.leases[key]
        free_gpus(worker.address, key)
        free_memory(worker.address, key)


def _secede(worker: Any, key: str) -> None:
    """Free the worker's thread, but keep the resources."""
    try:
        from distributed.worker_state_machine import SecedeEvent

        worker.handle_stimulus(
            # A duration of 0, so that an adaptive cluster does not grow because of long tasks.
            SecedeEvent(key=key, compute_duration=0.0, stimulus_id=f"dasktune-lease-{key}")
        )
        state = worker.state.tasks[key].state
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise LeaseUnsupported(f"a task cannot secede by itself: {error!r}") from None
    if state != "long-running":
        raise LeaseUnsupported(f"a task that has seceded is {state!r}")


async def _watch_home(worker: Any, home: str, actor: str, released: asyncio.Event) -> None:
    """Release a lease whose trial, on another worker, has lost contact to its driver.

    A driver that hangs but stays connected keeps its leases in Dask. It polls only the worker that
    runs user code, so only that worker knows whether the driver is in contact.
    """
    unanswered = 0
    while home != worker.address and unanswered < _MOST_UNANSWERED:
        await asyncio.sleep(_ASK_INTERVAL)
        asked = worker.rpc(home).actor_execute(actor=actor, function="has_driver", args=(), kwargs={})
        try:
            is_driven = (await asyncio.wait_for(asked, _ASK_INTERVAL))["result"]
        except Exception:  # no actor, no worker, or no connection
            unanswered += 1
            continue
        unanswered = 0 if is_driven else _MOST_UNANSWERED
    if unanswered:
        released.set()


def _is_wanted(worker: Any, key: str) -> bool:
    task = worker.state.tasks.get(key)
    return task is not None and task.state in _WANTED


async def _wait_for_user_code(plugin: Any, actor: str) -> None:
    """Wait for user code that still uses the resources."""
    # Wait only for the code that runs now. Meanwhile the actor may get its next trial, which has
    # its own lease.
    running = [*plugin.actors[actor].release_idle()] if actor in plugin.actors else []
    # Ranks of a distributed trial run here although its actor may be on another worker.
    # An agent that has started no rank yet may still do so, until it is closed.
    running += [agent for key, agent in plugin.rank_agents if key == actor]
    wait = _FIRST_WAIT
    while not all(one.finished for one in running):
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def _requested(amount: float) -> float:
    return amount if amount == int(amount) else amount - _SLACK


# The ledger of a driver does not know which GPUs another driver uses. Dask limits only how many
# GPUs are in use on a worker, and does not count memory. So the worker records which lease has
# which GPU, and how much memory. Only the worker's event loop uses the records, so no allocation is
# interrupted.


def allocate_memory(address: str, key: str, amount: float, limit: float) -> bool:
    """Allocate memory for a lease, and return whether there was enough.

    Parameters
    ----------
    address : str
        The worker's address.
    key : str
        The key of the lease.
    amount : float
        Bytes; nothing is recorded for 0.
    limit : float
        The worker's limit in bytes; 0 for no limit.

    Examples
    --------
    >>> allocate_memory("a", "first", 6, 8), allocate_memory("a", "second", 6, 8)
    (True, False)
    >>> free_memory("a", "first")
    >>> allocate_memory("a", "second", 6, 8)
    True
    """
    if amount:
        if limit and sum(_MEMORY[address].values()) + amount > limit:
            return False
        _MEMORY[address][key] = amount
    return True


def free_memory(address: str, key: str) -> None:
    """Free the memory of a lease; does nothing if it has none."""
    _MEMORY[address].pop(key, None)
    if not _MEMORY[address]:
        del _MEMORY[address]


def allocate_gpus(address: str, key: str, claim: Claim) -> list[tuple[str, ...]] | None:
    """Allocate GPUs for a lease; must be called on the worker's event loop.

    Parameters
    ----------
    address : str
        The worker's address.
    key : str
        The key of the lease.
    claim : Claim
        The requested GPUs.

    Returns
    -------
    list of tuple of str, or None
        The devices of each share; None if no single GPU has room for a share.
    """
    held = _HELD[address]
    taken = [share for shares in held.values() for share in shares]
    given = allocate_shares(claim.gpus, taken, claim.shares)
    if given is None:
        return None
    held[key] = [(amount, gpus) for (amount, _), gpus in zip(claim.shares, given, strict=True)]
    return [tuple(claim.gpus[gpu] for gpu in gpus) for gpus in given]


def free_gpus(address: str, key: str) -> None:
    """Free the GPUs of a lease; does nothing if it has none."""
    _HELD[address].pop(key, None)
    if not _HELD[address]:
        del _HELD[address]
