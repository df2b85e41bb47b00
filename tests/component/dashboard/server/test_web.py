from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import count

import pytest
from bokeh.application.handlers.document_lifecycle import DocumentLifecycleHandler
from bokeh.application.handlers.function import FunctionHandler
from bokeh.client import pull_session
from bokeh.document import Document
from bokeh.models import DataTable, Div, Plot, Tabs
from bokeh.server.callbacks import NextTickCallback, PeriodicCallback
from bokeh.server.contexts import ApplicationContext
from projection_kit import (
    PAYLOADS,
    FailingStorage,
    RecordFeed,
    asha_journal,
    hostile_records,
    projection_of,
    result,
    started,
    suggested,
)
from tornado.httpclient import HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from dasktune.cli.command_line import COMMANDS
from dasktune.dashboard import serve
from dasktune.dashboard.figures.comparison import comparison
from dasktune.dashboard.figures.figure_spec import FigureSpec, empty_spec
from dasktune.dashboard.labels import value_label
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server import web
from dasktune.dashboard.server.experiment_source import ExperimentFolder, SingleExperiment
from dasktune.dashboard.server.feed import DriverFeed, JournalFeed
from dasktune.dashboard.server.listing.comparison_viewer import ComparisonViewer, comparison_html
from dasktune.dashboard.server.listing.list_viewer import ListViewer
from dasktune.dashboard.server.listing.metric_select import MetricSelect, chosen_metric
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import experiment_pages
from dasktune.dashboard.server.request_gate import CONTENT_SECURITY_POLICY
from dasktune.dashboard.server.viewer import PLACEHOLDER, STALE_NOTE, Viewer
from dasktune.dashboard.server.web import EndLimits, PageServer, WebServer
from dasktune.errors import ConfigError, StorageError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.columnar import numbered
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.leader.leader_lock import LeaderLock, LeaderStatus


def new_store(path, **more):
    store = ExperimentStore(Storage(path))
    store.create({"name": path.name, "metric": "loss", "mode": "min", **more})
    return store


def taken(live):
    while live.poll():
        pass
    return live.projection


def told(projection):
    """Return what two projections of the same history have in common."""
    trials = [
        (trial.trial_id, trial.config, trial.status, trial.iteration, trial.reason, trial.curves[0].values)
        for trial in projection.trials
    ]
    return repr((projection.counts, projection.best_value, projection.saved_iterations, trials))


@pytest.fixture(params=["disk", "objects"])
def place(request, tmp_path):
    return tmp_path / "exp" if request.param == "disk" else f"memory://follow-{tmp_path.name}"


def test_a_journal_is_followed_as_it_grows_and_each_record_comes_once(place):
    storage = Storage(place)
    store = ExperimentStore(storage)
    store.create({"name": "exp"})
    follower = JournalFollower(storage)
    records = asha_journal()
    store.begin()
    seen = []
    for first in range(0, len(records), 40):
        for record in records[first : first + 40]:
            store.append(record)
        store.commit(force=True)
        _, new = follower.poll()
        seen += new
        _, nothing = follower.poll()
        assert list(nothing) == []
    store.close()
    assert seen == records
    reader = JournalReader(storage)
    assert list(reader) == records
    assert follower.end == reader.end


def test_a_driver_that_resumes_is_followed_and_one_that_was_cut_is_forgotten(place):
    storage = Storage(place)
    first = ExperimentStore(storage)
    first.create({"name": "exp"})
    first.begin()
    first.append({"event": "TimePassed", "time": 1.0})
    first.commit(force=True)
    follower = JournalFollower(storage)
    assert [one["time"] for one in follower.poll()[1]] == [1.0]
    end = follower.end
    second = ExperimentStore(storage)
    second.begin(after=end)
    second.append({"event": "TimePassed", "time": 2.0})
    second.commit(force=True)
    again, records = follower.poll()
    assert (again, [one["time"] for one in records]) == (False, [2.0])
    # A repair drops what the second wrote.
    third = JournalWriter(storage, 3, after=end, cuts=True)
    third.append({"event": "TimePassed", "time": 3.0})
    third.commit(force=True)
    again, records = follower.poll()
    assert (again, [one["time"] for one in records]) == (True, [1.0, 3.0])
    for store in (first, second, third):
        store.close()


def test_a_torn_last_line_comes_when_it_is_whole(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    store.close()
    follower = JournalFollower(Storage(tmp_path / "exp"))
    list(follower.poll()[1])
    [segment] = (tmp_path / "exp" / "journal").iterdir()
    line = numbered(json.dumps({"event": "TimePassed", "time": 1.0}).encode() + b"\n", 1).decode()
    told = []
    for part in (line[:9], line[9:]):
        with segment.open("a") as stream:
            stream.write(part)
        told.append(list(follower.poll()[1]))
    assert told == [[], [{"event": "TimePassed", "time": 1.0}]]


def test_a_driver_s_own_dashboard_follows_its_journal_and_knows_its_time(tmp_path):
    storage, time_now = Storage(tmp_path / "exp"), [100.0]
    feed = DriverFeed(JournalFollower(storage), lambda: time_now[0])
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), feed)
    # The driver begins after its dashboard.
    taken(live)
    assert live.state == "driver is running"
    records = asha_journal()
    with closing(new_store(tmp_path / "exp")) as store:
        store.begin()
        for record in records[:90]:
            store.append(record)
        store.commit(force=True)
        taken(live)
        time_now[0] = 1e9
        taken(live)
        assert live.projection.now == 1e9
        assert told(live.projection) == told(projection_of(*records[:90]))
        # It is read before anybody looks.
        assert live.needs_polling
    feed.end()
    taken(live)
    assert live.state == "driver has ended"


