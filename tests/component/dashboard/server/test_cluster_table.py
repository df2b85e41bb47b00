"""The table of the experiments that share the cluster, on the overview page."""

from __future__ import annotations

from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import Div, Tabs
from projection_kit import PAYLOADS, result, started, suggested

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.report.cluster_table import shares_html
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.viewer import Viewer
from dasktune.placement import ClusterShares

FACTS = {"weight": 1.0, "priority": 0.0, "due": 0.5, "waiting": 4, "waiting_s": 90.0}


def shares(name: str = "E2", held: float = 6) -> ClusterShares:
    other = {"name": name, "held": {"CPU": held}, "share": held / 8, **FACTS, "weight": 3.0}
    own = {"name": "run", "held": {"CPU": 2}, "share": 0.25, **FACTS, "is_own": True}
    return ClusterShares.from_plain({"CPU": 8}, [other, own])


class RunningFeed:
    """The records of an experiment that runs, and the time of its driver."""

    state, always_follow, read_share = "driver is running", True, None

    def __init__(self) -> None:
        self.now: float | None = 10.0
        self.records = [suggested("t0", x=1), started("t0", 1.0), result("t0", 1, 2.0, loss=0.5)]

    def poll(self) -> tuple[bool, Any]:
        records, self.records = self.records, []
        return False, iter(records)


def test_the_table_has_what_each_experiment_holds_is_due_and_waits_for() -> None:
    html = shares_html(shares())
    assert "This experiment waits for its share: experiment E2 holds 6 of 8 CPUs." in html
    assert "<td>E2</td><td>3</td><td>0</td><td>6 of 8 CPUs</td><td>75%</td><td>50%</td><td>4</td>" in html
    assert "<td>run (this one)</td>" in html


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_name_that_another_user_has_chosen_is_escaped(payload: str) -> None:
    html = shares_html(shares(payload))
    assert "<script" not in html.lower()
    assert "<img" not in html.lower()


def test_the_table_is_shown_while_others_share_the_cluster() -> None:
    found: list[ClusterShares | None] = [None]
    calls = []

    def find() -> ClusterShares | None:
        calls.append(found[0])
        return found[0]

    # On this clock no figure takes long to make, so it is made again at each change.
    feed = RunningFeed()
    live = LiveExperiment(ExperimentProjection, feed, clock=lambda: 0.0, used=lambda: 0.0, find_shares=find)
    live.poll()
    document = Document()
    viewer = Viewer(live, document)

    def table() -> str:
        viewer.update()
        # Below the figures of the first page.
        *_, card = document.select_one({"type": Tabs}).tabs[0].child.children
        shown = [div.text for div in card.select({"type": Div})]
        return shown[0] if card.visible and shown else ""

    assert table() == ""
    # It appears when another experiment joins, and is read once in a second of the run.
    found[0] = shares()
    live.poll()
    assert table() == ""
    feed.now = 11.0
    for _ in range(5):
        live.poll()
    assert "6 of 8 CPUs" in table()
    assert len(calls) == 2
    found[0], feed.now = shares(held=5), 12.0
    live.poll()
    assert "5 of 8 CPUs" in table()
    # The driver has ended.
    feed.now = None
    live.poll()
    assert table() == ""
