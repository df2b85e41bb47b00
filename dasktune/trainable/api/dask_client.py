"""A Dask client for user code in a trial: :func:`get_client`."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.api.session import protected

#: Returns the client of the trial whose code runs here. `dasktune.cluster` sets it.
_factory: ContextVar[Callable[[], Any] | None] = ContextVar("dasktune_client", default=None)


def set_client_factory(factory: Callable[[], Any]) -> None:
    """Make :func:`get_client` work in this thread, and in code that runs in a copy of its context.

    Parameters
    ----------
    factory : callable
        Returns the client. Each call of :func:`get_client` calls it.
    """
    _factory.set(factory)


def offer_pickled_client(blob: bytes) -> None:
    """Make :func:`get_client` work in a child process of a worker.

    Dask is imported only when user code requests the client. All calls in the process return the
    same client.

    Parameters
    ----------
    blob : bytes
        A pickled :class:`dasktune.cluster.connection.open_client.SharedClient`. It may contain
        the TLS keys of the cluster, so never pass it where others can see it, such as in an
        environment variable.
    """
    set_client_factory(lambda: _unpickle(blob).get())


@functools.cache
def _unpickle(blob: bytes) -> Any:
    return pickle.loads(blob)


def get_client() -> Any:
    """Return a Dask client with which a trial can run tasks on its cluster.

    The client is synchronous, shared by the trials of a worker and closed with the experiment: do
    not close it, and do not use it in a ``with`` statement. It is not the default client; for Dask
    collections write ``with get_client().as_current():``.

    A trial that waits for its tasks occupies none of Dask's threads, so they can run. Keep a
    reference to their futures, as with any client. When the trial is stopped or its worker is lost,
    tasks that do not run yet are cancelled.

    Returns
    -------
    distributed.Client
        Connected to the cluster of the experiment.

    Raises
    ------
    TuneError
        Outside of a trial, or in a process that user code has forked.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     folds = tune.get_client().map(abs, [-3, config["x"]])
    ...     return {"loss": sum(tune.get_client().gather(folds))}
    """
    factory = _factory.get()
    if factory is None:
        raise TuneError(
            "get_client() was called outside of a trial that runs on a Dask cluster. Outside of "
            "a trial, use your own client. In a thread that your code starts, run its function "
            "by contextvars.copy_context().run(...), which keeps it inside the trial."
        )
    # An interrupt while a client connects would leave a client that nothing closes.
    with protected("get_client()"):
        return factory()
