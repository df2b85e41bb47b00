"""Notices of workers without trials, and an unexpected error in the driver's background tasks."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from wire_kit import run_virtually

from dasktune.cluster.driver.dispatcher import DispatcherSettings, TrialDispatcher
from dasktune.cluster.driver.trial_run import Reservation, TrialRun
from dasktune.cluster.driver.worker_link import LinkCallbacks, WorkerLink
from dasktune.cluster.protocol.payload import Payload
from dasktune.cluster.protocol.wire_messages import WorkerNoticed
from dasktune.placement import PlacedBundle, Placement
from dasktune.trial.resources import PlacementGroupFactory


class Broken:
    """A client that fails whatever it is asked to do."""

    id = "client"
    status = "closed"

    def as_current(self) -> Any:
        return nullcontext()

    def map(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("a bug")


class Listening(Broken):
    """A client that still takes the experiment's plugin, and its subscription."""

    async def run_on_scheduler(self, function: Any) -> list[str]:
        return []

    async def register_plugin(self, plugin: Any) -> None: ...

    def subscribe_topic(self, topic: str, handler: Any) -> None:
        self.notify = handler


class Links:
    """Makes links that talk to no worker, and keeps the functions that they may call."""

    callbacks: LinkCallbacks

    def __call__(self, address: str, *, callbacks: LinkCallbacks, **options: Any) -> WorkerLink:
        self.callbacks = callbacks
        return SilentLink(address, callbacks=callbacks, **options)


class SilentLink(WorkerLink):
    async def poll_loop(self) -> None: ...


class BrokenLink(WorkerLink):
    async def poll_loop(self) -> None:
        raise RuntimeError("another bug")


def made(settings: DispatcherSettings | None = None, client: Any = None, **calls: Any) -> TrialDispatcher:
    client = client or Broken()
    others = ("emit", "on_failure", "on_crash", "on_share", "on_notice")
    return TrialDispatcher(
        client,
        settings or DispatcherSettings(name="x"),
        payload=Payload(blob=b""),
        now=lambda: 0.0,
        release=lambda run: True,
        **{**dict.fromkeys(others, print), **calls},
    )


def test_a_notice_of_a_worker_without_trials_is_logged_once_and_ends_a_minute_after_its_time(
    caplog: pytest.LogCaptureFixture,
):
    told: list[tuple[str, float]] = []
    now = 1000.0

    async def work() -> None:
        nonlocal now
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        client, links = Listening(), Links()
        dispatcher = made(
            client=client,
            make_link=links,
            on_notice=lambda address, seconds: told.append((address, seconds)),
        )
        await dispatcher.open()
        start(dispatcher, run_at("tcp://a:1"))
        is_noticed = links.callbacks.is_noticed
        noticed = WorkerNoticed("tcp://unknown:1", 5.0, "spot\x1b[31m\nend").encode()
        for _ in range(3):
            client.notify((0.0, noticed))
        assert is_noticed("tcp://unknown:1")
        assert not is_noticed("tcp://other:1")
        now += 64.0  # its end may come late
        assert is_noticed("tcp://unknown:1")
        now += 2.0
        assert not is_noticed("tcp://unknown:1")
        client.notify((0.0, noticed))
        assert is_noticed("tcp://unknown:1")
        # A worker that starts at the address of a lost one has no notice.
        dispatcher.mark_lost("tcp://unknown:1", "it died")
        assert not is_noticed("tcp://unknown:1")

    asyncio.run(work())
    assert told == [("tcp://unknown:1", 5.0)] * 4
    texts = [one.message for one in caplog.records]
    assert len(texts) == 2
    assert "worker tcp://unknown:1 ends in 5 s (spot?[31m end)" in texts[0]


def run_at(address: str) -> TrialRun:
    """Return a run with a place on a worker."""
    spec: Any = SimpleNamespace(checkpoint=None)
    run = TrialRun(trial_id="a", incarnation=1, key="k", spec=spec, config=b"")
    bundle = PlacedBundle(address=address, resources={"CPU": 1}, declared={})
    run.reservation = Reservation(
        placement=Placement(number=0, bundles=(bundle,)),
        resources=PlacementGroupFactory([{"CPU": 1}]),
    )
    run.reservation.runs.append(run)
    return run