def test_a_page_of_something_old_says_how_old():
    feed = RecordFeed(asha_journal)
    ticks = count(step=0.5)
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"), feed, clock=lambda: next(ticks)
    )
    live.has_caught_up = True
    feed.pass_time(1_000.0)
    assert live.poll()
    assert live.state == f"driver is running, shown as of {1_000 - live.projection.now:.0f} s ago"
    taken(live)
    assert live.state == "driver is running"


def test_the_state_says_how_long_a_journal_has_been_silent(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    now = [0.0]
    feed = JournalFeed(JournalFollower(Storage(tmp_path / "exp")), clock=lambda: now[0])
    live = LiveExperiment(ExperimentProjection, feed)
    taken(live)
    assert live.state == "waiting for the first record of the driver"
    store.append({"event": "TimePassed", "time": 1.0})
    store.commit(force=True)
    taken(live)
    assert live.state == "driver is running"
    now[0] = 200.0
    taken(live)
    assert live.state == "no new records for 3 min"
    store.append({"event": "StopRequested", "reason": "enough", "time": 2.0})
    store.commit(force=True)
    taken(live)
    assert live.state == "experiment has ended"
    store.close()


def test_a_driver_that_died_differs_from_one_that_is_silent(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    now, signs = [0.0], []
    follower = JournalFollower(Storage(tmp_path / "exp"))
    feed = JournalFeed(follower, lambda: signs[-1], clock=lambda: now[0])
    live = LiveExperiment(ExperimentProjection, feed)
    for seconds, sign, state in (
        (0.0, LeaderStatus("alive", 3.0), "driver is running"),
        (100.0, LeaderStatus("alive", 3.0), "driver is running, no new records for 1 min"),
        (10.0, LeaderStatus("lost", 250.0), "driver is lost, last sign of life 4 min ago"),
        (1.0, LeaderStatus("alive"), "driver is lost, last sign of life 4 min ago"),
        (10.0, LeaderStatus("lost"), "driver is lost"),
        (10.0, LeaderStatus("ended", 3.0), "driver has ended"),
        (10.0, LeaderStatus("none"), "no new records for 2 min"),
    ):
        now[0] += seconds
        signs.append(sign)
        taken(live)
        assert live.state == state
    # Who writes is alive, whatever the lock says.
    signs.append(LeaderStatus("lost"))
    store.append({"event": "TimePassed", "time": 1.0})
    store.commit(force=True)
    taken(live)
    assert live.state == "driver is running"
    store.close()


def test_an_experiment_says_whether_its_driver_holds_the_lock(tmp_path):
    new_store(tmp_path / "exp").close()
    shelf = ExperimentFolder(Storage(tmp_path / "exp"))
    with LeaderLock(Storage(tmp_path / "exp")):
        taken(shelf.find(""))
        assert shelf.find("").state == "driver is running"
    ended = ExperimentFolder(Storage(tmp_path / "exp")).find("")
    taken(ended)
    assert ended.state == "driver has ended"


def test_an_experiment_in_a_directory_is_read_before_anybody_looks(tmp_path):
    new_store(tmp_path / "exp").close()
    assert ExperimentFolder(Storage(tmp_path / "exp")).find("").needs_polling


def test_pages_are_drawn_while_a_journal_is_read_and_say_how_far_that_is(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    records = asha_journal()
    for record in records:
        store.append(record)
    store.commit(force=True)
    store.close()
    feed = JournalFeed(JournalFollower(Storage(tmp_path / "exp")))
    # As if each look at the clock came half a second later than the last one.
    document, ticks = Document(), count(step=0.5)
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"), feed, clock=lambda: next(ticks)
    )
    assert live.poll()
    viewer = Viewer(live, document)
    read = live.projection.version
    assert 0 < read < len(records)
    [header] = [one for one in document.select({"type": Div}) if "results" in one.text]
    part = feed.read_share
    assert f"reading the journal: {read} records, {part:.0%}" in header.text
    assert " left<" not in header.text
    assert 0 < part < 1
    assert document.select_one({"type": Tabs}) is not None
    taken(live)
    viewer.update()
    assert live.has_caught_up
    assert feed.read_share == 1.0
    assert "reading the journal" not in header.text
    assert f">{live.projection.num_results:,}<" in header.text
    assert not live.needs_polling


def test_figures_of_a_part_of_the_journal_are_drawn_again_when_all_of_it_is_read(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    for record in asha_journal():
        store.append(record)
    store.commit(force=True)
    store.close()
    now, spent, calls = count(step=0.5), [0.0], []
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"),
        JournalFeed(JournalFollower(Storage(tmp_path / "exp"))),
        clock=lambda: next(now),
        used=lambda: spent[0],
        start_thread=lambda call: calls.append(call),
    )
    seen = {}

    def dear(name):
        spent[0] += 3_600.0
        seen[name] = live.projection.version
        return empty_spec(name)

    def draw_all():
        with live.lock:
            live.render("quick", lambda: dear("quick"))
            live.render_in_thread("slow", lambda: dear("slow"))
        while calls:
            calls.pop()()

    assert live.poll()
    draw_all()
    part = dict(seen)
    assert live.poll()
    draw_all()
    assert seen == part
    taken(live)
    draw_all()
    assert seen == dict.fromkeys(part, live.projection.version)


def test_slow_figures_are_drawn_in_threads_and_never_two_in_one_moment():
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    document = Document()
    viewer = Viewer(live, document)
    tabs = document.select_one({"type": Tabs})
    number = [one.title for one in tabs.tabs].index("Parameters")
    cards = tabs.tabs[number].child.children
    tabs.active = number
    # The page does not wait for them.
    assert all(map(is_undrawn, cards))
    until, drawn = time.monotonic() + 120, 0
    while drawn < len(cards):
        assert time.monotonic() < until
        viewer.update()
        before, drawn = drawn, sum(one.children[0].name != PLACEHOLDER for one in cards)
        assert drawn <= before + 1
    assert not viewer.needs_update


def is_undrawn(card):
    return card.children[0].name == PLACEHOLDER


def test_slow_figures_appear_from_the_top_of_the_page_and_their_importances_are_computed_after_them():
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    undrawn = []

    class Ranking:
        generation = 0

        def request(self):
            return None

        def start_requested(self, projection):
            assert projection is live.projection
            undrawn.append([place for place, card in enumerate(cards) if is_undrawn(card)])

    document = Document()
    viewer = Viewer(live, document)
    tabs = document.select_one({"type": Tabs})
    number = [one.title for one in tabs.tabs].index("Parameters")
    cards = tabs.tabs[number].child.children
    live.ranking = Ranking()
    tabs.active = number
    until, order = time.monotonic() + 120, []
    while not undrawn:
        assert time.monotonic() < until
        viewer.update()
        order += [place for place, card in enumerate(cards) if not is_undrawn(card) and place not in order]
    assert order == [0, 1, 2, 3]
    assert undrawn[0] == []


def test_a_figure_of_the_visible_page_does_not_wait_for_the_other_figures_of_a_page_that_was_left():
    live, made = LiveExperiment(ExperimentProjection, RecordFeed()), []

    def request(*names):
        with live.lock:
            return [
                live.render_in_thread(name, lambda name=name: made.append(name) or empty_spec(name))
                for name in names
            ]

    assert request("left 0", "left 1", "left 2") == [None] * 3
    until = time.monotonic() + 120
    while request("visible") == [None]:
        assert time.monotonic() < until
    assert made == ["left 0", "visible"]


def test_the_first_figure_of_a_page_is_sent_before_the_next_one_is_drawn():
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    document = Document()
    viewer = Viewer(live, document)
    cards = [one for one in document.select_one({"type": Tabs}).tabs[0].child.children if one.visible]
    assert [is_undrawn(card) for card in cards] == [False, True]
    # The server calls this once it has sent the first figure.
    [later] = [one for one in document.session_callbacks if isinstance(one, NextTickCallback)]
    later.callback()
    assert not any(map(is_undrawn, cards))
    assert not viewer.needs_update


def test_a_slow_figure_that_fails_is_logged_and_made_again_after_a_while(caplog):
    now, calls = [0.0], []
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"),
        RecordFeed(asha_journal),
        clock=lambda: now[0],
    )
    taken(live)

    def make():
        calls.append(now[0])
        if len(calls) == 1:
            raise RuntimeError("no")
        return empty_spec("title")

    until = time.monotonic() + 120
    assert live.render_in_thread("one", make) is None
    while "could not be rendered" not in caplog.text:
        assert time.monotonic() < until
    # A page that waits for its figure asks ten times a second.
    for _ in range(100):
        live.render_in_thread("one", make)
        time.sleep(0.0001)
    assert len(calls) == 1
    now[0] += 6.0
    while live.render_in_thread("one", make) is None:
        assert time.monotonic() < until
    assert calls[:2] == [0.0, 6.0]


def test_a_viewer_that_comes_later_gets_models_that_a_thread_has_built(monkeypatch):
    now, threads = [0.0], []
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"),
        RecordFeed(asha_journal),
        clock=lambda: now[0],
        used=lambda: now[0],
    )
    taken(live)

    def draw(spec):
        threads.append(threading.current_thread())
        return Div(text="figure")

    def rendered(**more):
        until = time.monotonic() + 60
        while (
            found := live.render_in_thread("one", lambda: FigureSpec(draw=draw, structure=()), **more)
        ) is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        return found

    first = rendered(needs_models=True)
    assert len(threads) == 2
    assert first.take_models() is not first.models[0]
    # A viewer that has models needs no more of them.
    assert rendered() is first
    assert len(threads) == 2
    assert rendered(needs_models=True) is first
    assert first.take_models() is not None
    assert len(threads) == 3
    assert threading.main_thread() not in threads


