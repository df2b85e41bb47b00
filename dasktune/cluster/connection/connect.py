"""Connects to the cluster that the user names by a client, a cluster, an address, a file or None.

dasktune opens its own client. The user's client may be asynchronous, or be closed or restarted at
any moment, so only the scheduler's address and the security settings are taken from it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import dask
from distributed import Client, Nanny, Scheduler, Security, Status, Worker, default_client, get_worker
from distributed.comm import get_address_host_port
from distributed.core import rpc
from distributed.utils import import_term

from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.connection.local_cluster import StartedLocalCluster, check_main
from dasktune.cluster.connection.open_client import open_client, security_of_worker
from dasktune.errors import ClusterError, ConfigError, PreflightError, check

logger = logging.getLogger(__name__)

#: Seconds to wait for the scheduler's first answer. A scheduler that runs answers at once; the long
#: timeout of the client is for a scheduler that is restarted.
_FIRST_ANSWER: Final = 10.0

#: Seconds within which a worker must answer to count as reachable.
PROBE_S: Final = 3.0

#: Seconds in which a web server must answer, once no scheduler has.
_HTTP_PROBE: Final = 2.0

#: Seconds that closing the client or the cluster may take.
_CLOSE: Final = 10.0

#: Seconds that stopping the logging of an embedded cluster's workers may take.
_MUTE_TIMEOUT: Final = 2.0

#: The interface of the local cluster's pages.
_LOOPBACK: Final = "127.0.0.1"

_FORMS: Final = (
    "a distributed.Client, a cluster object, an address such as 'tcp://host:8786', "
    "the path of a scheduler file, or None"
)

#: Dask waits for a scheduler that may be starting, and then names only the time.
_REFUSED: Final = "connection refused: no program listens at this port"

#: Where the address of a scheduler is found.
_SCHEDULER_PORT: Final = (
    "The scheduler prints its own address when it starts, such as tcp://host:8786, and the page `Info` "
    "of its dashboard has it as well."
)

#: Ctrl-C reaches every process of the terminal. Workers ignore it and the driver handles it: a
#: worker that died of it could neither finish its step nor write a checkpoint.
_IGNORE_INTERRUPTS: Final = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"

_GUARD: Final = (
    'If this is a script, its top-level code must stand under `if __name__ == "__main__":`, '
    "because every worker process imports it."
)

#: Functions that are pickled by value require the same minor version of Python.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The address of a scheduler and the security settings for it."""

    address: str
    security: Any
    #: The cluster object, if its scheduler runs in this process.
    cluster: Any = None

    @property
    def has_workers_here(self) -> bool:
        """Whether the cluster has started a worker on this machine, which this process reaches."""
        started = {} if self.cluster is None else getattr(self.cluster, "workers", {})
        return any(
            isinstance(one, Nanny | Worker) and one.status == Status.running
            for one in tuple(started.values())
        )


