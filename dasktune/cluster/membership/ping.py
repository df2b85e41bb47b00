"""Pings workers through the scheduler, to learn which of them answer and whether one hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import Any, Final, TypeVar

from dasktune.cluster.connection.by_value import pickled_once

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for each worker that a call to all workers takes on a busy scheduler.
_SECONDS_PER_WORKER: Final = 0.01

#: Seconds that `Pinger` waits for the first answer, and then for the other answers.
_FIRST: Final = 5.0
_REST: Final = 1.0

#: Seconds to wait for the scheduler's answer, in addition to its own wait for the workers.
_MARGIN: Final = 10.0


class Pinger:
    """Pings silent workers in the background, and records when they answered.

    All methods run on the client's event loop. One ping is under way at a time, so the answers of
    an older ping never replace those of a newer one.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answered_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def ping(self, addresses: Sequence[str]) -> None:
        """Ping the workers at these addresses, unless a ping is under way."""
        if addresses and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._ping(addresses))

    def answered_at(self, address: str) -> float:
        """Return when a worker last answered, on the loop's clock; -inf if it never has."""
        return self._answered_at.get(address, -inf)

    def close(self) -> None:
        """Cancel the ping that is under way."""
        if self._task is not None:
            self._task.cancel()

    async def _ping(self, addresses: Sequence[str]) -> None:
        # Record the time of the call and not of the answers. The scheduler may pass on an answer
        # late, and a worker must not count as answering after it died.
        asked_at = asyncio.get_running_loop().time()
        try:
            there = await ping_workers(self._client, addresses, first_s=_FIRST, rest_s=_REST)
            # Older answers are dropped, because the workers' heartbeat ages already include them.
            self._answered_at = dict.fromkeys(there, asked_at)
        except Exception as error:  # the scheduler or the connection may raise any exception
            logger.info("the workers could not be pinged: %r", error)
        finally:
            self._task = None


async def ping_workers(client: Any, addresses: Iterable[str], *, first_s: float, rest_s: float) -> set[str]:
    """Ping workers, and return the addresses of those that answered.

    Await it on the client's loop. The scheduler sends the pings, because a driver may not
    reach the workers itself.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    addresses : iterable of str
        The workers.
    first_s : float
        Seconds to wait for the first answer.
    rest_s : float
        Seconds to wait for the other answers after that.
    """
    asked = list(addresses)
    if not asked:
        return set()
    answering = client.run_on_scheduler(_pinger(), asked, first_s, rest_s)
    return set(await asyncio.wait_for(answering, first_s + rest_s + _MARGIN))


async def wait_unless_hung(client: Any, work: Awaitable[T], *, deadline_s: float, answer_s: float = 1.0) -> T:
    """Await a call to all workers, and stop waiting if one of the workers hangs.

    Await it on the client's loop. The scheduler completes the call on the other workers. If there
    are many workers, the call gets some more time before they are pinged: a ping of all workers
    costs the scheduler as much as the call.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    work : awaitable
        The call.
    deadline_s : float
        Seconds that the call may take if all workers answer pings.
    answer_s : float, default=1.0
        Seconds after which the workers are pinged, and then to wait for each answer. Workers that
        do not hang answer within milliseconds.

    Raises
    ------
    asyncio.TimeoutError
        If some worker hangs, or the call takes longer than the deadline.
    """
    task = asyncio.ensure_future(_as_coroutine(work))
    try:
        await asyncio.wait((task,), timeout=answer_s)
        if not task.done():
            addresses: set[str] = await client.run_on_scheduler(_address_lister())
            await asyncio.wait((task,), timeout=min(len(addresses) * _SECONDS_PER_WORKER, deadline_s))
            if not task.done() and await _all_answer(client, addresses, answer_s):
                await asyncio.wait((task,), timeout=deadline_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def _all_answer(client: Any, addresses: set[str], seconds: float) -> bool:
    return addresses == await ping_workers(client, addresses, first_s=seconds, rest_s=seconds)


async def _as_coroutine(work: Awaitable[T]) -> T:
    # asyncio needs a coroutine where Dask returns any awaitable.
    return await work


# Functions that run on the scheduler. They are nested so that they pickle by value.


@pickled_once
def _pinger() -> Callable[..., Any]:
    """Return a function that pings workers from the scheduler."""

    async def ping(
        addresses: list[str], first_s: float, rest_s: float, dask_scheduler: Any = None
    ) -> list[str]:
        import asyncio

        async def reach(address: str) -> None:
            await dask_scheduler.rpc(address).echo(data=b"")

        tasks = {asyncio.ensure_future(reach(address)): address for address in addresses}
        try:
            left, deadline = set(tasks), asyncio.get_running_loop().time() + first_s
            while left and not any(t.done() and not t.exception() for t in tasks):
                timeout = deadline - asyncio.get_running_loop().time()
                if timeout <= 0:
                    break
                _, left = await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if left:
                await asyncio.wait(left, timeout=rest_s)
            return [a for task, a in tasks.items() if task.done() and not task.exception()]
        finally:
            for task in tasks:
                task.cancel()

    return ping


@pickled_once
def _address_lister() -> Callable[..., set[str]]:
    """Return a function that lists the workers on the scheduler."""

    def addresses(dask_scheduler: Any = None) -> set[str]:
        return set(dask_scheduler.workers)

    return addresses
