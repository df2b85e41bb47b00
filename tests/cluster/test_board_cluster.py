"""The page in the dashboard of real schedulers, looked at as a browser does."""

from __future__ import annotations

import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import cluster_kit
import dask
import pytest
from bokeh.document import Document
from bokeh.models import DataTable
from cluster_kit import Fleet, fitting, run_config, steps, until
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.cluster.driver import launch
from dasktune.cluster.scheduler_page.page_plugin import PROTOCOL
from dasktune.cluster.scheduler_page.page_publisher import PublishingLimits, experiment_key, publishing
from dasktune.dashboard.server.page_stream import Broadcast
from dasktune.storage.fs.storage import Storage

pytestmark = pytest.mark.cluster

#: What a process runs first that has no Bokeh.
WITHOUT_BOKEH = cluster_kit.WITHOUT_DASKTUNE.replace('"dasktune"', '"bokeh"')


#: A busy machine may take longer to show an experiment's end than users should wait for it.
PATIENT = PublishingLimits(report_end_s=cluster_kit.PATIENCE, draw_end_s=cluster_kit.PATIENCE)


@pytest.fixture(autouse=True)
def _the_end_is_always_shown(monkeypatch):
    monkeypatch.setattr(launch, "publishing", partial(publishing, limits=PATIENT))


def fetch(url):
    # Of what a test has encrypted it has made the certificate itself.
    trusting = ssl._create_unverified_context() if url.startswith("https:") else None
    with urllib.request.urlopen(url, timeout=60, context=trusting) as answer:
        return answer.read()


def key_of(place, name="run"):
    return experiment_key(Storage(str(place / name)))


def news(page, key):
    """Look at an experiment; None as long as there is no page."""
    try:
        return json.loads(fetch(f"{page}~news?key={key}"))
    except urllib.error.HTTPError:
        return None


def shown(page, key):
    told = news(page, key)
    return told and told["shown"]


def whole(page, key):
    """Return the page of an experiment, as soon as it is there."""
    told = until(lambda: (one := shown(page, key)) and one["whole"] and one)
    return told, json.loads(fetch(f"{page}~whole?key={key}&number={told['whole']}"))


def last_values(page, key):
    """Return the last value of each trial in the page's table, as a browser has them in the end."""
    told, content = whole(page, key)
    document = Document.from_json(content)
    for number in told["changes"]:
        if number > told["whole"]:
            document.apply_json_patch(json.loads(fetch(f"{page}~change?key={key}&number={number}")))
    [table] = document.select({"type": DataTable})
    return list(table.source.data["last"])


def page_of(client):
    """Return where the page is, whatever the scheduler was started with."""
    port = client.scheduler_info()["services"]["dashboard"]
    return f"http://127.0.0.1:{port}/dasktune"


def tuner_of(place, client, **options):
    return tune.Tuner(
        steps,
        param_space={"place": str(place), "steps": 3, "gates": [3], "x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="step", mode="max"),
        run_config=run_config(place, **options),
        client=client,
    )


def handlers(client):
    """Return what a scheduler takes by streams, and what of ours by calls."""

    def told(dask_scheduler):  # nested, so that it travels by value
        ours = [one for one in dask_scheduler.handlers if one.startswith("dasktune")]
        return sorted(map(str, dask_scheduler.stream_handlers)), sorted(ours)

    return client.run_on_scheduler(told)


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [cluster_kit.WITHOUT_DASKTUNE, WITHOUT_BOKEH])
def test_a_scheduler_without_dasktune_or_bokeh_shows_a_run(tmp_path: Path, lacks: str):
    fleet = Fleet(tmp_path, its_prelude=lacks)
    try:
        fleet.keep(2)
        with fleet.client() as client:
            streams, _ = handlers(client)
            page = page_of(client)
            with fitting(tuner_of(tmp_path, fleet.address)) as results:
                told, content = whole(page, key_of(tmp_path))
                assert told["state"] == "alive"
                assert content["roots"]
                script = f"{page}~bokeh?version={told['bokeh']}&name=bokeh"
                assert b"Bokeh" in fetch(script)
                (tmp_path / "gate-3").touch()
                assert results.result(cluster_kit.PATIENCE).num_errors == 0
            assert shown(page, key_of(tmp_path))["state"] == "ended"
            # An unknown message of a stream, or one that raises, would cost clients all they have.
            assert handlers(client) == (streams, [f"dasktune_board_{PROTOCOL}"])
    finally:
        fleet.close()


