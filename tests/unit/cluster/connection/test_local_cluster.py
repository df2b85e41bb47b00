from __future__ import annotations

import asyncio

import dask
from distributed import LocalCluster

from dasktune.cluster.connection.local_cluster import StartedLocalCluster

SETTING = "distributed.deploy.lost-worker-timeout"


def patience(kind, monkeypatch):
    """Return the seconds after which a cluster looks whether a lost worker is back."""
    asked = []

    async def lose_a_worker():
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda delay, *rest: asked.append(delay))
        cluster._update_worker_status("remove", "tcp://worker")

    cluster = kind.__new__(kind)
    cluster.scheduler_info = {"workers": {"tcp://worker": {"name": 0}}}
    asyncio.run(lose_a_worker())
    assert not cluster.scheduler_info["workers"]
    return asked


def test_an_embedded_cluster_does_not_give_up_a_worker_that_is_slow_to_come_back(monkeypatch):
    with dask.config.set({SETTING: "15s"}):
        assert patience(LocalCluster, monkeypatch) == [15]
        [seconds] = patience(StartedLocalCluster, monkeypatch)
        assert dask.config.get(SETTING) == "15s"
    assert seconds > 365 * 24 * 3600
