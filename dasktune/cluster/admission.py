"""Which workers may take trials: those that were seen to be able to, late ones included.

A worker that cannot import dasktune does not survive the attempt to put an actor on it, and it may
be somebody else's. So nothing is placed on a worker before it has passed, got its GPUs and declared
what it has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dasktune.cluster.equip import equip
from dasktune.cluster.preflight import Checks, check_worker
from dasktune.errors import ConfigError, PreflightError
from dasktune.placement import NOT_ALLOWED, WorkerCapacity
from dasktune.trainable.relay import LARGEST
from dasktune.workers import WorkerFilter, WorkerInfo, allows

__all__ = ["Admission", "only_allowed"]

logger = logging.getLogger(__name__)

#: Shown in place of a running worker's status; on another status nothing is placed.
_UNCHECKED: Final = "unchecked"
_REFUSED: Final = "refused"

#: Hosts that a warning names.
_SHOWN: Final = 5

#: Workers that are looked at side by side.
_AT_ONCE: Final = 16


class Admission:
    """Looks at every worker once, and tells which of them may take trials.

    All methods are for the client's event loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    checks : Checks
        What a worker must be able to do. Code and a remote storage are tried once for each host;
        what a worker sees on a path, for each.
    hosts : iterable of str, default=()
        Hosts on which they were tried already.
    allowed : None, collection of str, or callable, default=None
        Which workers the user lets the experiment use; the others are left alone altogether.
    declare : bool, default=False
        Whether workers that declare no CPUs or GPUs are made to.
    """

    def __init__(
        self,
        client: Any,
        checks: Checks,
        hosts: Iterable[str] = (),
        *,
        allowed: WorkerFilter = None,
        declare: bool = False,
    ) -> None:
        self._client = client
        self._checks = checks
        self._allowed = allowed
        self._declare = declare
        #: Whether the user allows it, by address; asked once.
        self._verdicts: dict[str, bool] = {}
        self._hosts = set(hosts)
        self._passed: set[str] = set()
        #: Those whose checkpoints are relayed, with their hosts.
        self._unshared: dict[str, str] = {}
        self._has_warned = False
        self._refused: set[str] = set()
        self._examined: set[str] = set()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, workers: Mapping[str, WorkerCapacity]) -> dict[str, WorkerCapacity]:
        """Return all workers, under another status those that may not take trials now.

        New ones are looked at from now on, and pass at a later call.

        Parameters
        ----------
        workers : mapping
            All workers by address, as just read from the scheduler.
        """
        for known in (self._passed, self._refused):
            # An address may be used again, by a worker of another kind.
            known.intersection_update(workers)
        self._verdicts = {a: verdict for a, verdict in self._verdicts.items() if a in workers}
        # The reading may be older than the declaration; or the worker was replaced in between.
        self._passed.difference_update(
            address for address, worker in workers.items() if not self._is_equipped(worker)
        )
        for worker in self._take_unknown(workers):
            task = asyncio.get_running_loop().create_task(self._examine(worker))
            self._tasks.add(task)
            task.add_done_callback(self._on_examined)
        return {address: self._marked(worker) for address, worker in workers.items()}

    async def examine(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Look at the new ones among `workers` and wait for what comes of it."""
        await asyncio.gather(*(self._examine(worker) for worker in self._take_unknown(workers)))
        self._warn_unshared()

    def _on_examined(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._warn_unshared()

    def close(self) -> None:
        """Look at no worker any more."""
        for task in self._tasks:
            task.cancel()

    def _take_unknown(self, workers: Mapping[str, WorkerCapacity]) -> list[WorkerCapacity]:
        """Return the workers to be looked at, and count them as being looked at from now on."""
        seen = self._passed | self._refused | self._examined
        unknown = [
            worker
            for address, worker in workers.items()
            if worker.status == "running" and address not in seen and self._may_use(worker)
        ]
        self._examined.update(worker.address for worker in unknown)
        return unknown

    def _marked(self, worker: WorkerCapacity) -> WorkerCapacity:
        if worker.status != "running" or worker.address in self._passed:
            if worker.address not in self._unshared:
                return worker
            return dataclasses.replace(worker, shares_storage=False)
        if not self._may_use(worker):
            return dataclasses.replace(worker, status=NOT_ALLOWED)
        status = _REFUSED if worker.address in self._refused else _UNCHECKED
        return dataclasses.replace(worker, status=status)

    def _may_use(self, worker: WorkerCapacity) -> bool:
        if worker.address not in self._verdicts:
            try:
                verdict = allows(self._allowed, _info(worker))
            except ConfigError as error:
                # The experiment has others; the first ones were asked about before it began.
                logger.warning("the worker %s gets no trials: %s", worker.address, error)
                verdict = False
            self._verdicts[worker.address] = verdict
        return self._verdicts[worker.address]

    async def _examine(self, worker: WorkerCapacity) -> None:
        try:
            async with self._gate:
                new_host = worker.host not in self._hosts
                finding = await check_worker(self._client, worker, self._checks, whole=new_host)
                reason = finding.reason or await self._equip(worker)
        except PreflightError as error:
            self._refused.add(worker.address)
            logger.warning("the worker %s gets no trials: %s", worker.address, error)
        else:
            if reason is None:
                self._passed.add(worker.address)
                self._hosts.add(worker.host)
                self._note_view(worker, finding.shares)
            else:
                # Neither good nor bad: it is asked again when the workers are read again.
                logger.info("the worker %s was not checked: %s", worker.address, reason)
        finally:
            self._examined.discard(worker.address)

    def _note_view(self, worker: WorkerCapacity, shares: bool) -> None:
        # An address may be used again, by a worker that sees something else.
        self._unshared.pop(worker.address, None)
        if not shares:
            self._unshared[worker.address] = worker.host

    def _warn_unshared(self) -> None:
        """Tell once that checkpoints take a detour, and where."""
        if self._has_warned or not (self._unshared and self._checks.saves):
            return
        self._has_warned = True
        hosts = sorted(set(self._unshared.values()))
        more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
        logger.warning(
            "%s is not shared by the workers on %s%s: the checkpoints of their trials, of at most "
            "%d MiB each, travel through this process. A storage_path on a shared disk or in an "
            "object store such as s3:// spares it.",
            self._checks.storage,
            ", ".join(hosts[:_SHOWN]),
            more,
            LARGEST >> 20,
        )

    async def _equip(self, worker: WorkerCapacity) -> str | None:
        """Give a worker what it needs, and return why not if it did not answer."""
        try:
            await equip(
                self._client, worker, declare=self._declare, timeout_s=self._checks.timeout_s
            )
        except Exception as error:  # whatever the worker or the connection has to say
            return repr(error)
        return None

    def _is_equipped(self, worker: WorkerCapacity) -> bool:
        return not self._declare or "CPU" in worker.resources


def only_allowed(
    workers: Mapping[str, WorkerCapacity], allowed: WorkerFilter, *, may_wait: bool = False
) -> dict[str, WorkerCapacity]:
    """Return all workers, under another status those that the user keeps from the experiment.

    Parameters
    ----------
    workers : mapping
        All workers by address.
    allowed : None, collection of str, or callable
        See ``RunConfig(workers=...)``.
    may_wait : bool, default=False
        Whether it is fine if none of them may be used, because others may come.

    Raises
    ------
    ConfigError
        If the user's function raises.
    PreflightError
        If there are workers and none may be used.
    """
    kept = {a for a, worker in workers.items() if allows(allowed, _info(worker))}
    if workers and not kept and not may_wait:
        shown = ", ".join(f"{a} (name {worker.name!r})" for a, worker in workers.items())
        raise PreflightError(
            f"workers must allow at least one worker of the cluster, got {allowed!r} with {shown}. "
            "RunConfig(queue_trials=True) waits for others to come."
        )
    return {
        address: worker if address in kept else dataclasses.replace(worker, status=NOT_ALLOWED)
        for address, worker in workers.items()
    }


def _info(worker: WorkerCapacity) -> WorkerInfo:
    """Return what users see of a worker."""
    return WorkerInfo(
        address=worker.address,
        name=worker.name,
        host=worker.host,
        nthreads=worker.nthreads,
        memory_limit=worker.memory_limit,
        resources=dict(worker.resources),
    )