@pytest.mark.slow
def test_dask_links_to_the_page_and_it_survives_a_restart(pair, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="dasktune.cluster.scheduler_page.page_publisher")
    (tmp_path / "gate-3").touch()
    tuner = tuner_of(tmp_path, pair, name="linked")
    with fitting(tuner) as results:
        results.result(cluster_kit.PATIENCE)
    page = pair.dashboard_link.replace("status", "dasktune")
    link = f"{page}#{key_of(tmp_path, 'linked')}"
    assert tuner.dashboard_link == link
    assert link in repr(tuner)
    assert f'<a href="{link}">' in tuner._repr_html_()
    [told] = [one.args for one in caplog.records if one.msg == "page in Dask's dashboard: %s"]
    assert told == (link,)
    for other in ("status", "workers"):
        assert b'href="dasktune"' in fetch(pair.dashboard_link.replace("status", other))
    assert b'href="status"' in fetch(page)
    # Neither is there for pages of other origins.
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Access-Control-Allow-Origin"] is None
    with Client(pair) as client:
        client.restart()
    assert shown(page, key_of(tmp_path, "linked"))["state"] == "ended"


@pytest.mark.slow
def test_several_experiments_are_shown_and_a_resumed_one_takes_its_place(pair, tmp_path):
    page = pair.dashboard_link.replace("status", "dasktune")
    keys = [key_of(tmp_path, name) for name in ("one", "two")]
    one, two = (tuner_of(tmp_path, pair, name=name) for name in ("one", "two"))
    with fitting(one) as first, fitting(two) as second:
        drivers = [until(lambda key=key: shown(page, key))["driver"] for key in keys]
        for key in keys:
            whole(page, key)
        until(lambda: one.runner).interrupt()
        first.result(cluster_kit.PATIENCE)
        until(lambda: shown(page, keys[0])["state"] == "ended")
        again = tune.Tuner.restore(tmp_path / "one", steps, client=pair)
        with fitting(again) as third:
            until(lambda: shown(page, keys[0])["state"] == "alive")
            told, _ = whole(page, keys[0])
            assert told["driver"] not in drivers
            (tmp_path / "gate-3").touch()
            assert third.result(cluster_kit.PATIENCE).num_errors == 0
        second.result(cluster_kit.PATIENCE)
    listed = [one["key"] for one in news(page, "")["experiments"]]
    assert {*keys} <= {*listed}
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_a_submitted_experiment_has_a_page(fleet, tmp_path):
    fleet.keep(2)
    with tuner_of(tmp_path, fleet.address, name="sent").submit() as experiment:
        link = until(lambda: experiment.dashboard_link)
        page, _, key = link.partition("#")
        assert key == key_of(tmp_path, "sent")
        assert whole(page, key)[0]["state"] == "alive"
        assert link in repr(experiment)
        (tmp_path / "gate-3").touch()
        assert experiment.result(cluster_kit.PATIENCE).num_errors == 0
        until(lambda: shown(page, key)["state"] == "ended")


def test_a_scheduler_without_pages_of_its_own_has_this_one(fleet, tmp_path):
    fleet.keep(2)
    tuner = tuner_of(tmp_path, fleet.address, name="alone")
    with fitting(tuner) as results:
        until(lambda: tuner.dashboard_link)
        (tmp_path / "gate-3").touch()
        assert results.result(cluster_kit.PATIENCE).num_errors == 0
    page = tuner.dashboard_link.partition("#")[0]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(page.replace("dasktune", "status"))
    # Nothing of Dask's is there to be named, neither links nor styles.
    content = fetch(page).decode()
    assert "navbar" not in content
    assert "statics/" not in content


@pytest.mark.slow
def test_an_encrypted_cluster_has_an_encrypted_page(tmp_path, security):
    pem = security.tls_ca_file
    served = {f"distributed.scheduler.dashboard.tls.{part}": pem for part in ("cert", "key")}
    options = {"protocol": "tls", "security": security, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set(served),
        LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster,
    ):
        at = cluster.scheduler_address
        assert at.startswith("tls:")
        # As from a process that knows nothing of how the dashboard is served.
        with (
            dask.config.set(dict.fromkeys(served)),
            Client(at, security=security, set_as_default=False) as client,
            fitting(tuner_of(tmp_path, client)) as results,
        ):
            port = client.scheduler_info()["services"]["dashboard"]
            page, key = f"https://127.0.0.1:{port}/dasktune", key_of(tmp_path)
            assert whole(page, key)[0]["state"] == "alive"
            (tmp_path / "gate-3").touch()
            assert results.result(cluster_kit.PATIENCE).num_errors == 0
            assert shown(page, key)["state"] == "ended"


#: A driver of a dasktune that speaks otherwise; it prints where its page is.
LATER = """
import sys
from pathlib import Path
from dasktune.cluster.scheduler_page import page_plugin as board
from dasktune.cluster.scheduler_page import page_publisher as poster
from functools import partial
from test_board_cluster import PATIENT, fitting, launch, publishing, tuner_of, until

place, address, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
board.PROTOCOL = poster.PROTOCOL = number
launch.publishing = partial(publishing, limits=PATIENT)
tuner = tuner_of(place, address)
with fitting(tuner) as results:
    until(lambda: tuner.dashboard_link)
    (place / "gate-3").touch()
    results.result()
print(tuner.dashboard_link)
"""


