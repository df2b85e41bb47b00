"""A browser's view of an experiment: the models of a session, and their updates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.layouts import column
from bokeh.model import collect_models
from bokeh.models import (
    CustomJS,
    DataTable,
    Div,
    InlineStyleSheet,
    Paragraph,
    TabPanel,
    Tabs,
)

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.labels import label
from dasktune.dashboard.report.header import LOST, header_html
from dasktune.dashboard.report.style import CARD, TABS, colour
from dasktune.dashboard.server.controls import Commander, ControlBar
from dasktune.dashboard.server.diff import RenderedFigure
from dasktune.dashboard.server.listing.metric_select import MetricSelect
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import Page, PageSection, experiment_pages, trial_section
from dasktune.dashboard.server.parts.log_view import LogView
from dasktune.dashboard.server.parts.trial_brush import TrialBrush
from dasktune.dashboard.server.repeated_errors import RepeatedErrors
from dasktune.dashboard.server.trial_picking import report_clicks

logger = logging.getLogger(__name__)

#: Milliseconds between two updates.
_PERIOD = 1000

#: Seconds between two heartbeats to the page, and without a heartbeat until the page shows that the
#: server is lost.
_HEARTBEAT_SECONDS = 5.0
_LOST_AFTER_SECONDS = 20.0

#: Reports whether the page is visible; a hidden browser tab is not updated.
_REPORT_VISIBILITY = """
const report = () => { header.tags = [document.hidden ? "hidden" : "seen"] }
document.addEventListener("visibilitychange", report)
if (document.hidden) report()
"""

#: Watches for heartbeats. Only the page itself can notice that they are missing: a server that is
#: killed or hangs sends nothing.
_WATCH_HEARTBEAT = """
let last = Date.now()
const show = (lost) => {
  if (lost !== header.css_classes.includes("dt-lost")) header.css_classes = lost ? ["dt-lost"] : []
}
const beat = () => { last = Date.now(); show(false) }
for (const one of [pulse.properties.tags, header.properties.text]) one.change.connect(beat)
setInterval(() => {
  // A hidden page gets no heartbeats.
  if (document.hidden) last = Date.now()
  else if (Date.now() - last > timeout) show(true)
}, 500)
"""
#: Lets the keyboard choose a page, and a screen reader name the tabs. Bokeh only handles clicks.
#: The tabs are added later, and each update of their titles makes new elements.
_TABS_BY_KEYBOARD = """
const label = (tabs) => {
  const root = Bokeh.index.find_one(tabs)?.shadow_el
  const heads = [...root?.querySelectorAll(".bk-tab") ?? []]
  heads[0]?.parentElement.setAttribute("role", "tablist")
  // Bokeh has the tabs after the pages, so the keyboard would reach them last.
  const bar = heads[0]?.closest(".bk-header")
  const first = bar && [...root.children].find((one) => one.tagName === "DIV")
  if (first && first !== bar && !root.activeElement) first.before(bar)
  heads.forEach((head, place) => {
    head.setAttribute("role", "tab")
    head.setAttribute("aria-selected", String(place === tabs.active))
    if (head.hasKeys) return
    head.hasKeys = true
    head.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key] ?? 0
      if (!step && event.key !== "Enter" && event.key !== " ") return
      event.preventDefault()
      const all = [...root.querySelectorAll(".bk-tab")]
      const next = all[(place + step + all.length) % all.length]
      next.focus()
      next.click()
    })
  })
}
setInterval(() => page.children.filter((one) => one.type === "Tabs").forEach(label), 1000)
"""

#: Runs at once if the connection is lost.
_SHOW_LOST = 'header.css_classes = ["dt-lost"]'

#: Seconds for which the last update waits for a reader or a render thread.
_FINAL_LOCK_SECONDS = 0.3

#: What the log says of an update that has failed.
_NO_UPDATE = "a page of the dashboard could not be updated"

#: The note in place of a figure that could not be drawn.
_FAILED = "This figure could not be drawn. The log of this server has the reason."

#: The note below a figure that could not be updated.
_STALE = (
    "This figure could not be updated, and shows an earlier state. The log of this server has the reason."
)

#: Names of the note that is shown until a figure is made, and of the one that it could not be
#: updated.
PLACEHOLDER = "coming"
STALE_NOTE = "stale"


class Panel:
    """A section of a page in one viewer.

    Parameters
    ----------
    section : PageSection
        The section to show.
    on_click : callable, optional
        Receives the label of a trial when the viewer clicks it in a figure.
    brush : TrialBrush, optional
        The viewer's choice of trials, which the figures follow.

    Attributes
    ----------
    card : Model
        The layout that contains the section's models.
    is_waiting : bool
        Whether the first figure is still being made, so that there is nothing to show yet.
    """

    def __init__(
        self,
        section: PageSection,
        on_click: Callable[[str], None] | None = None,
        brush: TrialBrush | None = None,
    ) -> None:
        self.section, self._on_click, self._brush = section, on_click, brush
        # Bokeh warns of an empty layout.
        note = Paragraph(text="Drawing this figure ...", disable_math=True, name=PLACEHOLDER)
        self.card: Any = column(note, visible=section.is_shown(), sizing_mode="stretch_width", styles=CARD)
        self._models: list[Any] = []
        self.is_waiting = False
        #: The rendered figure that the models show; None before the first update.
        self._rendered: RenderedFigure | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether it shows a figure."""
        return self._rendered is not None

    def update(self, live: LiveExperiment) -> bool:
        """Bring the models up to date; return whether they were replaced.

        Parameters
        ----------
        live : LiveExperiment
            The experiment, whose lock is held.
        """
        if self.card.visible != self.section.is_shown():
            self.card.visible = not self.card.visible
        if not self.card.visible:
            return False
        is_new = self._show(live, self._render(live))
        self._set_failed(self.section.is_slow and live.has_failed(self.section.name))
        return is_new

    def show_end(self, live: LiveExperiment) -> bool:
        """Show the experiment's last state at once, a slow figure as well.

        Parameters
        ----------
        live : LiveExperiment
            The experiment, whose lock is held.
        """
        self.is_waiting = False
        if not self.section.is_shown():
            self.card.visible = False
            return False
        self.card.visible = True
        if self._rendered is not None:
            is_new = self._show(live, live.render(self.section.name, self.section.make, at_once=True))
            self._set_failed(False)
            return is_new
        # There is no later version to compare it with, so its models are built once, not twice.
        made = self.section.make()
        root = made.build() if isinstance(made, FigureSpec) else made
        if self._brush is not None:
            self._brush.attach(self.section.name, collect_models(root))
        self.card.children = [root]
        return True

    def mark_undrawn(self) -> None:
        """Say that the server has ended before the figure was drawn, if it was never drawn."""
        self._set_note("The server ended before this figure was drawn.")

    def mark_failed(self) -> None:
        """Say that the figure could not be drawn, or not be updated, until it is updated again."""
        self._set_failed(True)

    def _set_failed(self, has_failed: bool) -> None:
        """Show or remove the note that the figure could not be updated."""
        shown = [one for one in self.card.children if one.name != STALE_NOTE]
        if has_failed and shown[0].name == PLACEHOLDER:
            shown[0].text = _FAILED
        elif has_failed:
            shown.append(Paragraph(text=_STALE, disable_math=True, name=STALE_NOTE))
        if len(shown) != len(self.card.children):
            self.card.children = shown

    def _set_note(self, text: str) -> None:
        note = self.card.children[0]
        if note.name == PLACEHOLDER:
            note.text = text

    def _show(self, live: LiveExperiment, rendered: RenderedFigure | None) -> bool:
        """Bring the models to a version of the figure; return whether they were replaced."""
        if rendered is None or rendered is self._rendered:
            return False
        changes = None if self._rendered is None else rendered.changes_from(self._rendered)
        if changes is None:
            self._replace(live, rendered)
            return True
        changes.apply(self._models)
        self._rendered = rendered
        return False

    def set_section(self, section: PageSection) -> None:
        """Show another section.

        Parameters
        ----------
        section : PageSection
            The section to show.
        """
        self.section, self._rendered = section, None

    def _render(self, live: LiveExperiment) -> RenderedFigure | None:
        if not self.section.is_slow:
            return live.render(self.section.name, self.section.make)
        rendered = live.render_in_thread(
            self.section.name, self.section.make, needs_models=self._rendered is None
        )
        # A figure that has failed is tried again, but nothing waits for it.
        self.is_waiting = rendered is None and not live.has_failed(self.section.name)
        return rendered

    def _replace(self, live: LiveExperiment, rendered: RenderedFigure) -> None:
        if not self.section.is_slow:
            # The same function at the same state gives models of the same structure.
            rendered = live.render(self.section.name, self.section.make, at_once=True)
        self._rendered = rendered
        root = self.section.make() if rendered.spec is None else rendered.take_models()
        self._models = collect_models(root)
        if self._on_click is not None:
            # After the models are listed: later versions of the figure have no such tool.
            report_clicks(self._models, self._on_click)
        if self._brush is not None:
            self._brush.attach(self.section.name, self._models)
        self.card.children = [root]


