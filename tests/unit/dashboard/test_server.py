from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from chronicle_kit import PAYLOADS, asha_journal, chronicle_of, hostile_records
from tornado.httpclient import HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from dasktune.dashboard import serve
from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.server import WebServer
from dasktune.dashboard.server.feed import DriverFeed, JournalFeed
from dasktune.dashboard.server.live import Live
from dasktune.dashboard.server.shelf import Directory, Single
from dasktune.dashboard.server.web import CONTENT_SECURITY_POLICY
from dasktune.errors import ConfigError, StorageError
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.journal_follower import JournalFollower
from dasktune.storage.journal_reader import JournalReader
from dasktune.storage.location import Storage


def new_store(path, **more):
    store = ExperimentStore(Storage(path))
    store.create({"name": path.name, "metric": "loss", "mode": "min", **more})
    return store


def taken(live):
    while live.poll():
        pass
    return live.chronicle


def told(chronicle):
    """Return what two chronicles of the same history have in common."""
    trials = [
        (log.trial_id, log.config, log.status, log.iteration, log.reason, log.curves[0].values)
        for log in chronicle.trials
    ]
    return repr((chronicle.counts, chronicle.best_value, chronicle.saved_iterations, trials))


@pytest.fixture(params=["disk", "objects"])
def place(request, tmp_path):
    return tmp_path / "exp" if request.param == "disk" else f"memory://follow-{tmp_path.name}"


def test_a_journal_is_followed_as_it_grows_and_each_record_is_told_once(place):
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
    assert follower.end == JournalReader(storage).end or list(JournalReader(storage)) == records


def test_a_driver_that_goes_on_is_followed_and_one_that_was_given_up_is_forgotten(place):
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
    anew, records = follower.poll()
    assert (anew, [one["time"] for one in records]) == (False, [2.0])
    # The third driver has not seen what the second wrote.
    third = ExperimentStore(storage)
    third.begin(after=end)
    third.append({"event": "TimePassed", "time": 3.0})
    third.commit(force=True)
    anew, records = follower.poll()
    assert (anew, [one["time"] for one in records]) == (True, [1.0, 3.0])
    for store in (first, second, third):
        store.close()


