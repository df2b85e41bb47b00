"""The page that shows, when a viewer asks, what other trial schedulers would have cost."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import Button, Div, Plot, Tabs
from projection_kit import RecordFeed, result, started, suggested

from dasktune.config import TuneConfig
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.background.forecast_section import forecast_section
from dasktune.dashboard.server.background.forecast_task import MOST_RESULTS, ForecastTask
from dasktune.dashboard.server.cpu_budget import CpuBudget
from dasktune.dashboard.server.experiment_source import ExperimentFolder, SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.viewer import Viewer
from dasktune.dashboard.server.web import WebServer
from dasktune.errors import ConfigError
from dasktune.forecast.what_if import Interval, WhatIf, WhatIfRow
from dasktune.space import uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.testing import simulate


def forecast() -> WhatIf:
    half = Interval(0.4, 0.5, 0.6)
    names = ("FIFOScheduler", "asha")
    rows = [
        WhatIfRow(scheduler=n, iterations=half, time=half, hours=half, kept=half, regret=half) for n in names
    ]
    return WhatIf(
        rows=tuple(rows),
        metric="loss",
        mode="min",
        num_curves=30,
        max_t=9,
        orders=20,
        workers=4,
        min_kept=0.9,
    )


class Replay:
    """Replays nothing: the test says when it ends, and how."""

    def __init__(self) -> None:
        self.began, self.may_end = Event(), Event()
        self.calls = 0
        self.outcome: Any = forecast()

    def __call__(self, *, progress: Any) -> WhatIf:
        self.calls += 1
        progress(45, 100)
        self.began.set()
        assert self.may_end.wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def replay():
    return Replay()


def until(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def live_with(replay):
    journal = [suggested("a", lr=0.1), started("a", 1.0), result("a", 2.0, 1, loss=0.5)]
    feed = RecordFeed(lambda: journal)
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), feed, replay=replay)
    while live.poll():
        pass
    return live


class Page:
    """The page of the forecast in one viewer."""

    def __init__(self, live):
        self.live, self.document = live, Document()
        self.viewer = Viewer(live, self.document)
        tabs = self.document.select_one({"type": Tabs})
        [number] = [n for n, tab in enumerate(tabs.tabs) if tab.title == "What if"]
        tabs.active, self.tab = number, tabs.tabs[number]
        self.viewer.update()

    def shows(self, text):
        """Update until the page shows a text: a figure is not drawn again within a short time."""

        def is_shown():
            self.viewer.update()
            return text in self.text

        until(is_shown)
        return True

    @property
    def button(self):
        return next(iter(self.tab.child.select({"type": Button})), None)

    @property
    def text(self):
        return " ".join(one.text for one in self.tab.child.select({"type": Div}))

    @property
    def figures(self):
        return list(self.tab.child.select({"type": Plot}))

    def click(self):
        # As the script of the button does in a browser.
        self.button.tags = [*self.button.tags, "clicked"]


def test_nothing_is_computed_until_a_viewer_asks_and_then_once_for_all_viewers(replay):
    live = live_with(replay)
    one, other = Page(live), Page(live)
    assert (replay.calls, one.figures, one.button.label) == (0, [], "Compute")
    one.click()
    # The page does not wait for the thread.
    assert replay.began.wait(60)
    other.click()
    for page in (one, other):
        assert page.shows("Replaying: 40%")
        assert page.button is None
    replay.may_end.set()
    for page in (one, other):
        assert page.shows("Train all trials to their end")
        assert len(page.figures) == 1
        assert page.button.label == "Compute again"
    assert replay.calls == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("at least 20 full curves, got <3>"), "at least 20 full curves, got &lt;3&gt;"),
        (ZeroDivisionError("secret"), "the computation failed: ZeroDivisionError"),
    ],
)
def test_an_error_is_shown_and_the_viewer_may_ask_again(replay, error, text):
    replay.outcome = error
    replay.may_end.set()
    page = Page(live_with(replay))
    page.click()
    assert page.shows(text)
    # The message may ask for an argument, and the page takes none.
    assert "<code>dasktune whatif</code>" in page.text
    assert "secret" not in page.text
    replay.outcome = forecast()
    page.click()
    assert page.shows("Train all trials to their end")
    assert len(page.figures) == 1


def test_while_the_driver_is_busy_the_replay_rests():
    seconds = iter([0.0, 1.0, 1.0])
    slept: list[float] = []
    budget = CpuBudget()
    budget.is_contended = True

    def replay(*, progress: Any) -> WhatIf:
        progress(1, 2)
        return forecast()

    task = ForecastTask(replay, budget, slept.append, lambda: next(seconds))
    task.start()
    until(lambda: task.found is not None)
    # An eighth of the time.
    assert slept == [7.0]


def test_a_forecast_that_ends_while_its_page_is_drawn_is_shown(replay):
    live, shown = live_with(replay), []

    def make():
        text = "running" if live.forecast.found is None else "found"
        if not shown:
            # The thread ends now: it sets its result, and then the generation.
            live.forecast.found = forecast()
            live.forecast.generation += 1
        shown.append(text)
        return Div(text=text)

    # The experiment has ended, so that nothing else changes.
    for _ in range(3):
        live.render("forecast", make, at_once=True)
    assert shown == ["running", "found"]


def test_no_event_names_a_model_that_has_come_after_the_page_was_opened(replay):
    # The browser would send such a model in full, and Bokeh's server would warn that it knows it.
    page = Page(live_with(replay))
    tabs = page.document.select_one({"type": Tabs})
    for number in range(len(tabs.tabs)):
        tabs.active = number
    assert page.button is not None
    assert [one for one in tabs.references() if one.subscribed_events] == []


def test_the_last_state_of_a_page_has_no_button(replay):
    live = live_with(replay)
    live.is_closing = True
    assert list(forecast_section(live, live.forecast).select({"type": Button})) == []


def test_a_server_that_ends_says_that_a_forecast_was_not_computed_and_ends_its_thread():
    began, gate, has_ended = Event(), Event(), Event()

    def replay(*, progress: Any) -> WhatIf:
        began.set()
        assert gate.wait(60)
        try:
            progress(1, 2)
        finally:
            has_ended.set()
        return forecast()

    live = live_with(replay)
    server = WebServer(SingleExperiment(live))
    live.forecast.start()
    assert began.wait(60)
    server.close()
    live.is_closing = True
    gate.set()
    assert has_ended.wait(60)
    page = forecast_section(live, live.forecast)
    assert [one.text for one in page.children] == ["<p>The server ended before this was computed.</p>"]
    before = live.forecast.generation
    live.forecast.start()
    assert (live.forecast.generation, live.forecast.found, live.forecast.error) == (before, None, "")


def test_the_forecast_of_a_view_that_is_dropped_ends(tmp_path):
    store = ExperimentStore(Storage(tmp_path))
    store.create({"name": "exp", "metric": "loss", "mode": "min"})
    store.close()
    experiments = ExperimentFolder(Storage(tmp_path), most_by_metric=1)
    views = [experiments.find_by_metric("", metric, "min") for metric in ("size", "time")]
    assert experiments.opened()[1:] == views[1:]
    # A thread that computes ends at its next progress, and no other can start.
    before = [view.forecast.generation for view in views]
    views[0].forecast.start()
    assert (views[0].forecast.share, views[0].forecast.generation) == (None, before[0])
    views[1].forecast.start()
    assert views[1].forecast.generation > before[1]


def test_an_experiment_with_very_many_results_is_not_replayed_in_the_server(replay):
    live = live_with(replay)
    live.projection.num_results = MOST_RESULTS + 1
    page = forecast_section(live, live.forecast)
    assert list(page.select({"type": Button})) == []
    assert "<code>dasktune whatif</code>" in page.children[0].text


def test_without_a_replay_there_is_no_such_page():
    document = Document()
    Viewer(live_with(None), document)
    assert "What if" not in [tab.title for tab in document.select_one({"type": Tabs}).tabs]


def test_the_experiment_of_a_directory_is_replayed_from_its_journal(tmp_path):
    def train(config: dict[str, Any]) -> Any:
        yield {"loss": config["x"]}, 60.0

    store = ExperimentStore(Storage(tmp_path))
    store.create({"format": 1, "dasktune": "0.2.0", "name": "exp", "metric": "loss", "mode": "min"})
    simulate(
        train,
        param_space={"x": uniform(0, 1)},
        tune_config=TuneConfig(metric="loss", mode="min", num_samples=20, seed=0),
        slots=5,
        store=store,
    )
    store.close()
    live = ExperimentFolder(Storage(tmp_path)).find("")
    assert live is not None
    live.forecast.start()
    until(lambda: live.forecast.share is None)
    assert live.forecast.error == ""
    assert (live.forecast.found.num_curves, live.forecast.found.workers) == (20, 5)
