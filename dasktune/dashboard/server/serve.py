"""Serve the dashboard of experiments that run elsewhere, or have ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.config.validation import is_port
from dasktune.dashboard.server.experiment_source import ExperimentFolder
from dasktune.dashboard.server.web import WebServer
from dasktune.errors import check
from dasktune.storage.fs.storage import Storage


def serve(
    path: str | os.PathLike[str],
    *,
    port: int = 8788,
    address: str = "localhost",
    origins: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> WebServer:
    """Serve web pages of experiments, running or finished, from their journals.

    Nothing is unpickled and no user code is executed, so untrusted directories are safe to serve.
    The pages follow a journal as it grows. They are read-only. If other machines can reach the
    server, the pages require the token in its ``link``.

    Parameters
    ----------
    path : str or path
        The directory of an experiment or of several experiments; or a URL of fsspec.
    port : int, default=8788
        The port. If it is in use, or 0, a free port is chosen.
    address : str, default="localhost"
        The interface; by default other machines cannot reach the server.
    origins : sequence of str, default=()
        Other names of this server that browsers may use, as ``host:port``, such as a proxy's.
    storage_options : mapping, optional
        Options of fsspec for the URL.

    Returns
    -------
    WebServer
        The server, which runs in a thread. ``url`` is its address, and ``close()`` stops it.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    StorageError
        If there is no experiment.
    OSError
        If it cannot listen at this address.

    Examples
    --------
    >>> server = serve("~/dasktune_results")  # doctest: +SKIP
    >>> server.url  # doctest: +SKIP
    'http://localhost:8788/'
    """
    check(port == 0 or is_port(port), "port", "an int from 0 to 65535", port)
    storage = Storage(path, storage_options or {})  # type: ignore[arg-type]
    return WebServer(ExperimentFolder(storage), port=port, address=address, origins=origins)
