"""A driver that lives on the cluster: as a task that Dask starts again wherever its worker dies.

Dask gives a task up after it has seen it die on several workers, as the task may have killed them.
A driver has not: it is trials that kill workers, and they are counted elsewhere. So each start of
the driver clears its record with the scheduler.
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

from dasktune.cluster.calls import answering, call
from dasktune.cluster.connect import Connection, connect
from dasktune.cluster.opaque import opaque
from dasktune.cluster.poster import find_link, place_of
from dasktune.cluster.shared import check_seen, check_shared
from dasktune.errors import ClusterError, ConfigError, check
from dasktune.storage.location import Storage
from dasktune.storage.luggage import Seen

__all__ = ["Hosted", "find_hosted", "host", "hosted_here"]

logger = logging.getLogger(__name__)

#: Published under this and the experiment's name, so that Dask keeps it when its client leaves.
_PREFIX: Final = "dasktune/"

#: Bytes of the task, which the scheduler holds.
_LARGEST: Final = 32 << 20

#: How a client calls the states in which the scheduler has a task that has ended.
_ENDS: Final = {"memory": "finished", "erred": "error"}

#: Seconds for which a driver may take to answer a call.
_PATIENCE: Final = 30.0

#: Seconds in which a driver that has ended stops to listen.
_EAR_INTERVAL: Final = 1.0


class Hosted:
    """A driver on the cluster, as a client sees it.

    Parameters
    ----------
    connection : Connection
        To the cluster; closed by :meth:`close`.
    name : str
        The experiment's name.
    future : distributed.Future
        The driver's task.
    place : str, default=""
        Where Dask's dashboard is, as a link to one of its pages, if that is known.
    """

    def __init__(self, connection: Connection, name: str, future: Any, place: str = "") -> None:
        self._connection = connection
        self._place = place
        self._future = future
        self.name = name

    @property
    def status(self) -> str:
        """Dask's word for the task: pending, finished, error, cancelled or lost."""
        status = str(self._future.status)
        if status == "pending":
            # A client that has only just come has not been told what the scheduler knows.
            with suppress(OSError):
                state = self._connection.client.run_on_scheduler(_state(), self._future.key)
                status = _ENDS.get(state, status)
        return status

    @property
    def dashboard_link(self) -> str:
        """Where Dask's dashboard shows the experiment; empty if it does not, or not yet."""
        try:
            return find_link(self._connection.client, self.name, self._place)
        except Exception:
            # A scheduler that is away, or whose pages are somebody else's.
            logger.debug("the dashboard of %s cannot be asked for", self.name, exc_info=True)
            return ""

    def result(self, timeout: float | None) -> Any:
        """Return what the driver returned; TimeoutError if it has not within `timeout` seconds."""
        return self._future.result(timeout=timeout)

    def tell(self, word: str) -> None:
        """Tell the driver something, whichever worker it is on now or will be on."""
        Event(_event(self._future.key, word), client=self._connection.client).set()

    def call(self, name: str, *arguments: Any) -> Any:
        """Have the driver do something, and return what came of it; see `calls`."""
        return call(self._connection.client, str(self._future.key), name, arguments, _PATIENCE)

    def forget(self) -> None:
        """Let the cluster forget the driver, which ends it if it has not ended."""
        self._connection.client.unpublish_dataset(_PREFIX + self.name)
        self._future.release()

    def close(self) -> None:
        """Leave it alone."""
        self._connection.close()


