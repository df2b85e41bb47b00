"""Finds out whether this code runs in a Dask task, beside a client, or without a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from distributed import Client, SpecCluster, default_client, get_worker, rejoin, secede

#: For each thread, whether it has seceded. A thread must not secede twice.
_thread: Final = threading.local()


def has_cluster() -> bool:
    """Whether `client=None` names a cluster: that of this Dask task, or of the default client.

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
def seceded() -> Iterator[None]:
    """Secede inside the ``with`` block, if this is a Dask task, so that other tasks can run.

    The block may wait for other tasks. In a thread that has already seceded, this does nothing.
    """
    if not _in_task() or getattr(_thread, "has_seceded", False):
        yield
        return
    secede()
    _thread.has_seceded = True
    try:
        yield
    finally:
        _thread.has_seceded = False
        rejoin()


def _in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def on_event_loop(client: Any) -> bool:
    """Whether this code runs on the event loop of the named client.

    Parameters
    ----------
    client : object
        The user's object that names a cluster; None for the default client.
    """
    if client is None:
        try:
            client = default_client()
        except ValueError:
            return False
    return isinstance(client, Client | SpecCluster) and bool(client.asynchronous)
