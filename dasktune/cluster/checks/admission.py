"""Admits workers to run trials after they have passed the checks, including workers that join late.

An actor would crash a worker that cannot import dasktune, and other users may need that worker. So
no trial is placed on a worker before it has passed the checks, has been assigned its GPUs and has
declared its resources.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dasktune.cluster.checks.preflight import (
    CheckResult,
    Checks,
    PreflightReport,
    check_worker,
)
from dasktune.cluster.connection.batched_calls import BatchedCalls
from dasktune.cluster.resources.declare import declare_resources
from dasktune.config.worker_filter import WorkerFilter, WorkerInfo, worker_allowed
from dasktune.errors import ConfigError, PreflightError
from dasktune.placement import NOT_ALLOWED, WorkerCapacity
from dasktune.text.formatting import first_few
from dasktune.trainable.checkpoints.relay import LARGEST

logger = logging.getLogger(__name__)

#: Statuses that replace a worker's "running". No trial is placed on a worker with one of them.
_UNCHECKED: Final = "unchecked"
_REFUSED: Final = "refused"

_NOTHING_CHECKED: Final = PreflightReport()

#: Number of hosts that a warning names.
_SHOWN: Final = 5

#: Number of workers that are checked at the same time. Their calls are combined.
_AT_ONCE: Final = 64


class Admission:
    """Checks every worker once, and marks those that may not run trials.

    All methods run on the client's event loop. A check takes several calls, and the workers are
    read again meanwhile. A worker that is being checked is in `_examined`, so no second check of it
    starts. If it leaves during the check, the next reading removes its address from `_passed`. The
    address also leaves `_passed` if the worker there has not declared its resources.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    checks : Checks
        The checks. Code and remote storage are checked once on each host, a local path for each
        worker.
    report : PreflightReport, optional
        What the preflight has found. Its answers count for one check of each worker.
    allowed : None, collection of str, or callable, default=None
        The workers that the user allows. The other workers get no calls.
    declare : callable, default=declare_resources
        Assigns a worker its GPUs and declares its resources, as `declare_resources` does.

    Attributes
    ----------
    has_declared : bool
        Whether a worker has declared resources, or was assigned GPUs.
    """

    def __init__(
        self,
        client: Any,
        checks: Checks,
        report: PreflightReport = _NOTHING_CHECKED,
        *,
        allowed: WorkerFilter = None,
        declare: Callable[..., Awaitable[None]] = declare_resources,
    ) -> None:
        self._client = client
        self._declare = declare
        self._results = dict(report.results)
        self._calls = BatchedCalls(client, longest_s=checks.combined_s)
        self._checks = checks
        self._allowed = allowed
        self.has_declared = False
        #: Whether the user's filter allows a worker, by address. It is called once for each worker.
        self._is_allowed: dict[str, bool] = {}
        self._hosts = set(report.hosts)
        self._passed: set[str] = set()
        #: Workers whose checkpoints are relayed, with their hosts.
        self._unshared: dict[str, str] = {}
        self._has_warned = False
        self._refused: set[str] = set()
        self._examined: set[str] = set()
        #: Workers whose declaration has failed, and may yet have taken effect.
        self._unconfirmed: set[str] = set()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __call__(self, workers: Mapping[str, WorkerCapacity]) -> dict[str, WorkerCapacity]:
        """Return all workers, with a changed status where they may not run trials now.

        The check of a new worker starts in the background. Once the worker has passed, later calls
        return it with its own status.

        Parameters
        ----------
        workers : mapping
            All workers by address, as just read from the scheduler.
        """
        for known in (self._passed, self._refused, self._unconfirmed):
            # Forget workers that have left, because another worker may get the same address.
            known.intersection_update(workers)
        self._is_allowed = {a: verdict for a, verdict in self._is_allowed.items() if a in workers}
        # A worker that passed but shows no resources: this reading is older than the declaration,
        # or another worker has the address now. It is checked again.
        self._passed.difference_update(
            address for address, worker in workers.items() if not self._knows_cpus(worker)
        )
        for worker in self._take_unknown(workers):
            task = asyncio.get_running_loop().create_task(self._examine(worker))
            self._tasks.add(task)
            task.add_done_callback(self._on_examined)
        return {address: self._marked(worker) for address, worker in workers.items()}

    async def examine(self, workers: Mapping[str, WorkerCapacity]) -> None:
        """Check the workers that are new, and wait for the results."""
        await asyncio.gather(*(self._examine(worker) for worker in self._take_unknown(workers)))
        self._warn_unshared()

    def _on_examined(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._warn_unshared()

    def close(self) -> None:
        """Cancel the running checks."""
        self._calls.close()
        for task in self._tasks:
            task.cancel()

    def _take_unknown(self, workers: Mapping[str, WorkerCapacity]) -> list[WorkerCapacity]:
        """Return the workers to check, and mark them as being checked."""
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
        if worker.address not in self._is_allowed:
            try:
                verdict = worker_allowed(self._allowed, _info(worker))
            except ConfigError as error:
                # Not fatal: the first workers were filtered before the experiment began.
                logger.warning("the worker %s gets no trials: %s", worker.address, error)
                verdict = False
            self._is_allowed[worker.address] = verdict
        return self._is_allowed[worker.address]

    async def _examine(self, worker: WorkerCapacity) -> None:
        try:
            async with self._gate:
                finding = await self._check(worker)
        except PreflightError as error:
            self._refused.add(worker.address)
            logger.warning("the worker %s gets no trials: %s", worker.address, error)
        else:
            if finding.reason is None:
                self._passed.add(worker.address)
                self._hosts.add(worker.host)
                self._note_storage(worker, finding.shares)
            else:
                # The result is not known yet: the worker is checked again at the next reading.
                logger.info("the worker %s was not checked: %s", worker.address, finding.reason)
        finally:
            self._examined.discard(worker.address)

    async def _check(self, worker: WorkerCapacity) -> CheckResult:
        """Check a worker, and assign its GPUs."""
        finding = self._results.pop(worker.address, None) or await check_worker(
            self._calls, worker, self._checks, whole=worker.host not in self._hosts
        )
        if isinstance(finding, PreflightError):
            raise finding
        if finding.reason is not None:
            return finding
        return dataclasses.replace(finding, reason=await self._declare_resources(worker, finding.gpus))

    def _note_storage(self, worker: WorkerCapacity, shares: bool) -> None:
        # The address may have belonged to another worker, with access to another storage.
        self._unshared.pop(worker.address, None)
        if not shares:
            self._unshared[worker.address] = worker.host

    def _warn_unshared(self) -> None:
        """Warn once which workers send checkpoints through the driver."""
        if self._has_warned or not (self._unshared and self._checks.saves):
            return
        self._has_warned = True
        logger.warning(
            "%s is not shared by the workers on %s: the checkpoints of their trials, of at most "
            "%d MiB each, are sent through this process. A storage_path on a shared disk or in an "
            "object store such as s3:// avoids that.",
            self._checks.storage,
            first_few(sorted(set(self._unshared.values())), _SHOWN),
            LARGEST >> 20,
        )

    async def _declare_resources(self, worker: WorkerCapacity, gpus: Sequence[str]) -> str | None:
        """Assign GPUs and declare resources; return the error if the worker did not answer."""
        self.has_declared = self.has_declared or bool(gpus) or not self._knows_cpus(worker)
        try:
            await self._declare(
                self._client,
                self._calls,
                worker,
                list(gpus),
                declare=self._checks.declare,
                timeout_s=self._checks.timeout_s,
                recount=worker.address in self._unconfirmed,
            )
        except Exception as error:  # the worker or the connection may raise anything
            self._unconfirmed.add(worker.address)
            return repr(error)
        self._unconfirmed.discard(worker.address)
        return None

    def _knows_cpus(self, worker: WorkerCapacity) -> bool:
        return not self._checks.declare or "CPU" in worker.resources


def only_allowed(
    workers: Mapping[str, WorkerCapacity], allowed: WorkerFilter, *, may_wait: bool = False
) -> dict[str, WorkerCapacity]:
    """Return all workers, with a changed status where the user does not allow them.

    Parameters
    ----------
    workers : mapping
        All workers by address.
    allowed : None, collection of str, or callable
        See ``RunConfig(workers=...)``.
    may_wait : bool, default=False
        Whether the experiment may wait for other workers if none of these is allowed.

    Raises
    ------
    ConfigError
        If the user's function raises.
    PreflightError
        If there are workers and none is allowed.
    """
    kept = {a for a, worker in workers.items() if worker_allowed(allowed, _info(worker))}
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
    """Return a worker's description for the user's filter."""
    return WorkerInfo(
        address=worker.address,
        name=worker.name,
        host=worker.host,
        nthreads=worker.nthreads,
        memory_limit=worker.memory_limit,
        resources=dict(worker.resources),
    )
