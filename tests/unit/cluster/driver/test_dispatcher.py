"""An unexpected error in the driver's background tasks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dasktune.cluster.driver.dispatcher import DispatcherSettings, TrialDispatcher
from dasktune.cluster.driver.trial_run import Reservation, TrialRun
from dasktune.cluster.protocol.payload import Payload
from dasktune.placement import PlacedBundle, Placement
from dasktune.trial.resources import PlacementGroupFactory


class Broken:
    """A client that fails whatever it is asked to do."""

    id = "client"

    def submit(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("a bug")


def test_an_unexpected_error_of_a_background_task_is_reported():
    crashes: list[BaseException] = []

    async def work() -> None:
        client: Any = Broken()
        dispatcher = TrialDispatcher(
            client,
            DispatcherSettings(name="x"),
            payload=Payload(blob=b""),
            now=lambda: 0.0,
            emit=print,
            release=lambda run: True,
            on_failure=print,
            on_crash=crashes.append,
            on_share=print,
            on_notice=print,
        )
        spec: Any = SimpleNamespace(checkpoint=None)
        run = TrialRun(trial_id="a", incarnation=1, key="k", spec=spec, config=b"")
        bundle = PlacedBundle(address="tcp://a:1", resources={"CPU": 1}, declared={})
        run.reservation = Reservation(
            placement=Placement(number=0, bundles=(bundle,)),
            resources=PlacementGroupFactory([{"CPU": 1}]),
        )
        run.reservation.runs.append(run)
        dispatcher.start(run)
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(work())
    assert [str(error) for error in crashes] == ["a bug"]
