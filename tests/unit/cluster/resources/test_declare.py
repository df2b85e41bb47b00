"""What the driver asks of worker and scheduler to declare a worker's resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dasktune.cluster.resources.declare import declare_resources
from dasktune.placement import WorkerCapacity


class Calls:
    def __init__(self) -> None:
        self.made: list[str] = []

    async def run_on_worker(self, address: str, function: Any, *args: Any) -> None:
        self.made.append("declare")

    async def tell_scheduler(self, function: Any, address: str) -> None:
        self.made.append("recount")


@pytest.mark.parametrize(
    ("declares", "known", "recount", "calls"),
    [
        (True, {}, False, ["declare", "recount"]),
        (True, {}, True, ["declare", "recount"]),
        (True, {"CPU": 2.0}, False, []),
        # An earlier order may have been obeyed although no answer came.
        (True, {"CPU": 2.0}, True, ["recount"]),
        (False, {}, True, []),
    ],
)
def test_the_scheduler_recounts_after_each_declaration(
    declares: bool, known: dict[str, float], recount: bool, calls: list[str]
) -> None:
    made: Any = Calls()
    worker = WorkerCapacity(address="tcp://a:1", nthreads=2, resources=known)
    work = declare_resources(None, made, worker, [], declare=declares, timeout_s=60, recount=recount)
    asyncio.run(work)
    assert made.made == calls
