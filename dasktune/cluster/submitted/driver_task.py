"""Runs a driver as a Dask task, which Dask starts again on another worker if its worker dies.

Dask counts the workers that died while they ran a task, and abandons the task after some deaths,
because it may have caused them. A driver has not caused them: trials kill workers, and the
experiment counts the failures of trials. So each start of the driver resets Dask's count on the
scheduler.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final

from distributed import Event, get_worker, secede

from dasktune.cluster.connection.by_value import by_value
from dasktune.cluster.connection.connect import Connection, connect
from dasktune.cluster.scheduler_page.page_publisher import dashboard_url_of, find_link
from dasktune.cluster.submitted.rpc import call, serving_calls
from dasktune.cluster.submitted.shared_storage import check_shared, check_visible
from dasktune.errors import ClusterError, ConfigError, check
from dasktune.storage.experiment.bundled_files import ExpectedDirectory
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)

#: Prefix of the name under which the task is published as a dataset. Dask keeps a published task
#: when its client leaves.
_PREFIX: Final = "dasktune/"

#: Largest pickled size of the task in bytes. It is limited because the scheduler keeps the task.
_MAX_BYTES: Final = 32 << 20

#: The status that a Dask client shows for a task that has ended, by its state on the scheduler.
_ENDS: Final = {"memory": "finished", "erred": "error"}

#: Seconds after which the reservation of a name expires whose client has died.
_RESERVED_SECONDS: Final = 300.0

#: Why a name is taken, and what to do: the cluster has a driver of this name, or will have one.
_PUBLISHED: Final = "attach() to that one; when it has ended, forget() frees its name."
_RESERVED: Final = "Another client is submitting it at this moment: choose another name, or try again soon."

#: Seconds to wait for the driver's answer to a call.
_CALL_TIMEOUT: Final = 30.0

#: Seconds between two checks of whether the driver has ended.
_LISTEN_INTERVAL: Final = 1.0


class NameTakenError(ConfigError):
    """The cluster has a driver of this name, or another client submits one at this moment."""


class DriverTask:
    """A client's handle of a driver on the cluster.

    Parameters
    ----------
    connection : Connection
        The connection to the cluster; closed by :meth:`close`.
    name : str
        The experiment's name.
    future : distributed.Future
        The driver's task.
    place : str, default=""
        A link to one of the pages of Dask's dashboard, if it is known.
    """

    def __init__(self, connection: Connection, name: str, future: Any, place: str = "") -> None:
        self._connection = connection
        self._place = place
        self._future = future
        self.name = name

    @property
    def status(self) -> str:
        """Dask's status of the task: pending, finished, error, cancelled or lost."""
        status = str(self._future.status)
        if status == "pending":
            # A new client has not received the states that the scheduler already has.
            with suppress(OSError):
                state = self._connection.client.run_on_scheduler(_state(), self._future.key)
                status = _ENDS.get(state, status)
        return status

    @property
    def dashboard_link(self) -> str:
        """The address of the experiment's page in Dask's dashboard; empty if there is none yet."""
        try:
            return find_link(self._connection.client, self.name, self._place)
        except Exception:
            # The scheduler does not answer, or its pages cannot be inspected.
            logger.debug("the dashboard link of %s is unknown", self.name, exc_info=True)
            return ""

    def result(self, timeout: float | None) -> Any:
        """Return the driver's result; raises TimeoutError if it takes longer than `timeout`."""
        return self._future.result(timeout=timeout)

    def send(self, word: str, by: str = "") -> None:
        """Send a command to the driver. It arrives even if the driver moves to another worker."""
        client, event = self._connection.client, _event(self._future.key, word)
        # The driver reads who sends the command after it has got the event.
        client.set_metadata([f"{event}-by"], by)
        Event(event, client=client).set()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a command of the driver, and return the answer; see `rpc`."""
        return call(self._connection.client, str(self._future.key), name, arguments, _CALL_TIMEOUT)

    def forget(self) -> None:
        """Make the cluster forget the driver, which ends it if it is still running."""
        self._connection.client.unpublish_dataset(_PREFIX + self.name)
        self._future.release()

    def close(self) -> None:
        """Close the connection; the driver continues."""
        self._connection.close()


def start_driver_task(
    client: Any,
    name: str,
    work: Callable[[str], Any],
    storage: Callable[[], Storage],
    *,
    timeout_s: float,
    seen: ExpectedDirectory | None = None,
) -> DriverTask:
    """Start a driver as a task on a cluster, where it continues when its client ends.

    Parameters
    ----------
    client : object
        The Dask cluster, as for :func:`~dasktune.cluster.connection.connect.connect`.
    name : str
        The name by which clients find the driver.
    work : callable
        Called in a task, and again on another worker if the task's worker dies. It must be
        picklable. Its argument is the result of
        :func:`~dasktune.cluster.submitted.shared_storage.check_shared`.
    storage : callable
        Returns the experiment's directory; called on the workers, too.
    timeout_s : float
        Seconds for which the client waits for a lost scheduler to come back.
    seen : ExpectedDirectory, optional
        A directory that all workers must be able to read.

    Raises
    ------
    NameTakenError
        If the name is taken.
    ConfigError
        If there is no cluster that outlives this process, `work` is too large, or the workers do
        not share the storage or see the directory.
    """
    connection = connect(client, timeout_s=timeout_s)
    try:
        check(
            not connection.embedded,
            "client",
            "a cluster that outlives this process",
            client,
            "Give its scheduler's address.",
        )
        size = len(getattr(work, "args", (b"",))[0])
        hint = "Let the function read large objects from storage that all workers see."
        check(size <= _MAX_BYTES, "trainable", f"at most {_MAX_BYTES >> 20} MiB pickled", size, hint)
        key = f"dasktune-driver-{name}-{uuid.uuid4().hex}"
        with reserved_name(connection.client, name, key):
            if seen is not None:
                connection.client.sync(check_visible, connection.client, seen)
            mark = connection.client.sync(check_shared, connection.client, storage)
            future = connection.client.submit(by_value(work, mark), key=key, pure=False)
            try:
                connection.client.publish_dataset(future, name=_PREFIX + name)
            except KeyError:
                # The reservation had expired, and another client has published this name.
                future.cancel()
                raise NameTakenError(_taken(name, _PUBLISHED)) from None
        return DriverTask(connection, name, future, dashboard_url_of(client))
    except BaseException:
        connection.close()
        raise


@contextmanager
def reserved_name(client: Any, name: str, key: str) -> Iterator[None]:
    """Reserve a name on the scheduler inside the block, which submits and publishes the driver.

    The scheduler handles one request after the other, so of two clients that submit the same name
    at the same time only one gets the name. The other one has submitted nothing yet: a second
    driver in the same directory could do harm before it is cancelled.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    name : str
        The name of the experiment.
    key : str
        The key of the task that the block submits.

    Raises
    ------
    NameTakenError
        If another client has published the name, or has reserved it.
    """
    if reason := client.run_on_scheduler(_reserve(), _PREFIX + name, key, _RESERVED_SECONDS):
        raise NameTakenError(_taken(name, reason))
    try:
        yield
    finally:
        with suppress(OSError):
            client.run_on_scheduler(_unreserve(), _PREFIX + name, key)


def _reserve() -> Callable[..., str]:
    """Return a function that reserves a name on the scheduler, and returns why not, or "".

    It is nested, to pickle by value.
    """

    def reserve(
        name: str,
        key: str,
        seconds: float,
        dask_scheduler: Any,
        published: str = _PUBLISHED,
        taken: str = _RESERVED,
    ) -> str:
        import time

        now = time.monotonic()
        reserved = dask_scheduler.__dict__.setdefault("_dasktune_reserved_names", {})
        # A client may die before it removes its reservation.
        for old in [old for old, (_, until) in reserved.items() if until <= now]:
            del reserved[old]
        if name in dask_scheduler.extensions["publish"].datasets:
            return published
        if name in reserved:
            return taken
        reserved[name] = (key, now + seconds)
        return ""

    return reserve


def _unreserve() -> Callable[..., None]:
    """Return a function that removes a reservation of a name; nested, to pickle by value."""

    def unreserve(name: str, key: str, dask_scheduler: Any) -> None:
        reserved = dask_scheduler.__dict__.get("_dasktune_reserved_names", {})
        if reserved.get(name, ("",))[0] == key:
            del reserved[name]

    return unreserve


def _taken(name: str, reason: str) -> str:
    return f"name must be new to the cluster, got {name!r}. {reason}"


def find_driver_task(client: Any, name: str, *, timeout_s: float) -> DriverTask:
    """Find a driver that :func:`start_driver_task` started on a cluster.

    Parameters
    ----------
    client, name, timeout_s
        As for :func:`start_driver_task`.

    Raises
    ------
    ConfigError
        If there is no driver of this name.
    """
    connection = connect(client, timeout_s=timeout_s)
    try:
        future = connection.client.get_dataset(_PREFIX + name, default=None)
        if future is None:
            known = connection.client.list_datasets()
            names = [one.removeprefix(_PREFIX) for one in known if str(one).startswith(_PREFIX)]
            rule = f"one of {names}" if names else "of an experiment that was submitted there"
            raise ConfigError(f"name must be {rule}, got {name!r}")
        return DriverTask(connection, name, future, dashboard_url_of(client))
    except BaseException:
        connection.close()
        raise


def _state() -> Callable[..., str | None]:
    """Return a function that reads a task's state on the scheduler; nested, to pickle by value."""

    def state(key: str, dask_scheduler: Any) -> str | None:
        task = dask_scheduler.tasks.get(key)
        return None if task is None else str(task.state)

    return state


