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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import count
from typing import Any, Final

from distributed.utils import wait_for

from dasktune.cluster.connection.batched_calls import BatchedCalls, run_on_worker
from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.connection.daemon_thread import DaemonThreads, run_in_daemon_thread
from dasktune.cluster.connection.futures import consume_exception
from dasktune.cluster.membership.ping import ping_workers
from dasktune.cluster.protocol.pickling import missing_module
from dasktune.cluster.protocol.wire_messages import dumps
from dasktune.cluster.submitted.shared_storage import may_be_private
from dasktune.cluster.worker.examination import Examination
from dasktune.errors import ClusterError, PreflightError, TuneError
from dasktune.placement import NOT_ALLOWED, Ledger, WorkerCapacity
from dasktune.storage.fs.probe import probe, scratch_name
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import first_few
from dasktune.trial.resources import WELL_KNOWN, PlacementGroupFactory, least_request
from dasktune.version import __version__

logger = logging.getLogger(__name__)

#: Seconds within which all workers must answer a ping after the first answer. A worker that takes
#: longer hangs, or has lost its connection.
_OTHERS_TIMEOUT: Final = 3.0

#: Number of workers that are checked at the same time. Hundreds at once, maybe of several drivers,
#: could all need longer than a call may take, and none of them would count as alive.
_AT_ONCE: Final = 32

#: Number of files that are read or deleted at the same time.
_FILES_AT_ONCE: Final = 16

#: Seconds for which a preflight that fails waits for further workers, unless they answer sooner.
_LAST_WRITES: Final = 1.0

