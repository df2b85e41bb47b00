"""The shares of the experiments among the metrics of Dask's scheduler."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from test_share_plugin import Scheduler

from dasktune.cluster.sharing import share_plugin
from dasktune.cluster.sharing.share_metrics import ShareCollector
from dasktune.cluster.sharing.share_plugin import SharePlugin

prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

OPERATIONS = Path(__file__).parents[4] / "docs/operations.md"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scheduler that other tests run in this process have no metrics here."""
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(x=2, y=2)
    asyncio.run(scheduler.plugin.start(scheduler))
    yield scheduler
    asyncio.run(scheduler.plugin.close())


def shown(scheduler: Scheduler) -> list[str]:
    """Return the samples of dasktune on the page that Dask's scheduler makes."""
    scheduler.advance(1)  # A summary serves for half a second.
    page = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
    return [line for line in page.splitlines() if line.startswith("dasktune_")]


def test_the_shares_of_the_experiments_are_metrics_of_the_scheduler(scheduler: Scheduler):
    assert shown(scheduler) == []
    scheduler.read("a")
    scheduler.hold("a", "x")
    assert shown(scheduler) == [
        'dasktune_share_held{experiment="A"} 0.25',
        'dasktune_waiting_trials{experiment="A"} 0.0',
    ]
    for address in "xyy":
        scheduler.hold("a", address, len(scheduler.tasks) + 1)
    scheduler.read("b", waits=3)
    scheduler.advance(1)
    scheduler.read("b", waits=3)
    assert 'dasktune_share_held{experiment="A"} 1.0' in shown(scheduler)
    assert 'dasktune_waiting_trials{experiment="B"} 3.0' in shown(scheduler)
    assert sum(line.startswith("dasktune_share_due{") for line in shown(scheduler)) == 2


def test_experiments_of_one_name_are_one_sample(scheduler: Scheduler):
    for name, address in (("a", "x"), ("b", "y")):
        scheduler.read(name, label="same")
        scheduler.hold(name, address)
    assert 'dasktune_share_held{experiment="same"} 0.5' in shown(scheduler)
    assert len(shown(scheduler)) == len({line.partition(" ")[0] for line in shown(scheduler)})


def test_after_the_end_of_the_scheduler_its_metrics_are_gone():
    scheduler = Scheduler(x=1)
    asyncio.run(scheduler.plugin.start(scheduler))
    scheduler.read("a")
    assert shown(scheduler) != []
    asyncio.run(scheduler.plugin.close())
    assert shown(scheduler) == []


def test_a_bug_in_the_shares_leaves_the_other_metrics_alone(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
):
    scheduler.read("a")
    scheduler.workers = None  # type: ignore[assignment]
    assert shown(scheduler) == []
    assert "process_" in prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
    assert "could not be measured" in caplog.text


def test_a_scheduler_without_the_package_has_no_metrics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    scheduler = Scheduler(x=1)
    asyncio.run(scheduler.plugin.start(scheduler))
    scheduler.read("a")
    asyncio.run(scheduler.plugin.close())
    assert shown(scheduler) == []


def test_the_plugin_can_still_be_sent_to_a_scheduler():
    cloudpickle.register_pickle_by_value(share_plugin)
    try:
        copy = cloudpickle.loads(cloudpickle.dumps(SharePlugin()))
    finally:
        cloudpickle.unregister_pickle_by_value(share_plugin)
    assert copy.summary.__self__ is copy


def test_the_table_of_shares_in_the_documentation_is_that_of_the_code():
    page = OPERATIONS.read_text(encoding="utf-8")
    table = page.partition("## Shares of a cluster")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| gauge, by `experiment` \| (.*) \|$", table, re.MULTILINE)
    assert rows == [(name, text) for name, text, _ in ShareCollector.METRICS]
