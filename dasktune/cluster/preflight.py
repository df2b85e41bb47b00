"""Before the first trial: whether these workers can run it and see the storage that we see.

What fails here would fail in every trial, mostly without a word that helps. The checks go from what
is known without touching a worker to what needs user code there, because each relies on the ones
before: a function by value crashes a worker on another Python, and a module of dasktune needs
dasktune.

Nothing is a Dask task: ``client.run`` reaches a worker whose threads are busy with other people's
work, and leaves nothing in the scheduler's books.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, Final

from dasktune.cluster.ask import ask, in_thread
from dasktune.cluster.code import missing_module
from dasktune.cluster.roll_call import call_roll
from dasktune.cluster.shared import may_differ
from dasktune.errors import ClusterError, PreflightError, TuneError
from dasktune.placement import NOT_ALLOWED, Ledger, WorkerCapacity
from dasktune.storage.location import Storage
from dasktune.storage.probe import probe
from dasktune.trainable.shared_objects import loads_with
from dasktune.trial.resources import WELL_KNOWN, PlacementGroupFactory

__all__ = [
    "Checks",
    "Finding",
    "Report",
    "check_request",
    "check_storage",
    "check_worker",
    "one_per_host",
    "preflight",
]

logger = logging.getLogger(__name__)

#: Seconds for all workers to answer after the first one has. They do nothing for it, so one that
#: does not hangs, or is cut off.
_PATIENCE: Final = 3.0

#: Workers that are looked at side by side; the blob passes through the scheduler for each.
_AT_ONCE: Final = 16

#: Python 3.11.4 is "3.11" to cloudpickle.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: Evaluated on a worker, so it may use nothing but what every Python has.
_THEIR_VERSION: Final = "getattr(__import__('dasktune'), '__version__', '')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What a worker must be able to do.

    Parameters
    ----------
    blob : bytes
        What :func:`dasktune.cluster.code.pack` made; the worker must be able to unpickle it.
    storage : Storage
        Where the worker must read and write what the driver does. On a disk, or in the driver's own
        memory, it need not: its checkpoints are relayed then.
    code : {"auto", "installed"}, default="auto"
        How code is shipped, for the advice in errors.
    timeout_s : float, default=60.0
        Seconds for each call to a worker or to the storage.
    saves : bool, default=True
        Whether trials save checkpoints there.
    """

    blob: bytes = field(repr=False)
    storage: Storage
    code: str = "auto"
    timeout_s: float = 60.0
    saves: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a preflight found out without an error.

    Parameters
    ----------
    hosts : tuple of str
        The hosts on which a worker passed.
    unchecked : mapping
        Workers that did not answer, by address, with the reason.
    """

    hosts: tuple[str, ...]
    unchecked: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of looking at a worker that may take trials, as far as is known.

    Parameters
    ----------
    reason : str or None, default=None
        Why it did not answer, and so is neither good nor bad.
    shares : bool, default=True
        Whether it sees the storage that this process sees.
    """

    reason: str | None = None
    shares: bool = True


def check_storage(storage: Storage, *, timeout_s: float = 60.0) -> None:
    """Check from this process that a storage can carry an experiment, before a cluster is needed.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    timeout_s : float, default=60.0
        Seconds for all of it.

    Raises
    ------
    PreflightError
        If it cannot, or does not answer in time.
    """
    checks = Checks(blob=b"", storage=storage, timeout_s=timeout_s)
    # In a thread of its own: the caller's thread may have an event loop that runs.
    with ThreadPoolExecutor(1, thread_name_prefix="dasktune-storage") as pool:
        pool.submit(asyncio.run, _by_us(checks, probe, storage)).result()


def check_request(ledger: Ledger, resources: PlacementGroupFactory, advice: str = "") -> None:
    """Check that the workers could hold a request if they were empty.

    Parameters
    ----------
    ledger : Ledger
        The workers; where there are none nothing is checked.
    resources : PlacementGroupFactory
        What the largest trial asks for.
    advice : str, default=""
        What the trainable has to say to it.

    Raises
    ------
    PreflightError
        If they could not.
    """
    if ledger.workers and not ledger.ever_fits(resources):
        raise PreflightError(
            "resources must be at most what the workers have, got a request that they can never "
            f"meet:\n{ledger.table(resources)}\nAsk for less with with_resources(), or start "
            "larger workers; RunConfig(queue_trials=True) waits for them."
            + _unknown(ledger, resources)
            + (f"\n{advice}" if advice else "")
        )


