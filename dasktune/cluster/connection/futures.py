"""Small coroutines and callbacks for Dask futures and asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def result_of(future: Any) -> Any:
    """Await a Dask future. asyncio needs a coroutine, and a Dask future is only an awaitable."""
    return await future


async def ended(future: Any) -> None:
    """Wait until the task of a Dask future has ended, without fetching its result.

    Raises
    ------
    Exception
        The exception of the task, or an error that says that it was cancelled.
    """
    await future.exception()
    if future.status != "finished":
        await future


async def cancel(future: Any) -> None:
    """Cancel a Dask future and wait for the scheduler's confirmation."""
    await future.cancel()


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve a task's exception, because asyncio logs one that is never retrieved."""
    if not task.cancelled():
        task.exception()
