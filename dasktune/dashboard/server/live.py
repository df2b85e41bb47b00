"""An experiment that goes on: one chronicle and one set of drafts for all who look at it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Final

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.density import Density
from dasktune.dashboard.server.draft import Draft
from dasktune.dashboard.server.feed import Feed

__all__ = ["Live"]

#: Seconds for which records are taken in at a time, lest nobody is served meanwhile.
_TURN: Final = 0.2
#: Of the time, the share for which the drafts of one figure are made.
_SHARE: Final = 0.1
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

    Attributes
    ----------
    chronicle : Chronicle
        What has been told. It is looked at only while `lock` is held.
    lock : Lock
        Held while records are taken in.
    """

    def __init__(
        self,
        new_chronicle: Callable[[], Chronicle],
        feed: Feed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._new_chronicle, self._feed, self._clock = new_chronicle, feed, clock
        self.chronicle = new_chronicle()
        self.density = Density()
        self.lock = Lock()
        self._records: Iterator[Mapping[str, Any]] | None = None
        #: By the figure's name: the last draft, of which state it is, and when to make the next.
        self._drafts: OrderedDict[str, tuple[Draft, object, float]] = OrderedDict()
        #: How many look at it.
        self.viewers = 0

    @property
    def state(self) -> str:
        """How it is with the driver, in a few words."""
        if self.chronicle.stop_reason:
            return "experiment has ended"
        total, over = self.chronicle.total, self.chronicle.num_over
        return "experiment has ended" if total and over >= total else self._feed.state

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks at it, or it would pile up somewhere else."""
        return self.viewers > 0 or self._feed.piles_up

    @property
    def stage(self) -> object:
        """Equal for two moments at which all figures look the same."""
        return id(self.chronicle), self.chronicle.version, int(self.chronicle.elapsed), self.state

    def poll(self) -> bool:
        """Take in what is new, and return whether there may be more at once; may be slow."""
        with self.lock:
            if self._records is None:
                anew, self._records = self._feed.take()
                if anew and self.chronicle.version:
                    self.chronicle, self.density = self._new_chronicle(), Density()
            until = self._clock() + _TURN
            for record in self._records:
                self.chronicle.add(record)
                if self._clock() > until:
                    return True
            self._records = None
            if self._feed.now is not None:
                self.chronicle.see_time(self._feed.now)
            return False

    def draft(self, name: str, make: Callable[[], Any], *, at_once: bool = False) -> Draft:
        """Return how a figure ought to look; to be called while `lock` is held.

        The last draft does for a while if it took long to make, or nothing has happened.

        Parameters
        ----------
        name : str
            The figure's.
        make : callable
            Makes it.
        at_once : bool, default=False
            Whether it must be of this moment.
        """
        began = self._clock()
        known = self._drafts.get(name)
        if known is not None and (known[1] == self.stage or (began < known[2] and not at_once)):
            return known[0]
        draft = Draft(make())
        now = self._clock()
        self._drafts[name] = draft, self.stage, now + (now - began) / _SHARE
        self._drafts.move_to_end(name)
        if len(self._drafts) > _MOST_DRAFTS:
            self._drafts.popitem(last=False)
        return draft