def test_a_torn_last_line_is_told_when_it_is_whole(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    store.close()
    follower = JournalFollower(Storage(tmp_path / "exp"))
    list(follower.poll()[1])
    [segment] = (tmp_path / "exp" / "journal").iterdir()
    line = json.dumps({"event": "TimePassed", "time": 1.0}) + "\n"
    for part in (line[:9], line[9:]):
        with segment.open("a") as stream:
            stream.write(part)
        told = list(follower.poll()[1])
    assert told == [{"event": "TimePassed", "time": 1.0}]


def test_what_the_driver_tells_makes_the_chronicle_that_the_journal_makes():
    records = asha_journal()
    feed = DriverFeed(before=lambda: records[:50])
    live = Live(lambda: Chronicle(metric="loss", mode="min"), feed)
    for record in records[50:]:
        feed.put(record)
    assert told(taken(live)) == told(chronicle_of(*records))
    feed.pass_time(1e9)
    taken(live)
    assert live.chronicle.now == 1e9


def test_records_that_nobody_takes_do_not_pile_up_for_ever(monkeypatch):
    monkeypatch.setattr("dasktune.dashboard.server.feed._MOST_WAITING", 2)
    feed = DriverFeed()
    feed.put({})
    feed.put({})
    with pytest.raises(RuntimeError, match="has not taken"):
        feed.put({})


def test_the_state_says_how_long_a_journal_has_been_silent(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    now = [0.0]
    feed = JournalFeed(JournalFollower(Storage(tmp_path / "exp")), clock=lambda: now[0])
    live = Live(Chronicle, feed)
    taken(live)
    assert live.state == "waiting for news"
    store.append({"event": "TimePassed", "time": 1.0})
    store.commit(force=True)
    taken(live)
    assert live.state == "driver is running"
    now[0] = 200.0
    taken(live)
    assert live.state == "no news for 3 min"
    store.append({"event": "StopRequested", "reason": "enough", "time": 2.0})
    store.commit(force=True)
    taken(live)
    assert live.state == "experiment has ended"
    store.close()


def test_a_damaged_journal_is_told_and_does_not_end_the_server(tmp_path):
    store = new_store(tmp_path / "exp")
    store.begin()
    store.close()
    [segment] = (tmp_path / "exp" / "journal").iterdir()
    live = Live(Chronicle, JournalFeed(JournalFollower(Storage(tmp_path / "exp"))))
    taken(live)
    with segment.open("a") as stream:
        stream.write("{\n")
    taken(live)
    assert "the journal cannot be read" in live.state


def test_one_draft_serves_all_until_something_happens():
    records = asha_journal()
    now = [0.0]
    live = Live(lambda: Chronicle(metric="loss", mode="min"), DriverFeed(lambda: records[:90]))
    live._clock = lambda: now[0]
    taken(live)
    made = []

    def make():
        from bokeh.models import Div

        now[0] += 1.0
        made.append(Div())
        return made[-1]

    assert live.draft("a", make) is live.draft("a", make)
    live.chronicle.add(records[90])
    # It took a second to make, so that the next one has to wait.
    live.draft("a", make)
    assert len(made) == 1
    now[0] += 30.0
    live.draft("a", make)
    assert len(made) == 2


@pytest.fixture
def server():
    live = Live(
        lambda: Chronicle(metric="loss", mode="min", name="demo"), DriverFeed(hostile_records)
    )
    server = WebServer(Single(live))
    yield server
    server.close()
    assert not server._thread.is_alive()


def test_the_page_says_what_a_browser_may_do_with_it(server):
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert "frame-ancestors 'self'" in CONTENT_SECURITY_POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
        page = answer.read().decode()
    assert not any(evil in page for evil in PAYLOADS if "<" in evil)


def connect(server, origin):
    async def talk():
        url = f"{server.url.replace('http', 'ws')}ws"
        request = HTTPRequest(url, headers={"Origin": origin})
        socket = await websocket_connect(request, subprotocols=["bokeh", "none"])
        socket.close()

    IOLoop(make_current=False).run_sync(talk, timeout=60)


def test_pages_of_other_origins_are_refused(server):
    for origin in ("http://evil.example", "http://localhost:1", "null"):
        with pytest.raises(Exception, match="403"):
            connect(server, origin)


def test_the_server_listens_where_only_this_machine_reaches_it(server):
    assert server.url.startswith("http://localhost:")


def test_a_port_that_is_taken_is_replaced_by_a_free_one(server):
    other = WebServer(Single(Live(Chronicle, DriverFeed())), port=server.port)
    assert other.port not in (0, server.port)
    other.close()
    other.close()


def test_an_address_that_is_not_there_raises():
    with pytest.raises(OSError, match=r".+"):
        WebServer(Single(Live(Chronicle, DriverFeed())), address="192.0.2.1")


def test_a_directory_of_experiments_lists_them_and_escapes_what_they_are_called(tmp_path):
    evil = "<img src=x onerror='1'>"
    new_store(tmp_path / "one").close()
    new_store(tmp_path / evil, total_trials=7).close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "experiment.json").write_text("{")
    (tmp_path / "other").mkdir()
    shelf = Directory(Storage(tmp_path))
    listing = shelf.listing()
    assert "<img" not in listing
    assert 'href="?experiment=one"' in listing
    assert "cannot be read" in listing
    assert "other" not in listing.replace(str(tmp_path), "")
    assert shelf.find("one") is shelf.find("one")
    assert shelf.find("../one") is shelf.find("other") is shelf.find("") is None
    assert len(shelf.opened()) == 1


def test_a_directory_without_experiments_is_refused(tmp_path):
    with pytest.raises(StorageError, match="no experiment is stored at"):
        serve(tmp_path)
    with pytest.raises(ConfigError, match="port must be an int from 0 to 65535"):
        serve(tmp_path, port=70_000)


def test_an_error_of_the_page_is_not_found_elsewhere(server):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.url}other", timeout=60)
