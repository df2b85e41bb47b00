"""The checks of a preflight that run on a worker.

They are apart from `dasktune.cluster.checks.preflight`, so that workers import only what trials
need anyway: until the imports are done, the first experiment of a cluster waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from dasktune.cluster.connection.daemon_thread import run_in_daemon_thread
from dasktune.cluster.resources.declare import list_gpus
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.data.shared_objects import loads_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Checks user code and the storage on a worker, and lists the worker's GPUs.

    Parameters
    ----------
    storage : Storage
        The storage.
    token : str
        The name of the driver's file there.
    """

    storage: Storage
    token: str

    async def run(self, blob: bytes, reply: str) -> dict[str, Any]:
        """Run on a worker's event loop.

        Parameters
        ----------
        blob : bytes
            The pickled trainable, which must unpickle; empty for none.
        reply : str
            The name of the copy that the worker writes of the driver's file; empty if the storage
            is not checked.

        Returns
        -------
        dict
            ``gpus`` has the GPUs that are visible. The others are errors as text, because an
            exception may not unpickle: ``missing`` has the name of a module, ``code`` an error of
            user code, ``storage`` an error of the storage.
        """
        checking = run_in_daemon_thread(self._check, blob, reply)
        gpus, found = await asyncio.gather(list_gpus(), checking)
        return {"gpus": gpus, **found}

    def _check(self, blob: bytes, reply: str) -> dict[str, Any]:
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
            if reply:
                self.storage.write_bytes(reply, self.storage.read_bytes(self.token))
        except Exception as exc:
            found["storage"] = f"{type(exc).__name__}: {exc}"
        return found