class Connection:
    """Dasktune's own client of a cluster. Closing it also closes a cluster that was started for it.

    Parameters
    ----------
    client : distributed.Client
        The synchronous client that was opened.
    direct : bool or None
        Whether this process reaches the workers; None if there was no worker to probe.
    cluster : distributed.LocalCluster, optional
        The cluster that was started for this connection, if any.
    probe_s : float, default=3.0
        Seconds within which a worker must answer to count as reachable.
    """

    def __init__(
        self, client: Any, *, direct: bool | None, cluster: Any = None, probe_s: float = PROBE_S
    ) -> None:
        #: A synchronous client, which is not the default client.
        self.client = client
        #: The scheduler's address; copied, because a closed client no longer has it.
        self.address: str = client.scheduler.address
        self._cluster = cluster
        self._direct = direct
        self._probe_s = probe_s
        client.direct_to_workers = self.direct

    @property
    def direct(self) -> bool:
        """Whether calls go directly to the workers, and not through the scheduler."""
        return self._direct is True

    @property
    def embedded(self) -> bool:
        """Whether the cluster was started for this connection and ends with it."""
        return self._cluster is not None

    async def probe_direct(self) -> bool:
        """Probe whether the workers can be reached, if there was none to probe before.

        Await it on the client's loop, once the first worker has come.

        Returns
        -------
        bool
            The new value of :attr:`direct`.
        """
        if self._direct is None:
            self._direct = await _reaches_a_worker(self.client, self._probe_s)
            self.client.direct_to_workers = self.direct
        return self.direct

    def close(self) -> None:
        """Close the client, and the cluster if it was started here. May be called twice."""
        if self.embedded and self.client.status == "running":
            self._mute_workers()
        try:
            self.client.close(timeout=_CLOSE)
        except (asyncio.TimeoutError, OSError) as exc:
            logger.warning("the client of %s did not close in time: %r", self.address, exc)
        finally:
            if self._cluster is not None:
                self._end(self._cluster)

    def _end(self, cluster: Any) -> None:
        """Close the cluster that was started here. A failure must not lose the results."""
        try:
            with _nannies_muted():
                cluster.close(timeout=_CLOSE)
        except (asyncio.TimeoutError, OSError):
            logger.warning(
                "the worker processes that were started here did not end within %g s; those that "
                "are left end with this process",
                _CLOSE,
            )

    def _mute_workers(self) -> None:
        """Stop the logging of the started workers, which would report their scheduler's loss."""
        # A worker that does not answer now is already exiting.
        with suppress(Exception):
            self.client.sync(_mute, self.client, callback_timeout=_MUTE_TIMEOUT)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    client: Any = None,
    *,
    timeout_s: float = 300.0,
    n_workers: int | None = None,
    probe_s: float = PROBE_S,
) -> Connection:
    """Open a client on the cluster that `client` names.

    Parameters
    ----------
    client : distributed.Client, cluster, str, path or None, default=None
        The Dask cluster. A client may be synchronous, asynchronous or closed; only its address
        and security are used. None stands, inside a Dask task, for the cluster that runs the task,
        else for the cluster of the current default client, and without one for a new
        ``LocalCluster`` with one single-threaded worker process per CPU.
    timeout_s : float, default=300.0
        Seconds for which the client waits for a lost scheduler to come back. The first answer may
        take 10 s at most, because a scheduler that runs answers at once.
    n_workers : int, optional
        Number of workers of a new ``LocalCluster``; by default one per CPU.
    probe_s : float, default=3.0
        Seconds within which a worker must answer this process to count as reachable. Calls to
        workers out of reach go through the scheduler.

    Returns
    -------
    Connection
        The connection, which the caller must close.

    Raises
    ------
    ConfigError
        If `client` is none of these.
    ClusterError
        If no scheduler answers at the address.
    PreflightError
        If the scheduler runs another minor version of Python.
    """
    check(timeout_s > 0, "timeout_s", "more than 0", timeout_s)
    target = _current() if client is None else _target(client)
    if target is not None:
        return _open(target, timeout_s, probe_s)
    cluster = _embedded_cluster(n_workers)
    try:
        return _open(_of_cluster(cluster), timeout_s, probe_s, cluster=cluster)
    except BaseException:
        cluster.close(timeout=_CLOSE)
        raise


def check_address(text: str) -> None:
    """Check that a text names a cluster: an address, or a scheduler file, which may be missing yet.

    Parameters
    ----------
    text : str
        The text, as for :func:`connect`.

    Raises
    ------
    ConfigError
        If it names none.
    """
    try:
        _of_text(text)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def _current() -> _Target | None:
    """Return the cluster of this Dask task or of the default client; None if there is neither."""
    try:
        worker = get_worker()
    except ValueError:
        pass  # not on a worker
    else:
        # Only the address is used: the worker's own client is shared with other tasks.
        return _Target(address=worker.scheduler.address, security=security_of_worker(worker))
    try:
        client = default_client()
    except ValueError:
        return None
    return None if client.status == "closed" else _of_client(client)


def _target(given: Any) -> _Target:
    if isinstance(given, Client):
        return _of_client(given)
    if isinstance(given, str):
        return _of_text(given)
    if isinstance(given, os.PathLike):
        return _of_file(Path(given))
    if hasattr(given, "scheduler_address"):
        return _of_cluster(given)
    raise ConfigError(f"client must be {_FORMS}, got {given!r}")


