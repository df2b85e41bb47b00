"""Runs functions on a worker outside of Dask tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed.utils import wait_for

from dasktune.cluster.connection.batched_calls import BatchedCalls
from dasktune.placement import WorkerCapacity


async def run_on_worker(
    client: Any, worker: WorkerCapacity, timeout_s: float, function: Any, *args: Any
) -> Any:
    """Run a function on a worker. An exception of the function or the connection is returned.

    The client may be a :class:`~dasktune.cluster.connection.batched_calls.BatchedCalls`.
    """
    calls = client if isinstance(client, BatchedCalls) else BatchedCalls(client)
    try:
        return await wait_for(calls.run_on_worker(worker.address, function, *args), timeout_s)
    except asyncio.TimeoutError:
        return TimeoutError(f"no answer within {timeout_s:g} s")
    except Exception as exc:  # the scheduler or the connection may raise any exception
        return exc
