"""Where this code runs: beside a cluster, in a task of one, or on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from distributed import Client, SpecCluster, default_client, get_worker, rejoin, secede

__all__ = ["has_cluster", "is_on_its_loop", "leaving_the_pool"]

#: Of each thread: whether it is out of its pool, which it cannot leave twice.
_thread: Final = threading.local()


def has_cluster() -> bool:
    """Whether there is a cluster that `client=None` names: a current client's, or a task's own.

    Examples
    --------
    >>> has_cluster()
    False
    """
    if _in_task():
        return True
    try:
        return bool(default_client().status != "closed")
    except ValueError:
        return False


@contextmanager
def leaving_the_pool() -> Iterator[None]:
    """Let other tasks have the thread's place meanwhile, if this is a Dask task.

    Those that it waits for may need it. Who has left already leaves no more.
    """
    if not _in_task() or getattr(_thread, "has_left", False):
        yield
        return
    secede()
    _thread.has_left = True
    try:
        yield
    finally:
        _thread.has_left = False
        rejoin()


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def is_on_its_loop(client: Any) -> bool:
    """Whether this code runs on the event loop of the client that would be used.

    Parameters
    ----------
    client : object
        What names a cluster; None for the current client.
    """
    if client is None:
        try:
            client = default_client()
        except ValueError:
            return False
    return isinstance(client, Client | SpecCluster) and bool(client.asynchronous)
