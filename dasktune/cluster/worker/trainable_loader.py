"""Unpickles the trainable and the configurations on a worker, for threads and child processes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

from dasktune.cluster.connection.open_client import ClusterAccess, SharedClient
from dasktune.errors import TuneError
from dasktune.registry import offer_envs
from dasktune.trainable.api.dask_client import set_client_factory
from dasktune.trainable.data.child_payload import ChildPayload, UserCode, open_code, open_config
from dasktune.trainable.data.shared_objects import SharedObject


class TrainableLoader:
    """Unpickles the trainable once for an actor, and a configuration for each of its trials.

    A trial's own thread calls all methods but :meth:`close`, because they may run user code and
    wait.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    plugin : ExperimentPlugin
        The experiment's plugin on the worker.
    actor : TrialActor
        The actor that runs the trials.
    orphan_timeout : float
        Seconds to wait until the trials of lost drivers on this worker have ended.
    """

    def __init__(self, worker: Any, plugin: Any, actor: Any, orphan_timeout: float) -> None:
        self._worker = worker
        self._plugin = plugin
        self._actor = actor
        self._orphan_timeout = orphan_timeout
        self._code: UserCode | None = None

    def open(self, config: bytes) -> tuple[Any, Any]:
        """Return the trainable and the configuration."""
        self._await_orphans()
        if self._code is None:
            self._code = open_code(self._plugin.payload, self._shared)
        set_client_factory(self._client)
        offer_envs(self._code.envs)
        return self._code.trainable, open_config(config)

    def close(self) -> None:
        """Drop the trainable, and with it the large objects that are bound to it.

        A trial's thread may be in :meth:`open`. It keeps its own references until it ends.
        """
        self._code = None

    def child_payload(self, config: bytes) -> ChildPayload:
        """Return what a child process on this host unpickles."""
        self._await_orphans()
        objects = tuple(self._plugin.shared.items())
        files = {name: one.path() for name, one in objects if isinstance(one, SharedObject)}
        client = pickle.dumps(SharedClient(ClusterAccess.of_worker(self._worker)))
        return ChildPayload(code=self._plugin.payload, config=config, shared=files, client=client)

    def _await_orphans(self) -> None:
        """Wait until stopped trials of lost drivers no longer run on this worker.

        If the driver was restarted, one of them may be an earlier run of this trial.
        """
        deadline = time.monotonic() + self._orphan_timeout
        for orphan in self._orphans():
            orphan.join(max(0.0, deadline - time.monotonic()))

    def _orphans(self) -> Iterator[Any]:
        """Yield the worker's actors of lost drivers, and of this driver before it reconnected."""
        for name, plugin in tuple(self._worker.plugins.items()):
            if name.startswith("dasktune-"):
                actors = tuple(plugin.actors.values())
                yield from (actor for actor in actors if actor.is_forgotten and actor is not self._actor)

    def _shared(self, name: str) -> Any:
        """Return a large object, which reaches the worker before a trial is assigned."""
        return self._plugin.shared[name].get()

    def _client(self) -> Any:
        """Return the client that the trials of this worker share.

        If two threads create one at the same time, both use the first one, because `setdefault` is
        atomic. The second one never connects.
        """
        if self._actor.is_forgotten:
            # After the end of the experiment nothing would close the client.
            raise TuneError("get_client() was called after the end of the experiment")
        shared = SharedClient(ClusterAccess.of_worker(self._worker))
        return self._plugin.shared.setdefault("client", shared).get()
