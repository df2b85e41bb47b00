"""A Dask client for user code in a trial: :func:`get_client`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dasktune.errors import TuneError
from dasktune.trainable.session import protected

__all__ = ["get_client", "offer_client"]

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
