"""Where the records of a live experiment come from: its driver, or its growing journal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from dasktune.errors import StorageError
from dasktune.storage.journal_follower import JournalFollower
from dasktune.storage.json_lines import decode, encode

__all__ = ["DriverFeed", "Feed", "JournalFeed"]

#: Records that may wait for the dashboard; it takes thousands a second.
_MOST_WAITING: Final = 500_000
#: Seconds of silence after which a journal is told to be silent: a driver may just have nothing to
#: say for that long, as no trial reports anything.
_SILENT: Final = 60.0


class Feed(Protocol):
    """Tells what has happened since it was asked last. It is asked by one thread at a time."""

    #: How it is with the driver, in a few words.
    state: str
    #: Whether what nobody takes takes memory.
    piles_up: bool

    def take(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return whether the history is another one than before, and what is new, or all of it."""

    @property
    def now(self) -> float | None:
        """The time of the runner's clock, if it is known."""


class DriverFeed:
    """Carries records from the driver's thread to the dashboard's.

    Parameters
    ----------
    before : callable, optional
        Gives the records of the sessions before this one; called in the dashboard's thread.
    """

    piles_up = True

    def __init__(self, before: Callable[[], Iterable[Mapping[str, Any]]] | None = None) -> None:
        self._before = before
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._now: float | None = None
        self.state = "driver is running"

    def put(self, record: Mapping[str, Any]) -> None:
        """Hand a record over; for the driver's thread.

        Raises
        ------
        RuntimeError
            If nobody takes them.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise RuntimeError(f"the dashboard has not taken the last {_MOST_WAITING:,} records")
        self._waiting.append(record)

    def pass_time(self, now: float) -> None:
        """Tell the runner's time; for the driver's thread."""
        self._now = now

    def end(self) -> None:
        """Tell that the driver has come to its end; for the driver's thread."""
        self.state = "driver has ended"

    @property
    def now(self) -> float | None:
        """The time that the driver has told last."""
        return self._now

    def take(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return what has happened since it was asked last."""
        return False, self._records()

    def _records(self) -> Iterator[Mapping[str, Any]]:
        before, self._before = self._before, None
        if before is not None:
            yield from before()
        for _ in range(len(self._waiting)):
            # As the journal tells it: no object of a user's is kept, or asked how it looks, later.
            yield decode(encode(self._waiting.popleft()))


class JournalFeed:
    """Follows the journal of an experiment.

    Parameters
    ----------
    follower : JournalFollower
        Reads it.
    clock : callable, default=time.monotonic
        Gives seconds.
    """

    piles_up = False

    def __init__(
        self, follower: JournalFollower, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._follower, self._clock = follower, clock
        self._heard: float | None = None
        self.state = ""

    @property
    def now(self) -> float | None:
        """None: a journal tells no time but that of its records."""
        return None

    def take(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return what has happened since it was asked last."""
        try:
            anew, records = self._follower.poll()
        except StorageError as error:
            self.state = f"the journal cannot be read: {error}"
            return False, iter(())
        return anew, self._heard_of(records)

    def _heard_of(self, records: Iterator[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
        count = 0
        try:
            for count, record in enumerate(records, 1):  # noqa: B007 - it is looked at below
                yield record
        except StorageError as error:
            self.state = f"the journal cannot be read: {error}"
            return
        now = self._clock()
        if self._heard is None:
            # What was there from the start may be old.
            self._heard, self.state = now, "waiting for news"
        elif count:
            self._heard, self.state = now, "driver is running"
        elif now - self._heard > _SILENT:
            self.state = f"no news for {_coarse(now - self._heard)}"


def _coarse(seconds: float) -> str:
    return f"{int(seconds // 60)} min" if seconds < 7200 else f"{int(seconds // 3600)} h"