@contextmanager
def serve_commands(
    handlers: dict[str, Callable[[str], None]], do: Callable[..., Future[Any]]
) -> Iterator[None]:
    """Make a driver's task secede, and handle the commands and calls of clients inside the block.

    Parameters
    ----------
    handlers : dict of str to callable
        The function for each command of :meth:`DriverTask.send`, called in another thread with the
        text that says who has sent it.
    do : callable
        ``do(name, *arguments)`` returns the future of the answer to a :meth:`DriverTask.call`.

    Raises
    ------
    ClusterError
        If this code does not run in a task.
    """
    try:
        key = get_worker().get_current_task()
    except ValueError as error:
        raise ClusterError("serve_commands must be called in a Dask task") from error
    secede()
    with connect() as connection:
        connection.client.run_on_scheduler(_reset_suspicion(), str(key))
        over = threading.Event()
        threads = [
            threading.Thread(
                target=_listen, args=(connection.client, _event(key, word), act, over), daemon=True
            )
            for word, act in handlers.items()
        ]
        for thread in threads:
            thread.start()
        try:
            with serving_calls(connection.client, str(key), do):
                yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _listen(client: Any, event: str, act: Callable[[str], None], over: threading.Event) -> None:
    heard = Event(event, client=client)
    while not over.is_set():
        try:
            if heard.wait(timeout=_LISTEN_INTERVAL):
                act(str(client.get_metadata([f"{event}-by"], default="")))
                return
        except (OSError, RuntimeError) as error:
            # The scheduler may be away for a while. The driver notices that by itself.
            logger.debug("cannot listen to %s: %r", event, error)
            over.wait(_LISTEN_INTERVAL)


def _event(key: object, word: str) -> str:
    # The name contains the task's key, because an experiment of the same name may be submitted
    # again later.
    return f"dasktune-{word}-{key}"


def _reset_suspicion() -> Callable[..., None]:
    """Return a function that resets a task's count of dead workers; nested, to pickle by value."""

    def reset(key: str, dask_scheduler: Any) -> None:
        task = dask_scheduler.tasks.get(key)
        if task is not None:
            task.suspicious = 0

    return reset
