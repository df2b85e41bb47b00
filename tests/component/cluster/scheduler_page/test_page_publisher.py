"""What a driver sends to the scheduler, without a cluster: the plugin answers in this process."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from types import SimpleNamespace

import bokeh
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from projection_kit import result, started, suggested

from dasktune.cluster.scheduler_page import page_publisher
from dasktune.cluster.scheduler_page.page_plugin import PROTOCOL, DashboardPagePlugin
from dasktune.cluster.scheduler_page.page_publisher import PagePublisher
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

PATIENCE = 60.0


def publisher_of(plugin, storage):
    """Return a publisher whose calls the plugin answers."""
    scheduler = SimpleNamespace(**{f"dasktune_board_{PROTOCOL}": plugin.answer})
    connection = SimpleNamespace(client=SimpleNamespace(id="c", scheduler=scheduler), address="tcp://h:1")
    return PagePublisher(connection, storage, "exp", "", lambda link, has_neighbours: None)


def seen_by_browser(section):
    """Return the data sources of the page as a browser builds it from what the scheduler has."""
    number, whole = section.whole
    document = Document.from_json(json.loads(gzip.decompress(whole)))
    for at, change in section.changes.items():
        if at > number:
            document.apply_json_patch(json.loads(gzip.decompress(change)))
    return sources_of(document)


def sources_of(document):
    sources = [one for one in document.models if isinstance(one, ColumnDataSource)]
    return {
        source.id: {name: list(map(str, column)) for name, column in source.data.items()}
        for source in sources
        if "image" not in source.data
    }


async def until(condition):
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        await asyncio.sleep(0.001)  # between two looks


def test_an_update_that_the_end_has_interrupted_is_not_missing_in_the_last_state(tmp_path, monkeypatch):
    monkeypatch.setattr(page_publisher, "_PERIOD", 0.0)
    monkeypatch.setattr(page_publisher, "_SHARE", 1.0)
    for deadline in ("_END_DEADLINE", "_DRAW_DEADLINE"):
        monkeypatch.setattr(page_publisher, deadline, PATIENCE)
    storage = Storage(tmp_path / "exp")
    store = ExperimentStore(storage)
    store.create({"name": "exp", "metric": "loss", "mode": "min"})
    store.begin()

    def write(*records):
        for record in records:
            store.append(record)
        store.commit(force=True)

    write(suggested("a", x=0.5), started("a", 1.0), result("a", 1, 2.0, loss=2.0))
    plugin = DashboardPagePlugin("", b"")
    plugin.scripts[bokeh.__version__] = {}
    publisher = publisher_of(plugin, storage)
    make, is_made, may_return = publisher._next_update, threading.Event(), threading.Event()

    def held_back():
        more, update = make()
        if update is not None and update.page is None and not is_made.is_set():
            is_made.set()
            may_return.wait(PATIENCE)
        return more, update

    publisher._next_update = held_back

    async def run():
        publisher._task = asyncio.ensure_future(publisher._serve())
        await until(lambda: plugin.sections)
        section = plugin.sections[page_publisher.experiment_key(storage)]
        section.note_viewer()
        await until(lambda: section.whole)
        write(result("a", 2, 3.0, loss=1.0))
        # On a slow machine the scheduler may have forgotten the browser meanwhile.
        await until(lambda: section.note_viewer() or is_made.is_set())
        # The thread has made the changes, and the end comes before they are sent.
        ending = asyncio.ensure_future(publisher._end())
        await asyncio.wait({publisher._task}, timeout=PATIENCE)
        write(result("a", 3, 4.0, loss=0.5))
        may_return.set()
        await ending
        return section

    try:
        section = asyncio.run(run())
    finally:
        may_return.set()
        publisher._thread.shutdown()
        store.close()
    assert section.complete
    document = json.loads(gzip.decompress(publisher._broadcast.update(full=True).page))
    assert seen_by_browser(section) == sources_of(Document.from_json(document))


def test_a_page_that_could_not_be_published_is_not_tried_again_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(page_publisher, "_DELAY", 0.0)
    publisher = publisher_of(DashboardPagePlugin("", b""), Storage(tmp_path / "exp"))
    tried = []

    async def register_plugin(plugin):
        tried.append(plugin)
        raise ValueError("the scheduler accepts no pickles")

    publisher._client.register_plugin = register_plugin

    async def run():
        publisher._begin()
        await asyncio.wait({publisher._task}, timeout=PATIENCE)
        await publisher._end()

    asyncio.run(run())
    assert len(tried) == 1


def test_an_experiment_that_ends_before_its_page_was_published_is_shown_as_ended(tmp_path):
    plugin = DashboardPagePlugin("", b"")
    publisher = publisher_of(plugin, Storage(tmp_path / "exp"))
    registered = []

    async def register_plugin(plugin):
        registered.append(plugin)

    publisher._client.register_plugin = register_plugin

    async def run():
        publisher._begin()
        await asyncio.sleep(0)
        assert registered == []
        await publisher._end()

    asyncio.run(run())
    [section] = plugin.sections.values()
    assert len(registered) == 1
    assert section.state == "ended"