def _of_client(client: Any) -> _Target:
    if client.scheduler is not None:
        address = client.scheduler.address
        cluster = _if_in_this_process(client.cluster, address)
        return _Target(address=address, security=client.security, cluster=cluster)
    # A closed client has lost the scheduler, but keeps its constructor's argument.
    made_with = client._start_arg
    if client.cluster is not None:
        return _of_cluster(client.cluster)
    if isinstance(made_with, str):
        return _Target(address=made_with, security=client.security)
    if client.scheduler_file:
        return _of_file(Path(client.scheduler_file))
    raise ConfigError(
        f"client must name a cluster, got {client!r}, which never connected. "
        "Give the scheduler's address instead."
    )


def _of_cluster(cluster: Any) -> _Target:
    status = getattr(cluster, "status", Status.running)
    if status in (Status.closing, Status.closed, Status.failed):
        raise ClusterError(
            f"the cluster {cluster!r} is {status.name}. Start a new one, or leave client=None for "
            "a cluster on this machine."
        )
    security = getattr(cluster, "security", None)
    address = cluster.scheduler_address
    if not address or address == "<Not Connected>":
        raise ClusterError(
            f"the cluster {cluster!r} has not started. Await it, or start it, before it is used."
        )
    return _Target(
        address=address,
        security=security or _default_security(address),
        cluster=_if_in_this_process(cluster, address),
    )


def _if_in_this_process(cluster: Any, address: str) -> Any:
    """Return a cluster if the scheduler at an address is its own and runs in this process."""
    scheduler = getattr(cluster, "scheduler", None)
    runs_here = isinstance(scheduler, Scheduler) and scheduler.status == Status.running
    return cluster if scheduler is not None and runs_here and scheduler.address == address else None


def _of_text(text: str) -> _Target:
    check(
        not text.lower().startswith(("http://", "https://")),
        "client",
        "the address of a Dask scheduler, such as tcp://host:8786",
        text,
        f"That is the address of a page, such as Dask's dashboard. {_SCHEDULER_PORT}",
    )
    if "://" in text:
        return _Target(address=text, security=_default_security(text))
    path = Path(text)
    if path.is_file():
        return _of_file(path)
    if _HOST_AND_PORT.fullmatch(text):
        return _of_text(f"tcp://{text}")
    if path.suffix == ".json" or os.sep in text:
        return _of_file(path)
    raise ConfigError(f"client must be {_FORMS}, got {text!r}")


def _of_file(path: Path) -> _Target:
    rule = "a scheduler file, as `dask scheduler --scheduler-file` writes it"
    try:
        address = json.loads(path.read_text())["address"]
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(f"client must be {rule}, got {str(path)!r} ({reason})") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"client must be {rule}, got {str(path)!r} without an address") from exc
    return _Target(address=address, security=_default_security(address))


def _default_security(address: str) -> Any:
    """Return the security that Dask's configuration has for an address."""
    loader = dask.config.get("distributed.client.security-loader", None)
    loaded = import_term(loader)({"address": address}) if loader else None
    return loaded if loaded is not None else Security()


def _open(target: _Target, timeout_s: float, probe_s: float, *, cluster: Any = None) -> Connection:
    first_answer = min(_FIRST_ANSWER, timeout_s)
    if target.cluster is None or _runs_in_this_thread(target.cluster.scheduler):
        # In another thread: the caller's thread may have a running event loop.
        with ThreadPoolExecutor(1, thread_name_prefix="dasktune-connect") as pool:
            pool.submit(asyncio.run, _check_answers(target, first_answer)).result()
    else:
        _check_loop_answers(target, first_answer)
    client = None
    try:
        client = open_client(
            target.address,
            security=target.security,
            timeout=timeout_s,
            set_as_default=False,
            direct_to_workers=False,
        )
        # The long timeout is for a lost scheduler. A call to a lost worker must not wait so long.
        client.rpc.timeout = first_answer
        # Each probe of a warm cluster takes some milliseconds, for which the first trials wait.
        direct = target.has_workers_here or client.sync(
            _reaches_a_worker, client, probe_s, callback_timeout=_FIRST_ANSWER
        )
    except BaseException as exc:
        if client is not None:
            client.close(timeout=_CLOSE)
        if isinstance(exc, asyncio.TimeoutError | OSError):
            raise ClusterError(_unreachable(target.address, first_answer, exc)) from exc
        raise
    return Connection(client, direct=direct, cluster=cluster, probe_s=probe_s)