def test_a_figure_that_others_replace_while_a_viewer_waits_for_its_models_is_made_again(caplog):
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal), clock=lambda: 0.0
    )
    taken(live)

    def render():
        return live.render_in_thread("one", lambda: empty_spec("title"), needs_models=True)

    until = time.monotonic() + 60
    while (first := render()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    first.take_models()
    with live.lock:
        assert render() is None
        # The thread waits for the lock. Meanwhile the loop draws more figures than are kept.
        for number in range(100):
            live.render(f"other {number}", lambda: empty_spec("title"))
    while (again := render()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert again is not first
    assert not caplog.records


def test_figures_of_all_trials_together_take_three_percent_of_a_processor():
    now, spent, calls = [0.0], [0.0], []
    live = LiveExperiment(
        lambda: projection_of(*asha_journal()),
        RecordFeed(),
        clock=lambda: now[0],
        used=lambda: spent[0],
        start_thread=lambda call: calls.append(call),
    )
    made = []

    def make():
        made.append(now[0])
        spent[0] += 0.3
        return empty_spec("title")

    def ask():
        live.projection.version += 1
        with live.lock:
            live.render_in_thread("one", make)
        while calls:
            calls.pop()()

    for now[0] in range(200):
        ask()
    # A page has four of these figures: 0.3 s of work every 40 s.
    assert len(made) == 5


def test_a_page_that_is_not_seen_is_not_updated_until_it_is_seen_again():
    records = asha_journal()
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(lambda: records[:90])
    )
    taken(live)
    document = Document()
    viewer = Viewer(live, document)
    [header] = [one for one in document.select({"type": Div}) if "results" in one.text]
    [periodic] = [one for one in document.session_callbacks if isinstance(one, PeriodicCallback)]
    before = header.text
    header.tags = ["hidden"]
    live.projection.extend(records[90:])
    periodic.callback()
    assert viewer.is_hidden
    assert header.text == before
    header.tags = ["seen"]
    assert header.text != before


def test_a_damaged_journal_is_shown_and_does_not_end_it(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    store.close()
    [segment] = (tmp_path / "exp" / "journal").iterdir()
    live = LiveExperiment(ExperimentProjection, JournalFeed(JournalFollower(Storage(tmp_path / "exp"))))
    taken(live)
    with segment.open("a") as stream:
        stream.write("{\n")
    taken(live)
    assert "the journal cannot be read" in live.state


def test_one_draft_serves_all_until_something_happens():
    records = asha_journal()
    now, used = [0.0], [0.0]
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min"),
        RecordFeed(lambda: records[:90]),
        clock=lambda: now[0],
        used=lambda: used[0],
    )
    taken(live)
    made = []

    def make():
        from bokeh.models import Div

        # The machine is busy: only a part of the time is that of this thread.
        now[0] += 20.0
        used[0] += 1.0
        made.append(Div())
        return made[-1]

    assert live.render("a", make) is live.render("a", make)
    live.projection.add(records[90])
    # It took a second of a processor, so the next one has to wait for 100 seconds.
    now[0] += 99.0
    live.render("a", make)
    assert len(made) == 1
    now[0] += 2.0
    live.render("a", make)
    assert len(made) == 2


def is_serving(server):
    """Return whether the server still accepts connections."""
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
        return True
    return False


@pytest.fixture
def server():
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min", name="demo"),
        RecordFeed(hostile_records),
    )
    server = WebServer(SingleExperiment(live))
    yield server
    server.close()
    server.wait()  # `close` waits for some seconds only
    assert not is_serving(server)


