"""Gives workers notice of their end, on behalf of a person, a batch script or another program."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from dasktune.cluster.connection.batched_calls import run_on_worker
from dasktune.cluster.connection.connect import connect
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.cluster.worker.worker_notices import give_notice
from dasktune.errors import ClusterError, check

logger = logging.getLogger(__name__)

#: Most workers that are called at the same time.
_AT_ONCE: Final = 64


def _give_if_meant(
    hosts: Sequence[str], seconds: float, reason: str, dask_worker: Any = None
) -> list[str] | None:  # pragma: no cover - runs on workers
    """Give the notice on a worker, if it is on one of the hosts; without hosts in any case.

    Returns those of the hosts' names that mean this worker; None if it has not got the notice.
    """
    own = sorted(_names_of_host(dask_worker).intersection(hosts))
    if hosts and not own:
        return None
    give_notice(dask_worker, seconds, reason)
    return own


def _names_of_host(worker: Any) -> set[str]:  # pragma: no cover - runs on workers
    """Return the names by which users may know the worker's host."""
    full = socket.gethostname()
    # SLURM's name of a node may differ from its host name.
    node = os.environ.get("SLURMD_NODENAME", full)
    return {full, full.partition(".")[0], node, str(worker.ip)}


def send_notice(
    client: Any,
    seconds: float,
    *,
    hosts: Sequence[str] = (),
    workers: Sequence[str] = (),
    reason: str = "notice",
    timeout_s: float = 10.0,
) -> list[str]:
    """Give workers notice of their end: their trials save, leave and resume on other workers.

    The workers get no other trials until the time has passed. All experiments on the cluster learn
    of it.

    Parameters
    ----------
    client : object
        The cluster: a client, a cluster object, or the address of a scheduler.
    seconds : float
        Seconds until the end. Positive and finite. A newer notice replaces the last one.
    hosts : sequence of str, default=()
        Names or addresses of hosts, all of whose workers are meant.
    workers : sequence of str, default=()
        Addresses or names of workers. Without hosts and workers, all workers are meant.
    reason : str, default="notice"
        Why they end, for logs, the journal and :func:`~dasktune.get_notice`.
    timeout_s : float, default=10.0
        Seconds to wait for the answer of each worker.

    Returns
    -------
    list of str
        The addresses of the workers that have the notice.

    Raises
    ------
    ConfigError
        If `seconds` is not positive and finite.
    ClusterError
        If no worker has taken the notice.
    """
    check(0 < seconds < inf, "seconds", "a positive and finite number", seconds)
    with connect(client, timeout_s=timeout_s) as connection:
        answers = connection.client.sync(
            _send, connection.client, seconds, tuple(hosts), frozenset(workers), reason, timeout_s
        )
    noticed = [address for address, answer in answers.items() if isinstance(answer, list | tuple)]
    errors = [
        f"{address}: {answer!r}" for address, answer in answers.items() if isinstance(answer, Exception)
    ]
    if noticed:
        unknown = set(hosts).difference(*(answers[address] for address in noticed))
        if unknown:
            # One of them may be a host whose workers have not answered.
            logger.warning("no worker on these hosts has taken the notice: %s", ", ".join(sorted(unknown)))
        for error in errors:
            logger.warning("a worker may not have taken the notice: %s", error)
        return noticed
    why = f"The first one that was called answers: {errors[0]}" if errors else "Name others, or none for all."
    raise ClusterError(f"no worker of the cluster has taken the notice. {why}")


async def _send(
    client: Any,
    seconds: float,
    hosts: tuple[str, ...],
    workers: frozenset[str],
    reason: str,
    timeout_s: float,
) -> dict[str, Any]:
    """Return whether each worker has the notice, or the error of the call, by address."""
    found = (await list_workers(client)).values()
    chosen = [one for one in found if one.address in workers or one.name in workers or not workers]
    if workers and not chosen:
        known = ", ".join(one.address for one in found) or "none"
        raise ClusterError(f"workers must be on the cluster, got {sorted(workers)}. It has: {known}.")
    unknown = workers.difference(*({one.address, str(one.name)} for one in chosen))
    if unknown:
        # The others get the notice: their end may be near.
        logger.warning("the cluster has no workers of these names: %s", ", ".join(sorted(unknown)))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def call(worker: Any) -> Any:
        async with slots:
            return await run_on_worker(client, worker, timeout_s, _give_if_meant, hosts, seconds, reason)

    answers = await asyncio.gather(*(call(worker) for worker in chosen))
    return {worker.address: answer for worker, answer in zip(chosen, answers, strict=True)}
