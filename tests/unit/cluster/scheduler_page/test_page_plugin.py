"""What the plugin keeps of drivers, without a scheduler."""

from __future__ import annotations

import asyncio
import gzip
import time

import pytest

from dasktune.cluster.scheduler_page.page_plugin import DashboardPagePlugin
from dasktune.cluster.scheduler_page.page_publisher import (
    dashboard_url_of,
    experiment_key,
    page_link,
)
from dasktune.storage.fs.storage import Storage


@pytest.fixture
def plugin():
    return DashboardPagePlugin("<p>{pages}{script}</p>", b"")


def say(plugin, do, key="k", driver="d", **told):
    return asyncio.run(plugin.answer(do, key, driver, **told))


def begin(plugin, key="k", driver="d", client="c", name="exp"):
    return say(plugin, "begin", key, driver, name=name, client=client, hint="")


def states(plugin):
    return {one["key"]: one["state"] for one in plugin.news("")["experiments"]}


def test_a_driver_that_is_unknown_learns_it(plugin):
    assert say(plugin, "beat", wait=0.0) == {"known": False, "yours": False}


def test_a_new_driver_takes_its_experiment_over(plugin):
    begin(plugin, driver="old")
    say(plugin, "push", driver="old", number=1, whole=b"x", bokeh="3")
    plugin.news("k")
    assert begin(plugin, driver="new")["wanted"]
    assert say(plugin, "beat", driver="old", wait=0.0) == {"known": True, "yours": False}
    # What the old one has to say does not count any more.
    say(plugin, "push", driver="old", number=2, whole=b"y", bokeh="3")
    say(plugin, "end", driver="old", hint="", complete=False)
    assert plugin.news("k")["shown"]["whole"] == 0
    assert states(plugin) == {"k": "alive"}


def test_a_driver_learns_at_once_of_a_viewer(plugin):
    async def wait():
        await plugin.answer("begin", "k", "d", name="exp", client="c", hint="")
        waiting = asyncio.ensure_future(plugin.answer("beat", "k", "d", wait=30.0))
        await asyncio.sleep(0)
        plugin.news("k")
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(wait())["wanted"]


def test_one_that_waits_learns_that_another_driver_came(plugin):
    async def wait():
        await plugin.answer("begin", "k", "d", name="exp", client="c", hint="")
        waiting = asyncio.ensure_future(plugin.answer("beat", "k", "d", wait=30.0))
        await asyncio.sleep(0)
        await plugin.answer("begin", "k", "e", name="exp", client="c", hint="")
        return await asyncio.wait_for(waiting, 10)

    assert not asyncio.run(wait())["yours"]


def test_a_driver_whose_client_is_gone_is_lost_until_it_speaks_again(plugin):
    begin(plugin)
    begin(plugin, key="other", client="another")
    plugin.remove_client(None, "c")
    assert states(plugin) == {"k": "lost", "other": "alive"}
    say(plugin, "beat", wait=0.0)
    assert states(plugin)["k"] == "alive"
    say(plugin, "end", hint="", complete=False)
    plugin.remove_client(None, "c")
    assert states(plugin)["k"] == "ended"
    # Its last page comes after that.
    say(plugin, "push", number=1, whole=b"x", bokeh="3")
    assert not plugin.news("k")["shown"]["complete"]
    say(plugin, "end", hint="", complete=True)
    assert states(plugin)["k"] == "ended"
    assert plugin.news("k")["shown"]["complete"]


def test_a_driver_that_says_nothing_is_silent(plugin, monkeypatch):
    begin(plugin)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert states(plugin) == {"k": "silent"}
    assert plugin.news("k")["shown"]["age"] >= 59


def test_the_last_ten_that_have_ended_are_kept_and_all_that_run(plugin):
    begin(plugin, key="runs", driver="runs")
    for number in range(15):
        begin(plugin, key=f"{number}", driver=f"{number}")
        say(plugin, "end", f"{number}", f"{number}", hint="", complete=False)
    assert sorted(states(plugin)) == sorted(["runs", *(f"{number}" for number in range(5, 15))])


