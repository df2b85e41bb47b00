"""Which workers answer, and how not to wait for those that hang.

A process that is stopped, or whose event loop is blocked, keeps its connections: the scheduler
counts it as alive for minutes, and what is sent to all workers waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

__all__ = ["call_roll", "despite_hung"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds in which all workers do what takes milliseconds, unless one of them hangs.
_SOON: Final = 1.0

#: Seconds for the scheduler to answer beyond those that it waits for the workers.
_MARGIN: Final = 10.0


def _on_scheduler() -> Callable[..., Any]:
    """Return the function that asks the workers; nested, so that it travels by value."""

    async def ask(
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
                _, left = await asyncio.wait(
                    left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
            if left:
                await asyncio.wait(left, timeout=rest_s)
            return [a for task, a in tasks.items() if task.done() and not task.exception()]
        finally:
            for task in tasks:
                task.cancel()

    return ask


async def call_roll(
    client: Any, addresses: Iterable[str], *, first_s: float, rest_s: float
) -> set[str]:
    """Ask workers for an answer that takes their event loop no time, and return who gave it.

    To be awaited on the client's loop. The scheduler asks, as not every driver reaches the workers.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    addresses : iterable of str
        The workers.
    first_s : float
        Seconds for one of them to answer.
    rest_s : float
        Seconds for the others after that.
    """
    asked = list(addresses)
    if not asked:
        return set()
    answering = client.run_on_scheduler(_on_scheduler(), asked, first_s, rest_s)
    return set(await asyncio.wait_for(answering, first_s + rest_s + _MARGIN))


async def despite_hung(client: Any, work: Awaitable[T], *, deadline_s: float) -> T:
    """Await what all workers have to do, but not if it is one that hangs that has not done it.

    To be awaited on the client's loop. The scheduler goes on with it for the others.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    work : awaitable
        What waits for all workers.
    deadline_s : float
        Seconds for those that do not hang.

    Raises
    ------
    asyncio.TimeoutError
        If some worker hangs, or has not done it before the deadline.
    """
    task = asyncio.ensure_future(_awaited(work))
    try:
        await asyncio.wait((task,), timeout=_SOON)
        if not task.done() and await _all_answer(client):
            await asyncio.wait((task,), timeout=deadline_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def _all_answer(client: Any) -> bool:
    addresses: set[str] = await client.run_on_scheduler(_addresses())
    return addresses == await call_roll(client, addresses, first_s=_SOON, rest_s=_SOON)


def _addresses() -> Callable[..., set[str]]:
    """Return the function that lists the workers; nested, so that it travels by value."""

    def on_scheduler(dask_scheduler: Any = None) -> set[str]:
        return set(dask_scheduler.workers)

    return on_scheduler


async def _awaited(work: Awaitable[T]) -> T:
    # Dask returns whatever can be awaited, asyncio wants a coroutine.
    return await work