@contextmanager
def pulled(server, **arguments):
    """Open a page as a browser does; yield the session with the models that it was sent."""
    session = pull_session(url=server.url, arguments=arguments)
    try:
        yield session
    finally:
        session.close()


def test_a_page_is_sent_before_its_figures_are_drawn_and_loads_only_the_scripts_that_it_needs(server):
    with urllib.request.urlopen(server.url, timeout=60) as page:
        html = page.read().decode()
    scripts = re.findall(r'<script[^>]* src="[^"]*/([\w-]+)\.min\.js', html)
    assert scripts == ["bokeh", "bokeh-widgets", "bokeh-tables"]
    with pulled(server) as session:
        until = time.monotonic() + 60
        while session.document.select_one({"type": Tabs}) is None:
            assert time.monotonic() < until
            session.pull()


def test_a_viewer_of_a_server_draws_nothing_until_its_page_is_sent():
    live = LiveExperiment(lambda: projection_of(*asha_journal()), RecordFeed())
    document = Document()
    Viewer(live, document, draws_later=True)
    assert document.select_one({"type": Tabs}) is None
    [later] = [one for one in document.session_callbacks if isinstance(one, NextTickCallback)]
    later.callback()
    assert document.select_one({"type": Tabs}) is not None


def test_the_page_says_what_a_browser_may_do_with_it(server):
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert "frame-ancestors 'self'" in CONTENT_SECURITY_POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
        page = answer.read().decode()
    assert not any(evil in page for evil in PAYLOADS if "<" in evil)


def test_the_end_of_a_server_draws_nothing_for_a_page_that_no_browser_shows():
    live = LiveExperiment(
        lambda: ExperimentProjection(metric="loss", mode="min", name="demo"),
        RecordFeed(hostile_records),
    )
    with closing(WebServer(SingleExperiment(live))) as server:
        urllib.request.urlopen(server.url, timeout=60).close()
        assert live.viewers == 1
    assert not live.is_closing


