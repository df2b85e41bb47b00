"""Diagnoses a cluster for ``dasktune doctor``.

The preflight stops at the first failure. Here each check runs by itself, and warnings are included.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

from dasktune.cluster.checks.diagnosis import (
    SCHEDULER,
    Diagnosis,
    diagnose_clocks,
    diagnose_connection,
    diagnose_packages,
    diagnose_python,
    diagnose_resources,
    diagnose_shared_storage,
    diagnose_workers,
    name_some,
)
from dasktune.cluster.checks.preflight import Checks, check_storage, check_worker, one_per_host
from dasktune.cluster.connection.batched_calls import run_on_worker
from dasktune.cluster.connection.connect import Connection, connect
from dasktune.cluster.membership.ping import ping_workers
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.errors import ClusterError, PreflightError, TuneError
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.probe import writes_nothing
from dasktune.storage.fs.storage import Storage
from dasktune.version import __version__

#: Packages whose versions must match, as their objects are pickled between driver and workers.
_PACKAGES: Final = ("dask", "distributed", "cloudpickle", "numpy")

#: Number of workers that are called at the same time.
_AT_ONCE: Final = 32


def examine(
    client: Any = None, *, storage: Storage | None = None, timeout_s: float = 10.0
) -> Iterator[Diagnosis]:
    """Check a cluster, and yield each result as soon as it is known.

    Parameters
    ----------
    client : object, optional
        The cluster; see :func:`~dasktune.cluster.connection.connect.connect`.
    storage : Storage, optional
        The storage of experiments; it is checked from here and from each host.
    timeout_s : float, default=10.0
        Seconds to wait for each answer.

    Raises
    ------
    ConfigError
        If `client` names no cluster.
    """
    try:
        connection = connect(client, timeout_s=timeout_s)
    except (ClusterError, PreflightError) as error:
        yield Diagnosis("fail", "connection", str(error))
        return
    with connection:
        if connection.direct:
            yield diagnose_connection(_where(connection), is_direct=True)
        workers, silent = _sync(connection, _check_workers_answer(connection.client, timeout_s))
        if not connection.direct:
            is_known = any(one.status == "running" and one.address not in silent for one in workers)
            yield diagnose_connection(_where(connection), is_direct=False if is_known else None)
        answering = [one for one in workers if one.address not in silent and not one.python_differs]
        yield from diagnose_workers(workers, silent)
        usable = yield from _of_versions(connection, workers, answering, timeout_s)
        if workers:
            yield from diagnose_resources(workers)
        if storage is not None:
            # Elsewhere the check would fail for a reason that has been named.
            able = [one for one in answering if one.address in usable]
            yield from _of_storage(connection, storage, able, timeout_s)


def _sync(connection: Connection, work: Any) -> Any:
    """Await something on the client's loop."""

    async def awaited() -> Any:
        return await work

    try:
        return connection.client.sync(awaited)
    except (OSError, asyncio.TimeoutError) as error:
        raise ClusterError(f"the scheduler at {connection.address} was lost: {error!r}") from error


def _where(connection: Connection) -> str:
    started = ", started here for this check" if connection.embedded else ""
    return f"scheduler at {connection.address}{started}"


async def _check_workers_answer(client: Any, timeout_s: float) -> tuple[list[WorkerCapacity], set[str]]:
    """Return the workers, and the addresses of the workers that do not answer."""
    workers = list((await list_workers(client)).values())
    running = [one.address for one in workers if one.status == "running"]
    there = await ping_workers(client, running, first_s=timeout_s, rest_s=timeout_s / 2)
    return workers, set(running) - there


# Versions and clocks


