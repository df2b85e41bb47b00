"""What a driver sends to the scheduler, without a cluster: the plugin answers in this process."""

from __future__ import annotations

import gzip
import json
import threading
import time
from types import SimpleNamespace

import bokeh
import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from distributed.utils import LoopRunner, sync
from projection_kit import result, started, suggested

from dasktune.cluster.scheduler_page.page_plugin import PROTOCOL, DashboardPagePlugin
from dasktune.cluster.scheduler_page.page_publisher import PagePublisher, PublishingLimits, experiment_key
from dasktune.dashboard.server.page_stream import Broadcast
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

PATIENCE = 60.0


#: No pauses, and as much time at the end as it takes.
AT_ONCE = PublishingLimits(
    delay_s=0.0, period_s=0.0, cpu_share=1.0, report_end_s=PATIENCE, draw_end_s=PATIENCE
)
#: The experiment ends before its page is published.
TOO_LATE = PublishingLimits(delay_s=10 * PATIENCE, report_end_s=PATIENCE, draw_end_s=PATIENCE)


class LocalClient:
    """A client with a loop of its own, whose calls a plugin in this process answers."""

    id, status = "c", "running"

    def __init__(self) -> None:
        self.plugin = DashboardPagePlugin("", b"")
        self.plugin.scripts[bokeh.__version__] = {}
        self.scheduler = SimpleNamespace(**{f"dasktune_board_{PROTOCOL}": self.plugin.answer})
        self.registered, self.was_asked, self.refuses = [], threading.Event(), False
        self._runner = LoopRunner(asynchronous=False)
        self._runner.start()
        self.loop = self._runner.loop

    def sync(self, call, *, callback_timeout=PATIENCE):
        return sync(self.loop, call, callback_timeout=callback_timeout)

    async def register_plugin(self, plugin):
        self.registered.append(plugin)
        self.was_asked.set()
        if self.refuses:
            raise ValueError("the scheduler accepts no pickles")

    def look(self, key):
        """Look at an experiment as a browser does; return its state."""

        async def news():
            return self.plugin.news(key)["shown"]

        return self.sync(news)

    def close(self):
        self._runner.stop()


@pytest.fixture
def client():
    client = LocalClient()
    yield client
    client.close()


def publisher_of(client, storage, limits, **more):
    """Return a publisher whose calls the client's plugin answers."""
    connection = SimpleNamespace(client=client, address="tcp://h:1")
    return PagePublisher(
        connection, storage, "exp", "", lambda link, has_neighbours: None, limits=limits, **more
    )


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


def until(condition):
    limit = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.001)  # between two looks
    return found


def test_an_update_that_the_end_has_interrupted_is_not_missing_in_the_last_state(tmp_path, client):
    storage = Storage(tmp_path / "exp")
    key = experiment_key(storage)
    store = ExperimentStore(storage)
    store.create({"name": "exp", "metric": "loss", "mode": "min"})
    store.begin()

    def write(*records):
        for record in records:
            store.append(record)
        store.commit(force=True)

    write(suggested("a", x=0.5), started("a", 1.0), result("a", 1, 2.0, loss=2.0))
    is_made, may_return, made = threading.Event(), threading.Event(), []

    class HeldBack(Broadcast):
        """The first update with changes alone takes long after it is made."""

        def update(self, *, full=False):
            update = super().update(full=full)
            if update is not None and update.page is None and not is_made.is_set():
                is_made.set()
                may_return.wait(PATIENCE)
            return update

    def make_broadcast(live):
        made.append(HeldBack(live))
        return made[-1]

    publisher = publisher_of(client, storage, AT_ONCE, make_broadcast=make_broadcast)
    ending = threading.Thread(target=publisher.close)
    publisher.open()
    try:
        until(lambda: (shown := client.look(key)) and shown["whole"])
        write(result("a", 2, 3.0, loss=1.0))
        # On a slow machine the scheduler may forget a browser that looks only once.
        until(lambda: client.look(key) and is_made.is_set())
        # The thread has made the changes, and the end comes before they are sent.
        ending.start()
        until(lambda: client.look(key)["state"] == "ended")
        write(result("a", 3, 4.0, loss=0.5))
    finally:
        may_return.set()
        if ending.ident is None:
            ending.start()
        ending.join(PATIENCE)
        store.close()
    section = client.plugin.sections[key]
    assert section.complete
    [broadcast] = made
    document = json.loads(gzip.decompress(broadcast.update(full=True).page))
    assert seen_by_browser(section) == sources_of(Document.from_json(document))


def test_a_page_that_could_not_be_published_is_not_tried_again_at_the_end(tmp_path, client):
    client.refuses = True
    publisher = publisher_of(client, Storage(tmp_path / "exp"), AT_ONCE)
    publisher.open()
    # The publisher gives up before its loop does anything else.
    assert client.was_asked.wait(PATIENCE)
    publisher.close()
    assert len(client.registered) == 1
    assert not client.plugin.sections


def test_an_experiment_that_ends_before_its_page_was_published_is_shown_as_ended(tmp_path, client):
    publisher = publisher_of(client, Storage(tmp_path / "exp"), TOO_LATE)
    publisher.open()
    publisher.close()
    [section] = client.plugin.sections.values()
    assert len(client.registered) == 1
    assert section.state == "ended"
