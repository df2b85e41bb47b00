"""Asking a worker something outside of any task, and doing what blocks beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from dasktune.placement import WorkerCapacity

__all__ = ["ask", "in_thread"]


async def ask(
    client: Any, worker: WorkerCapacity, timeout_s: float, function: Any, *args: Any
) -> Any:
    """Run a function on a worker; what goes wrong, there or on the way, comes back as a value."""
    answers = client.run(function, *args, workers=[worker.address], on_error="return")
    try:
        return (await asyncio.wait_for(answers, timeout_s))[worker.address]
    except asyncio.TimeoutError:
        return TimeoutError(f"no answer within {timeout_s:g} s")
    except Exception as exc:  # whatever the scheduler or the connection has to say
        return exc


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Run blocking work in a daemon thread: a storage that never answers must not stop an exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # the deadline was quicker
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (work(*args), None)
        except Exception as exc:
            outcome = (None, exc)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="dasktune-preflight", daemon=True).start()
    return await future
