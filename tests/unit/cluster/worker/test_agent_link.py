from __future__ import annotations

import asyncio
from types import SimpleNamespace

from distributed.core import Status

from dasktune.cluster.worker.agent_link import serve_agent


def test_no_rank_is_started_for_an_actor_that_is_forgotten():
    aborted: list[bool] = []
    comm = SimpleNamespace(abort=lambda: aborted.append(True))
    plugin = SimpleNamespace(actors={"trial": SimpleNamespace(is_forgotten=True)}, rank_agents=[])
    worker = SimpleNamespace(loop=None, address="tcp://127.0.0.1:1")
    assert asyncio.run(serve_agent(worker, plugin, comm, "trial", 1.0)) is Status.dont_reply
    assert aborted == [True]
    assert plugin.rank_agents == []
