"""What a driver reports to the plugin, and how often."""

from __future__ import annotations

import ast
import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wire_kit import run_virtually

from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME
from dasktune.cluster.sharing.share_reporter import TRAVELLING, ShareReporter, WaitingTrials, undeclared_text
from dasktune.placement import WorkerCapacity, placement
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])


class FakeClient:
    """A client with a scheduler whose plugin records the calls."""

    id, status = "client-1", "running"

    def __init__(self, *, has_plugin: bool = True, is_broken: bool = False) -> None:
        self.notes: list[tuple[str, Any]] = []
        self.registered = 0
        self.is_broken = is_broken
        plugin = SimpleNamespace(note=lambda name, demand: self.notes.append((name, demand)))
        self.scheduler = SimpleNamespace(plugins={PLUGIN_NAME: plugin} if has_plugin else {})

    async def run_on_scheduler(self, function: Any, *arguments: Any) -> None:
        if self.is_broken:
            raise OSError("the connection is lost")
        function(*arguments, dask_scheduler=self.scheduler)

    async def register_plugin(self, plugin: Any) -> None:
        self.registered += 1
        raise RuntimeError("plugins are disabled")


def reporter(client: Any, waiting: WaitingTrials | None = None, **options: Any) -> ShareReporter:
    shown = waiting or WaitingTrials(request=None, number=0)
    facts: dict[str, Any] = {
        "name": "dasktune-1",
        "label": "run",
        "weight": 2.0,
        "priority": 1.0,
        "group": "team",
    }
    return ShareReporter(client, **facts, waiting=lambda: shown, **options)


def test_the_demand_has_what_workers_declare_only() -> None:
    request = PlacementGroupFactory([{"disk": 5}, {"CPU": 1, "GPU": 0.5, "disk": 9}], "SPREAD")
    waiting = WaitingTrials(request=request, number=3, kinds={"CPU", "GPU"}, closed=["tcp://a:1"])
    assert reporter(FakeClient(), waiting).demand() == {
        "label": "run",
        "client": "client-1",
        "weight": 2.0,
        "priority": 1.0,
        "group": "team",
        "requests": [([{}, {"CPU": 1, "GPU": 0.5}], "SPREAD", 3)],
        "layouts": [(False, None)],
        "closed": ["tcp://a:1"],
    }


def test_the_demand_says_that_the_layout_of_ranks_counts_hosts() -> None:
    request = HostPlacement([{"GPU": 1, "memory": 5}] * 4, per_host=2)
    demand = reporter(FakeClient(), WaitingTrials(request=request, number=3, kinds={"GPU"})).demand()
    assert demand is not None
    assert demand["requests"] == [([{"GPU": 1}] * 4, "PACK", 3)]
    assert demand["layouts"] == [(True, 2)]
    assert len(reporter(FakeClient()).demand()["layouts"]) == 0  # type: ignore[index]


def test_an_experiment_that_takes_no_part_reports_and_registers_nothing() -> None:
    async def work() -> None:
        client = FakeClient()
        share = reporter(client, enabled=False)
        assert share.demand() is None
        share.on_answer(None)
        await share.close()
        assert client.registered == 0

    asyncio.run(work())


def test_a_plugin_that_cannot_be_registered_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        asyncio.run(reporter(FakeClient()).register())
    assert "not shared fairly" in caplog.text


def test_the_plugin_is_registered_where_it_is_missing_and_again_on_a_new_scheduler() -> None:
    async def work() -> None:
        client = FakeClient()
        share = reporter(client)
        share.on_answer({"others": 0, "shares": None, "over": ([], 0.0)})
        await asyncio.sleep(0)
        assert client.registered == 0
        for _ in range(3):
            share.on_answer(None)
            await asyncio.sleep(0.001)
        # Not at once, because the first trials would wait.
        assert client.registered == 0
        while client.registered < 1:
            await asyncio.sleep(0.001)
        share.on_reconnect()
        share.on_answer(None)
        while client.registered < 2:
            await asyncio.sleep(0.001)
        await share.close()

    run_virtually(work())


def test_an_experiment_alone_makes_no_call() -> None:
    async def work() -> None:
        client = FakeClient()
        share = reporter(client)
        share.on_answer({"others": 0, "shares": None, "over": ([], 0.0)})
        share.report_soon()
        await asyncio.sleep(0)
        await share.close()
        assert client.notes == []

    asyncio.run(work())


