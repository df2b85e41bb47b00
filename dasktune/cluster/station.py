"""The worker's end of the line to a driver: one for all slots of an experiment on the worker.

There is one bell and one call for all of them, so that what the driver spends depends on the number
of workers and not on that of trials. All methods but :meth:`Station.ring` and the constructor are
for the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tornado.ioloop import PeriodicCallback

from dasktune.cluster.bell import Bell
from dasktune.cluster.contact import Contact
from dasktune.cluster.envelope import Assignment, Carriage, News, Reply, Request
from dasktune.cluster.turn import Turn
from dasktune.errors import StorageError
from dasktune.trainable.contents import weight_of
from dasktune.trainable.outbox import Urgency
from dasktune.trainable.relay import Haul

__all__ = ["Station"]

#: Seconds between two looks at whether the driver is still there.
_WATCH_INTERVAL = 1.0

#: Bytes of messages with which a reply is full; the driver then calls again. Each trial may have
#: that much, and a call has a deadline.
_LARGEST_REPLY = 16 << 20


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
        #: Number of the newest call that brought anything, and what it brought that was refused.
        self._newest = 0
        self._refused: tuple[tuple[str, str], ...] = ()
        self._bell = Bell(self._send_bell, worker.loop.call_later, worker.loop.remove_timeout)
        self._watching: PeriodicCallback | None = None

    @classmethod
    def of(cls, worker: Any, plugin: Any, topic: str, fence_after: float) -> Station:
        """Return the experiment's one station on a worker."""
        # Slots are made in several threads at a time; setdefault lets one of them win.
        station: Station = plugin.stations.setdefault(
            topic, cls(worker, plugin, topic, fence_after)
        )
        return station

    def watch(self) -> None:
        """Look after the slots for as long as there are any. Thread-safe."""
        self._worker.loop.add_callback(self._watch)

    def exchange(self, request: Request) -> Reply:
        """Take what the driver says, and return what it does not have."""
        if any(turn.is_busy for turn in self._turns.values()):
            self.contact.hear(request.number)
        else:
            # There was no reason to call.
            self.contact.renew(request.number)
        self._bell.window = request.window
        for incarnation in request.done:
            self._turns.pop(incarnation, None)
        new: list[Turn] = []
        # A call that is repeated, or was under way for long, must not start anything anew.
        if request.number > self._newest:
            self._newest = request.number
            new, self._refused = self._register(request.assignments)
        for note in request.notes:
            turn = self._turns.get(note.incarnation)
            if turn is not None:
                turn.heed(note)
        # Only now: one that was stopped on its way here is never begun.
        for turn in new:
            self._plugin.slots[turn.assignment.slot].take(turn)
        self._bell.answered()
        news, more = self._gather()
        return Reply(news=news, more=more, refused=self._refused)

    async def carry(self, carriage: Carriage) -> Haul | bytes | None:
        """Take a step of carrying something for a trial, beside the event loop.

        Raises
        ------
        StorageError
            If nobody waits for it.
        OSError
            If a file cannot be read or written.
        """
        turn = self._turns.get(carriage.incarnation)
        if turn is None or turn.run is None:
            raise StorageError("the trial has left")
        return await asyncio.to_thread(turn.run.dock.do, carriage.number, carriage.step)

    def ring(self, turn: Turn, urgency: Urgency) -> None:
        """Tell the driver that a trial has news: at once, or when the window closes. Thread-safe.

        The trial may have none any more when the loop finds the time, as the driver has come.
        """
        self._worker.loop.add_callback(self._ring, turn, urgency)

    def ring_now(self) -> None:
        """Tell the driver of something else than a trial's messages."""
        self._bell.ring(Urgency.NOW)

    def _register(
        self, assignments: Iterable[Assignment]
    ) -> tuple[list[Turn], tuple[tuple[str, str], ...]]:
        """Return the turns of new trials, and the trials that are refused, each with the reason."""
        new: list[Turn] = []
        refused: list[tuple[str, str]] = []
        for assignment in assignments:
            incarnation = assignment.incarnation
            if assignment.slot not in self._plugin.slots:
                refused.append((incarnation, f"there is no slot {assignment.slot} here"))
                continue
            # Now: the driver keeps it here only until it has heard that we were called.
            packed = self._find(assignment.memory) if assignment.memory else b""
            self._turns[incarnation] = turn = Turn(assignment, packed)
            new.append(turn)
        return new, tuple(refused)

    def _find(self, key: str) -> bytes | None:
        """Return a checkpoint that is in memory here: with Dask, or still on its way there."""
        if key in self._worker.data:
            packed: bytes = self._worker.data[key]
            return packed
        return self._plugin.kept.get(key)  # type: ignore[no-any-return]

    def _gather(self) -> tuple[tuple[News, ...], bool]:
        """Return as much news as one call should carry, and whether there may be more."""
        gathered: list[News] = []
        size = 0
        for turn in tuple(self._turns.values()):
            if size >= _LARGEST_REPLY:
                # Those that were left out are the first next time.
                for one in gathered:
                    self._turns[one.incarnation] = self._turns.pop(one.incarnation)
                return tuple(gathered), True
            if (news := turn.news()) is not None:
                gathered.append(news)
                size += weight_of(news.messages)
        return tuple(gathered), False

    def _ring(self, turn: Turn, urgency: Urgency) -> None:
        if turn.has_news:
            self._bell.ring(urgency)

    def _send_bell(self) -> None:
        # A worker on its way out may have no connection left; the driver polls besides.
        with suppress(OSError):
            self._worker.log_event(self._topic, self._worker.address)

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = PeriodicCallback(self._look, _WATCH_INTERVAL * 1000)
            self._watching.start()

    def _look(self) -> None:
        for slot in tuple(self._plugin.slots.values()):
            slot.watch_driver()
        if not self._plugin.slots and self._watching is not None:
            self._watching.stop()
            self._watching = None
