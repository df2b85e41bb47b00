"""A Dask client for user code in a trial: :func:`get_client`."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.session import protected

__all__ = ["get_client", "offer_client", "offer_pickled_client"]

#: What gives the client of the trial whose code runs here. Who knows Dask puts it there.
_source: ContextVar[Callable[[], Any] | None] = ContextVar("dasktune_client", default=None)


def offer_client(source: Callable[[], Any]) -> None:
    """Let :func:`get_client` work in this thread and in what inherits its context.

    Parameters
    ----------
    source : callable
        Returns the client; called each time that user code asks for it.
    """
    _source.set(source)


def offer_pickled_client(blob: bytes) -> None:
    """Let :func:`get_client` work in a child process that trials run in.

    Nothing of Dask is imported before user code asks for the client; there is one for the process.

    Parameters
    ----------
    blob : bytes
        A pickled :class:`dasktune.cluster.nested.SharedClient`. It may hold the keys to the
        cluster, so it must not be passed where others can see it, such as in the environment.
    """
    offer_client(lambda: _unpickled(blob).get())


@functools.cache
def _unpickled(blob: bytes) -> Any:
    return pickle.loads(blob)


def get_client() -> Any:
    """Return a Dask client with which a trial can run tasks on the cluster that it runs on.

    The client is synchronous, shared by the trials of a worker and closed with the experiment: do
    not close it, and do not use it in a ``with`` statement. It is not the default client; for Dask
    collections write ``with get_client().as_current():``.

    A trial that waits for its tasks takes no thread from them. Their futures live as long as the
    trial holds on to them: tasks of a trial that is stopped, or whose worker is lost, are cancelled
    unless they run already.

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
    source = _source.get()
    if source is None:
        raise TuneError(
            "get_client() was called outside of a trial that runs on a Dask cluster. There, use "
            "the client that you have; in a thread that your code starts, run it through "
            "contextvars.copy_context().run(...) to stay inside the trial."
        )
    with protected():
        return source()
