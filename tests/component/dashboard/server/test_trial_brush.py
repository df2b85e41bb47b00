"""The choice of trials that a viewer makes in figures; what it does is tested in a browser."""

from __future__ import annotations

import time

from bokeh.document import Document
from bokeh.models import BoxSelectTool, Button, CustomJSFilter, Plot, Tabs
from projection_kit import RecordFeed, asha_journal, projection_of

from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.viewer import PLACEHOLDER, Viewer


def open_page(document, viewer, title):
    """Open a page and wait until its figures are drawn; return its cards."""
    tabs = document.select_one({"type": Tabs})
    tabs.active = [one.title for one in tabs.tabs].index(title)
    cards = tabs.tabs[tabs.active].child.children
    until = time.monotonic() + 120
    while any(one.visible and one.children[0].name == PLACEHOLDER for one in cards):
        assert time.monotonic() < until
        viewer.update()
    return cards


def filters(root):
    return [
        one.view.filter
        for plot in root.select({"type": Plot})
        for one in plot.renderers
        if isinstance(one.view.filter, CustomJSFilter)
    ]


def test_figures_of_trials_follow_the_choice_and_those_of_parameters_offer_it():
    live = LiveExperiment(lambda: projection_of(*asha_journal()), RecordFeed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document)
    best, curves = open_page(document, viewer, "Overview")[:2]
    # The best values are those of all trials.
    assert not filters(best)
    assert filters(curves)
    assert not list(curves.select({"type": BoxSelectTool}))
    parallel, _, slices, _ = open_page(document, viewer, "Parameters")
    for card in (parallel, slices):
        plots = list(card.select({"type": Plot}))
        assert plots
        assert all(isinstance(one.toolbar.active_drag, BoxSelectTool) for one in plots)
        assert len(filters(card)) == len(plots)
    # The name of the choice is unique: the browser finds it by its name.
    assert document.get_model_by_name("brush") is not None


def test_there_is_a_button_to_choose_trials_without_a_mouse_and_one_to_show_all():
    live = LiveExperiment(lambda: projection_of(*asha_journal()), RecordFeed())
    live.poll()
    document = Document()
    viewer = Viewer(live, document)
    bar = document.get_model_by_name("brush bar")
    assert not bar.visible
    assert bar.select_one({"type": Button}).label == "Show all trials"
    [card] = open_page(document, viewer, "Trials")
    [button] = [one for one in card.select({"type": Button}) if one.name == "brush filtered"]
    assert button.label == "Show only these trials in all figures"