def host(
    client: Any,
    name: str,
    work: Callable[[str], Any],
    storage: Callable[[], Storage],
    *,
    timeout_s: float,
    seen: Seen | None = None,
) -> Hosted:
    """Let a cluster do something that outlives its client.

    Parameters
    ----------
    client : object
        What names the cluster; see :func:`~dasktune.cluster.connect.connect`.
    name : str
        What it is found by.
    work : callable
        Called in a task; again wherever the worker that runs it dies. It must be picklable. It is
        given what :func:`~dasktune.cluster.shared.check_shared` returned.
    storage : callable
        Returns the experiment's directory as a worker sees it.
    timeout_s : float
        Seconds for which the client waits for a lost scheduler.
    seen : Seen, optional
        A directory that workers must see.

    Raises
    ------
    ConfigError
        If there is no cluster that outlives this process, the name is taken, `work` is too large,
        or the workers do not share the storage or see the directory.
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
        check(size <= _LARGEST, "trainable", f"at most {_LARGEST >> 20} MiB pickled", size, hint)
        if _PREFIX + name in connection.client.list_datasets():
            raise _taken(name)
        if seen is not None:
            connection.client.sync(check_seen, connection.client, seen)
        mark = connection.client.sync(check_shared, connection.client, storage)
        key = f"dasktune-driver-{name}-{uuid.uuid4().hex}"
        future = connection.client.submit(opaque(work, mark), key=key, pure=False)
        try:
            connection.client.publish_dataset(future, name=_PREFIX + name)
        except KeyError:
            # Somebody else was quicker.
            future.cancel()
            raise _taken(name) from None
        return Hosted(connection, name, future, place_of(client))
    except BaseException:
        connection.close()
        raise


def _taken(name: str) -> ConfigError:
    hint = "attach() to that one; when it has ended, forget() frees its name."
    return ConfigError(f"name must be new to the cluster, got {name!r}. {hint}")


def find_hosted(client: Any, name: str, *, timeout_s: float) -> Hosted:
    """Return what :func:`host` left on a cluster.

    Parameters
    ----------
    client, name, timeout_s
        As for :func:`host`.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    connection = connect(client, timeout_s=timeout_s)
    try:
        future = connection.client.get_dataset(_PREFIX + name, default=None)
        if future is None:
            known = connection.client.list_datasets()
            names = [one.removeprefix(_PREFIX) for one in known if str(one).startswith(_PREFIX)]
            rule = f"one of {names}" if names else "of an experiment that was submitted there"
            raise ConfigError(f"name must be {rule}, got {name!r}")
        return Hosted(connection, name, future, place_of(client))
    except BaseException:
        connection.close()
        raise


def _state() -> Callable[..., str | None]:
    """Return what tells a task's state; pickled by value, as the scheduler may lack dasktune."""

    def state(key: str, dask_scheduler: Any) -> str | None:
        task = dask_scheduler.tasks.get(key)
        return None if task is None else str(task.state)

    return state


@contextmanager
def hosted_here(
    ears: dict[str, Callable[[], None]], do: Callable[..., Future[Any]]
) -> Iterator[None]:
    """Be the task of a driver: leave the worker's threads to others, and hear what clients say.

    Parameters
    ----------
    ears : dict of str to callable
        What to call at a word of :meth:`Hosted.tell`, in a thread of its own.
    do : callable
        ``do(name, *arguments)`` gives the future of what :meth:`Hosted.call` asks for.

    Raises
    ------
    ClusterError
        If this is no task.
    """
    try:
        key = get_worker().get_current_task()
    except ValueError as error:
        raise ClusterError("a driver can be hosted only by a task") from error
    secede()
    with connect() as connection:
        connection.client.run_on_scheduler(_forgive(), str(key))
        over = threading.Event()
        threads = [
            threading.Thread(
                target=_listen, args=(connection.client, _event(key, word), act, over), daemon=True
            )
            for word, act in ears.items()
        ]
        for thread in threads:
            thread.start()
        try:
            with answering(connection.client, str(key), do):
                yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _listen(client: Any, event: str, act: Callable[[], None], over: threading.Event) -> None:
    heard = Event(event, client=client)
    while not over.is_set():
        try:
            if heard.wait(timeout=_EAR_INTERVAL):
                act()
                return
        except (OSError, RuntimeError) as error:
            # The scheduler may be away for a while; a driver without it has other sorrows.
            logger.debug("cannot listen to %s: %r", event, error)
            over.wait(_EAR_INTERVAL)


def _event(key: object, word: str) -> str:
    # Of this task: an experiment of the same name may be submitted again later.
    return f"dasktune-{word}-{key}"


def _forgive() -> Callable[..., None]:
    """Return what lets the scheduler forget on how many workers a task has died; by value, too."""

    def forgive(key: str, dask_scheduler: Any) -> None:
        task = dask_scheduler.tasks.get(key)
        if task is not None:
            task.suspicious = 0

    return forgive