def connect(server, origin):
    async def talk():
        url = f"{server.url.replace('http', 'ws')}ws"
        request = HTTPRequest(url, headers={"Origin": origin})
        socket = await websocket_connect(request, subprotocols=["bokeh", "none"])
        socket.close()

    IOLoop(make_current=False).run_sync(talk, timeout=60)


def test_a_page_without_javascript_names_commands_that_exist(server):
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        page = answer.read().decode()
    [text] = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    named = re.findall(r"dasktune (\w+)", text)
    assert named
    assert set(named) <= COMMANDS.keys()


def test_pages_of_other_origins_are_refused(server):
    for origin in ("http://evil.example", "http://localhost:1", "null"):
        with pytest.raises(Exception, match="403"):
            connect(server, origin)


def test_the_server_listens_where_only_this_machine_reaches_it(server):
    assert server.url.startswith("http://127.0.0.1:")


def test_a_port_that_is_taken_is_replaced_by_a_free_one(server, caplog):
    other = WebServer(SingleExperiment(LiveExperiment(ExperimentProjection, RecordFeed())), port=server.port)
    assert other.port not in (0, server.port)
    said = f"port {server.port} is in use: the dashboard listens at port {other.port}"
    assert said in [record.getMessage() for record in caplog.records]
    other.close()
    other.close()


def test_a_server_without_a_driver_reads_on_whatever_its_figures_cost():
    feed = RecordFeed()
    live = LiveExperiment(ExperimentProjection, feed)
    live.cpu_budget.pause_seconds = lambda more=0.0, *, hurry=False: 1e6
    server = WebServer(SingleExperiment(live))
    try:
        until = time.monotonic() + 60
        while not live.has_caught_up:
            assert time.monotonic() < until
            time.sleep(0.01)
        feed.put(suggested("a"))
        while live.projection.version < 1:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        server.close()


def test_an_address_that_is_not_there_raises():
    with pytest.raises(OSError, match=r".+"):
        WebServer(
            SingleExperiment(LiveExperiment(ExperimentProjection, RecordFeed())),
            address="192.0.2.1",
        )


def test_a_directory_of_experiments_lists_them_and_what_they_are_called_is_only_text(tmp_path):
    evil = "<img src=x onerror='1'>"
    new_store(tmp_path / "one").close()
    new_store(tmp_path / evil, total_trials=7).close()
    goals = {"metric": ["loss", "size"], "mode": ["min", "max"]}
    new_store(tmp_path / "goals", **goals, created="2026-11-22T16:49:14+00:00").close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "experiment.json").write_text("{")
    (tmp_path / "other").mkdir()
    shelf = ExperimentFolder(Storage(tmp_path))
    assert shelf.summaries() == []
    while shelf.refresh():
        pass
    found = {one.name: one for one in shelf.summaries()}
    assert found.keys() == {"one", evil, "goals", "broken"}
    assert (found["one"].state, found["one"].total) == ("interrupted", None)
    assert found[evil].total == 7
    assert found["goals"].goal == "loss (min), size (max)"
    assert found["goals"].created == "2026-11-22T16:49:14"
    assert found["broken"].state == "unreadable"
    assert "cannot be read" in found["broken"].goal
    document = Document()
    viewer = ListViewer(shelf, document)
    title = document.select_one({"name": "title"})
    assert "4 experiments" in title.text
    data = document.select_one({"type": DataTable}).source.data
    assert data["name"] == [one.name for one in shelf.summaries()]
    # The names are in cells whose templates escape them, never in HTML of the server.
    assert "<img" not in title.text
    cells = [one.formatter for one in document.select_one({"type": DataTable}).columns]
    assert all("<%=" not in getattr(one, "template", "") for one in cells)
    # A row stays where it is, so that a selection means the same experiment.
    new_store(tmp_path / "zzz").close()
    while shelf.refresh():
        pass
    until = time.monotonic() + 60
    # Bokeh cannot stream rows while another thread, such as one of a forest, imports pandas.
    while document.select_one({"type": DataTable}).source.data["name"][-1] != "zzz":
        assert time.monotonic() < until
        viewer.update()
    assert shelf.find("one") is shelf.find("one")
    assert shelf.find("../one") is shelf.find("other") is shelf.find("") is None
    assert len(shelf.opened()) == 1


