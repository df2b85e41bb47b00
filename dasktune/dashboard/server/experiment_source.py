"""Find the experiments that a server shows."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final

from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.server.feed import JournalFeed
from dasktune.dashboard.server.listing.directory_scan import DirectoryScan
from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummaries, ExperimentSummary
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.errors import StorageError, TuneError
from dasktune.results.trial_forecast import forecast_experiment
from dasktune.storage.experiment.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.leader.leader_lock import leader_status
from dasktune.text.formatting import format_duration
from dasktune.trial.metrics import Mode

logger = logging.getLogger(__name__)

#: Maximum number of views by another metric.
_MOST_BY_METRIC: Final = 8
#: Seconds for which one call of `refresh` looks for experiments.
_SCAN_SECONDS: Final = 0.25
#: Minimum age in seconds that the note about the list mentions, and its steps.
_OLD: Final = 10.0


class ExperimentSource:
    """Finds experiments by their names; a single experiment has the name ``""``.

    `find`, `find_by_metric` and `refresh` may wait for a storage, so the server's loop calls them
    in threads: `refresh` in one, and one of the others in another. The loop calls all other
    methods.
    """

    def known(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name if it was found before; it reads nothing.

        Parameters
        ----------
        name : str
            The experiment.
        """
        raise NotImplementedError

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none."""
        return self.known(name)

    def find_by_metric(self, name: str, metric: str, mode: Mode) -> LiveExperiment | None:
        """Return an experiment with another metric as its goal; None if it cannot be shown.

        Parameters
        ----------
        name : str
            The experiment.
        metric : str
            The metric.
        mode : {"min", "max"}
            Whether lower or higher values are better.
        """
        return None

    @property
    def offers_metrics(self) -> bool:
        """Whether `find_by_metric` finds experiments."""
        return False

    @property
    def has_list(self) -> bool:
        """Whether there is a list of several experiments."""
        return False

    def opened(self) -> list[LiveExperiment]:
        """Return the experiments that a viewer has opened."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """Where the experiments are, for people."""
        return ""

    def summaries(self) -> list[ExperimentSummary]:
        """Return the summaries of the experiments as of the last `refresh`."""
        return []

    def refresh(self) -> bool:
        """Read for the summaries for a while; return whether there is more to read at once."""
        return False

    @property
    def list_note(self) -> str:
        """How old the list of experiments is, or why it cannot be read; empty if it is recent."""
        return ""


class SingleExperiment(ExperimentSource):
    """One experiment.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """

    def __init__(self, live: LiveExperiment) -> None:
        self._live = live

    def known(self, name: str) -> LiveExperiment | None:
        """Return the single experiment, for any name."""
        return self._live

    def opened(self) -> list[LiveExperiment]:
        """Return the single experiment."""
        return [self._live]


class ExperimentFolder(ExperimentSource):
    """A directory that is an experiment, or that contains experiments.

    Parameters
    ----------
    storage : Storage
        The directory.
    clock : callable, default=time.monotonic
        Returns seconds.
    most_by_metric : int, default=8
        Maximum number of views by another metric.

    Raises
    ------
    StorageError
        If it contains no experiment.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], float] = time.monotonic,
        most_by_metric: int = _MOST_BY_METRIC,
    ) -> None:
        self._storage, self._clock, self._most_by_metric = storage, clock, most_by_metric
        #: Held while the two dicts below are changed or copied, never while the storage is read.
        self._lock = Lock()
        self._lives: dict[str, LiveExperiment] = {}
        #: Views by another metric, by name, metric and mode; the last requested one is last.
        self._by_metric: dict[tuple[str, str, Mode], LiveExperiment] = {}
        self._summaries, self._scan = ExperimentSummaries(storage, clock), DirectoryScan(storage, clock)
        with reading(SPEC_FILE, storage):
            self._is_one = storage.exists(SPEC_FILE)
        if self._is_one:
            self._lives[""] = _live(storage)
        else:
            self._check_directory()

    def _check_directory(self) -> None:
        """Raise a StorageError unless the directory contains an experiment."""
        while self._scan.scan_some(self._clock()) and not self._scan.experiments:
            pass
        if self._scan.error:
            raise StorageError(self._scan.error)
        if not self._scan.experiments:
            raise StorageError(f"no experiment is stored at {self._storage}, nor directly below it")

    def known(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name if it was found before."""
        return self._lives.get("" if self._is_one else name)

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none, or it cannot be read.

        Raises
        ------
        StorageError
            If the directory cannot be read.
        """
        live = self.known(name)
        if live is not None or not self._is_listed(name):
            return live
        try:
            live = _live(self._storage.child(name))
        except TuneError as error:
            logger.info("the dashboard cannot show %r: %s", name, error)
            return None
        with self._lock:
            # All viewers share the first one.
            return self._lives.setdefault(name, live)

    def _is_listed(self, name: str) -> bool:
        """Whether the directory has an experiment with this name, which any browser may send."""
        if not name or self._is_one:
            return False
        if name in self._scan.experiments:
            return True
        with reading("its directories", self._storage):
            names = self._storage.names()
        try:
            return name in names and self._storage.child(name).exists(SPEC_FILE)
        except (OSError, TuneError) as error:
            logger.info("the dashboard cannot show %r: %s", name, error)
            return False

    def find_by_metric(self, name: str, metric: str, mode: Mode) -> LiveExperiment | None:
        """Return an experiment with another metric as its goal; None if it cannot be shown.

        Each view reads the journal and keeps its trials, so views without viewers are dropped if
        there are many.

        Parameters
        ----------
        name : str
            The experiment.
        metric : str
            The metric.
        mode : {"min", "max"}
            Whether lower or higher values are better.
        """
        if self.find(name) is None:
            return None
        key = "" if self._is_one else name, metric, mode
        with self._lock:
            live = self._by_metric.pop(key, None)
            if live is not None:
                self._by_metric[key] = live
                return live
            if not self._has_room():
                return None
        storage = self._storage if self._is_one else self._storage.child(name)
        try:
            live = _live(storage, metric, mode)
        except TuneError as error:
            logger.info("the dashboard cannot show %r of %r: %s", metric, name, error)
            return None
        with self._lock:
            self._by_metric[key] = live
        return live

    def _has_room(self) -> bool:
        """Drop views by other metrics that have no viewer if there are many; return if one fits."""
        idle = [one for one, other in self._by_metric.items() if not other.viewers]
        for one in idle[: max(0, len(self._by_metric) + 1 - self._most_by_metric)]:
            forecast = self._by_metric.pop(one).forecast
            if forecast is not None:
                forecast.stop()
        return len(self._by_metric) < self._most_by_metric

    @property
    def offers_metrics(self) -> bool:
        """True: the journals have all metrics."""
        return True

    @property
    def has_list(self) -> bool:
        """Whether the directory contains experiments, and is not one itself."""
        return not self._is_one

    @property
    def place(self) -> str:
        """The directory's name or URL."""
        return str(self._storage)

    def summaries(self) -> list[ExperimentSummary]:
        """Return the summaries of the experiments as of the last `refresh`, in descending order."""
        return self._summaries.rows

    def refresh(self) -> bool:
        """Look for experiments, then read journals, each for a quarter of a second."""
        if self._is_one:
            return False
        scan = self._scan
        more = scan.scan_some(self._clock() + _SCAN_SECONDS)
        return self._summaries.refresh(scan.experiments, scan.broken) or more

    @property
    def list_note(self) -> str:
        """How old the list of experiments is, or why it cannot be read; empty if it is recent."""
        error, read_at = self._scan.error, self._scan.read_at
        age = 0.0 if read_at is None else self._clock() - read_at
        # In steps: each other text is sent to all viewers.
        shown = f"as of {format_duration(age // _OLD * _OLD)} ago" if age >= _OLD else ""
        return f"cannot be read again: {error}; shown {shown or 'as it was'}" if error else shown

    def opened(self) -> list[LiveExperiment]:
        """Return the experiments that a viewer has opened."""
        with self._lock:
            return [*self._lives.values(), *self._by_metric.values()]


def _live(storage: Storage, metric: str | None = None, mode: Mode | None = None) -> LiveExperiment:
    spec = ExperimentStore(storage).spec()
    new_projection = partial(empty_projection, spec, metric, mode)
    new_projection()  # raises if the spec is invalid
    look = partial(leader_status, storage)
    command = f"dasktune dashboard {shlex.quote(str(storage))}"
    feed = JournalFeed(JournalFollower(storage), look)
    replay = partial(forecast_experiment, storage, metric, mode)
    return LiveExperiment(new_projection, feed, command=command, storage=storage, replay=replay)
