from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace

from distributed.core import Status

from dasktune.cluster.worker.agent_link import serve_agent
from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin
from dasktune.cluster.worker.worker_notices import WorkerNotices


def test_no_rank_is_started_for_an_actor_that_is_forgotten():
    aborted: list[bool] = []
    comm = SimpleNamespace(abort=lambda: aborted.append(True))
    plugin = SimpleNamespace(actors={"trial": SimpleNamespace(is_forgotten=True)}, rank_agents=[])
    worker = SimpleNamespace(loop=None, address="tcp://127.0.0.1:1")
    served = serve_agent(worker, plugin, comm, actor="trial", topic="topic", lost_after_s=1.0)
    assert asyncio.run(served) is Status.dont_reply
    assert aborted == [True]
    assert plugin.rank_agents == []


def test_a_worker_with_ranks_reports_its_notices_as_long_as_they_are_served():
    reported: list[str] = []

    async def serve() -> None:
        worker = SimpleNamespace(
            loop=SimpleNamespace(time=time.monotonic, add_callback=lambda call, *given: call(*given)),
            address="tcp://127.0.0.1:1",
            log_event=lambda topic, event: reported.append(f"{topic}: {event['reason']}"),
        )
        plugin = ExperimentPlugin("dasktune-x@client", b"")
        ended = asyncio.Event()

        async def read() -> None:
            await ended.wait()
            raise OSError("closed")

        async def write(message: object) -> None: ...

        comm = SimpleNamespace(read=read, write=write, abort=lambda: None)
        serving = asyncio.ensure_future(
            serve_agent(worker, plugin, comm, actor="trial", topic="topic", lost_after_s=60.0)
        )
        await asyncio.sleep(0)
        notices = WorkerNotices.of(worker)
        notices.give(60.0, "spot")
        ended.set()
        await serving
        gc.collect()
        notices.give(60.0, "too late")

    asyncio.run(serve())
    assert reported == ["topic: spot"]