#: The minor version, which must be the same to unpickle functions: 3.11 for Python 3.11.4.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: The modules that the checks and the trials need on a worker.
_NEEDED: Final = (
    "dasktune.cluster.worker.trial_actor",
    "dasktune.cluster.worker.examination",
    "fsspec.implementations.local",
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
    declare : bool, default=False
        Whether workers declare CPUs and GPUs that they have not declared.
    """

    blob: bytes = field(repr=False)
    storage: Storage
    code: str = "auto"
    timeout_s: float = 60.0
    saves: bool = True
    declare: bool = False

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
    gpus : tuple of str, default=()
        The GPUs that it sees.
    """

    reason: str | None = None
    shares: bool = True
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The result of a preflight that passed.

    Parameters
    ----------
    hosts : tuple of str, default=()
        The hosts on which code and storage were checked.
    unchecked : mapping, default={}
        Workers that did not answer, by address, with the reason.
    results : mapping, default={}
        The result of each other worker, by address, or why it cannot run trials.
    """

    hosts: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, CheckResult | PreflightError] = field(default_factory=dict)


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
        pool.submit(asyncio.run, _probe_storage(checks, storage)).result()


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


async def preflight(
    client: Any,
    checks: Checks,
    *,
    workers: Mapping[str, WorkerCapacity],
    import_s: float | None = None,
) -> PreflightReport:
    """Check that the cluster can run an experiment, with user code on one worker of each host.

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
    import_s : float, optional
        Seconds for which the checks of many workers wait until all have imported dasktune; by
        default as for any combined call.

    Returns
    -------
    PreflightReport
        The hosts that passed, the workers that did not answer, and the results of the others.

    Raises
    ------
    PreflightError
        If a worker runs another Python or dasktune, lacks a module, or cannot use the storage.
    ClusterError
        If there are workers and none answers.
    """
    _check_python(worker for worker in workers.values() if worker.status != NOT_ALLOWED)
    silent = await _silent(client, workers.values(), checks)
    asked = [one for one in workers.values() if one.status == "running" and one.address not in silent]
    chosen = {worker.address for worker in one_per_host(asked)}
    import_s = checks.combined_s if import_s is None else import_s
    results = await _check_all(client, asked, chosen, checks, import_s)
    late = {a: one.reason for a, one in results.items() if isinstance(one, CheckResult) and one.reason}
    unchecked = late | silent
    if unchecked and len(late) == len(results):
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
    hosts = tuple(workers[address].host for address in chosen if address not in late)
    return PreflightReport(
        hosts=hosts,
        unchecked=unchecked,
        # Where no worker of the host has checked the code, each other one must check it itself.
        results={a: one for a, one in results.items() if a not in late and workers[a].host in hosts},
    )


async def _check_all(
    client: Any,
    workers: Sequence[WorkerCapacity],
    chosen: Collection[str],
    checks: Checks,
    import_s: float,
) -> dict[str, CheckResult | PreflightError]:
    """Check workers; raise the first failure of the chosen ones, whatever the others answer."""
    calls = BatchedCalls(client, longest_s=checks.combined_s)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def outcome(worker: WorkerCapacity) -> CheckResult:
        async with gate:
            return await _check(calls, worker, checks, exchange, whole=worker.address in chosen)

    async with _Exchange.of(checks, writes=bool(workers)) as exchange:
        if len(workers) > _AT_ONCE:
            await _import_everywhere(client, workers, import_s, exchange)
        # Those that are chosen come first.
        ordered = sorted(workers, key=lambda worker: worker.address not in chosen)
        checking = {worker.address: asyncio.ensure_future(outcome(worker)) for worker in ordered}
        try:
            await asyncio.gather(*(checking[address] for address in chosen))
            if checking:
                await asyncio.wait(checking.values())
        except BaseException:
            # Workers that are about to write their files get time, so that these are deleted.
            await asyncio.wait(checking.values(), timeout=_LAST_WRITES)
            raise
        finally:
            for task in checking.values():
                task.cancel()
                # A worker that was not chosen may have failed.
                task.add_done_callback(consume_exception)
    return {address: _outcome(task) for address, task in checking.items()}


async def _import_everywhere(
    client: Any, workers: Sequence[WorkerCapacity], import_s: float, exchange: _Exchange
) -> None:
    """Let all workers import dasktune at the same time; their checks find out if that failed."""
    addresses = [worker.address for worker in workers]
    try:
        work = client.run(_asker(), exchange.common, None, workers=addresses, on_error="return")
        await wait_for(work, import_s)
    except Exception as error:  # the scheduler or the connection may raise any exception
        logger.info("not all of %d workers have imported dasktune yet: %r", len(addresses), error)


def _outcome(task: asyncio.Task[CheckResult]) -> CheckResult | PreflightError:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, PreflightError):
        return error
    raise error


async def check_worker(
    client: Any, worker: WorkerCapacity, checks: Checks, *, whole: bool = True
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

    Returns
    -------
    CheckResult
        The result; the worker passed if its `reason` is None.

    Raises
    ------
    PreflightError
        If the worker cannot run the experiment's trials.
    """
    async with _Exchange.of(checks, writes=_checks_storage(checks, whole)) as exchange:
        return await _check(client, worker, checks, exchange, whole=whole)


def _checks_storage(checks: Checks, whole: bool) -> bool:
    return whole or may_be_private(checks.storage)


class _Exchange:
    """A file of the driver in the storage, of which each worker writes a copy."""

    def __init__(self, checks: Checks) -> None:
        self.token = scratch_name("preflight")
        examination = dumps(Examination(storage=checks.storage, token=self.token))
        #: What all workers get. It is one object, so that a combined call has it once.
        self.common = __version__, _NEEDED, examination
        self._checks = checks
        self._replies: set[str] = set()
        self._numbers = count()
        self._gate = asyncio.Semaphore(_FILES_AT_ONCE)
        self._threads = DaemonThreads()

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, checks: Checks, *, writes: bool = True) -> AsyncIterator[_Exchange]:
        """Write the file, and delete it and all copies in the end; nothing if `writes` is false."""
        exchange = cls(checks)
        if not writes:
            yield exchange
            return
        try:
            await exchange._use(checks.storage.write_bytes, exchange.token, exchange.token.encode())
            try:
                yield exchange
            finally:
                removing = asyncio.gather(*map(exchange._remove, (exchange.token, *exchange._replies)))
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_for(removing, checks.timeout_s)
        finally:
            exchange._threads.close()

    def new_reply(self) -> str:
        """Return the name of another copy."""
        reply = f"{self.token}-reply{next(self._numbers)}"
        self._replies.add(reply)
        return reply

    async def fault_of(self, reply: str, *, is_last: bool) -> str:
        """Return what is wrong with a copy; empty if nothing is wrong.

        Unless it is the last one, the worker may write it again, and it is deleted in the end, too.
        """
        answer, is_deleted = await self._use(self._take, reply)
        if is_deleted and is_last:
            self._replies.discard(reply)
        return "" if answer == self.token.encode() else "a file that was written there is not visible here"

    def _take(self, reply: str) -> tuple[bytes, bool]:
        """Read a copy, which may be missing, and delete it; return it and whether it is deleted."""
        try:
            answer = self._checks.storage.read_bytes(reply)
        except FileNotFoundError:
            return b"", False
        try:
            self._checks.storage.remove(reply)
        except Exception:  # it is deleted with the others in the end, if that is possible
            return answer, False
        return answer, True

    async def _remove(self, name: str) -> None:
        # An error is ignored: a storage that fails has failed before, with a better message.
        with contextlib.suppress(PreflightError):
            await self._use(self._checks.storage.remove, name)

    async def _use(self, operation: Callable[..., Any], *args: Any) -> Any:
        async with self._gate:
            return await _answer_of_storage(self._checks, self._threads.run(operation, *args))


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
    shown = first_few([f"{worker.python} on {worker.address}" for worker in others], 5)
    raise PreflightError(
        f"the workers' Python must be {_PYTHON} as in this process, got {shown}. Functions "
        f"do not cross minor versions: start these workers with Python {_PYTHON}, or this process "
        "with theirs."
    )