def _unknown(ledger: Ledger, resources: PlacementGroupFactory) -> str:
    """Say which resources no worker has anything of: most often the name is mistyped."""
    has = {name for held in ledger.offers().values() for name, amount in held.items() if amount}
    lines = ""
    for name in sorted(set(resources.required_resources) - has):
        # Whoever writes a name that everybody knows means it; three letters are alike by chance.
        known = name in WELL_KNOWN
        close = [] if known else get_close_matches(name.upper(), sorted(has), n=1, cutoff=0.7)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        lines += f"\nNo worker has any {name!r}{hint}"
    return lines


async def preflight(
    client: Any, checks: Checks, *, workers: Mapping[str, WorkerCapacity]
) -> Report:
    """Check that the cluster can run an experiment, on one worker of each host.

    To be awaited on the client's loop. Without workers nothing is checked and the report is empty;
    :func:`check_worker` is for those that come later.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    checks : Checks
        What a worker must be able to do.
    workers : mapping
        The workers by address, as just read from the scheduler.

    Returns
    -------
    Report
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
    gate = asyncio.Semaphore(_AT_ONCE)

    async def outcome(worker: WorkerCapacity) -> str | None:
        async with gate:
            return (await check_worker(client, worker, checks)).reason

    reasons = await asyncio.gather(*(outcome(worker) for worker in chosen))
    unchecked = {
        worker.address: reason
        for worker, reason in zip(chosen, reasons, strict=True)
        if reason is not None
    }
    if len(unchecked) == len(chosen) and (unchecked := unchecked | silent):
        address, reason = next(iter(unchecked.items()))
        raise ClusterError(
            f"none of {len(unchecked)} workers answered, {address} for one: {reason}. They may "
            "hang, or be cut off from their scheduler; restart them, or wait."
        )
    if silent:
        logger.warning(
            "%d of %d workers did not answer, %s for one; the experiment begins without them, and "
            "they get trials when they do",
            len(silent),
            len(workers),
            next(iter(silent)),
        )
    hosts = tuple(worker.host for worker in chosen if worker.address not in unchecked)
    return Report(hosts=hosts, unchecked=unchecked | silent)


async def check_worker(
    client: Any, worker: WorkerCapacity, checks: Checks, *, whole: bool = True
) -> Finding:
    """Check one worker, such as one that joins while the experiment runs.

    To be awaited on the client's loop.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    worker : WorkerCapacity
        The worker as the scheduler knows it.
    checks : Checks
        What it must be able to do.
    whole : bool, default=True
        Whether code and storage are tried, too; False if they were on the same host. What a worker
        sees on a path is looked at all the same: two workers of a host may run in containers.

    Returns
    -------
    Finding
        It passed if there is no reason.

    Raises
    ------
    PreflightError
        If the worker cannot run the experiment's trials.
    """
    _check_python([worker])
    reason = await _check_dasktune(client, worker, checks)
    if reason is not None or not (whole or may_differ(checks.storage)):
        return Finding(reason=reason)
    name = f".preflight-{uuid.uuid4().hex}"
    await _by_us(checks, checks.storage.write_bytes, name, name.encode())
    try:
        return await _check_code_and_storage(
            client, worker, checks if whole else replace(checks, blob=b""), name
        )
    finally:
        # Nothing depends on it: a storage that fails now has failed above, with a better message.
        with contextlib.suppress(PreflightError):
            await _by_us(checks, _sweep, checks.storage, name)


async def _silent(client: Any, workers: Iterable[WorkerCapacity], checks: Checks) -> dict[str, str]:
    """Return the workers that do not answer, by address, with the reason."""
    asked = [worker.address for worker in workers if worker.status == "running"]
    there = await call_roll(client, asked, first_s=checks.timeout_s, rest_s=_PATIENCE)
    return dict.fromkeys((a for a in asked if a not in there), "no answer in time")


def one_per_host(workers: Iterable[WorkerCapacity]) -> list[WorkerCapacity]:
    """Return for each host the worker that was heard of last, of those that are at work.

    Parameters
    ----------
    workers : iterable of WorkerCapacity
        As just read from the scheduler.
    """
    chosen: dict[str, WorkerCapacity] = {}
    for worker in workers:
        best = chosen.get(worker.host)
        if worker.status == "running" and (best is None or worker.age < best.age):
            chosen[worker.host] = worker
    return list(chosen.values())


def _check_python(workers: Iterable[WorkerCapacity]) -> None:
    """Compare what the workers said when they joined; no code of ours has run there yet."""
    others = [worker for worker in workers if worker.is_foreign]
    if not others:
        return
    shown = ", ".join(f"{worker.python} on {worker.address}" for worker in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    raise PreflightError(
        f"the workers' Python must be {_PYTHON} as in this process, got {shown}{more}. Functions "
        f"do not cross minor versions: start these workers with Python {_PYTHON}, or this process "
        "with theirs."
    )


async def _check_dasktune(client: Any, worker: WorkerCapacity, checks: Checks) -> str | None:
    ours = version("dasktune")
    # A builtin, so that a worker without dasktune can unpickle it.
    theirs = await ask(client, worker, checks.timeout_s, eval, _THEIR_VERSION)
    cure = f"Install it there with `pip install dasktune=={ours}`, or use an image that has it."
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
) -> Finding:
    """Let the worker unpickle the blob, read the file `name` of ours, and write a reply."""
    storage = checks.storage
    found = await ask(client, worker, checks.timeout_s, _examine, checks.blob, storage, name)
    if isinstance(found, Exception):
        return Finding(reason=repr(found))
    _judge_code(worker, found, checks)
    trouble = found.get("storage") or await _unanswered(checks, name)
    if may_differ(storage):
        if trouble:
            logger.info("%s does not share %s: %s", worker.address, storage, trouble)
        return Finding(shares=not trouble)
    if trouble:
        raise PreflightError(
            f"storage_path must be readable and writable on every worker, got {storage} with "
            f"{trouble} on {worker.address} ({worker.host}). Check credentials, permissions, the "
            "packages for this protocol there, and whether the URL leads to the same place."
        )
    return Finding()


async def _unanswered(checks: Checks, name: str) -> str:
    """Return what is wrong with the worker's reply; empty if nothing."""
    try:
        answer = await _by_us(checks, checks.storage.read_bytes, _reply(name))
    except FileNotFoundError:
        answer = b""
    return "" if answer == name.encode() else "what was written there is not to be seen here"