def test_a_viewer_of_the_page_finds_the_changes_since(plugin):
    begin(plugin)
    say(plugin, "push", number=1, whole=b"page", bokeh="3")
    for number in range(2, 5):
        say(plugin, "push", number=number, change=b"%d" % number)
    shown = plugin.news("k")["shown"]
    assert (shown["whole"], shown["changes"], shown["bokeh"]) == (1, [2, 3, 4], "3")
    assert plugin.part("k", 1, whole=True) == b"page"
    assert plugin.part("k", 3, whole=False) == b"3"
    assert plugin.part("k", 9, whole=False) is None
    assert plugin.part("k", 9, whole=True) is None
    assert plugin.part("absent", 1, whole=True) is None


def test_what_is_kept_of_an_experiment_is_bounded(plugin):
    begin(plugin)
    for number in range(1, 400):
        whole = b"page" if number % 50 == 1 else None
        say(plugin, "push", number=number, whole=whole, change=b"x" * 50_000)
    changes = plugin.news("k")["shown"]["changes"]
    assert changes[-1] == 399
    assert len(changes) <= 120
    # Those after the page are all there.
    assert set(range(352, 400)) <= set(changes)
    with pytest.raises(ValueError, match=r"at most 2000000 bytes, got 3000000"):
        say(plugin, "push", number=400, whole=b"x" * 3_000_000)


def test_the_scripts_of_few_versions_are_kept(plugin):
    begin(plugin)
    for number in range(5):
        say(plugin, "script", bokeh=f"{number}", files={"bokeh": gzip.compress(b"")})
    assert say(plugin, "beat", wait=0.0)["scripts"] == ["2", "3", "4"]
    with pytest.raises(ValueError, match=r"scripts must have at most"):
        say(plugin, "script", bokeh="5", files={"bokeh": b"x" * 5_000_000})


def test_the_newest_experiment_of_a_name_is_found(plugin):
    begin(plugin, key="1", driver="1")
    begin(plugin, key="2", driver="2")
    assert plugin.find("exp")["key"] == "2"
    assert plugin.find("other") is None


@pytest.mark.parametrize(
    ("place", "prefix", "link"),
    [
        ("", "", "http://10.0.0.1:8787/dasktune#k"),
        ("", "/user/ann", "http://10.0.0.1:8787/user/ann/dasktune#k"),
        ("https://hub/user/ann/status", "/user/ann", "https://hub/user/ann/dasktune#k"),
        ("http://h:1/status?token=secret", "", "http://h:1/dasktune#k"),
        ("/proxy/8787/status", "", "/proxy/8787/dasktune#k"),
    ],
)
def test_the_address_of_the_page_is_beside_those_of_dask(place, prefix, link):
    answer = {"path": f"{prefix}/dasktune", "prefix": prefix, "port": 8787, "scheme": "http"}
    assert page_link(place, "tcp://10.0.0.1:8786", answer, "k") == link
    assert page_link("", "inproc://10.0.0.1/1/1", answer, "k").startswith("http://localhost:8787")
    assert page_link(place, "tcp://10.0.0.1:8786", {**answer, "path": ""}, "k") == ""


def test_a_scheduler_that_serves_pages_encrypted_has_this_one_so():
    answer = {"path": "/dasktune", "prefix": "", "port": 1, "scheme": "https"}
    assert page_link("", "tls://10.0.0.1:2", answer, "k") == "https://10.0.0.1:1/dasktune#k"
    # What somebody stands before it with is another matter.
    assert page_link("http://hub/8787/status", "tls://10.0.0.1:2", answer, "k").startswith("http:")


def test_all_drivers_of_an_experiment_mean_the_same_one(tmp_path):
    keys = {experiment_key(Storage(f"{tmp_path}/{name}")) for name in ("a", "a", "b")}
    assert len(keys) == 2
    secret = experiment_key(Storage("s3://user:secret@bucket/exp"))
    assert "secret" not in secret


def test_an_object_whose_link_cannot_be_read_has_none():
    class Broken:
        @property
        def dashboard_link(self):
            raise RuntimeError("no")

    class Cluster:
        dashboard_link = "http://here/status"

    assert dashboard_url_of(Broken()) == ""
    assert dashboard_url_of(Cluster()) == "http://here/status"
    assert dashboard_url_of("tcp://127.0.0.1:8786") == ""
