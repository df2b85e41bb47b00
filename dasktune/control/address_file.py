"""The file with the URL of an experiment's control server, in its directory; without the token.

A driver that dies leaves the file behind, and a new driver acquires its lease before it replaces
the file. So `read` compares the file with the lease, and ignores the file of another driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Final
from urllib.parse import urlsplit

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.strict_json import parse
from dasktune.storage.leader.leader_lease import DIRECTORY, LeaderLease, machine_id

logger = logging.getLogger(__name__)

_FILE: Final = f"{DIRECTORY}/control.json"
_KIND: Final = "dasktune control"


def write(storage: Storage, url: str) -> None:
    """Write the URL of this process's server; log a warning if that fails.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    url : str
        The server's URL.
    """
    content = {"kind": _KIND, "url": url, "pid": os.getpid(), "machine": machine_id()}
    try:
        storage.write_bytes(_FILE, json.dumps(content).encode("ascii"))
    except Exception as error:  # a storage client may raise any exception
        logger.warning("could not write the URL of the control server: %r", error)


def remove(storage: Storage) -> None:
    """Delete the file.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    with contextlib.suppress(Exception):  # without the driver's lease the file is ignored
        storage.remove(_FILE)


def read(storage: Storage, lease: LeaderLease) -> str | None:
    """Return the URL of the driver's control server; None if the driver has not written one.

    Parameters
    ----------
    storage : Storage
        The experiment's directory, which is not trusted.
    lease : LeaderLease
        The lease of the driver.
    """
    try:
        content = parse(storage.read_bytes(_FILE))
        owner = content["kind"], content["pid"], content["machine"]
        if owner != (_KIND, lease.pid, lease.machine):
            return None
        parts = urlsplit(content["url"])
        # A forged file must not make a client send its token to another machine.
        local = parts.scheme == "http" and parts.hostname == "127.0.0.1" and parts.port is not None
        return f"http://127.0.0.1:{parts.port}" if local else None
    except (OSError, StorageError, ValueError, KeyError, TypeError, AttributeError):
        return None
