"""Find the experiments that a server shows."""

from __future__ import annotations

import logging
import shlex
from functools import partial
from typing import Final

from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.server.feed import JournalFeed
from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummaries, ExperimentSummary
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.errors import StorageError, TuneError
from dasktune.results.trial_forecast import forecast_experiment
from dasktune.storage.experiment.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_follower import JournalFollower
from dasktune.storage.leader.leader_lock import leader_status
from dasktune.trial.metrics import Mode

__all__ = ["ExperimentFolder", "ExperimentSource", "SingleExperiment"]

logger = logging.getLogger(__name__)

#: Maximum number of experiments in the list. If there are more, the last ones by name are listed.
_MOST: Final = 500
#: Maximum number of views by another metric.
_MOST_BY_METRIC: Final = 8
#: Maximum number of other entries in the list.
_MOST_BROKEN: Final = 20


class ExperimentSource:
    """Finds experiments by their names; a single experiment has the name ``""``."""

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none."""
        raise NotImplementedError

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
        """Read for the summaries for a while; return whether there is more to read at once.

        It may take long. One thread calls it at a time.
        """
        return False


class SingleExperiment(ExperimentSource):
    """One experiment.

    Parameters
    ----------
    live : LiveExperiment
        The experiment.
    """

    def __init__(self, live: LiveExperiment) -> None:
        self._live = live

    def find(self, name: str) -> LiveExperiment | None:
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

    Raises
    ------
    StorageError
        If it contains no experiment.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lives: dict[str, LiveExperiment] = {}
        #: Views by another metric, by name, metric and mode; the last requested one is last.
        self._by_metric: dict[tuple[str, str, Mode], LiveExperiment] = {}
        self._summaries = ExperimentSummaries(storage)
        with reading(SPEC_FILE, storage):
            self._is_one = storage.exists(SPEC_FILE)
        if self._is_one:
            self._lives[""] = _live(storage)
        elif not self._entries()[0]:
            raise StorageError(f"no experiment is stored at {storage}, nor directly below it")

    def find(self, name: str) -> LiveExperiment | None:
        """Return the experiment with a name; None if there is none, or it cannot be read."""
        name = "" if self._is_one else name
        if name not in self._lives and name in self._entries()[0]:
            try:
                self._lives[name] = _live(self._storage.child(name))
            except TuneError as error:
                logger.info("the dashboard cannot show %r: %s", name, error)
        return self._lives.get(name)

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
        live = self._by_metric.pop(key, None)
        if live is None:
            idle = [one for one, other in self._by_metric.items() if not other.viewers]
            for one in idle[: max(0, len(self._by_metric) + 1 - _MOST_BY_METRIC)]:
                forecast = self._by_metric.pop(one).forecast
                if forecast is not None:
                    forecast.stop()
            if len(self._by_metric) >= _MOST_BY_METRIC:
                return None
            storage = self._storage if self._is_one else self._storage.child(name)
            try:
                live = _live(storage, metric, mode)
            except TuneError as error:
                logger.info("the dashboard cannot show %r of %r: %s", metric, name, error)
                return None
        self._by_metric[key] = live
        return live

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
        """Look for experiments, and read their journals for a quarter of a second."""
        return False if self._is_one else self._summaries.refresh(*self._entries())

    def opened(self) -> list[LiveExperiment]:
        """Return the experiments that a viewer has opened."""
        return [*self._lives.values(), *self._by_metric.values()]

    def _entries(self) -> tuple[list[str], dict[str, str]]:
        """Return the names of experiments, newest first, and why other entries cannot be read.

        Other users may be able to create names here. One that is a link or a pipe, or that no
        experiment can have, must not hide the experiments.
        """
        readable: list[str] = []
        broken: dict[str, str] = {}
        with reading("its directories", self._storage):
            names = self._storage.names()
        for name in names:
            try:
                if self._storage.child(name).exists(SPEC_FILE):
                    readable.append(name)
            except (OSError, TuneError) as error:
                if len(broken) < _MOST_BROKEN:
                    broken[name] = str(error)
        return readable[-_MOST:][::-1], broken


def _live(storage: Storage, metric: str | None = None, mode: Mode | None = None) -> LiveExperiment:
    spec = ExperimentStore(storage).spec()
    new_projection = partial(empty_projection, spec, metric, mode)
    new_projection()  # raises if the spec is invalid
    look = partial(leader_status, storage)
    command = f"dasktune dashboard {shlex.quote(str(storage))}"
    feed = JournalFeed(JournalFollower(storage), look)
    replay = partial(forecast_experiment, storage, metric, mode)
    return LiveExperiment(new_projection, feed, command=command, storage=storage, replay=replay)