def _reply(name: str) -> str:
    return f"{name}-reply"


def _sweep(storage: Storage, name: str) -> None:
    storage.remove(name)
    storage.remove(_reply(name))


async def _examine(blob: bytes, storage: Storage, name: str) -> dict[str, Any]:
    """Try everything out on the worker, beside its event loop."""
    found: dict[str, Any] = await in_thread(_examination, blob, storage, name)
    return found


def _examination(blob: bytes, storage: Storage, name: str) -> dict[str, Any]:
    """Return what happened, as plain values: an exception of the user's may not unpickle."""
    found: dict[str, Any] = {}
    try:
        if blob:
            # Large objects are not there yet; what holds them is.
            loads_with(blob, lambda name: None)
    except ModuleNotFoundError as exc:
        found["missing"] = exc.name or str(exc)
    except BaseException as exc:  # importing user code may do anything, sys.exit() included
        found["code"] = f"{type(exc).__name__}: {exc}"
    try:
        token = storage.read_bytes(name)
        storage.write_bytes(_reply(name), token)
    except Exception as exc:
        found["storage"] = f"{type(exc).__name__}: {exc}"
    return found


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


async def _by_us(checks: Checks, operation: Callable[..., Any], *args: Any) -> Any:
    """Use the storage from this process, beside the event loop and with a deadline."""
    try:
        return await asyncio.wait_for(in_thread(operation, *args), checks.timeout_s)
    except (FileNotFoundError, TuneError):
        raise
    except Exception as exc:
        late = isinstance(exc, asyncio.TimeoutError)
        reason = f"no answer within {checks.timeout_s:g} s" if late else f"{exc!r}"
        raise PreflightError(
            f"storage_path must be readable and writable, got {checks.storage} with {reason} in "
            "this process. Check that it exists, and credentials and permissions."
        ) from exc
