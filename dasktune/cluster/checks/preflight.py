"""Checks before the first trial that the workers can run it and share the storage.

What fails here would fail every trial, usually with an obscure message. The checks start with facts
that the scheduler has, and end with user code on a worker. Each check relies on the earlier ones: a
function that is pickled by value crashes a worker with another Python version, and a function of
dasktune needs dasktune on the worker.

No check is a Dask task: ``client.run`` reaches a worker even while all its threads run tasks of
other users, and leaves no state on the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from dasktune.cluster.connection.batched_calls import BatchedCalls
from dasktune.cluster.connection.daemon_thread import run_in_daemon_thread
from dasktune.cluster.connection.futures import consume_exception
from dasktune.cluster.connection.run_on_worker import run_on_worker
from dasktune.cluster.membership.ping import ping_workers
from dasktune.cluster.protocol.pickling import missing_module
from dasktune.cluster.submitted.shared_storage import may_be_private
from dasktune.cluster.worker.examination import examine, reply_name
from dasktune.errors import ClusterError, PreflightError, TuneError
from dasktune.placement import NOT_ALLOWED, Ledger, WorkerCapacity
from dasktune.storage.fs.probe import probe
from dasktune.storage.fs.scratch_files import scratch_name
from dasktune.storage.fs.storage import Storage
from dasktune.trial.resources import WELL_KNOWN, PlacementGroupFactory, least_request
from dasktune.version import __version__

__all__ = [
    "CheckResult",
    "Checks",
    "PreflightReport",
    "check_request",
    "check_storage",
    "check_version",
    "check_worker",
    "one_per_host",
    "preflight",
]

logger = logging.getLogger(__name__)

#: Seconds within which all workers must answer a ping after the first answer. A worker that takes
#: longer hangs, or has lost its connection.
_OTHERS_TIMEOUT: Final = 3.0

#: Number of workers that are checked at the same time; each gets the pickle through the scheduler.
_AT_ONCE: Final = 16

#: The minor version, which must be the same to unpickle functions: 3.11 for Python 3.11.4.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: The modules that the checks and the trials need on a worker.
_NEEDED: Final = (
    "dasktune.cluster.worker.trial_actor",
    "dasktune.cluster.worker.examination",
    "fsspec.implementations.local",
)

#: Returns the worker's version of dasktune, and imports there what trials need, if it is ours.
#: It is evaluated on a worker, so it uses only the standard library.
_THEIR_VERSION: Final = (
    f"(lambda found: (found == {__version__!r} and [__import__(one) for one in {_NEEDED!r}], found)[1])"
    "(getattr(__import__('dasktune'), '__version__', ''))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks that a worker must pass.

    Parameters
    ----------
    blob : bytes
        A result of :func:`dasktune.cluster.protocol.pickling.dumps_user_code` that the worker must
        unpickle.
    storage : Storage
        The storage that the worker must share with the driver. A worker also passes without access
        to it if it is a local path or in the driver's memory: its checkpoints are relayed then.
    code : {"auto", "installed"}, default="auto"
        How code is shipped, for the advice in errors.
    timeout_s : float, default=60.0
        Seconds that each call to a worker or to the storage may take.
    saves : bool, default=True
        Whether trials save checkpoints there.
    """

    blob: bytes = field(repr=False)
    storage: Storage
    code: str = "auto"
    timeout_s: float = 60.0
    saves: bool = True

    @property
    def combined_s(self) -> float:
        """Seconds for which a combined call waits; then each worker can still be called alone."""
        return min(10.0, self.timeout_s / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of checking a worker that has not failed.

    Parameters
    ----------
    reason : str or None, default=None
        Why the worker did not answer; None if it passed.
    shares : bool, default=True
        Whether it shares the storage with this process.
    """

    reason: str | None = None
    shares: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The result of a preflight that passed.

    Parameters
    ----------
    hosts : tuple of str, default=()
        The hosts on which a worker passed.
    unchecked : mapping, default={}
        Workers that did not answer, by address, with the reason.
    versions : mapping, default={}
        The question for the version of dasktune that each worker was asked, by address.
    passed : mapping, default={}
        The result of each worker that passed, by address; one for each host.
    """

    hosts: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, asyncio.Future[Any]] = field(default_factory=dict, repr=False, compare=False)
    passed: Mapping[str, CheckResult] = field(default_factory=dict)