def _runs_in_this_thread(scheduler: Any) -> bool:
    """Whether a scheduler needs the event loop of this very thread, and so cannot answer now."""
    try:
        return asyncio.get_running_loop() is scheduler.loop.asyncio_loop
    except RuntimeError:
        return False


def _check_loop_answers(target: _Target, timeout: float) -> None:
    """Check that the event loop of a scheduler in this process runs; its versions are ours."""

    async def answer() -> None: ...

    try:
        loop = target.cluster.scheduler.loop.asyncio_loop
        asyncio.run_coroutine_threadsafe(answer(), loop).result(timeout)
    except (concurrent.futures.TimeoutError, RuntimeError) as exc:
        raise ClusterError(_unreachable(target.address, timeout, exc)) from exc


async def _check_answers(target: _Target, timeout: float) -> None:
    """Check that a scheduler answers, before a client is created that would wait for minutes."""
    scheduler = None
    try:
        arguments = _security(target.security).get_connection_args("client")
        scheduler = rpc(target.address, timeout=timeout, connection_args=arguments)
        identity = await asyncio.wait_for(scheduler.identity(), timeout)
        _check_scheduler(identity, target.address)
        versions = await asyncio.wait_for(scheduler.versions(packages=[]), timeout)
        _check_python(versions, target.address)
    except (ClusterError, ConfigError):
        raise
    # A server that is no Dask scheduler may make Dask raise any exception, even a MemoryError.
    except Exception as exc:
        found = await _who_answers(target.address, min(_HTTP_PROBE, timeout))
        if found is _Answer.WEB_SERVER:
            raise ClusterError(
                f"a web server answers at {target.address}, perhaps Dask's dashboard, and no scheduler. "
                f"{_SCHEDULER_PORT}"
            ) from exc
        reason = ConnectionRefusedError(_REFUSED) if found is _Answer.REFUSED else exc
        raise ClusterError(_unreachable(target.address, timeout, reason)) from exc
    finally:
        if scheduler is not None:
            await scheduler.close_rpc()


class _Answer(Enum):
    """What answers where no scheduler does."""

    WEB_SERVER = "web server"
    REFUSED = "refused"
    OTHER = "other"


async def _who_answers(address: str, timeout: float) -> _Answer:
    """Return what answers at an address; a dashboard has a port near the scheduler's."""
    writer = None
    try:
        opened = asyncio.open_connection(*get_address_host_port(address))
        reader, writer = await asyncio.wait_for(opened, timeout)
        # The request of an unknown page, so that no page is built.
        writer.write(b"HEAD /dasktune-probe HTTP/1.0\r\n\r\n")
        begin = await asyncio.wait_for(reader.readexactly(5), timeout)
        return _Answer.WEB_SERVER if begin == b"HTTP/" else _Answer.OTHER
    except ConnectionRefusedError:
        return _Answer.REFUSED
    except (OSError, EOFError, ValueError, asyncio.TimeoutError):
        return _Answer.OTHER
    finally:
        if writer is not None:
            writer.close()


def _security(given: Any) -> Any:
    """Return a Security object for the security of a client or a cluster."""
    if given is None or given is False:
        return Security()
    return Security(**given) if isinstance(given, Mapping) else given


def _unreachable(address: str, timeout: float, exc: Exception) -> str:
    reason = str(exc).strip() or type(exc).__name__
    return (
        f"no Dask scheduler answered at {address} within {timeout:g} s ({reason}). "
        "Check that the scheduler runs, that this machine reaches it (port, firewall, VPN) and, "
        "for tls://, that client= carries its security: give the Client or the cluster object. "
        "If the cluster lives on the event loop of this very thread, use `await fit_async()`."
    )