def test_an_experiment_is_shown_by_any_metric_that_its_trials_report(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    records = [suggested("a", x=1), started("a", 0.0)]
    records += [result("a", step, float(step), loss=1 / step, net={"acc": 0.2 * step}) for step in (1, 2)]
    for record in records:
        store.append(record)
    store.commit(force=True)
    store.close()
    shelf = ExperimentFolder(Storage(tmp_path))
    live = shelf.find_by_metric("exp", "net/acc", "max")
    assert taken(live).best_value == 0.4
    assert taken(shelf.find("exp")).best_value == 0.5
    assert shelf.find_by_metric("exp", "net/acc", "max") is live
    assert live in shelf.opened()
    assert shelf.find_by_metric("other", "net/acc", "max") is None
    # Each view keeps all trials in memory, so only few are kept unless they have viewers.
    live.viewers = 1
    for number in range(20):
        assert shelf.find_by_metric("exp", f"m{number}", "min") is not None
    assert len(shelf.opened()) < 12
    assert shelf.find_by_metric("exp", "net/acc", "max") is live
    document = Document()
    select = MetricSelect(("net/acc", "max"))
    viewer = Viewer(live, document, None, select)
    offered = [json.loads(value) for value, _ in select.root.options[1:]]
    assert offered == [["loss", "min"], ["loss", "max"], ["net/acc", "min"], ["net/acc", "max"]]
    assert json.loads(select.root.value) == ["net/acc", "max"]
    for _ in viewer.show_end(time.monotonic() + 60):
        pass
    assert not select.root.visible


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"metric": [b"acc"], "mode": [b"max"]}, ("acc", "max")),
        ({"metric": [b"acc"]}, None),
        ({"metric": [b"acc"], "mode": [b"best"]}, None),
        ({"metric": [b"x" * 501], "mode": [b"max"]}, None),
        ({}, None),
    ],
)
def test_an_address_names_a_metric_and_a_mode_or_none(query, wanted):
    assert chosen_metric(query) == wanted