def check_storage(storage: Storage, *, timeout_s: float = 60.0) -> None:
    """Check from this process that a storage can hold an experiment; needs no cluster.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    timeout_s : float, default=60.0
        Seconds that the whole check may take.

    Raises
    ------
    PreflightError
        If the storage cannot be used, or does not answer in time.
    """
    checks = Checks(blob=b"", storage=storage, timeout_s=timeout_s)
    # In another thread: the caller's thread may have a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="dasktune-storage") as pool:
        pool.submit(asyncio.run, _use_storage_here(checks, probe, storage)).result()


def check_request(ledger: Ledger, resources: PlacementGroupFactory, advice: str = "") -> None:
    """Check that the workers could hold a request if they were empty.

    Parameters
    ----------
    ledger : Ledger
        The workers. Without any, nothing is checked.
    resources : PlacementGroupFactory
        The request of the largest trial. Of an elastic one the fewest bundles are enough.
    advice : str, default=""
        The trainable's advice, which is added to the error.

    Raises
    ------
    PreflightError
        If the workers could not hold the request.
    """
    resources = least_request(resources)
    if ledger.workers and not ledger.fits_when_idle(resources):
        raise PreflightError(
            "resources must be at most what the workers have, got a request that they can never "
            f"meet:\n{ledger.table(resources)}\nAsk for less with with_resources(), or start "
            "larger workers; RunConfig(queue_trials=True) waits for them."
            + _unknown(ledger, resources)
            + (f"\n{advice}" if advice else "")
        )


def _unknown(ledger: Ledger, resources: PlacementGroupFactory) -> str:
    """Return a line for each requested resource that no worker has; its name may be misspelled."""
    has = {name for held in ledger.available_resources().values() for name, amount in held.items() if amount}
    lines = ""
    for name in sorted(set(resources.required_resources) - has):
        # No hint for a well-known name: it is not misspelled, and short names such as CPU and GPU
        # are similar by chance.
        known = name in WELL_KNOWN
        close = [] if known else get_close_matches(name.upper(), sorted(has), n=1, cutoff=0.7)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        lines += f"\nNo worker has any {name!r}{hint}"
    return lines


async def preflight(client: Any, checks: Checks, *, workers: Mapping[str, WorkerCapacity]) -> PreflightReport:
    """Check that the cluster can run an experiment, on one worker of each host.

    Await it on the client's loop. Without workers nothing is checked and the report is empty.
    For workers that join later there is :func:`check_worker`.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    checks : Checks
        The checks.
    workers : mapping
        The workers by address, as just read from the scheduler.

    Returns
    -------
    PreflightReport
        The hosts that passed, and the workers that did not answer.

    Raises
    ------
    PreflightError
        If a worker runs another Python or dasktune, lacks a module, or cannot use the storage.
    ClusterError
        If there are workers and none answers.
    """
    _check_python(worker for worker in workers.values() if worker.status != NOT_ALLOWED)
    silent = await _silent(client, workers.values(), checks)
    chosen = one_per_host(one for one in workers.values() if one.address not in silent)
    # All workers are asked at once, so that they import dasktune at the same time.
    calls = BatchedCalls(client, longest_s=checks.combined_s)
    versions = {
        worker.address: asyncio.ensure_future(check_version(calls, worker, checks))
        for worker in workers.values()
        if worker.status == "running" and worker.address not in silent
    }
    for version in versions.values():
        # The worker may leave before its version is needed.
        version.add_done_callback(consume_exception)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def outcome(worker: WorkerCapacity) -> CheckResult:
        async with gate:
            return await check_worker(client, worker, checks, version=versions[worker.address])

    try:
        results = await asyncio.gather(*(outcome(worker) for worker in chosen))
    except BaseException:
        for version in versions.values():
            version.cancel()
        raise
    found = {worker.address: result for worker, result in zip(chosen, results, strict=True)}
    unchecked = {address: one.reason for address, one in found.items() if one.reason is not None}
    if len(unchecked) == len(chosen) and (unchecked := unchecked | silent):
        address, reason = next(iter(unchecked.items()))
        raise ClusterError(
            f"none of {len(unchecked)} workers answered, {address} for one: {reason}. They may "
            "hang, or have lost their scheduler; restart them, or wait."
        )
    if silent:
        logger.warning(
            "%d of %d workers did not answer, %s for one; the experiment begins without them, and "
            "they get trials when they do",
            len(silent),
            len(workers),
            next(iter(silent)),
        )
    passed = {address: one for address, one in found.items() if one.reason is None}
    hosts = tuple(worker.host for worker in chosen if worker.address in passed)
    return PreflightReport(hosts=hosts, unchecked=unchecked | silent, versions=versions, passed=passed)