def _check_scheduler(identity: Mapping[str, Any], address: str) -> None:
    if "workers" not in identity:
        raise ClusterError(
            f"{address} is a Dask {identity.get('type', 'server')}, not a scheduler. "
            "Give the scheduler's address, which the scheduler prints when it starts."
        )


def _check_python(versions: Mapping[str, Any], address: str) -> None:
    """Refuse a scheduler with another Python: a function pickled by value would crash it."""
    theirs = str(versions.get("host", {}).get("python", ""))
    if theirs and ".".join(theirs.split(".")[:2]) != _PYTHON:
        raise PreflightError(
            f"the scheduler at {address} runs Python {'.'.join(theirs.split('.')[:3])}, this "
            f"process {_PYTHON}. Start one of them with the Python of the other."
        )


@pickled_once
def _a_running_worker() -> Callable[..., tuple[str, str] | None]:
    """Return a function that finds a worker on the scheduler; nested, to pickle by value."""

    def first(dask_scheduler: Any = None) -> tuple[str, str] | None:
        workers = dask_scheduler.workers.values()
        running = [worker for worker in workers if worker.status.name == "running"]
        # The worker with the latest heartbeat, because one that hangs would not answer although it
        # can be reached.
        worker = max(running, key=lambda one: one.last_seen, default=None)
        return None if worker is None else (worker.address, worker.server_id)

    return first


@contextmanager
def _nannies_muted() -> Iterator[None]:
    """Suppress the nannies' log message that a worker does not end by itself and is killed."""
    nannies = logging.getLogger("distributed.nanny")

    def concerns_somebody(record: logging.LogRecord) -> bool:
        return "still alive after" not in record.getMessage()

    nannies.addFilter(concerns_somebody)
    try:
        yield
    finally:
        nannies.removeFilter(concerns_somebody)


async def _mute(client: Any) -> None:
    await client.run(logging.disable, on_error="ignore")


async def _reaches_a_worker(client: Any, probe_s: float) -> bool | None:
    """Return whether a worker answers with its own identity; None if there is no worker.

    Behind a port-forward another machine may answer at the address, so the identity is compared.
    """
    found = await client.run_on_scheduler(_a_running_worker())
    if found is None:
        return None
    address, identity = found
    worker = None
    try:
        worker = rpc(address, timeout=probe_s, connection_args=client.connection_args)
        answer = await asyncio.wait_for(worker.identity(), probe_s)
        return bool(answer["id"] == identity)
    except Exception as exc:  # a middlebox that answers can make Dask raise any exception
        logger.info("calls go through the scheduler: %s did not answer (%r)", address, exc)
        return False
    finally:
        if worker is not None:
            await worker.close_rpc()


def _embedded_cluster(n_workers: int | None) -> Any:
    """Start a cluster on this machine, by default with one process for each usable CPU."""
    # A worker process imports the user's script. Without the guard it would reach this line again,
    # and try to start workers itself.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ClusterError(f"a worker process cannot start a cluster. {_GUARD}")
    check_main()
    try:
        return StartedLocalCluster(
            n_workers=n_workers or _cpus(),
            threads_per_worker=1,
            processes=True,
            # Without a key of this cluster's own, every user of this machine could connect to the
            # scheduler and run code as this user.
            security=Security.temporary(),
            # Dask would let other machines read its pages, which need no token.
            dashboard_address=f"{_LOOPBACK}:{_dashboard_port()}",
            preload=_IGNORE_INTERRUPTS,
        )
    except Exception as exc:
        raise ClusterError(
            f"no cluster could be started on this machine ({exc}). {_GUARD} "
            "Else give client= a cluster that runs."
        ) from exc


def _cpus() -> int:
    """Return the number of CPUs that this process may use, which a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _dashboard_port() -> int:
    """Return Dask's usual port if it is free, else 0 for any port, which avoids Dask's warning."""
    with socket.socket() as probe:
        try:
            probe.bind((_LOOPBACK, 8787))
        except OSError:
            return 0
    return 8787
