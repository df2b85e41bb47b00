"""Where the records of a live experiment come from: its growing journal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final, Protocol

from dasktune.errors import StorageError
from dasktune.storage.driver_lock import LifeSign
from dasktune.storage.journal_follower import JournalFollower

__all__ = ["DriverFeed", "Feed", "JournalFeed"]

logger = logging.getLogger(__name__)

#: Seconds of silence after which the driver's lock is looked at, and between two such looks.
_DOUBT: Final = 5.0
#: Seconds of silence after which a journal is told to be silent: a driver may just have nothing to
#: say for that long, as no trial reports anything.
_SILENT: Final = 60.0


class Feed(Protocol):
    """Tells what has happened since it was asked last. It is asked by one thread at a time."""

    #: How it is with the driver, in a few words.
    state: str
    #: Whether it is followed though nobody looks, so that nobody waits who comes later.
    is_ahead: bool

    @property
    def share(self) -> float | None:
        """How much of what there was from the start has been read; None if nobody knows."""

    def take(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return whether the history is another one than before, and what is new, or all of it."""

    @property
    def now(self) -> float | None:
        """The time of the runner's clock, if it is known."""


class JournalFeed:
    """Follows the journal of an experiment.

    Parameters
    ----------
    follower : JournalFollower
        Reads it.
    look : callable, optional
        Tells how it is with the driver, by its lock.
    clock : callable, default=time.monotonic
        Gives seconds.
    """

    is_ahead = False

    def __init__(
        self,
        follower: JournalFollower,
        look: Callable[[], LifeSign] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower, self._look, self._clock = follower, look, clock
        #: When there was the last record, or the reader came to the end, whether it came later
        #: than that, and when the driver's lock was looked at.
        self._heard, self._is_news, self._looked = -inf, False, -inf
        self._sign = LifeSign("none")
        self.state = ""

    @property
    def share(self) -> float | None:
        """How much of the journal's bytes has been read, as long as that is known."""
        return self._follower.share

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
        if count or self._heard == -inf:
            # What was there from the start may be old.
            self._is_news, self._heard = self._heard != -inf, now
        self.state = self._words(now)

    def _words(self, now: float) -> str:
        silence = now - self._heard
        if self._is_news and silence < _DOUBT:
            return "driver is running"
        if now - self._looked >= _DOUBT and self._look is not None:
            self._looked = now
            try:
                self._sign = self._look()
            except StorageError as error:
                logger.debug("the driver's lock cannot be read: %s", error)
        silent = f"no news for {_coarse(silence)}" if silence > _SILENT else ""
        if self._sign.word == "alive":
            return ", ".join(filter(None, ("driver is running", silent)))
        if self._sign.word == "ended":
            return "driver has ended"
        if self._sign.word == "lost":
            age = self._sign.age_s
            return "driver is lost" + (f", last sign of life {_coarse(age)} ago" if age else "")
        return silent or ("driver is running" if self._is_news else "waiting for news")


class DriverFeed(JournalFeed):
    """Follows the journal of the driver in this process, of which more is known.

    Parameters
    ----------
    follower : JournalFollower
        Reads it.
    runner_time : callable
        The time of the runner's clock.
    """

    is_ahead = True

    def __init__(self, follower: JournalFollower, runner_time: Callable[[], float]) -> None:
        super().__init__(follower)
        self._runner_time = runner_time
        self._has_ended = False
        self.state = "driver is running"

    @property
    def now(self) -> float | None:
        """The driver's time."""
        return None if self._has_ended else self._runner_time()

    def end(self) -> None:
        """Tell that the driver has come to its end; for the driver's thread."""
        self._has_ended = True

    def _words(self, now: float) -> str:
        return "driver has ended" if self._has_ended else "driver is running"


def _coarse(seconds: float) -> str:
    if seconds < 60:
        return "less than 1 min"
    return f"{int(seconds // 60)} min" if seconds < 7200 else f"{int(seconds // 3600)} h"