async def check_worker(
    client: Any,
    worker: WorkerCapacity,
    checks: Checks,
    *,
    whole: bool = True,
    version: asyncio.Future[Any] | None = None,
) -> CheckResult:
    """Check one worker, such as one that joins while the experiment runs.

    Await it on the client's loop.

    Parameters
    ----------
    client : distributed.Client or BatchedCalls
        A connected client, or the object that combines its calls for several workers.
    worker : WorkerCapacity
        The worker as the scheduler knows it.
    checks : Checks
        The checks.
    whole : bool, default=True
        Whether to check code and remote storage, too; False if another worker of the host has
        passed. A local path is always checked, as two workers of a host may run in containers.
    version : asyncio.Future, optional
        Its :func:`check_version`, if that has begun already.

    Returns
    -------
    CheckResult
        The result; the worker passed if its `reason` is None.

    Raises
    ------
    PreflightError
        If the worker cannot run the experiment's trials.
    """
    reason = await (check_version(client, worker, checks) if version is None else version)
    if reason is not None or not (whole or may_be_private(checks.storage)):
        return CheckResult(reason=reason)
    name = scratch_name("preflight")
    await _use_storage_here(checks, checks.storage.write_bytes, name, name.encode())
    try:
        return await _check_code_and_storage(
            client, worker, checks if whole else replace(checks, blob=b""), name
        )
    finally:
        # An error of this clean-up is ignored: a storage that fails has failed above, with a better
        # message.
        with contextlib.suppress(PreflightError):
            await _use_storage_here(checks, _remove_files, checks.storage, name)


async def _silent(client: Any, workers: Iterable[WorkerCapacity], checks: Checks) -> dict[str, str]:
    """Return the workers that do not answer, by address, with the reason."""
    asked = [worker.address for worker in workers if worker.status == "running"]
    there = await ping_workers(client, asked, first_s=checks.timeout_s, rest_s=_OTHERS_TIMEOUT)
    return dict.fromkeys((a for a in asked if a not in there), "no answer in time")


def one_per_host(workers: Iterable[WorkerCapacity]) -> list[WorkerCapacity]:
    """Return for each host the running worker with the latest heartbeat.

    Parameters
    ----------
    workers : iterable of WorkerCapacity
        The workers, as just read from the scheduler.
    """
    chosen: dict[str, WorkerCapacity] = {}
    for worker in workers:
        best = chosen.get(worker.host)
        if worker.status == "running" and (best is None or worker.age < best.age):
            chosen[worker.host] = worker
    return list(chosen.values())


