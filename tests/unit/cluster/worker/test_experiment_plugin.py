from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from distributed.core import Status
from wire_kit import JumpingLoop

from dasktune.cluster.worker.experiment_plugin import ExperimentPlugin, process_group


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


@pytest.fixture
def interrupted():
    """Return the handler of SIGINT, which a test may replace: Python's own one."""
    # A shell lets programs that it runs in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_workers_of_the_same_terminal_ignore_ctrl_c_until_the_last_experiment_ends(interrupted):
    worker = Worker()
    first, second = (ExperimentPlugin(name, b"", terminal=process_group()) for name in ("x@c", "y@c"))
    for plugin in (first, second):
        worker.add(plugin)
    signal.raise_signal(signal.SIGINT)
    asyncio.run(first.teardown(worker))
    signal.raise_signal(signal.SIGINT)
    asyncio.run(second.teardown(worker))
    assert signal.getsignal(signal.SIGINT) is interrupted


def test_workers_that_ignore_ctrl_c_already_still_have_it_ignored_by_what_user_code_starts(interrupted):
    # As dasktune's own workers do. A program that dies of the signal would fail its trial.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker, plugin = Worker(), ExperimentPlugin("x@c", b"", terminal=process_group())
    worker.add(plugin)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    asyncio.run(plugin.teardown(worker))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class Driver:
    """A driver's process as `psutil` shows it."""

    def __init__(self) -> None:
        self.runs, self.state = True, "running"

    def is_running(self) -> bool:
        return self.runs

    def status(self) -> str:
        return self.state


@pytest.mark.parametrize("end", [{"runs": False}, {"state": psutil.STATUS_ZOMBIE}], ids=["gone", "zombie"])
def test_workers_obey_ctrl_c_again_when_the_last_driver_was_killed(interrupted, monkeypatch, end):
    drivers = {1001: Driver(), 1002: Driver()}
    monkeypatch.setattr(psutil, "Process", drivers.__getitem__)
    worker = Worker()
    for pid in drivers:
        worker.add(ExperimentPlugin(f"x@{pid}", b"", terminal=process_group(), driver=pid))
    signal.raise_signal(signal.SIGINT)
    vars(drivers[1001]).update(end)
    signal.raise_signal(signal.SIGINT)
    vars(drivers[1002]).update(end)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is interrupted
    # The plugins stay until the worker or the scheduler drops them.
    for plugin in worker.plugins.values():
        asyncio.run(plugin.teardown(worker))
    assert signal.getsignal(signal.SIGINT) is interrupted


def test_a_worker_that_joins_after_the_driver_s_end_obeys_ctrl_c(interrupted):
    def no_process(pid):
        raise psutil.NoSuchProcess(pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "Process", no_process)
        worker, plugin = Worker(), ExperimentPlugin("x@c", b"", terminal=process_group(), driver=1001)
        worker.add(plugin)
    assert signal.getsignal(signal.SIGINT) is interrupted


@pytest.mark.parametrize(
    ("terminal", "driver"),
    [(None, None), (("another-host", 1), None), (process_group(), os.getpid())],
    ids=["no terminal", "another host", "in the driver's process"],
)
def test_workers_that_must_not_ignore_ctrl_c_keep_their_handler(interrupted, terminal, driver):
    worker, plugin = Worker(), ExperimentPlugin("x@c", b"", terminal=terminal, driver=driver)
    worker.add(plugin)
    assert signal.getsignal(signal.SIGINT) is interrupted
    asyncio.run(plugin.teardown(worker))
    assert signal.getsignal(signal.SIGINT) is interrupted


class Actor:
    """An actor whose trial has ended, and whose last message the driver has not confirmed."""

    is_cleaning = False

    def __init__(self, *, delivered_after: int, forgotten_after: int) -> None:
        #: After how many looks of the plugin each comes true.
        self.delivered_after, self.forgotten_after = delivered_after, forgotten_after
        self.looks = 0

    @property
    def is_forgotten(self) -> bool:
        return self.looks > self.forgotten_after

    @property
    def is_needed(self) -> bool:
        self.looks += 1
        return self.looks <= min(self.delivered_after, self.forgotten_after)

    def retire(self, seconds: float) -> None: ...

    def discard(self) -> None: ...


@pytest.mark.parametrize(
    ("actor", "waits_for_messages"),
    [
        (Actor(delivered_after=0, forgotten_after=99), False),
        # Dask's message that it releases the actor comes after the order to remove the plugin.
        (Actor(delivered_after=99, forgotten_after=3), False),
        # The worker retires: the driver fetches the last message, and its answer is on the way.
        (Actor(delivered_after=3, forgotten_after=99), True),
    ],
    ids=["delivered", "released", "retires"],
)
def test_a_worker_waits_for_last_messages_only_if_the_driver_fetches_them(
    actor: Actor, waits_for_messages: bool
) -> None:
    worker, plugin = Worker(), ExperimentPlugin("dasktune-x@client", b"")
    worker.add(plugin)
    plugin.actors["a"] = actor
    loop = JumpingLoop()
    try:
        loop.run_until_complete(plugin.teardown(worker))
        assert (loop.time() >= 0.2) == waits_for_messages
    finally:
        loop.close()