def start(dispatcher: TrialDispatcher, run: TrialRun) -> None:
    """Start a run on an actor that another run is getting ready."""
    run.reservation.actor = SimpleNamespace()  # type: ignore[assignment]
    dispatcher.start(run)


@pytest.mark.parametrize("reuse", [True, False])
def test_the_predicted_end_of_a_run_is_reported_in_time(reuse: bool) -> None:
    told: list[tuple[Any, float, float]] = []

    async def work() -> Any:
        loop = asyncio.get_running_loop()

        def note(run: Any, seconds: float) -> None:
            told.append((run, seconds, loop.time()))

        links = Links()
        settings = DispatcherSettings(name="x", reuse_actors=reuse)
        dispatcher = made(settings, make_link=links, on_nearly_ended=note)
        run = run_at("tcp://a:1")
        start(dispatcher, run)
        links.callbacks.on_start(run)
        for _ in range(12):
            dispatcher.prefetch.observe(2.0)
        links.callbacks.on_start(run)
        await asyncio.sleep(10.0)
        return run

    run = run_virtually(work())
    assert told == ([(run, pytest.approx(0.1), pytest.approx(1.95))] if reuse else [])


@pytest.mark.parametrize("what", ["a failure", "the end"])
def test_no_end_is_predicted_any_more_after(what: str) -> None:
    told: list[Any] = []

    async def work() -> None:
        links = Links()
        dispatcher = made(make_link=links, on_nearly_ended=lambda run, seconds: told.append(run))
        for _ in range(12):
            dispatcher.prefetch.observe(2.0)
        run = run_at("tcp://a:1")
        start(dispatcher, run)
        links.callbacks.on_start(run)
        if what == "a failure":
            dispatcher.prefetch.pause()
        else:
            run.reservation.actor = None
            links.callbacks.on_end(SimpleNamespace(runs={}), run, None)  # type: ignore[arg-type]
        await asyncio.sleep(10.0)

    run_virtually(work())
    assert told == []


def test_the_prediction_counts_from_the_start_and_not_from_its_message() -> None:
    told: list[float] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        links = Links()
        dispatcher = made(make_link=links, on_nearly_ended=lambda run, seconds: told.append(loop.time()))
        for _ in range(12):
            dispatcher.prefetch.observe(2.0)
        run = run_at("tcp://a:1")
        start(dispatcher, run)
        run.seconds = 0.5
        links.callbacks.on_start(run)
        await asyncio.sleep(10.0)

    run_virtually(work())
    assert told == [pytest.approx(1.45)]


def test_an_unexpected_error_of_a_background_task_is_reported():
    crashes: list[BaseException] = []

    async def work() -> None:
        dispatcher = made(on_crash=crashes.append)
        dispatcher.start(run_at("tcp://a:1"))
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(work())
    assert [str(error) for error in crashes] == ["a bug"]


def test_a_dispatcher_closes_after_an_unexpected_error_of_a_link():
    crashes: list[BaseException] = []

    async def work() -> None:
        dispatcher = made(on_crash=crashes.append, make_link=BrokenLink)
        dispatcher.start(run_at("tcp://a:1"))
        for _ in range(20):
            await asyncio.sleep(0)
        await dispatcher.close()

    asyncio.run(work())
    assert [str(error) for error in crashes] == ["another bug", "a bug"]


def test_a_worker_that_is_lost_at_the_moment_of_a_start_ends_the_start_only():
    """The loss is handled before the task that gets the actor ready has begun."""
    crashes: list[BaseException] = []
    ends: list[Any] = []

    async def work() -> None:
        dispatcher = made(on_crash=crashes.append, emit=ends.extend)
        run = run_at("tcp://a:1")
        dispatcher.start(run)
        dispatcher.mark_lost("tcp://a:1", "it died")
        for _ in range(20):
            await asyncio.sleep(0)
        assert run.reservation.actor is None

    asyncio.run(work())
    assert crashes == []
    assert len(ends) == 1
