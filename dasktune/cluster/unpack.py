"""Opening what the user wrote, on a worker: for a thread here, or for a process of its own."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

from dasktune.cluster.nested import ClusterAccess, SharedClient
from dasktune.errors import TuneError
from dasktune.registry import offer_envs
from dasktune.trainable.nested import offer_client
from dasktune.trainable.parcel import Code, Parcel, open_code, open_config
from dasktune.trainable.shared_objects import SharedObject

__all__ = ["Unpacker"]


class Unpacker:
    """Opens the trainable once for a slot, and a configuration for each of its trials.

    All methods are for a trial's own thread: they may run user code, and wait.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    plugin : ExperimentPlugin
        The experiment's plugin on it.
    slot : TrialSlot
        The slot.
    patience : float
        Seconds to wait for trials of lost drivers.
    """

    def __init__(self, worker: Any, plugin: Any, slot: Any, patience: float) -> None:
        self._worker = worker
        self._plugin = plugin
        self._slot = slot
        self._patience = patience
        self._code: Code | None = None

    def open(self, config: bytes) -> tuple[Any, Any]:
        """Return trainable and configuration."""
        self._await_orphans()
        if self._code is None:
            self._code = open_code(self._plugin.payload, self._shared)
        offer_client(self._client)
        offer_envs(self._code.envs)
        return self._code.trainable, open_config(config)

    def close(self) -> None:
        """Let go of the trainable, and so of the large objects that are bound to it."""
        self._code = None

    def parcel(self, config: bytes) -> Parcel:
        """Return what another process on this host opens."""
        self._await_orphans()
        objects = self._plugin.shared.items()
        files = {name: one.path() for name, one in objects if isinstance(one, SharedObject)}
        client = pickle.dumps(SharedClient(ClusterAccess.of_worker(self._worker)))
        return Parcel(payload=self._plugin.payload, config=config, shared=files, client=client)

    def _await_orphans(self) -> None:
        """Let trials of lost drivers end: what they were started for is to run again, maybe here.

        They still use this worker.
        """
        deadline = time.monotonic() + self._patience
        for orphan in self._orphans():
            orphan.join(max(0.0, deadline - time.monotonic()))

    def _orphans(self) -> Iterator[Any]:
        """Yield the slots of lost drivers on this worker, our own before a reconnect among them."""
        for name, plugin in tuple(self._worker.plugins.items()):
            if name.startswith("dasktune-"):
                slots = tuple(plugin.slots.values())
                yield from (slot for slot in slots if slot.is_forgotten and slot is not self._slot)

    def _shared(self, name: str) -> Any:
        """Return a large object, which is on this worker before a trial is assigned."""
        return self._plugin.shared[name].get()

    def _client(self) -> Any:
        """Return the client that the trials of this worker share."""
        if self._slot.is_forgotten:
            # Nobody would close it any more.
            raise TuneError("get_client() was called after the end of the experiment")
        shared = SharedClient(ClusterAccess.of_worker(self._worker))
        return self._plugin.shared.setdefault("client", shared).get()
