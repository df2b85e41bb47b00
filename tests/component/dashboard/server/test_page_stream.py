from __future__ import annotations

import gzip
import json

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from projection_kit import about, asha_journal, hostile_projection, started, suggested

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.page_stream import Broadcast, scripts


class Feed:
    """Tells what a test gives it."""

    state, always_follow, now, read_share = "", False, None, None

    def __init__(self):
        self.records = []

    def poll(self):
        records, self.records = self.records, []
        return False, iter(records)


@pytest.fixture
def feed():
    return Feed()


@pytest.fixture
def live(feed):
    ticks = iter(range(0, 10**9, 1_000))
    # So much later each time that every figure is made again.
    new = lambda: ExperimentProjection(name="exp", metric="loss", mode="min", total=40)  # noqa: E731
    return LiveExperiment(new, feed, clock=lambda: float(next(ticks)))


def opened(content):
    return json.loads(gzip.decompress(content))


def take(live):
    while live.poll():
        pass


def rows_of(document):
    """Return the columns of all data sources, which have the same names in all copies."""
    sources = [one for one in document.models if isinstance(one, ColumnDataSource)]
    return {
        source.id: {name: list(map(str, column)) for name, column in source.data.items()}
        for source in sources
        if "image" not in source.data and "xs" not in source.data
    }


def test_the_first_bulletin_is_the_page_and_the_next_are_what_changes(live, feed):
    broadcast = Broadcast(live)
    feed.records = [suggested("a", x=0.5), started("a", 1.0)]
    take(live)
    first = broadcast.update()
    assert first.changes is None
    copy = Document.from_json(opened(first.page))
    feed.records = asha_journal()
    take(live)
    changes = []
    while (bulletin := broadcast.update()) is not None:
        changes.append(bulletin.changes)
    assert changes
    for change in changes:
        copy.apply_json_patch(opened(change))
    fresh = Document.from_json(opened(broadcast.update(full=True).page))
    assert rows_of(copy) == rows_of(fresh)
    assert {one.id for one in copy.models} == {one.id for one in fresh.models}
    tables = [one.select_one({"name": "filter"}) for one in (copy, fresh)]
    assert all(table is not None for table in tables)


def test_nothing_new_is_nothing_to_tell(live, feed):
    broadcast = Broadcast(live)
    feed.records = asha_journal()
    take(live)
    assert broadcast.update().page
    assert broadcast.update() is None


@pytest.mark.slow
def test_the_page_is_sent_as_a_whole_again_when_its_changes_have_grown_larger(live, feed):
    broadcast = Broadcast(live)
    feed.records = [suggested("a", x=0.5), started("a", 1.0)]
    take(live)
    size = len(broadcast.update().page)
    grown, wholes = 0, 0
    for count in range(40):
        feed.records = [
            suggested(f"t{count}", x=count / 40),
            started(f"t{count}", 2.0 + count),
            about("TrialEnded", f"t{count}", 3.0 + count, status="TERMINATED"),
        ]
        take(live)
        bulletin = broadcast.update()
        grown += len(bulletin.changes)
        if bulletin.page is not None:
            wholes += 1
            assert grown > size
            size, grown = len(bulletin.page), 0
    assert wholes


def test_a_page_without_trials_is_a_header():
    feed = Feed()
    live = LiveExperiment(lambda: ExperimentProjection(name="exp"), feed)
    document = Document.from_json(opened(Broadcast(live).update().page))
    assert len(document.roots[0].children) == 1


def test_what_users_named_is_escaped_where_it_would_be_html():
    feed = Feed()
    live = LiveExperiment(hostile_projection, feed)
    take(live)
    whole = gzip.decompress(Broadcast(live).update().page).decode()
    document = Document.from_json(json.loads(whole))
    for model in document.models:
        if type(model).__name__ in ("Div", "TableColumn"):
            told = getattr(model, "text", "") + (getattr(model, "title", "") or "")
            assert "<img" not in told
            assert "<script" not in told


def test_the_scripts_are_those_of_this_bokeh():
    version, files = scripts()
    named = dict(files)
    assert set(named) == {"bokeh", "bokeh-widgets", "bokeh-tables"}
    assert all(version.encode() in gzip.decompress(content) for content in named.values())
    assert sum(map(len, named.values())) < 1_000_000
