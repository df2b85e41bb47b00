"""The checks of a preflight that run on a worker.

They are apart from `dasktune.cluster.checks.preflight`, so that workers import only what trials
need anyway: until the imports are done, the first experiment of a cluster waits.
"""

from __future__ import annotations

from typing import Any

from dasktune.cluster.connection.daemon_thread import run_in_daemon_thread
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.data.shared_objects import loads_with

__all__ = ["examine", "reply_name"]


def reply_name(name: str) -> str:
    """Return the name of the copy that a worker writes of the driver's file `name`."""
    return f"{name}-reply"


async def examine(blob: bytes, storage: Storage, name: str) -> dict[str, Any]:
    """Check user code and the storage on this worker, in a thread.

    Parameters
    ----------
    blob : bytes
        The pickled trainable, which must unpickle; empty to check the storage alone.
    storage : Storage
        The storage, which must have the driver's file `name` and take a copy of it.
    name : str
        The name of that file.

    Returns
    -------
    dict
        The errors as text, because an exception may not unpickle: ``missing`` has the name of a
        module, ``code`` an error of user code, ``storage`` an error of the storage.
    """
    found: dict[str, Any] = await run_in_daemon_thread(_examination, blob, storage, name)
    return found


def _examination(blob: bytes, storage: Storage, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        if blob:
            # The large objects are not on the worker yet, so None replaces them.
            loads_with(blob, lambda name: None)
    except ModuleNotFoundError as exc:
        found["missing"] = exc.name or str(exc)
    except BaseException as exc:  # importing user code may do anything, sys.exit() included
        found["code"] = f"{type(exc).__name__}: {exc}"
    try:
        token = storage.read_bytes(name)
        storage.write_bytes(reply_name(name), token)
    except Exception as exc:
        found["storage"] = f"{type(exc).__name__}: {exc}"
    return found