def _probe(*, imports: bool) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the versions and the clock of a process.

    It is nested so that it pickles by value, because the process may lack dasktune.
    """
    packages = ("dasktune", *_PACKAGES)

    def look(dask_scheduler: Any = None) -> dict[str, Any]:
        import platform
        import time
        from importlib import import_module
        from importlib.metadata import PackageNotFoundError, version

        found: dict[str, Any] = {"python": platform.python_version(), "time": time.time()}
        for name in packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
        found["failure"] = ""
        if imports:
            try:
                # A checkout on the path has a version, but its metadata may be missing or older.
                found["dasktune"] = import_module("dasktune").__version__
            except Exception as error:
                if found["dasktune"] is not None:
                    found["failure"] = repr(error)
        return found

    return look


def _of_versions(
    connection: Connection,
    workers: Sequence[WorkerCapacity],
    answering: Sequence[WorkerCapacity],
    timeout_s: float,
) -> Generator[Diagnosis, None, set[str]]:
    """Yield the diagnoses; return the addresses of the workers that can import dasktune."""
    answers, drifts = _sync(connection, _answers(connection.client, answering, timeout_s))
    foreign = {one.address: one.python for one in workers if one.python_differs}
    ours = {"python": platform.python_version(), "dasktune": __version__}
    ours |= {name: version(name) for name in _PACKAGES}
    yield diagnose_python(ours["python"], foreign, answers)
    yield from diagnose_packages({name: ours[name] for name in ("dasktune", *_PACKAGES)}, answers)
    broken = {where: one["failure"] for where, one in answers.items() if one["failure"]}
    if broken:
        where, failure = next(iter(broken.items()))
        yield Diagnosis(
            "fail",
            "dasktune",
            f"cannot be imported on {len(broken)}: {failure} on {where} for one",
            "Import it there by hand, and install what is missing.",
        )
    unanswered = [one.address for one in answering if one.address not in answers]
    if unanswered:
        yield Diagnosis("fail", "workers", f"no function runs on {name_some(unanswered)}", "Read their logs.")
    yield from diagnose_clocks(drifts)
    return {where for where, one in answers.items() if one["dasktune"] is not None and not one["failure"]}


async def _answers(
    client: Any, workers: Sequence[WorkerCapacity], timeout_s: float
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Return the answer of each process, and by how many seconds its clock is ahead."""
    answers: dict[str, dict[str, Any]] = {}
    drifts: dict[str, float] = {}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def probe(where: str, work: Callable[[], Any]) -> None:
        async with gate:
            sent = time.time()
            answer = await work()
            if isinstance(answer, dict):
                # The difference is uncertain by half the time of the call, which is subtracted.
                middle, way = (sent + time.time()) / 2, (time.time() - sent) / 2
                ahead = answer["time"] - middle
                answers[where] = answer
                drifts[where] = max(0.0, abs(ahead) - way) * (1 if ahead > 0 else -1)

    def of(worker: WorkerCapacity) -> Callable[[], Any]:
        return lambda: run_on_worker(client, worker, timeout_s, _probe(imports=True))

    await probe(SCHEDULER, lambda: client.run_on_scheduler(_probe(imports=False)))
    await asyncio.gather(*(probe(one.address, of(one)) for one in workers))
    return answers, drifts


# Storage


def _of_storage(
    connection: Connection, storage: Storage, answering: Sequence[WorkerCapacity], timeout_s: float
) -> Iterator[Diagnosis]:
    try:
        check_storage(storage, timeout_s=timeout_s)
    except TuneError as error:
        yield Diagnosis("fail", "storage", str(error))
        return
    yield Diagnosis("ok", "storage", f"{storage} can be used from here")
    if storage.is_process_private:
        yield Diagnosis(
            "warn",
            "storage",
            "it is the memory of this process, and ends with it",
            "Checkpoints go through the driver: use a shared disk or an object store.",
        )
        return
    checks = Checks(blob=b"", storage=storage, timeout_s=timeout_s)
    chosen = one_per_host(answering)
    with writes_nothing(storage):
        found = _sync(connection, _check_shared(connection.client, chosen, checks))
    yield from diagnose_shared_storage(storage, found)


async def _check_shared(
    client: Any, workers: Sequence[WorkerCapacity], checks: Checks
) -> dict[str, str | bool]:
    """Return for each host whether it shares the storage, or the error."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def look(worker: WorkerCapacity) -> str | bool:
        async with gate:
            try:
                finding = await check_worker(client, worker, checks)
            except PreflightError as error:
                return str(error)
        return finding.reason or finding.shares

    answers = await asyncio.gather(*(look(one) for one in workers))
    return {one.host: answer for one, answer in zip(workers, answers, strict=True)}
