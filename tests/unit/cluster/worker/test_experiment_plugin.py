from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

from distributed.core import Status

from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin


class Worker:
    """A worker as a plugin sees it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.plugins: dict[str, Any] = {}

    def add(self, plugin: ExperimentPlugin) -> None:
        self.plugins[plugin.name] = plugin
        plugin.setup(self)


def test_a_worker_that_served_ranks_forgets_the_experiment_at_its_end():
    worker, plugin = Worker(), ExperimentPlugin("dasktune-x@client", b"a large trainable")
    worker.add(plugin)
    # As Dask does with each handler that it has called, for as long as the process lives.
    kept = worker.handlers[plugin.ranks_op]
    asyncio.run(worker.plugins.pop(plugin.name).teardown(worker))
    assert worker.handlers == {}
    left = weakref.ref(plugin), weakref.ref(worker)
    del plugin, worker
    gc.collect()
    assert [one() for one in left] == [None, None]
    assert callable(kept)


def test_a_connection_that_comes_after_the_end_of_the_experiment_is_ended():
    worker, plugin = Worker(), ExperimentPlugin("dasktune-x@client", b"")
    worker.add(plugin)
    serve = worker.handlers[plugin.ranks_op]
    del worker.plugins[plugin.name]
    aborted: list[bool] = []
    comm = SimpleNamespace(abort=lambda: aborted.append(True))
    assert asyncio.run(serve(comm, actor="a", lost_after_s=1.0)) is Status.dont_reply
    assert aborted == [True]