async def _check(
    client: Any, worker: WorkerCapacity, checks: Checks, exchange: _Exchange, *, whole: bool
) -> CheckResult:
    """Check one worker, by one call."""
    _check_python([worker])
    reply = exchange.new_reply() if _checks_storage(checks, whole) else ""
    own = (checks.blob if whole else b""), reply
    # Calls to many workers are combined, but those that run user code may take long.
    client = client.client if whole and isinstance(client, BatchedCalls) else client
    found = await run_on_worker(client, worker, checks.timeout_s, _asker(), exchange.common, own)
    reason = _judge_version(worker, found)
    if reason is not None:
        return CheckResult(reason=reason)
    _judge_code(worker, found, checks)
    trouble = found.get("storage", "")
    if reply and not trouble:
        is_last = not (isinstance(client, BatchedCalls) and client.has_repeated)
        trouble = await exchange.fault_of(reply, is_last=is_last)
    gpus = tuple(found["gpus"])
    if not trouble:
        return CheckResult(gpus=gpus)
    if may_be_private(checks.storage):
        logger.info("%s does not share %s: %s", worker.address, checks.storage, trouble)
        return CheckResult(shares=False, gpus=gpus)
    raise PreflightError(
        f"storage_path must be readable and writable on every worker, got {checks.storage} with "
        f"{trouble} on {worker.address} ({worker.host}). Check credentials, permissions, the "
        "packages for this protocol there, and whether the URL leads to the same place."
    )


def _judge_version(worker: WorkerCapacity, found: Any) -> str | None:
    """Return why a worker has not answered; None if it has answered and has our version."""
    ours = __version__
    cure = f"Install dasktune {ours} there, from the same checkout or wheel as here."
    if isinstance(found, ImportError):
        raise PreflightError(
            f"dasktune must be importable on the workers, got {type(found).__name__}: {found} on "
            f"{worker.address} ({worker.host}). {cure}"
        )
    if isinstance(found, Exception):
        return repr(found)
    if isinstance(found, str):
        raise PreflightError(
            f"the workers' dasktune must be {ours} as in this process, got {found} on "
            f"{worker.address} ({worker.host}). {cure}"
        )
    return None


@pickled_once
def _asker() -> Callable[..., Any]:
    """Return a function for a worker, which may lack dasktune; nested, to pickle by value."""

    async def ask(common: tuple[str, tuple[str, ...], bytes], own: tuple[Any, ...] | None) -> Any:
        import importlib
        import pickle

        ours, needed, examination = common
        theirs = getattr(importlib.import_module("dasktune"), "__version__", "")
        if theirs != ours:
            return theirs
        for module in needed:
            importlib.import_module(module)
        # Without arguments of its own, the worker only imports.
        return own and await pickle.loads(examination).run(*own)

    return ask


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


async def _probe_storage(checks: Checks, storage: Storage) -> None:
    await _answer_of_storage(checks, run_in_daemon_thread(probe, storage))


async def _answer_of_storage(checks: Checks, working: Awaitable[Any]) -> Any:
    """Wait for what a thread of this process does in the storage, with a deadline."""
    try:
        return await wait_for(working, checks.timeout_s)
    except (FileNotFoundError, TuneError):
        raise
    except Exception as exc:
        late = isinstance(exc, asyncio.TimeoutError)
        reason = f"no answer within {checks.timeout_s:g} s" if late else f"{exc!r}"
        raise PreflightError(
            f"storage_path must be readable and writable, got {checks.storage} with {reason} in "
            "this process. Check that it exists, and credentials and permissions."
        ) from exc