class Viewer:
    """Shows an experiment in a document, and keeps the visible page up to date.

    All its methods run in the server's loop.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    document : Document
        The document of the session.
    commander : callable, optional
        Returns the object that takes commands; without it there are no buttons.
    metric_select : MetricSelect, optional
        The choice of another metric; without it the pages show the goal.
    has_list : bool, default=False
        Whether to link to the list of experiments.
    draws_later : bool, default=False
        Whether to draw the first figures once the browser has been sent the page: it loads Bokeh's
        scripts meanwhile.
    make_pages : callable, optional
        Returns the pages of the experiment; by default `experiment_pages`.
    brush : TrialBrush, optional
        The viewer's choice of trials; a new one by default.
    heartbeat_s : float, default=5.0
        Seconds between two heartbeats to the page.
    lost_after_s : float, default=20.0
        Seconds without a heartbeat until the page shows that the server is lost.
    """

    def __init__(
        self,
        live: LiveExperiment,
        document: Document,
        commander: Callable[[], Commander | None] | None = None,
        metric_select: MetricSelect | None = None,
        *,
        has_list: bool = False,
        draws_later: bool = False,
        make_pages: Callable[[LiveExperiment], list[Page]] = experiment_pages,
        brush: TrialBrush | None = None,
        heartbeat_s: float = _HEARTBEAT_SECONDS,
        lost_after_s: float = _LOST_AFTER_SECONDS,
    ) -> None:
        self.live, self.lives, self.document = live, (live,), document
        self._make_pages = make_pages
        self._heartbeat_s, self._lost_after_s = heartbeat_s, lost_after_s
        self._header = Div(
            text="",
            name="header",
            disable_math=True,
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=LOST)],
        )
        self._heartbeat: Any = Div(visible=False, name="pulse")
        self._last_heartbeat = time.monotonic()
        self._errors = RepeatedErrors(logger)
        self._pages: list[Page] = []
        self._panels: list[list[Panel]] = []
        self._detail: Panel | None = None
        self._brush = TrialBrush() if brush is None else brush
        budget = live.cpu_budget
        self._log = LogView(live.storage, budget.measured, lambda: budget.is_contended)
        self._log.rank_select.on_change("value", lambda name, old, new: self.update())
        self._table: Any = None
        self._tabs: Any = None
        #: Whether the last update was skipped or is incomplete.
        self.needs_update = False
        #: Id of the trial that is selected in the table; empty without one, or with several.
        self._selected = ""
        self._metric_select = metric_select
        #: What is of no use once the server has ended.
        self._served: list[Any] = []
        self._top = self._new_top(commander, has_list)
        self._page = column(*self._top, sizing_mode="stretch_width")
        self._attach(document)
        if draws_later:
            document.add_next_tick_callback(self.update)
        else:
            self.update()

    def _new_top(self, commander: Callable[[], Commander | None] | None, has_list: bool) -> list[Any]:
        """Return the models above the pages."""
        if commander is not None:
            self._served.append(ControlBar(commander, self.document, lambda: self._selected).root)
        if self._metric_select is not None:
            self._served.append(self._metric_select.root)
        top: list[Any] = [self._header, *self._served, self._heartbeat]
        self._served.append(self._log.rank_select)
        if has_list:
            link = f'<a style="color:{colour("link")}" href="?">all experiments</a>'
            self._served.append(Div(text=link, name="back"))
            top.insert(0, self._served[-1])
        return top

    def _attach(self, document: Document) -> None:
        """Add the page to the document, with its scripts and the regular updates."""
        # The header says what has happened, and what to do; Bokeh's banner knows neither.
        document.config.notify_connection_status = False
        name = self.live.projection.name or "experiment"
        document.title = f"{label(name, 80)} · dasktune"
        document.add_root(self._page)
        document.add_periodic_callback(self._tick, _PERIOD)
        document.js_on_event(DocumentReady, *self._scripts())
        document.js_on_event("connection_lost", CustomJS(args={"header": self._header}, code=_SHOW_LOST))
        self._header.on_change("tags", lambda name, old, new: self._tick())

    def _scripts(self) -> list[Any]:
        """Return the scripts that the page runs once it is loaded."""
        models = {"header": self._header}
        watching = {**models, "pulse": self._heartbeat, "timeout": 1000 * self._lost_after_s}
        return [
            CustomJS(args=models, code=_REPORT_VISIBILITY),
            CustomJS(args=watching, code=_WATCH_HEARTBEAT),
            CustomJS(args={"page": self._page}, code=_TABS_BY_KEYBOARD),
        ]

    @property
    def is_hidden(self) -> bool:
        """Whether the page is invisible: the browser is gone, or shows another tab."""
        session = getattr(self.document.session_context, "session", None)
        is_gone = session is not None and not session.connection_count
        return is_gone or "hidden" in self._header.tags

    def _tick(self) -> None:
        """Update the page if it is visible; a session outlives its browser by some seconds."""
        if self.is_hidden:
            return
        if time.monotonic() - self._last_heartbeat >= self._heartbeat_s:
            self._last_heartbeat = time.monotonic()
            self._heartbeat.tags = [self._last_heartbeat]
        self.update()

    def update(self) -> None:
        """Update the header and the visible page; do nothing once `show_end` has begun."""
        if self.live.is_closing:
            # The header says which pages lack the last state until the last step.
            self.needs_update = False
            return
        if not self.live.lock.acquire(blocking=False):
            # A reader or a render thread holds the lock. The server calls again within 0.1 s.
            self.needs_update = True
            return
        self.needs_update = False
        try:
            self.document.hold("collect")
            self._update()
        except Exception as error:
            # Keep the session open: the next update may succeed.
            self._errors.failed(_NO_UPDATE, error)
        else:
            self._errors.succeeded(_NO_UPDATE)
        finally:
            self.document.unhold()
            self.live.lock.release()

    def show_end(self, until: float) -> Iterator[None]:
        """Draw all pages for the last time, because the server ends, and say how to look on.

        The process may end between any two steps. So the page says from the first step on which
        pages do not show the last state, and each step draws one figure.

        Parameters
        ----------
        until : float
            The time by `time.monotonic` after which no further figure is begun.

        Yields
        ------
        None
            After each step. The caller sends the changes before it takes the next one.
        """
        for one in self._served:
            one.visible = False
        if not self._take_last_step(self._begin_end):
            # The header's text for a lost server says that this is the last known state.
            for panel in [panel for page in self._panels for panel in page]:
                panel.mark_undrawn()
            yield
            return
        yield
        waiting = self._by_urgency()
        self._take_last_step(lambda: self._log.show_end(self.live.projection.trials))
        yield
        # A figure that could not be drawn in time does not change, so its page stays in the list.
        undrawn: list[Panel] = []
        while waiting and time.monotonic() <= until:
            panel = waiting.pop(0)
            if not self._take_last_step(partial(self._draw_end, panel)):
                undrawn.append(panel)
            yield
        self._take_last_step(partial(self._show_undrawn, [*undrawn, *waiting]))
        yield

    def _take_last_step(self, step: Callable[[], None]) -> bool:
        """Take a step of the end; return whether it succeeded. It waits for other threads."""
        if not self.live.lock.acquire(timeout=_FINAL_LOCK_SECONDS):
            return False
        try:
            self.document.hold("collect")
            step()
        except Exception:
            logger.exception("a part of an experiment's last state could not be shown")
            return False
        finally:
            self.document.unhold()
            self.live.lock.release()
        return True

    def _begin_end(self) -> None:
        self.live.is_closing = True
        if self._tabs is None:
            self._begin()
        panels = self._by_urgency()
        for panel in panels:
            panel.mark_undrawn()
        self._show_undrawn(panels)

    def _draw_end(self, panel: Panel) -> None:
        if panel.show_end(self.live) and panel.section.name == "trials":
            self._listen(panel)

    def _show_undrawn(self, undrawn: Sequence[Panel]) -> None:
        """Show in the header which pages do not show the last state."""
        titles = [
            page.title
            for page, panels in zip(self._pages, self._panels, strict=True)
            if any(panel in undrawn and panel.card.visible for panel in panels)
        ]
        self._show_header(titles)

    def _by_urgency(self) -> list[Panel]:
        """Return the panels: first the visible page, then the failures, last what takes long."""
        visible = self._panels[self._tabs.active]
        others = [panel for page in self._panels if page is not visible for panel in page]
        others.sort(key=lambda panel: (panel.section.is_slow, panel.section.name != "failures"))
        return [*visible, *others]

    def _show_header(self, undrawn: Sequence[str] = ()) -> None:
        live = self.live
        gone = "driver is lost" if live.is_in_driver else "this page's server does not answer"
        titles = tuple(undrawn)
        self._header.text = live.cached(
            f"header {titles}",
            lambda: header_html(
                live.projection,
                live.state,
                gone,
                command=live.command,
                is_closing=live.is_closing,
                undrawn=titles,
            ),
        )

    def _update(self) -> None:
        live = self.live
        self._show_header()
        if self._metric_select is not None:
            self._metric_select.update(live.projection)
        if self._tabs is None:
            if not live.projection.trials and not live.has_caught_up:
                # The header says how much of the journal has been read. An empty figure would stay
                # for a while, because a figure is not drawn again at once.
                return
            self._begin()
        # First the sections that show nothing yet, from the top of the page.
        panels = sorted(self._panels[self._tabs.active], key=lambda panel: panel.is_drawn)
        for panel in panels:
            failure = f"the section {panel.section.name!r} of a page could not be updated"
            try:
                is_new = panel.update(live)
            except Exception as error:
                # The other sections, and the trial's output, must not become stale with it.
                self._errors.failed(failure, error)
                panel.mark_failed()
                continue
            self._errors.succeeded(failure)
            self.needs_update |= panel.is_waiting
            if is_new and panel.section.name == "trials":
                self._listen(panel)
            if is_new and panel is not panels[-1]:
                # Update the other sections later, so that this one is sent, and other callbacks of
                # the loop run first.
                self.document.add_next_tick_callback(self.update)
                return
        if not any(panel.is_waiting for panel in panels):
            live.ranking.start_requested(live.projection)
        if self._tabs.active == self._trials_page:
            self._log.update(live.projection.trials)
            self.needs_update |= self._log.is_waiting

    def _begin(self) -> None:
        """Add the pages; each stays empty until it is visible."""
        self._pages = self._make_pages(self.live)
        self._panels = [
            [Panel(part, self._pick, self._brush) for part in page.sections] for page in self._pages
        ]
        self._tabs = Tabs(
            tabs=[
                TabPanel(
                    title=page.title, child=column(*(one.card for one in panels), sizing_mode="stretch_width")
                )
                for page, panels in zip(self._pages, self._panels, strict=True)
            ],
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=TABS)],
        )
        self._tabs.on_change("active", lambda name, old, new: self.update())
        self._page.children = [*self._top, self._brush.root, self._tabs]

    @property
    def _trials_page(self) -> int:
        """The number of the page with the table of trials."""
        return next(n for n, page in enumerate(self._pages) if page.title == "Trials")

    def _pick(self, name: str) -> None:
        """Show the details of a trial that the viewer has clicked in a figure, by its label."""
        found = (trial for trial in self.live.projection.trials if label(trial.trial_id) == name)
        trial = next(found, None)
        if trial is None:
            return
        self._select([trial.index])
        self._tabs.active = self._trials_page
        if self._table is not None:
            places = [int(one) for one in self._table.source.data["place"]]
            rows = [places.index(trial.index)] if trial.index in places else []
            self._table.source.selected.indices = rows

    def _listen(self, panel: Panel) -> None:
        """Show the details of the trials that are selected in the table."""
        table = self._table = panel.card.select_one({"type": DataTable})
        panel.card.children = [*panel.card.children, self._brush.button(table)]

        def select(name: str, old: list[int], new: list[int]) -> None:
            known = table.source.data["place"]
            places = [int(known[one]) for one in new if one < len(known)]
            if places:
                self._select(places)

        table.source.selected.on_change("indices", select)

    def _select(self, places: list[int]) -> None:
        if self.live.is_closing:
            # Nothing can be read or drawn for another trial: the last one stays.
            return
        # The buttons are for a single trial.
        self._selected = self.live.projection.trials[places[0]].trial_id if len(places) == 1 else ""
        part = trial_section(self.live, places)
        if self._detail is None:
            number = self._trials_page
            self._detail = Panel(part, self._pick)
            self._panels[number].append(self._detail)
            below = column(self._detail.card, self._log.root, sizing_mode="stretch_width")
            self._tabs.tabs[number].child.children.append(below)
        else:
            self._detail.set_section(part)
        self._log.select(places[0] if len(places) == 1 else None)
        self.update()
