"""A followed experiment: one projection and one set of rendered figures for all viewers."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import inf
from threading import Lock, Thread
from typing import Any, Final, TypeVar, cast

from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.model.density import Density
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.background.forecast_task import ForecastTask, Replay
from dasktune.dashboard.server.background.importance_ranking import ImportanceRanking
from dasktune.dashboard.server.cpu_budget import CpuBudget
from dasktune.dashboard.server.diff import RenderedFigure
from dasktune.dashboard.server.feed import DriverFeed, Feed
from dasktune.dashboard.server.repeated_errors import RepeatedErrors
from dasktune.placement import ClusterShares
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which a poll applies records and holds the lock; viewers wait meanwhile.
_POLL_SECONDS: Final = 0.05
#: Maximum share of a processor for rendering one figure; a page has up to four figures. Only
#: processor time counts: a thread that waits takes nothing from others.
_SHARE: Final = 0.01
#: The same for a figure that a thread makes, because it depends on all trials. A page has four of
#: them, so together they take 3 % at most.
_SLOW_SHARE: Final = 0.0075
#: Minimum delay, in seconds, that the status text mentions.
_LATE: Final = 5.0
#: Seconds until a figure that could not be rendered is tried again.
_RETRY_SECONDS: Final = 5.0
#: Records between two readings of the clock.
_STRIDE: Final = 64
#: Maximum number of rendered figures kept; each trial that a viewer has selected has one.
_MOST_RENDERED: Final = 64


def _start_thread(call: Callable[[], None]) -> None:
    Thread(target=call, daemon=True).start()


class LiveExperiment:
    """The projection of an experiment, and its figures as they should look now.

    One object serves all viewers of an experiment. Three kinds of threads use it: reader threads
    call `poll`, the server's loop shows figures to viewers, and render threads make slow figures.
    All three hold `lock` while they read or change the projection or the rendered figures. The
    loop never waits for it: a reader may hold it for as long as a storage takes to answer.

    Parameters
    ----------
    new_projection : callable
        Returns an empty projection of the experiment.
    feed : Feed
        The source of its records.
    clock : callable, default=time.monotonic
        Returns seconds.
    used : callable, default=time.thread_time
        Returns the processor seconds of the calling thread.
    find_dask : callable, optional
        Returns the address of a page of Dask's dashboard; empty while it is unknown.
    find_shares : callable, optional
        Returns what each experiment on the cluster holds and waits for; None if this one is alone.
        The driver has read it, so a call costs nothing.
    command : str, default=""
        The shell command that shows the experiment again once the server has ended.
    storage : Storage, optional
        The experiment's directory, which has the output of the trials; without it the pages show
        none.
    replay : callable, optional
        Replays the experiment under other trial schedulers; it reads the journal itself. Without it
        there is no page for that.
    start_thread : callable, optional
        Calls a function, which makes a slow figure, in a new thread.

    Attributes
    ----------
    projection : ExperimentProjection
        The state after the records read so far. Read it only while `lock` is held.
    lock : Lock
        Held while records are applied and while figures read the projection.
    cpu_budget : CpuBudget
        The processor time spent on this experiment.
    forecast : ForecastTask or None
        What other trial schedulers would have cost; None without `replay`.
    shares : ClusterShares or None
        The shares of the experiments on the cluster, read again once in a second of the run; None
        if this one is alone or has ended. Read it only while `lock` is held.
    """

    def __init__(
        self,
        new_projection: Callable[[], ExperimentProjection],
        feed: Feed,
        clock: Callable[[], float] = time.monotonic,
        *,
        used: Callable[[], float] = time.thread_time,
        find_dask: Callable[[], str] = str,
        find_shares: Callable[[], ClusterShares | None] = lambda: None,
        command: str = "",
        storage: Storage | None = None,
        replay: Replay | None = None,
        start_thread: Callable[[Callable[[], None]], object] = _start_thread,
    ) -> None:
        self._start_thread = start_thread
        self.command, self.storage = command, storage
        #: Whether the server of the pages ends, so that nothing can be shown later.
        self.is_closing = False
        self._new_projection, self._feed, self._clock = new_projection, feed, clock
        self._used = used
        self._find_dask, self._find_shares = find_dask, find_shares
        self.shares: ClusterShares | None = None
        #: The second of the run in which `shares` was read. Then the figures change anyway.
        self._shares_at = -1
        self.cpu_budget = CpuBudget()
        self.forecast = None if replay is None else ForecastTask(replay, self.cpu_budget)
        self.projection = new_projection()
        self.density, self.ranking = Density(), ImportanceRanking()
        self.lock = Lock()
        #: Whether all records that existed at the first poll have been applied.
        self.has_caught_up = False
        #: State key and value of each cached value, by name.
        self._cache: dict[str, tuple[object, Any]] = {}
        self._records: Iterator[Mapping[str, Any]] | None = None
        #: By the figure's name: the last rendered figure, its state key, and when to make the next.
        self._rendered: OrderedDict[str, tuple[RenderedFigure, object, float]] = OrderedDict()
        #: Whether a render thread makes a figure.
        self._is_making = False
        #: By the name of a figure that could not be rendered the last time: when to try again.
        self._retry_at: dict[str, float] = {}
        self._errors = RepeatedErrors(logger)
        #: Seconds between the last applied record and now, where that is known.
        self._delay = 0.0
        #: Number of viewers. Only the server's loop changes it.
        self.viewers = 0

    @property
    def state(self) -> str:
        """The driver's status in a few words, or how much of the journal has been read so far."""
        if not self.has_caught_up:
            share = self._feed.read_share
            part = "" if share is None else f", {share:.0%}"
            return f"reading the journal: {self.projection.version:,} records{part}"
        if self.projection.stop_reason:
            return "experiment has ended"
        total, over = self.projection.total, self.projection.num_finished
        if total and over >= total:
            return "experiment has ended"
        late = f", shown as of {self._delay:.0f} s ago" if self._delay > _LATE else ""
        return f"{self._feed.state}{late}"

    @property
    def dask(self) -> str:
        """The address of a page of Dask's dashboard; empty while it is unknown."""
        has_ended = self._feed.now is None and self.is_in_driver
        return "" if has_ended else self._find_dask()

    @property
    def needs_polling(self) -> bool:
        """Whether to poll: it has viewers, its feed is always followed, or records are unread."""
        return self.viewers > 0 or self._feed.always_follow or not self.has_caught_up

    @property
    def is_in_driver(self) -> bool:
        """Whether the driver runs in this process, so that both end together."""
        return isinstance(self._feed, DriverFeed)

    @property
    def state_key(self) -> object:
        """A key that is equal for two moments at which all figures look the same."""
        projection = self.projection
        number = self.ranking.generation, 0 if self.forecast is None else self.forecast.generation
        elapsed = int(projection.elapsed)
        shown = self.state, number, self.dask, self.shares, self.is_closing
        return id(projection), projection.version, elapsed, *shown

    def poll(self) -> bool:
        """Apply new records; return whether more records may be available already.

        It may take long, as it reads the storage while it holds `lock`. If a server cancels a poll,
        its thread continues and a second poll may begin: the lock keeps them one after the other,
        so each record is applied once and in order.
        """
        with self.lock, self.cpu_budget.measured():
            if self._records is None:
                anew, self._records = self._feed.poll()
                if anew and self.projection.version:
                    self.projection = self._new_projection()
                    self.density, self.ranking = Density(), ImportanceRanking()
            more = self._apply_some(self._records)
            if self.viewers:
                # Done here, in a reader thread, so that the loop has less to do.
                self.density.update(self.projection)
            if more:
                self._delay = (self._feed.now or -inf) - self.projection.now
                return True
            self._delay = 0.0
            if not self.has_caught_up:
                # The figures of a part of the journal are out of date, however much time they took.
                self._rendered = OrderedDict(
                    (name, (rendered, key, -inf)) for name, (rendered, key, _) in self._rendered.items()
                )
            self._records, self.has_caught_up = None, True
            if self._feed.now is not None:
                self.projection.advance_time(self._feed.now)
            self._read_shares()
            return False

    def _read_shares(self) -> None:
        second = int(self.projection.elapsed)
        if self._feed.now is None:
            self.shares = None
        elif second != self._shares_at:
            self.shares, self._shares_at = self._find_shares(), second

    def _apply_some(self, records: Iterator[Mapping[str, Any]]) -> bool:
        """Apply records for a while; return whether there may be more."""
        add, until = self.projection.add, self._clock() + _POLL_SECONDS
        while True:
            some = list(islice(records, _STRIDE))
            for record in some:
                add(record)
            if len(some) < _STRIDE:
                return False
            if self._clock() > until:
                return True

    def render(self, name: str, make: Callable[[], Any], *, at_once: bool = False) -> RenderedFigure:
        """Return a figure as it should look now; call it while `lock` is held.

        The last rendered figure is returned if nothing has changed, or if it took much processor
        time and is recent.

        Parameters
        ----------
        name : str
            The name of the figure.
        make : callable
            Returns its models or its spec.
        at_once : bool, default=False
            Whether to render the figure again if anything has changed, even if the last is recent.
        """
        began = self._clock()
        known = self._rendered.get(name)
        if known is not None and (known[1] == self.state_key or (began < known[2] and not at_once)):
            return known[0]
        before = self._used()
        # The key comes first: the thread of a forecast changes its state without the lock. If it
        # does so now, the key is out of date, and the figure is made again.
        key, made = self.state_key, make()
        rendered = known[0].updated(made) if known and isinstance(made, FigureSpec) else None
        rendered = rendered or RenderedFigure(made)
        spent = self._used() - before
        share = _SHARE * self.cpu_budget.figure_share
        self._rendered[name] = rendered, key, self._clock() + spent / share
        self._rendered.move_to_end(name)
        if len(self._rendered) > _MOST_RENDERED:
            self._rendered.popitem(last=False)
        return rendered

    def render_in_thread(
        self, name: str, make: Callable[[], FigureSpec], *, needs_models: bool = False
    ) -> RenderedFigure | None:
        """Return the last rendered figure; start a thread for a new one if it is time.

        There is one render thread at a time: several would share the interpreter, and the first
        figure of a page would be ready when the last one is. A viewer requests the figures of its
        visible page again until it has them, so no queue keeps the figures of a page that it has
        left.

        Call it while `lock` is held.

        Parameters
        ----------
        name : str
            The name of the figure.
        make : callable
            Returns its spec. The thread calls it while it holds `lock`, then builds the models
            from the spec without the lock.
        needs_models : bool, default=False
            Whether the viewer has no models of the figure yet, so that it waits for a version with
            models that it may take.

        Returns
        -------
        RenderedFigure or None
            None before it is ready.
        """
        known = self._rendered.get(name)
        is_new = known is not None and (known[1] == self.state_key or self._clock() < known[2])
        lacks_models = needs_models and known is not None and not known[0].has_spare
        # A viewer that waits for its first figure calls ten times a second.
        must_wait = self._is_making or self._clock() < self._retry_at.get(name, -inf)
        if (lacks_models or not is_new) and not must_wait:
            self._is_making = True
            # A known version is shown first, even if it is not the newest one any more.
            task = self._build_spare if lacks_models else self._make
            self._start_thread(partial(self._run_task, name, partial(task, name, make)))
        return None if known is None or lacks_models else known[0]

    def has_failed(self, name: str) -> bool:
        """Return whether a thread could not render a figure at the last attempt.

        Call it while `lock` is held.

        Parameters
        ----------
        name : str
            The name of the figure.
        """
        return name in self._retry_at

    def _run_task(self, name: str, task: Callable[[], tuple[RenderedFigure, object]]) -> None:
        """Render a figure in a thread, and store it with the key of the state that it shows."""
        before, made = self._used(), None
        failure = f"a figure of the dashboard could not be rendered: {name!r}"
        try:
            with self.cpu_budget.measured():
                made = task()
        except Exception as error:
            # Viewers keep the last rendered figure.
            self._errors.failed(failure, error)
        else:
            self._errors.succeeded(failure)
        spent = self._used() - before
        # A viewer requests the figures of its page while it holds the lock, so it finds either this
        # figure, or that no other thread may start: the next thread makes its topmost figure.
        with self.lock:
            self._is_making = False
            if made is None:
                self._retry_at[name] = self._clock() + _RETRY_SECONDS
                return
            self._retry_at.pop(name, None)
            share = _SLOW_SHARE * self.cpu_budget.figure_share
            due, known = self._clock() + spent / share, self._rendered.get(name)
            if known is not None and known[0] is made[0]:
                due = max(due, known[2])  # it is the last version, whose models were built again
            self._rendered[name] = *made, due
            self._rendered.move_to_end(name)

    def _make(self, name: str, make: Callable[[], FigureSpec]) -> tuple[RenderedFigure, object]:
        with self.lock:
            known = self._rendered.get(name)
            key, spec = self.state_key, make()
        # Without the lock: a spec holds copies, and the models and values of a rendered figure do
        # not change once it is stored, so `known` may be read here.
        made = RenderedFigure(spec)
        if known is None or made.changes_from(known[0]) is None:
            # Viewers that have models apply the changes. The others take models.
            made.build_spare()
        return made, key

    def _build_spare(self, name: str, make: Callable[[], FigureSpec]) -> tuple[RenderedFigure, object]:
        """Build models of the last rendered figure for a viewer that has none."""
        with self.lock:
            known = self._rendered.get(name)
        if known is None:
            # Other figures have replaced it since the viewer asked for models.
            return self._make(name, make)
        rendered, key, _ = known
        # The loop takes a spare only while it holds the lock, and asks for one only if there is
        # none; a second spare would replace the first, which no viewer has.
        rendered.build_spare()
        return rendered, key

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """Return a value that is the same for all viewers, computed once per state.

        Parameters
        ----------
        name : str
            The name of the value.
        make : callable
            Computes it.
        """
        stage, value = self._cache.get(name, (None, None))
        if stage != self.state_key:
            value = make()
            self._cache[name] = self.state_key, value
        return cast("T", value)
