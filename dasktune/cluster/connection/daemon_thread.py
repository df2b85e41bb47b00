"""Runs blocking functions in daemon threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class DaemonThreads:
    """Runs blocking work in threads that are used again.

    A storage that hangs cannot block the exit, because the threads are daemons. Nor does it hold up
    other work: if no thread is free, there is a new one. All methods must be called on one event
    loop.
    """

    # Each item of the queue has a thread that is free, or new, so no item waits for a thread that
    # hangs. Which of the free threads takes it does not matter. A thread is free again once the
    # loop knows of its result.

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._work = SimpleQueue()
        self._num_threads = self._num_free = 0

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run blocking work, and return its result or raise its exception.

        Parameters
        ----------
        work : callable
            The function. It continues if the caller stops waiting.
        *args : object
            Its arguments.
        """
        future = asyncio.get_running_loop().create_future()
        self._work.put((future, work, args))
        if self._num_free:
            self._num_free -= 1
        else:
            self._num_threads += 1
            threading.Thread(target=self._serve, name="dasktune-preflight", daemon=True).start()
        return await future

    def close(self) -> None:
        """Let each thread end when its work has ended; there must be no more work."""
        for _ in range(self._num_threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work, args = item
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = work(*args), None
            except Exception as exc:
                outcome = None, exc
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                future.get_loop().call_soon_threadsafe(self._on_done, future, *outcome)
            # A thread that is free must not keep the arguments or the result.
            del item, future, work, args, outcome

    def _on_done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._num_free += 1
        if future.done():  # the caller's deadline came first and cancelled the future
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


async def run_in_daemon_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Run blocking work in a daemon thread, so that a storage that hangs cannot block the exit."""
    threads = DaemonThreads()
    try:
        return await threads.run(work, *args)
    finally:
        threads.close()