def test_beside_others_the_demand_is_reported_at_once_but_not_for_each_change() -> None:
    async def work() -> None:
        client = FakeClient()
        share = reporter(client, WaitingTrials(request=ONE, number=1, kinds={"CPU"}))
        share.on_answer({"others": 1, "shares": None, "over": ([], 0.0)})
        for _ in range(50):
            share.report_soon()
            await asyncio.sleep(0)
        # The changes during the pause after the first call are reported together.
        while len(client.notes) < 2:
            await asyncio.sleep(0.001)
        await share.close()
        assert [demand and demand["requests"] for _, demand in client.notes] == [
            [([{"CPU": 1}], "PACK", 1)],
            [([{"CPU": 1}], "PACK", 1)],
            None,
        ]

    run_virtually(work())


def test_a_new_share_is_reported_at_once_and_with_each_later_demand() -> None:
    async def work() -> None:
        client = FakeClient()
        share = reporter(client)
        share.on_answer({"others": 1, "shares": None, "over": ([], 0.0)})
        share.set_share(weight=4.0, priority=None)
        while not client.notes:
            await asyncio.sleep(0.001)
        [(_, noted)] = client.notes
        assert (noted["weight"], noted["priority"]) == (4.0, 1.0)
        share.set_share(weight=None, priority=-2.0)
        demand = share.demand()
        assert demand is not None
        assert (demand["weight"], demand["priority"]) == (4.0, -2.0)
        await share.close()

    asyncio.run(work())


@pytest.mark.parametrize("client", [FakeClient(has_plugin=False), FakeClient(is_broken=True)])
def test_a_call_that_finds_no_plugin_does_no_harm(client: FakeClient) -> None:
    async def work() -> None:
        share = reporter(client)
        share.on_answer({"others": 1, "shares": None, "over": ([], 0.0)})
        await share.close()
        client.status = "closed"
        await share.close()

    asyncio.run(work())
    assert client.notes == []


def test_the_shares_of_the_last_reading_are_kept() -> None:
    share = reporter(FakeClient(), enabled=False)
    facts = {"weight": 1.0, "priority": 0.0, "waiting": 0, "waiting_s": None, "due": None}
    one = {"name": "other", "held": {"CPU": 6}, "share": 0.75, "is_own": False, **facts}
    share.on_answer(
        {"others": 1, "shares": {"totals": {"CPU": 8}, "experiments": [one]}, "over": (["x"], 4.0)}
    )
    assert share.shares is not None
    assert share.over == (["x"], 4.0)
    assert [each.name for each in share.shares.experiments] == ["other"]
    share.on_answer({"others": 0, "shares": None, "over": ([], 0.0)})
    assert share.shares is None
    share.on_answer(None)
    assert (share.shares, share.over) == (None, ((), 0.0))


def test_workers_that_declare_no_cpus_are_named_beside_other_experiments():
    declared = WorkerCapacity(address="a", resources={"CPU": 2})
    bare, lost = WorkerCapacity(address="b"), WorkerCapacity(address="c", status="closing")
    assert undeclared_text([declared, lost], 3) == ""
    assert undeclared_text([declared, bare], 0) == ""
    text = undeclared_text([declared, bare, lost], 1)
    assert text.startswith("1 of 2 workers declare no CPUs to Dask, so this experiment does not share them")
    assert "the 1 other experiment on the cluster" in text


def test_undeclared_resources_are_warned_of_once(caplog: pytest.LogCaptureFixture):
    share = reporter(FakeClient())
    share.others = 1
    share.warn_of_undeclared([WorkerCapacity(address="a", status="unchecked")])
    assert caplog.text == ""
    for _ in range(2):
        share.warn_of_undeclared([WorkerCapacity(address="a")])
    assert caplog.text.count("declare no CPUs to Dask") == 1


@pytest.mark.parametrize("module", TRAVELLING)
def test_what_travels_to_the_scheduler_needs_no_dasktune(module: Any) -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    others = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    # It does without prometheus_client if that is missing. Of `placement` it needs names only.
    ours = {placement.__name__, *(one.__name__ for one in TRAVELLING)}
    assert others <= {"dask", "distributed", "prometheus_client", *ours}