@pytest.mark.slow
def test_drivers_that_speak_otherwise_have_a_page_of_their_own(fleet, tmp_path):
    fleet.keep(2)
    numbers = (PROTOCOL, PROTOCOL + 1)
    places = [tmp_path / str(number) for number in numbers]
    links = []
    for number, place in zip(numbers, places, strict=True):
        place.mkdir()
        command = [sys.executable, "-c", LATER, str(place), fleet.address, str(number)]
        # Where this module is found.
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        told = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        links.append(told.stdout.split()[-1])
    pages = [link.partition("#")[0] for link in links]
    assert pages[1] == f"{pages[0]}-{numbers[1]}"
    keys = [key_of(place) for place in places]
    for number in (0, 1):
        assert shown(pages[number], keys[number])["state"] == "ended"
        assert shown(pages[number], keys[1 - number]) is None


@pytest.mark.parametrize("slow", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_does_not_wait_long_for_its_last_picture(pair, tmp_path, monkeypatch, slow):
    """Not at all, if that never comes; if it comes in time it is shown, however costly it is."""
    ends, resume = threading.Event(), threading.Event()

    class Late(Broadcast):
        def update(self, *, full=False):
            if ends.is_set():
                resume.wait(cluster_kit.PATIENCE)
            return super().update(full=full)

    class Costly(Broadcast):
        def update(self, *, full=False):
            until_used = time.thread_time() + 0.1
            while time.thread_time() < until_used:
                pass
            return super().update(full=full)

    # The end is known long before the last picture is given up.
    hurried = PublishingLimits(report_end_s=10.0, draw_end_s=10.0)
    more = {"make_broadcast": Late if slow else Costly, "limits": hurried if slow else PATIENT}
    monkeypatch.setattr(launch, "publishing", partial(publishing, **more))
    page = pair.dashboard_link.replace("status", "dasktune")
    key = key_of(tmp_path, "last")
    with fitting(tuner_of(tmp_path, pair, name="last")) as results:
        try:
            whole(page, key)
            ends.set()
            (tmp_path / "gate-3").touch()
            assert results.result(cluster_kit.PATIENCE - 10).num_errors == 0
            told = shown(page, key)
        finally:
            resume.set()
    assert (told["state"], told["complete"]) == ("ended", not slow)
    if not slow:
        assert last_values(page, key) == [3, 3]


def test_dask_s_own_pages_are_known_to_be_there_or_not(fleet, tmp_path):
    fleet.keep(2)
    (tmp_path / "gate-3").touch()
    alone = tuner_of(tmp_path, fleet.address, name="alone")
    assert alone.fit().num_errors == 0
    assert alone.dashboard_link
    assert not alone._dashboard_page[1]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        beside = tuner_of(tmp_path, cluster.scheduler_address, name="beside")
        assert beside.fit().num_errors == 0
    assert beside.dashboard_link
    assert beside._dashboard_page[1]


def test_no_page_is_there_if_it_is_not_wanted(fleet, tmp_path):
    fleet.keep(2)
    (tmp_path / "gate-3").touch()
    tuner = tuner_of(tmp_path, fleet.address, name="unseen", dashboard=False)
    assert tuner.fit().num_errors == 0
    assert tuner.dashboard_link is None
    assert repr(tuner) == "Tuner(steps)"
    with fleet.client() as client:
        told = news(page_of(client), key_of(tmp_path, "unseen"))
    assert told is None or told["shown"] is None


@pytest.mark.parametrize(
    "broken",
    [
        "dasktune.cluster.scheduler_page.page_publisher.PagePublisher._register",
        "dasktune.cluster.scheduler_page.page_publisher.PagePublisher._next_update",
        "dasktune.cluster.scheduler_page.page_publisher.PagePublisher._end",
        "dasktune.cluster.scheduler_page.page_publisher.page_link",
    ],
)
def test_a_page_that_cannot_be_made_costs_nothing(pair, tmp_path, monkeypatch, broken):
    crashes = []

    def crash(*args, **kwargs):
        crashes.append(broken)
        raise RuntimeError("the page is broken")

    monkeypatch.setattr(broken, crash)
    page, key = pair.dashboard_link.replace("status", "dasktune"), key_of(tmp_path, "broken")
    tuner = tuner_of(tmp_path, pair, name="broken")
    with fitting(tuner) as results:
        if not broken.endswith("._end"):
            # The page is published after a while, and drawn only if it has a viewer.
            until(lambda: [news(page, key)] and crashes)
        (tmp_path / "gate-3").touch()
        assert results.result(cluster_kit.PATIENCE).num_errors == 0
    assert crashes
