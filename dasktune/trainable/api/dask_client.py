"""A Dask client for user code in a trial: :func:`get_client`."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.api.session import protected

__all__ = ["get_client", "offer_pickled_client", "set_client_factory"]

#: Returns the client of the trial whose code runs here. `dasktune.cluster` sets it.
_factory: ContextVar[Callable[[], Any] | None] = ContextVar("dasktune_client", default=None)


def set_client_factory(factory: Callable[[], Any]) -> None:
    """Make :func:`get_client` work in this thread and in what inherits its context.

    Parameters
    ----------
    factory : callable
        Returns the client; called by each :func:`get_client`.
    """
    _factory.set(factory)


def offer_pickled_client(blob: bytes) -> None:
    """Make :func:`get_client` work in a child process of a worker.

    Dask is imported only when user code requests the client. The process has one client.

    Parameters
    ----------
    blob : bytes
        A pickled :class:`dasktune.cluster.connection.shared_client.SharedClient`. It may contain
        the keys to the cluster, so it must not be passed where others can see it, such as in the
        environment.
    """
    set_client_factory(lambda: _unpickled(blob).get())


@functools.cache
def _unpickled(blob: bytes) -> Any:
    return pickle.loads(blob)


def get_client() -> Any:
    """Return a Dask client with which a trial can run tasks on its cluster.

    The client is synchronous, shared by the trials of a worker and closed with the experiment: do
    not close it, and do not use it in a ``with`` statement. It is not the default client; for Dask
    collections write ``with get_client().as_current():``.

    A trial that waits for its tasks takes no thread from them. Keep a reference to their futures:
    tasks of a trial that is stopped, or whose worker is lost, are cancelled unless already running.

    Returns
    -------
    distributed.Client
        Connected to the cluster of the experiment.

    Raises
    ------
    TuneError
        Outside of a trial.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     folds = tune.get_client().map(abs, [-3, config["x"]])
    ...     return {"loss": sum(tune.get_client().gather(folds))}
    """
    source = _factory.get()
    if source is None:
        raise TuneError(
            "get_client() was called outside of a trial that runs on a Dask cluster. Outside of "
            "one, use your own client. In a thread that your code starts, run it through "
            "contextvars.copy_context().run(...) to stay inside the trial."
        )
    with protected():
        return source()
