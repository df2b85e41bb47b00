from __future__ import annotations

import logging
import urllib.error
import urllib.request

import pytest
from cluster_kit import until
from control_kit import told_secret

import dasktune as tune
from dasktune.callback import Callback
from dasktune.dashboard.server.web import WebServer

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("complete_notices")]


def train(config):
    return {"loss": config["x"]}


def fit(cluster, tmp_path, name, **more):
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name=name, storage_path=tmp_path, **more),
        client=cluster,
    )
    return tuner.fit()


class Caller(Callback):
    """Looks at the dashboard while the experiment runs."""

    def __init__(self, log):
        self.log = log
        self.pages = []

    def on_trial_result(self, *args, **kwargs):
        [url] = [one.args[0] for one in self.log.records if one.msg == "dashboard: %s"]
        with urllib.request.urlopen(url, timeout=60) as answer:
            self.pages.append((url, answer.status))

    def __deepcopy__(self, memo):
        return self


def test_a_run_has_a_dashboard_for_as_long_as_it_lasts(pair, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="dasktune.dashboard.server.attach")
    caller = Caller(caplog)
    grid = fit(pair, tmp_path, "shown", dashboard=True, callbacks=[caller], verbose=0)
    assert len(grid) == 3
    assert grid.num_errors == 0
    assert [status for _, status in caller.pages] == [200] * 3
    # On a loaded machine the run does not wait for the last page that is being drawn.
    until(lambda: not answers(caller.pages[0][0]))


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "broken",
    [
        "dasktune.dashboard.server.web.WebServer._serve",
        "dasktune.dashboard.server.feed.DriverFeed.poll",
        "dasktune.dashboard.server.live_experiment.LiveExperiment.poll",
        "dasktune.dashboard.server.web.WebServer.close",
    ],
)
def test_a_dashboard_that_crashes_costs_nothing(pair, tmp_path, monkeypatch, broken):
    close, crashes = WebServer.close, []

    def crash(*args, **kwargs):
        crashes.append(broken)
        if broken.endswith(".close"):
            close(*args)  # its thread would outlive the test
        raise RuntimeError("the dashboard is broken")

    monkeypatch.setattr(broken, crash)
    grid = fit(pair, tmp_path, "broken", dashboard=True, verbose=0)
    assert len(grid) == 3
    assert grid.num_errors == 0
    assert crashes


class Intruder(Callback):
    """Looks at the dashboard without the token, and with it."""

    def __init__(self, log, capsys):
        self.log, self.capsys = log, capsys
        self.told = ""
        self.seen = []

    def on_trial_result(self, *args, **kwargs):
        self.told += self.capsys.readouterr().err
        [url] = [one.args[0] for one in self.log.records if one.msg == "dashboard: %s"]
        link = told_secret(self.told, "Dashboard")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(url, timeout=60)
        caught.value.close()
        with opener.open(link, timeout=60) as answer:
            self.seen.append((caught.value.code, answer.status, answer.url == link.partition("?")[0]))

    def __deepcopy__(self, memo):
        return self


@pytest.mark.slow
def test_a_dashboard_with_buttons_is_shown_only_with_the_link(pair, tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO)
    intruder = Intruder(caplog, capsys)
    more = {"dashboard": True, "dashboard_controls": True, "callbacks": [intruder]}
    grid = fit(pair, tmp_path, "buttons", verbose=0, **more)
    assert grid.num_errors == 0
    assert intruder.seen == [(403, 200, True)] * 3
    assert "token" not in caplog.text
