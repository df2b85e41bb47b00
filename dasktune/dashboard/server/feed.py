"""Sources of the records of an experiment: its growing journal, and the driver's status."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final, Protocol

from dasktune.errors import StorageError
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.leader.leader_lock import LeaderStatus

logger = logging.getLogger(__name__)

#: Seconds without records after which the leader lock is read, and between two such reads.
_DOUBT: Final = 5.0
#: Seconds without records after which the state says so. A driver writes nothing for that long if
#: no trial reports anything.
_SILENT: Final = 60.0
#: The state of an experiment that a driver has created and not begun.
_NO_RECORDS: Final = "waiting for the first record of the driver"


class Feed(Protocol):
    """Returns the records since the last poll. One thread polls at a time."""

    #: The driver's status in a few words.
    state: str
    #: Whether the experiment is followed even without viewers, so that the first one need not wait.
    always_follow: bool

    @property
    def read_share(self) -> float | None:
        """The share of the journal that has been read; None if unknown."""

    def poll(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return whether the journal was replaced, and its new records (all records if it was)."""

    @property
    def now(self) -> float | None:
        """The present time of the runner's clock; None if unknown."""


class JournalFeed:
    """Follows the journal of an experiment.

    Parameters
    ----------
    follower : JournalFollower
        Reads the journal.
    read_leader : callable, optional
        Returns the status of the leader lock.
    clock : callable, default=time.monotonic
        Returns seconds.
    """

    always_follow = False

    def __init__(
        self,
        follower: JournalFollower,
        read_leader: Callable[[], LeaderStatus] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower, self._read_leader, self._clock = follower, read_leader, clock
        #: When the last record came, or the reader first reached the end of the journal; whether
        #: records have come since; whether there are any; and when the leader lock was read last.
        self._last_news, self._has_news, self._leader_read = -inf, False, -inf
        self._has_records = False
        self._leader = LeaderStatus("none")
        self.state = ""

    @property
    def read_share(self) -> float | None:
        """The share of the journal's bytes that has been read; None if it is not known."""
        return self._follower.share

    @property
    def now(self) -> float | None:
        """None, because a journal has no clock: only its records have times."""
        return None

    def poll(self) -> tuple[bool, Iterator[Mapping[str, Any]]]:
        """Return the records since the last poll."""
        try:
            anew, records = self._follower.poll()
        except StorageError as error:
            self.state = f"the journal cannot be read: {error}"
            return False, iter(())
        return anew, self._records(records)

    def _records(self, records: Iterator[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
        count = 0
        try:
            for count, record in enumerate(records, 1):  # noqa: B007 - used below
                yield record
        except StorageError as error:
            self.state = f"the journal cannot be read: {error}"
            return
        now = self._clock()
        self._has_records |= count > 0
        if count or self._last_news == -inf:
            # Records that existed at the first poll may be old, so they are no sign of life.
            self._has_news, self._last_news = self._last_news != -inf, now
        self.state = self._describe(now)

    def _describe(self, now: float) -> str:
        silence = now - self._last_news
        if self._has_news and silence < _DOUBT:
            return "driver is running"
        if now - self._leader_read >= _DOUBT and self._read_leader is not None:
            self._leader_read = now
            try:
                self._leader = self._read_leader()
            except StorageError as error:
                logger.debug("the leader lock cannot be read: %s", error)
        silent = f"no new records for {_coarse(silence)}" if silence > _SILENT else ""
        if self._leader.word == "alive":
            return ", ".join(filter(None, ("driver is running", silent)))
        if self._leader.word == "ended":
            return "driver has ended"
        if self._leader.word == "lost":
            age = self._leader.age_s
            return "driver is lost" + (f", last sign of life {_coarse(age)} ago" if age else "")
        if self._has_news:
            return silent or "driver is running"
        return silent or ("no new records" if self._has_records else _NO_RECORDS)


class DriverFeed(JournalFeed):
    """Follows the journal of the driver in this process, whose clock and end are known.

    Parameters
    ----------
    follower : JournalFollower
        Reads the journal.
    runner_time : callable
        Returns the time of the runner's clock.
    clock : callable, default=time.monotonic
        Returns seconds; measures for how long the journal has no new records.
    """

    always_follow = True

    def __init__(
        self,
        follower: JournalFollower,
        runner_time: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(follower, clock=clock)
        self._runner_time = runner_time
        self._has_ended = False
        self.state = "driver is running"

    @property
    def now(self) -> float | None:
        """The present time of the runner's clock; None after the end."""
        return None if self._has_ended else self._runner_time()

    def end(self) -> None:
        """Record that the driver has ended; called by the driver's thread.

        A poll in a reader thread may still see the flag unset. The driver closes the server after
        this call, and the server's last poll begins after that: it sees the flag.
        """
        self._has_ended = True

    def _describe(self, now: float) -> str:
        if self._has_ended:
            return "driver has ended"
        silence = now - self._last_news
        silent = f", no new records for {_coarse(silence)}" if silence > _SILENT else ""
        return f"driver is running{silent}"


def _coarse(seconds: float) -> str:
    if seconds < 60:
        return "less than 1 min"
    return f"{int(seconds // 60)} min" if seconds < 7200 else f"{int(seconds // 3600)} h"
