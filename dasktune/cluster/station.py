"""The worker's end of the line to a driver: one for all slots of an experiment on the worker.

There is one bell and one call for all of them, so that what the driver spends depends on the number
of workers and not on that of trials. All methods but :meth:`Station.ring` and the constructor are
for the worker's event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tornado.ioloop import PeriodicCallback

from dasktune.cluster.contact import Contact
from dasktune.cluster.envelope import Assignment, Reply, Request
from dasktune.cluster.turn import Turn

__all__ = ["Station"]

#: Seconds between two looks at whether the driver is still there.
_WATCH_INTERVAL = 1.0


class Station:
    """Takes the driver's calls and rings for it.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    plugin : ExperimentPlugin
        The experiment's plugin on it, which knows the slots.
    topic : str
        Where to ring.
    fence_after : float
        No checkpoint is committed when the driver has been silent for so many seconds.
    """

    def __init__(self, worker: Any, plugin: Any, topic: str, fence_after: float) -> None:
        self.contact = Contact(fence_after)
        self._worker = worker
        self._plugin = plugin
        self._topic = topic
        self._turns: dict[str, Turn] = {}
        #: What has been assigned here: a call that was under way for long must not start it anew.
        self._past: set[str] = set()
        self._window = 0.0
        #: Whether a bell was rung that no call has answered.
        self._rung = False
        #: The bell that rings when the window closes.
        self._closing: asyncio.TimerHandle | None = None
        self._watching: PeriodicCallback | None = None

    @classmethod
    def of(cls, worker: Any, plugin: Any, topic: str, fence_after: float) -> Station:
        """Return the experiment's one station on a worker."""
        # Slots are made in several threads at a time; setdefault lets one of them win.
        station: Station = plugin.stations.setdefault(
            topic, cls(worker, plugin, topic, fence_after)
        )
        worker.loop.add_callback(station._watch)
        return station

    def exchange(self, request: Request) -> Reply:
        """Take what the driver says, and return what it does not have."""
        if any(turn.is_busy for turn in self._turns.values()):
            self.contact.hear(request.number)
        else:
            # There was no reason to call.
            self.contact.renew(request.number)
        self._window = request.window
        for incarnation in request.done:
            self._turns.pop(incarnation, None)
        answers = [(one.incarnation, self._take(one)) for one in request.assignments]
        for note in request.notes:
            turn = self._turns.get(note.incarnation)
            if turn is not None:
                turn.heed(note)
        self._answer_bell()
        news = (turn.news() for turn in self._turns.values())
        return Reply(
            news=tuple(one for one in news if one), refused=tuple(one for one in answers if one[1])
        )

    def ring(self, *, urgent: bool = True) -> None:
        """Tell the driver that there is news: at once, or when the window closes. Thread-safe."""
        self._worker.loop.add_callback(self._ring, urgent)

    def _take(self, assignment: Assignment) -> str:
        """Take a trial, and return why not if it cannot be."""
        if assignment.incarnation in self._past:
            return ""
        slot = self._plugin.slots.get(assignment.slot)
        if slot is None:
            return f"there is no slot {assignment.slot} here"
        self._past.add(assignment.incarnation)
        turn = self._turns[assignment.incarnation] = Turn(assignment)
        slot.take(turn)
        return ""

    def _ring(self, urgent: bool) -> None:
        if self._rung:
            return
        if not urgent and self._window:
            if self._closing is None:
                loop = asyncio.get_running_loop()
                self._closing = loop.call_later(self._window, self._ring, True)
            return
        self._answer_bell()
        self._rung = True
        # A worker on its way out may have no connection left; the driver polls besides.
        with suppress(OSError):
            self._worker.log_event(self._topic, self._worker.address)

    def _answer_bell(self) -> None:
        self._rung = False
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _watch(self) -> None:
        """Look after the slots for as long as there are any."""
        if self._watching is None:
            self._watching = PeriodicCallback(self._look, _WATCH_INTERVAL * 1000)
            self._watching.start()

    def _look(self) -> None:
        for slot in tuple(self._plugin.slots.values()):
            slot.watch_driver()
        if not self._plugin.slots and self._watching is not None:
            self._watching.stop()
            self._watching = None