def _check_python(workers: Iterable[WorkerCapacity]) -> None:
    """Compare the Python versions that the workers reported when they joined."""
    others = [worker for worker in workers if worker.python_differs]
    if not others:
        return
    shown = ", ".join(f"{worker.python} on {worker.address}" for worker in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    raise PreflightError(
        f"the workers' Python must be {_PYTHON} as in this process, got {shown}{more}. Functions "
        f"do not cross minor versions: start these workers with Python {_PYTHON}, or this process "
        "with theirs."
    )


async def check_version(client: Any, worker: WorkerCapacity, checks: Checks) -> str | None:
    """Check the versions of Python and dasktune of a worker, and import there what trials need.

    Await it on the client's loop.

    Parameters
    ----------
    client : distributed.Client or BatchedCalls
        A connected client, or the object that combines its calls for several workers.
    worker : WorkerCapacity
        The worker as the scheduler knows it.
    checks : Checks
        The checks.

    Returns
    -------
    str or None
        Why the worker did not answer; None if it has our versions.

    Raises
    ------
    PreflightError
        If it has another version, or lacks dasktune.
    """
    _check_python([worker])
    # `eval` is a builtin, which a worker without dasktune can unpickle.
    theirs = await run_on_worker(client, worker, checks.timeout_s, eval, _THEIR_VERSION)
    ours = __version__
    cure = f"Install dasktune {ours} there, from the same checkout or wheel as here."
    if isinstance(theirs, ImportError):
        raise PreflightError(
            f"dasktune must be importable on the workers, got {type(theirs).__name__}: {theirs} on "
            f"{worker.address} ({worker.host}). {cure}"
        )
    if isinstance(theirs, Exception):
        return repr(theirs)
    if theirs != ours:
        raise PreflightError(
            f"the workers' dasktune must be {ours} as in this process, got {theirs} on "
            f"{worker.address} ({worker.host}). {cure}"
        )
    return None


async def _check_code_and_storage(
    client: Any, worker: WorkerCapacity, checks: Checks, name: str
) -> CheckResult:
    """Make the worker unpickle the blob, read the driver's file `name`, and write a copy of it."""
    storage = checks.storage
    found = await run_on_worker(client, worker, checks.timeout_s, examine, checks.blob, storage, name)
    if isinstance(found, Exception):
        return CheckResult(reason=repr(found))
    _judge_code(worker, found, checks)
    trouble = found.get("storage") or await _unanswered(checks, name)
    if may_be_private(storage):
        if trouble:
            logger.info("%s does not share %s: %s", worker.address, storage, trouble)
        return CheckResult(shares=not trouble)
    if trouble:
        raise PreflightError(
            f"storage_path must be readable and writable on every worker, got {storage} with "
            f"{trouble} on {worker.address} ({worker.host}). Check credentials, permissions, the "
            "packages for this protocol there, and whether the URL leads to the same place."
        )
    return CheckResult()


async def _unanswered(checks: Checks, name: str) -> str:
    """Return what is wrong with the worker's copy of the file; empty if nothing is wrong."""
    try:
        answer = await _use_storage_here(checks, checks.storage.read_bytes, reply_name(name))
    except FileNotFoundError:
        answer = b""
    return "" if answer == name.encode() else "a file that was written there is not visible here"


def _remove_files(storage: Storage, name: str) -> None:
    storage.remove(name)
    storage.remove(reply_name(name))


def _judge_code(worker: WorkerCapacity, found: Mapping[str, Any], checks: Checks) -> None:
    where = f"{worker.address} ({worker.host})"
    if "missing" in found:
        advice = missing_module(found["missing"], code=checks.code)
        raise PreflightError(f"trainable must be importable on {where}, but {advice}")
    if "code" in found:
        raise PreflightError(
            f"trainable must unpickle on {where}, got {found['code']}. Do the workers have the "
            "same versions of the packages that it uses?"
        )


async def _use_storage_here(checks: Checks, operation: Callable[..., Any], *args: Any) -> Any:
    """Use the storage from this process, in a thread and with a deadline."""
    try:
        return await asyncio.wait_for(run_in_daemon_thread(operation, *args), checks.timeout_s)
    except (FileNotFoundError, TuneError):
        raise
    except Exception as exc:
        late = isinstance(exc, asyncio.TimeoutError)
        reason = f"no answer within {checks.timeout_s:g} s" if late else f"{exc!r}"
        raise PreflightError(
            f"storage_path must be readable and writable, got {checks.storage} with {reason} in "
            "this process. Check that it exists, and credentials and permissions."
        ) from exc
