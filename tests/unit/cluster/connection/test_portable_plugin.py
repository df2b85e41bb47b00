"""A plugin on its way to workers with this Python and with another one."""

from __future__ import annotations

import pickle
import sys

from distributed import WorkerPlugin
from distributed.protocol.pickle import dumps, loads

from dasktune.cluster.connection.by_value import PortablePlugin
from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin


def test_a_worker_with_this_python_gets_the_plugin():
    carried = PortablePlugin(ExperimentPlugin("dasktune-x@client", b"trainable"))
    assert carried.name == "dasktune-x@client"
    assert carried.idempotent
    # As Dask does.
    plugin = loads(dumps(carried))
    assert type(plugin).__name__ == "ExperimentPlugin"
    assert (plugin.name, plugin.payload, plugin.leases) == ("dasktune-x@client", b"trainable", {})


def test_a_worker_with_another_python_gets_one_that_does_nothing(monkeypatch):
    blob = pickle.dumps(PortablePlugin(ExperimentPlugin("dasktune-x@client", b"trainable")))
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert type(pickle.loads(blob)) is WorkerPlugin


def test_no_code_of_this_python_is_unpickled_by_another_one(monkeypatch):
    class Loud(WorkerPlugin):
        name = "loud"

        def __reduce__(self):
            return eval, ("1 / 0",)

    blob = pickle.dumps(PortablePlugin(Loud()))
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert type(pickle.loads(blob)) is WorkerPlugin
