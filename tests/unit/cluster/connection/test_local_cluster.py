from __future__ import annotations

import asyncio

import dask
from distributed import LocalCluster

from dasktune.cluster.connection.local_cluster import StartedLocalCluster

SETTING = "distributed.deploy.lost-worker-timeout"


class WatchedLoop(asyncio.SelectorEventLoop):
    """Notes the delays of the calls that it is asked for, and makes none of them."""

    def __init__(self):
        super().__init__()
        self.delays = []

    def call_later(self, delay, *rest, **options):
        self.delays.append(delay)


def patience(kind):
    """Return the seconds after which a cluster looks whether a lost worker is back."""

    async def lose_a_worker():
        cluster._update_worker_status("remove", "tcp://worker")

    cluster = kind.__new__(kind)
    cluster.scheduler_info = {"workers": {"tcp://worker": {"name": 0}}}
    loop = WatchedLoop()
    loop.run_until_complete(lose_a_worker())
    loop.close()
    assert not cluster.scheduler_info["workers"]
    return loop.delays


def test_an_embedded_cluster_does_not_drop_a_worker_that_is_slow_to_come_back():
    with dask.config.set({SETTING: "15s"}):
        assert patience(LocalCluster) == [15]
        [seconds] = patience(StartedLocalCluster)
        assert dask.config.get(SETTING) == "15s"
    assert seconds > 365 * 24 * 3600
