"""Runs blocking functions in a daemon thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["run_in_daemon_thread"]


async def run_in_daemon_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Run blocking work in a daemon thread, so that a storage that hangs cannot block the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(result: Any, error: BaseException | None) -> None:
        if future.done():  # the caller's deadline came first and cancelled the future
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
            loop.call_soon_threadsafe(resolve, *outcome)

    threading.Thread(target=run, name="dasktune-preflight", daemon=True).start()
    return await future
