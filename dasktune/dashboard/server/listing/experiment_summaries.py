"""Summaries of the experiments in a directory, read from their journals for the list of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from math import nan
from threading import Lock
from typing import Any, Final

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.load import empty_projection
from dasktune.errors import TuneError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.leader.leader_lock import leader_status

logger = logging.getLogger(__name__)

#: Seconds for which one call of `refresh` reads.
_SLICE: Final = 0.25
#: Records between two readings of the clock.
_STRIDE: Final = 64
#: Seconds between two looks at an experiment: one that runs, and one that does not.
_LIVE_PERIOD: Final = 2.0
_ENDED_PERIOD: Final = 15.0
#: Points that are kept of a curve: a summary shows none.
_POINTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """An experiment in one row of a list."""

    name: str
    #: ``reading``, ``live``, ``finished``, ``interrupted``, ``lost``, or ``unreadable``.
    state: str
    #: The metrics with their modes; why the experiment cannot be read, if it cannot.
    goal: str = ""
    #: The best value of the first goal; NaN without one.
    best: float = nan
    #: Numbers of trials: ended, failed, and expected (None if unknown).
    done: int = 0
    failed: int = 0
    total: int | None = None
    #: Seconds from its first record to its last one.
    elapsed_s: float = 0.0
    #: When it was created, as ISO 8601; empty if unknown.
    created: str = ""


class _Follower:
    """Follows the journal of one experiment; after its end it keeps the summary alone."""

    def __init__(self, storage: Storage, clock: Callable[[], float]) -> None:
        self._storage, self._clock = storage, clock
        self._name = storage.url.rstrip("/").rpartition("/")[2]
        self._spec: Mapping[str, Any] = {}
        self._projection: ExperimentProjection | None = None
        self._journal: JournalFollower | None = None
        self._records: Iterator[Mapping[str, Any]] | None = None
        #: When to look again, by the clock.
        self.due = 0.0
        self.summary = ExperimentSummary(name=self._name, state="reading")

    def read_some(self, until: float) -> bool:
        """Read until a time; return whether there may be more to read at once."""
        try:
            return self._read_some(until)
        except TuneError as error:
            self._give_up(error)
            return False
        except Exception as error:  # the directory may contain anything
            logger.debug("an experiment cannot be read", exc_info=True)
            self._give_up(error)
            return False

    def _read_some(self, until: float) -> bool:
        if self._journal is not None and self._projection is None and not self._has_news(self._journal):
            self.due = self._clock() + _ENDED_PERIOD
            return False
        if self._journal is None or self._projection is None:
            self._spec = ExperimentStore(self._storage).spec()
            self._projection = empty_projection(self._spec, max_points=_POINTS)
            self._journal = JournalFollower(self._storage)
        if self._records is None:
            is_new, self._records = self._journal.poll()
            if is_new and self._projection.version:
                self._projection = empty_projection(self._spec, max_points=_POINTS)
        while True:
            some = list(islice(self._records, _STRIDE))
            self._projection.extend(some)
            if len(some) < _STRIDE:
                break
            if self._clock() > until:
                return True
        self._records = None
        self._summarise(self._projection)
        return False

    @staticmethod
    def _has_news(journal: JournalFollower) -> bool:
        """Whether an experiment that had ended has new records: then all of it is read again."""
        is_new, records = journal.poll()
        return is_new or any(True for _ in records)

    def _summarise(self, projection: ExperimentProjection) -> None:
        word = leader_status(self._storage).word
        is_live = word == "alive"
        state = "live" if is_live else "finished" if projection.is_complete else "interrupted"
        if word == "lost" and state == "interrupted":
            state = "lost"
        self.due = self._clock() + (_LIVE_PERIOD if is_live else _ENDED_PERIOD)
        self.summary = ExperimentSummary(
            name=self._name,
            state=state,
            goal=_goals(self._spec),
            best=projection.best_value,
            done=projection.num_finished,
            failed=projection.counts["ERROR"],
            total=projection.total,
            elapsed_s=projection.elapsed,
            created=str(self._spec.get("created", ""))[:19],
        )
        if not is_live:
            # Hundreds of experiments may have ended: their trials would fill the memory.
            self._projection = None

    def _give_up(self, error: Exception) -> None:
        self._projection = self._journal = self._records = None
        self.due = self._clock() + _ENDED_PERIOD
        created = str(self._spec.get("created", ""))[:19]
        self.summary = ExperimentSummary(
            name=self._name, state="unreadable", goal=f"cannot be read: {error}", created=created
        )


class ExperimentSummaries:
    """The summaries of the experiments in a directory, read a little at a time.

    One thread at a time calls `refresh`; any thread reads `rows`.

    Parameters
    ----------
    storage : Storage
        The directory.
    clock : callable, default=time.monotonic
        Returns seconds.
    """

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = storage, clock
        self._followers: dict[str, _Follower] = {}
        self._lock = Lock()
        self._rows: list[ExperimentSummary] = []

    @property
    def rows(self) -> list[ExperimentSummary]:
        """The summaries as of the last `refresh`, in the order of `names` at that time."""
        with self._lock:
            return self._rows

    def refresh(self, names: list[str], broken: Mapping[str, str]) -> bool:
        """Read for a quarter of a second; return whether there is more to read at once.

        Parameters
        ----------
        names : list of str
            The names of the experiments.
        broken : mapping of str to str
            Why other entries cannot be read, by their names.
        """
        until = self._clock() + _SLICE
        wanted = {name: self._followers.get(name) or self._new(name) for name in names}
        self._followers = wanted
        more = False
        for follower in wanted.values():
            if follower.due > self._clock():
                continue
            if follower.read_some(until) or self._clock() > until:
                more = True
                break
        others = [
            ExperimentSummary(name=name, state="unreadable", goal=f"cannot be read: {why}")
            for name, why in broken.items()
        ]
        with self._lock:
            self._rows = [*(one.summary for one in wanted.values()), *others]
        return more

    def _new(self, name: str) -> _Follower:
        return _Follower(self._storage.child(name), self._clock)


def _goals(spec: Mapping[str, Any]) -> str:
    """Return the goals in ``experiment.json`` as text; its content is not trusted."""
    metrics, modes = (
        one if isinstance(one, list) else [one] for one in (spec.get("metric"), spec.get("mode"))
    )
    pairs = zip_longest(metrics, modes)
    named = [f"{metric} ({mode})" if mode else str(metric) for metric, mode in pairs]
    return ", ".join(named) if metrics != [None] else "no metric"
