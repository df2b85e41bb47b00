"""Where the records of a live experiment come from: its driver, or its growing journal."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final, Protocol

from dasktune.errors import StorageError
from dasktune.storage.driver_lock import LifeSign
from dasktune.storage.journal_follower import JournalFollower
from dasktune.storage.json_lines import decode, encode

__all__ = ["DriverFeed", "Feed", "JournalFeed"]

logger = logging.getLogger(__name__)

#: Records that may wait for the dashboard; it takes thousands a second.
_MOST_WAITING: Final = 500_000
_NAMES: Final = frozenset({str})
_SCALARS: Final = frozenset({str, float, bool, type(None), int})
#: Seconds of silence after which the driver's lock is looked at, and between two such looks.
_DOUBT: Final = 5.0
#: Seconds of silence after which a journal is told to be silent: a driver may just have nothing to
#: say for that long, as no trial reports anything.
_SILENT: Final = 60.0


class Feed(Protocol):
    """Tells what has happened since it was asked last. It is asked by one thread at a time."""

    #: How it is with the driver, in a few words.
    state: str
    #: Whether what nobody takes takes memory.
    piles_up: bool

    @property
    def share(self) -> float | None:
        """How much of what there was from the start has been read; None if nobody knows."""

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
    share: float | None = None

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
            yield _as_journal(self._waiting.popleft())


def _as_journal(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record as the journal tells it.

    No object of a user's is kept, or asked how it looks, later. Of nearly all results that can be
    seen, and they need not be written and read, which takes as long as all the rest.
    """
    metrics = record.get("metrics")
    others = {key: value for key, value in record.items() if key != "metrics"}
    if type(metrics) is dict and _is_plain(others) and _is_plain(metrics):
        return {**others, "metrics": metrics.copy()}
    told: Mapping[str, Any] = decode(encode(record))
    return told


def _is_plain(record: Mapping[str, Any]) -> bool:
    """Whether there is nothing in it but what JSON has words for, and no structure."""
    return _NAMES.issuperset(map(type, record)) and _SCALARS.issuperset(map(type, record.values()))


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

    piles_up = False

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


def _coarse(seconds: float) -> str:
    if seconds < 60:
        return "less than 1 min"
    return f"{int(seconds // 60)} min" if seconds < 7200 else f"{int(seconds // 3600)} h"
