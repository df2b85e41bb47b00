from __future__ import annotations

import gzip
import json

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from chronicle_kit import about, asha_journal, hostile_chronicle, started, suggested

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.server.broadcast import Broadcast, scripts
from dasktune.dashboard.server.live import Live


class Feed:
    """Tells what a test gives it."""

    state, is_ahead, now, share = "", False, None, None

    def __init__(self):
        self.records = []

    def take(self):
        records, self.records = self.records, []
        return False, iter(records)


@pytest.fixture
def feed():
    return Feed()


@pytest.fixture
def live(feed):
    ticks = iter(range(0, 10**9, 1_000))
    # So much later each time that every figure is made anew.
    new = lambda: Chronicle(name="exp", metric="loss", mode="min", total=40)  # noqa: E731
    return Live(new, feed, clock=lambda: float(next(ticks)))


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
    first = broadcast.turn()
    assert first.change is None
    copy = Document.from_json(opened(first.whole))
    feed.records = asha_journal()
    take(live)
    changes = []
    while (bulletin := broadcast.turn()) is not None:
        changes.append(bulletin.change)
    assert changes
    for change in changes:
        copy.apply_json_patch(opened(change))
    fresh = Document.from_json(opened(broadcast.turn(anew=True).whole))
    assert rows_of(copy) == rows_of(fresh)
    assert {one.id for one in copy.models} == {one.id for one in fresh.models}
    tables = [one.select_one({"name": "filter"}) for one in (copy, fresh)]
    assert all(table is not None for table in tables)


def test_nothing_new_is_nothing_to_tell(live, feed):
    broadcast = Broadcast(live)
    feed.records = asha_journal()
    take(live)
    assert broadcast.turn().whole
    assert broadcast.turn() is None


def test_the_page_is_told_as_a_whole_again_when_its_changes_have_grown_larger(live, feed):
    broadcast = Broadcast(live)
    feed.records = [suggested("a", x=0.5), started("a", 1.0)]
    take(live)
    size = len(broadcast.turn().whole)
    grown, wholes = 0, 0
    for count in range(12):
        feed.records = [
            suggested(f"t{count}", x=count / 12),
            started(f"t{count}", 2.0 + count),
            about("TrialEnded", f"t{count}", 3.0 + count, status="TERMINATED"),
        ]
        take(live)
        bulletin = broadcast.turn()
        grown += len(bulletin.change)
        if bulletin.whole is not None:
            wholes += 1
            assert grown > size
            size, grown = len(bulletin.whole), 0
    assert wholes


def test_a_page_without_trials_is_a_header():
    feed = Feed()
    live = Live(lambda: Chronicle(name="exp"), feed)
    document = Document.from_json(opened(Broadcast(live).turn().whole))
    assert len(document.roots[0].children) == 1


def test_what_users_named_is_escaped_where_it_would_be_html():
    feed = Feed()
    live = Live(hostile_chronicle, feed)
    take(live)
    whole = gzip.decompress(Broadcast(live).turn().whole).decode()
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
