"""A server for experiments that run somewhere else, or have ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.dashboard.server.shelf import Directory
from dasktune.dashboard.server.web import WebServer
from dasktune.errors import check
from dasktune.rules import is_port
from dasktune.storage.location import Storage

__all__ = ["serve"]


def serve(
    path: str | os.PathLike[str],
    *,
    port: int = 8788,
    address: str = "localhost",
    origins: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> WebServer:
    """Show experiments in a browser, live or finished, by what their journals tell.

    Nothing of them is unpickled or executed, so they may be anybody's. The pages follow a journal
    as it grows. Whoever reaches the server can look at the experiments; nobody can change them.
    Where other machines can reach it, only those see them who have the token of its ``link``.

    Parameters
    ----------
    path : str or path
        An experiment's directory, or one that has several; or a URL of fsspec.
    port : int, default=8788
        Where it listens. If somebody else does already, or for 0, it is a free port.
    address : str, default="localhost"
        Which interface it listens at; by default nobody reaches it from other machines.
    origins : sequence of str, default=()
        Other names by which browsers may call it, as ``host:port``, such as those of a proxy.
    storage_options : mapping, optional
        What fsspec needs for the URL.

    Returns
    -------
    WebServer
        It runs in a thread. Its ``url`` says where, and ``close()`` ends it.

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
    return WebServer(Directory(storage), port=port, address=address, origins=origins)
