"""An experiment that goes on: one chronicle and one set of drafts for all who look at it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import inf
from threading import Lock, Thread
from typing import Any, Final, TypeVar, cast

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import Density
from dasktune.dashboard.figures.sketch import Sketch
from dasktune.dashboard.server.draft import Draft
from dasktune.dashboard.server.feed import DriverFeed, Feed
from dasktune.dashboard.server.pace import Pace
from dasktune.dashboard.server.ranking import Ranking

__all__ = ["Live"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which records are taken in at a time, lest nobody is served meanwhile.
_TURN: Final = 0.05
#: Of the time, the share for which the drafts of one figure are made; four are on the fullest page.
_SHARE: Final = 0.04
#: Seconds of delay that are told.
_LATE: Final = 5.0
#: Records between two looks at the clock.
_STRIDE: Final = 64
#: Drafts that are kept; each trial that somebody looks at has one.
_MOST_DRAFTS: Final = 64


class Live:
    """What is known of an experiment, and how each of its figures ought to look.

    Parameters
    ----------
    new_chronicle : callable
        Makes an empty chronicle of the experiment.
    feed : Feed
        Tells what happens.
    clock : callable, default=time.monotonic
        Gives seconds.
    find_dask : callable, optional
        Returns the address of a page of Dask's dashboard; empty as long as nobody knows it.

    Attributes
    ----------
    chronicle : Chronicle
        What has been told. It is looked at only while `lock` is held.
    lock : Lock
        Held while records are taken in.
    pace : Pace
        Of what is done for it.
    """

    def __init__(
        self,
        new_chronicle: Callable[[], Chronicle],
        feed: Feed,
        clock: Callable[[], float] = time.monotonic,
        find_dask: Callable[[], str] = str,
    ) -> None:
        self._new_chronicle, self._feed, self._clock = new_chronicle, feed, clock
        self._find_dask = find_dask
        self.pace = Pace()
        self.chronicle = new_chronicle()
        self.density, self.ranking = Density(), Ranking()
        self.lock = Lock()
        #: Whether all that had happened before anybody looked has been taken in.
        self.has_caught_up = False
        #: By name: of which stage, and the value.
        self._known: dict[str, tuple[object, Any]] = {}
        self._records: Iterator[Mapping[str, Any]] | None = None
        #: By the figure's name: the last draft, of which state it is, and when to make the next.
        self._drafts: OrderedDict[str, tuple[Draft, object, float]] = OrderedDict()
        #: Names of the drafts that are made in threads at the moment.
        self._making: set[str] = set()
        #: Seconds that have passed since what has been taken in last, where that is known.
        self._delay = 0.0
        #: How many look at it.
        self.viewers = 0

    @property
    def state(self) -> str:
        """How it is with the driver, in a few words; or how far reading is."""
        if not self.has_caught_up:
            share = self._feed.share
            part = "" if share is None else f", {share:.0%}"
            return f"what has happened is being read: {self.chronicle.version:,} records{part}"
        if self.chronicle.stop_reason:
            return "experiment has ended"
        total, over = self.chronicle.total, self.chronicle.num_over
        if total and over >= total:
            return "experiment has ended"
        late = f", shown as of {self._delay:.0f} s ago" if self._delay > _LATE else ""
        return f"{self._feed.state}{late}"

    @property
    def dask(self) -> str:
        """The address of a page of Dask's dashboard; empty if nobody knows it."""
        return self._find_dask()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks at it, or soon will."""
        return self.viewers > 0 or self._feed.is_ahead or not self.has_caught_up

    @property
    def _share(self) -> float:
        return _SHARE * self.pace.thrift

    @property
    def is_of_driver(self) -> bool:
        """Whether the driver is in this process, so that both are lost together."""
        return isinstance(self._feed, DriverFeed)

    @property
    def stage(self) -> object:
        """Equal for two moments at which all figures look the same."""
        chronicle, number = self.chronicle, self.ranking.number
        elapsed = int(chronicle.elapsed)
        return id(chronicle), chronicle.version, elapsed, self.state, number, self.dask

    def poll(self) -> bool:
        """Take in what is new, and return whether there may be more at once; may be slow."""
        with self.lock, self.pace.working():
            if self._records is None:
                anew, self._records = self._feed.take()
                if anew and self.chronicle.version:
                    self.chronicle = self._new_chronicle()
                    self.density, self.ranking = Density(), Ranking()
            more = self._take_some(self._records)
            if self.viewers:
                # Here it keeps nobody waiting.
                self.density.update(self.chronicle)
            if more:
                self._delay = (self._feed.now or -inf) - self.chronicle.now
                return True
            self._delay = 0.0
            self._records, self.has_caught_up = None, True
            if self._feed.now is not None:
                self.chronicle.see_time(self._feed.now)
            return False

    def _take_some(self, records: Iterator[Mapping[str, Any]]) -> bool:
        """Take in records for a while, and return whether there may be more."""
        add, until = self.chronicle.add, self._clock() + _TURN
        while True:
            some = list(islice(records, _STRIDE))
            for record in some:
                add(record)
            if len(some) < _STRIDE:
                return False
            if self._clock() > until:
                return True

    def draft(self, name: str, make: Callable[[], Any], *, at_once: bool = False) -> Draft:
        """Return how a figure ought to look; to be called while `lock` is held.

        The last draft does for a while if it took long to make, or nothing has happened.

        Parameters
        ----------
        name : str
            The figure's.
        make : callable
            Makes it, or its sketch.
        at_once : bool, default=False
            Whether it must be of this moment.
        """
        began = self._clock()
        known = self._drafts.get(name)
        if known is not None and (known[1] == self.stage or (began < known[2] and not at_once)):
            return known[0]
        made = make()
        draft = known[0].renewed(made) if known and isinstance(made, Sketch) else None
        draft = draft or Draft(made)
        now = self._clock()
        self._drafts[name] = draft, self.stage, now + (now - began) / self._share
        self._drafts.move_to_end(name)
        if len(self._drafts) > _MOST_DRAFTS:
            self._drafts.popitem(last=False)
        return draft

    def draft_beside(self, name: str, make: Callable[[], Sketch]) -> Draft | None:
        """Return the last draft, and have another one made in a thread if it is time.

        To be called while `lock` is held.

        Parameters
        ----------
        name : str
            The figure's.
        make : callable
            Makes its sketch. It is called in the thread, while `lock` is held; what the sketch
            draws is drawn without.

        Returns
        -------
        Draft or None
            None before there is one.
        """
        known = self._drafts.get(name)
        is_new = known is not None and (known[1] == self.stage or self._clock() < known[2])
        if not is_new and name not in self._making:
            self._making.add(name)
            Thread(target=self._make, args=(name, make), daemon=True).start()
        return None if known is None else known[0]

    def _make(self, name: str, make: Callable[[], Sketch]) -> None:
        began = time.thread_time()
        try:
            with self.pace.working():
                with self.lock:
                    known = self._drafts.get(name)
                    stage, sketch = self.stage, make()
                draft = Draft(sketch)
                if known is not None:
                    draft.changes_from(known[0])
                draft.keep_spare()
        except Exception:
            # Whoever looks is served what there is.
            logger.exception("a figure of the dashboard could not be made")
            return
        finally:
            spent = time.thread_time() - began
            self._making.discard(name)
        with self.lock:
            self._drafts[name] = draft, stage, self._clock() + spent / self._share
            self._drafts.move_to_end(name)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what is the same for all who look, made once for each stage.

        Parameters
        ----------
        name : str
            Of what it is.
        make : callable
            Makes it.
        """
        stage, value = self._known.get(name, (None, None))
        if stage != self.stage:
            value = make()
            self._known[name] = self.stage, value
        return cast("T", value)