def test_viewers_are_served_while_a_thread_looks_for_an_experiment(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        new_store(tmp_path / name).close()
    experiments = ExperimentFolder(Storage(tmp_path))
    assert experiments.find("one") is not None
    may_list, find, looks = threading.Event(), experiments.find, []

    def slow_find(name):
        looks.append(name)
        assert may_list.wait(60)
        looks.append(f"{name} found")
        return find(name)

    monkeypatch.setattr(experiments, "find", slow_find)
    server, titles = WebServer(experiments), {}

    def open_page(query):
        with urllib.request.urlopen(f"{server.url}{query}", timeout=60) as page:
            titles[query] = re.search("<title>(.*?)</title>", page.read().decode())[1]

    slow = [threading.Thread(target=open_page, args=(f"?experiment={name}",)) for name in ("two", "three")]
    try:
        for thread in slow:
            thread.start()
        while not looks:
            assert any(thread.is_alive() for thread in slow)
            time.sleep(0.001)
        # The storage has not answered: the list and what was opened before do not wait for it.
        open_page("")
        open_page("?experiment=one")
        assert titles == {"": "experiments · dasktune", "?experiment=one": "one · dasktune"}
        assert len(looks) == 1
        may_list.set()
        for thread in slow:
            thread.join(60)
    finally:
        may_list.set()
        server.close()
    assert titles["?experiment=two"] == "two · dasktune"
    assert titles["?experiment=three"] == "three · dasktune"
    # One after the other, so that a slow storage gets one look at a time.
    assert looks[1] == f"{looks[0]} found"


def test_a_directory_that_cannot_be_read_is_shown_as_its_list_with_the_reason(tmp_path, caplog):
    new_store(tmp_path / "one").close()
    storage = FailingStorage(tmp_path)
    experiments = ExperimentFolder(storage)
    while experiments.refresh():
        pass
    assert experiments.list_note == ""

    storage.is_down.set()
    assert not experiments.refresh()
    assert [one.name for one in experiments.summaries()] == ["one"]
    server = WebServer(experiments)
    try:
        for _ in range(3):
            with urllib.request.urlopen(f"{server.url}?experiment=other", timeout=60) as page:
                assert "<title>experiments · dasktune</title>" in page.read().decode()
        with pulled(server, experiment="other") as session:
            title = session.document.select_one({"name": "title"}).text
        assert "1 experiment, cannot be read again" in title
        assert "no access" in title
    finally:
        server.close()
    failing = "the dashboard could not look for an experiment"
    assert [one.getMessage() for one in caplog.records] == [failing]


def test_a_directory_without_experiments_is_refused(tmp_path):
    with pytest.raises(StorageError, match="no experiment is stored at"):
        serve(tmp_path)
    with pytest.raises(ConfigError, match="port must be an int from 0 to 65535"):
        serve(tmp_path, port=70_000)


def compared(**projections):
    return [LiveExperiment(lambda one=one: one, RecordFeed()) for one in projections.values()]


def test_a_comparison_has_a_line_for_each_experiment_of_the_same_goal_and_a_row_for_each():
    records = asha_journal()
    lives = compared(
        one=projection_of(*records, name="one"),
        evil=projection_of(*records[: len(records) // 2], name=PAYLOADS[0]),
        other=projection_of(*records, metric="loss", mode="max", name="other"),
    )
    told = [live.projection for live in lives]
    for x in ("time", "results"):
        figure = comparison(told, x=x)
        assert figure.title.text.endswith("without 1 with another goal or without results")
        ends = [line.data_source.data["x"][-1] for line in figure.renderers]
        wanted = [one.elapsed if x == "time" else one.num_results for one in told[:2]]
        assert ends == pytest.approx(wanted)
    page = comparison_html(lives)
    assert page.count("<tr>") == 4
    assert "<img" not in page
    assert value_label(told[0].best_value) in page
    # In a narrow window the long cells break, so that the state stays in sight.
    cells = re.findall(r"<td([^>]*)>([^<]*)", page)[:10]
    broken = [text for style, text in cells if not style]
    assert broken == [cells[4][1], cells[9][1]]


def test_an_experiment_that_an_address_names_twice_is_compared_once(tmp_path):
    new_store(tmp_path / "exp").close()
    experiments = ExperimentFolder(Storage(tmp_path / "exp"))
    server = WebServer(experiments)
    try:
        # A directory with one experiment has it under any name.
        with urllib.request.urlopen(f"{server.url}?compare=a&compare=b", timeout=60) as page:
            assert "<title>comparison" in page.read().decode()
        # A viewer that compares it with itself would count twice.
        [live] = experiments.opened()
        assert live.viewers == 1
    finally:
        server.close()


def test_a_comparison_follows_what_happens():
    records = asha_journal()
    projections = {name: projection_of(*records[: len(records) // 2], name=name) for name in "ab"}
    lives, document = compared(**projections), Document()
    viewer = ComparisonViewer(lives, document)
    [table] = [one for one in document.select({"type": Div}) if "<table" in one.text]
    figures = list(document.select({"type": Plot}))
    before = table.text
    with lives[0].lock:
        viewer.update()
    assert viewer.needs_update
    projections["b"].extend(records[len(records) // 2 :])
    viewer.update()
    assert not viewer.needs_update
    assert table.text != before
    assert set(document.select({"type": Plot})) == set(figures)
    [over_time] = [one for one in figures if "time" in one.xaxis[0].axis_label]
    ends = [line.data_source.data["x"][-1] for line in over_time.renderers]
    assert ends == pytest.approx([one.elapsed for one in projections.values()])


@pytest.mark.parametrize("wedged", ["poll", "loop"])
def test_a_wedged_server_does_not_keep_a_run_from_ending(wedged):
    stuck, free = threading.Event(), threading.Event()

    def hang():
        stuck.set()
        free.wait(300)

    class Stuck(RecordFeed):
        def poll(self):
            if wedged == "poll":
                hang()
            return super().poll()

    class StuckSource(SingleExperiment):
        # The server's loop asks for the experiments.
        def opened(self):
            if wedged == "loop":
                hang()
            return super().opened()

    server = WebServer(StuckSource(LiveExperiment(ExperimentProjection, Stuck())))
    try:
        assert stuck.wait(60)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 20  # of the thirty that it might have taken
    finally:
        free.set()
        server.wait()


def codes_of(frame):
    """Yield the code of each function that a thread is in."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are POSIX")
def test_an_interrupt_that_does_not_wake_the_main_thread_ends_its_wait_and_the_server_can_be_closed():
    server = WebServer(SingleExperiment(LiveExperiment(ExperimentProjection, RecordFeed())))
    main, is_raised = threading.get_ident(), threading.Event()

    def interrupt():
        while server.wait.__code__ not in codes_of(sys._current_frames()[main]):
            time.sleep(0.01)
        # Only the main thread runs Python's handlers, and this does not wake it, as if the signal
        # had come just before it blocked.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not is_raised.wait(60):
            server.close()

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        server.wait()
    is_raised.set()
    helper.join()
    assert is_serving(server)
    server.close()
    server.wait()
    assert not is_serving(server)


def test_a_server_whose_start_is_interrupted_ends_by_itself(monkeypatch):
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    class Module:
        """The module with events that a Ctrl-C interrupts."""

        Event = Interrupted

        def __getattr__(self, name):
            return getattr(threading, name)

    known = set(threading.enumerate())
    monkeypatch.setattr(web, "threading", Module())
    with pytest.raises(KeyboardInterrupt):
        WebServer(SingleExperiment(LiveExperiment(ExperimentProjection, RecordFeed())))
    for one in set(threading.enumerate()) - known:
        if one.name == "dasktune-dashboard":
            one.join(60)
            assert not one.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_the_server_ends_although_a_viewer_leaves_or_the_last_records_cannot_be_read(caplog, fails):
    documents = []

    class SeenViewer(Viewer):
        def __init__(self, live, document, *arguments, **more):
            super().__init__(live, document, *arguments, **more)
            documents.append(document)

    class LastFeed(RecordFeed):
        is_last = False

        def poll(self):
            if self.is_last:
                for leave in tuple(documents[0].session_destroyed_callbacks):
                    leave(None)
                if fails:
                    raise ZeroDivisionError
            return super().poll()

    class InDriver(LiveExperiment):
        is_in_driver = True

    feed = LastFeed(asha_journal)
    live = InDriver(ExperimentProjection, feed)
    # The server polls until it has caught up, and then for the last time.
    live.cpu_budget.pause_seconds = lambda more=0.0, *, hurry=False: 1e6 if live.has_caught_up else 0.0
    patient = EndLimits(poll_s=60.0, draw_s=60.0, close_s=120.0)
    server = PageServer(SingleExperiment(live), make_viewer=SeenViewer, end_limits=patient)
    until = time.monotonic() + 60
    while not live.has_caught_up:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pulled(server):
        assert documents
        feed.is_last = True
        server.close()
    assert not is_serving(server)
    assert live.viewers == 0
    messages = [record.getMessage() for record in caplog.records]
    assert ("the last records of an experiment could not be read" in messages) == fails
    assert "the dashboard could not show the last state of its experiments" not in messages


def test_pages_are_followed_again_after_an_error_of_the_server(caplog):
    polled = threading.Event()

    class SeenFeed(RecordFeed):
        def poll(self):
            polled.set()
            return super().poll()

    class FailingSource(SingleExperiment):
        has_failed = False

        def opened(self):
            if not self.has_failed:
                self.has_failed = True
                raise ZeroDivisionError
            return super().opened()

    server = WebServer(FailingSource(LiveExperiment(ExperimentProjection, SeenFeed())))
    try:
        assert polled.wait(20)
    finally:
        server.close()
    assert "the dashboard could not update its pages" in caplog.text


def test_a_browser_that_leaves_does_not_stop_the_process_for_a_search_of_all_objects():
    left, set_aside = [], []

    def show(document):
        document.on_session_destroyed(left.append)

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            set_aside.append(gc.get_freeze_count())

    async def work():
        # What a server of Bokeh does with an application, for each browser that comes and leaves.
        application = web.PageApplication(FunctionHandler(show), DocumentLifecycleHandler())
        sessions = ApplicationContext(application, io_loop=IOLoop.current())
        await sessions.create_session_if_needed("id")
        gc.callbacks.append(note)
        await sessions._cleanup_sessions(-1)
        gc.callbacks.remove(note)
        return list(sessions.sessions)

    was_frozen = gc.get_freeze_count() > 0  # by tests/conftest.py
    gc.unfreeze()
    try:
        assert asyncio.run(work()) == []
        assert gc.get_freeze_count() == 0
    finally:
        if was_frozen:
            gc.freeze()
    assert len(left) == 1
    # Bokeh collects twice, and each time only what has been made in the last moment.
    assert len(set_aside) == 2
    assert min(set_aside) > 1000


def test_a_section_that_fails_leaves_the_others_of_its_page_up_to_date(monkeypatch, caplog):
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    first = experiment_pages(live)[0].sections[0].name
    for way in ("render", "render_in_thread"):
        render = getattr(live, way)

        def fail(name, make, render=render, **more):
            return 1 / 0 if name == first else render(name, make, **more)

        monkeypatch.setattr(live, way, fail)
    document = Document()
    viewer = Viewer(live, document)
    cards = document.select_one({"type": Tabs}).tabs[0].child.children
    until = time.monotonic() + 60
    while cards[1].children[0].name == PLACEHOLDER:
        assert time.monotonic() < until
        viewer.update()
    assert cards[0].children[0].name == PLACEHOLDER
    assert "could not be drawn" in cards[0].children[0].text
    assert f"the section {first!r} of a page could not be updated" in caplog.text


def test_a_section_that_fails_at_each_update_is_logged_when_its_error_changes_and_ends(caplog):
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    error, failures = None, {RuntimeError: 0, OSError: 0}

    def fail():
        if error is not None:
            failures[type(error)] += 1
            raise error
        return True

    def failing_pages(live):
        first, *others = experiment_pages(live)
        section, *more = first.sections
        return [replace(first, sections=[replace(section, is_shown=fail), *more]), *others]

    document = Document()
    viewer = Viewer(live, document, make_pages=failing_pages)
    [card, *_] = document.select_one({"type": Tabs}).tabs[0].child.children
    name = experiment_pages(live)[0].sections[0].name
    until = time.monotonic() + 60
    while card.children[0].name == PLACEHOLDER:
        assert time.monotonic() < until
        viewer.update()
    shown = list(card.children)
    failing = f"the section {name!r} of a page could not be updated"
    for error in (RuntimeError("of trial 1"), RuntimeError("of trial 2"), OSError("no"), None):
        for _ in range(20):
            viewer.update()
        # The figure keeps its last state, and a note says so until it is updated again.
        assert card.children[: len(shown)] == shown
        assert [one.name for one in card.children[len(shown) :]] == [STALE_NOTE] * (error is not None)
    ended = f"no longer: {failing} (it has failed"
    assert [one.getMessage() for one in caplog.records] == [
        failing,
        f"{ended} {failures[RuntimeError]} times)",
        failing,
        f"{ended} {failures[OSError]} times)",
    ]
    assert [one.exc_info is not None for one in caplog.records] == [True, False, True, False]


def test_importances_are_computed_although_another_figure_of_their_page_cannot_be_drawn(caplog):
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed(asha_journal))
    taken(live)
    render, has_begun = live.render_in_thread, []

    def fail():
        raise RuntimeError("no")

    class Ranking:
        generation = 0

        def request(self):
            return None

        def start_requested(self, projection):
            has_begun.append(projection)

    live.render_in_thread = lambda name, make, **more: render(
        name, fail if name == "slices" else make, **more
    )
    live.ranking = Ranking()
    document = Document()
    viewer = Viewer(live, document)
    tabs = document.select_one({"type": Tabs})
    tabs.active = [one.title for one in tabs.tabs].index("Parameters")
    cards = tabs.tabs[tabs.active].child.children
    has_begun.clear()
    until = time.monotonic() + 120
    while not has_begun:
        assert time.monotonic() < until
        viewer.update()
    assert [is_undrawn(card) for card in cards] == [False, False, True, False]
    assert "could not be drawn" in cards[2].children[0].text
    # It is not tried again ten times a second.
    assert not viewer.needs_update
    assert "a figure of the dashboard could not be rendered" in caplog.text


def test_an_error_of_the_page_is_not_found_elsewhere(server):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.url}other", timeout=60)
