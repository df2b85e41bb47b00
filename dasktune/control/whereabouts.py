"""Where the control server of an experiment is, as a file in its directory says; without its token.

The file counts only beside the lease of the driver that wrote it: a driver that died has left it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Final
from urllib.parse import urlsplit

from dasktune.errors import StorageError
from dasktune.storage.lease import DIRECTORY, Lease, machine_id
from dasktune.storage.location import Storage
from dasktune.storage.strict_json import parse

__all__ = ["forget", "note", "read"]

logger = logging.getLogger(__name__)

_FILE: Final = f"{DIRECTORY}/control.json"
_KIND: Final = "dasktune control"


def note(storage: Storage, url: str) -> None:
    """Write where this process listens; if that fails, a warning says so.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    url : str
        Where.
    """
    told = {"kind": _KIND, "url": url, "pid": os.getpid(), "machine": machine_id()}
    try:
        storage.write_bytes(_FILE, json.dumps(told).encode("ascii"))
    except Exception as error:  # whatever the store's client raises
        logger.warning("could not write where the control server is: %r", error)


def forget(storage: Storage) -> None:
    """Take away what :func:`note` has written.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    with contextlib.suppress(Exception):  # nobody believes it without the lease
        storage.remove(_FILE)


def read(storage: Storage, lease: Lease) -> str | None:
    """Return where the driver listens that has a lease; None if it does not, or nobody knows.

    Parameters
    ----------
    storage : Storage
        The experiment's directory, which may be anybody's.
    lease : Lease
        What that driver says of itself.
    """
    try:
        told = parse(storage.read_bytes(_FILE))
        if (told["kind"], told["pid"], told["machine"]) != (_KIND, lease.pid, lease.machine):
            return None
        parts = urlsplit(told["url"])
        # Nobody else's directory may have a token sent to another machine.
        local = parts.scheme == "http" and parts.hostname == "127.0.0.1" and parts.port is not None
        return f"http://127.0.0.1:{parts.port}" if local else None
    except (OSError, StorageError, ValueError, KeyError, TypeError, AttributeError):
        return None
