"""Read experiments from their directories for the command line, without unpickling or writing.

A driver may be running while its directory is read. The leader is read before the journal. If the
driver ends in between, the experiment is shown as live although it has just ended. In the other
order, the last records could be missing, and a finished experiment would be shown as interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Any, Final, Literal

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.load import empty_projection
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import check_journal_exists, read_journal
from dasktune.storage.leader.leader_lease import LeaderLease
from dasktune.storage.leader.leader_lock import current_leader
from dasktune.trial.metrics import Metric, Modes

#: Number of trials that a message names.
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """An experiment at the time at which it was read.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    spec : mapping
        The contents of ``experiment.json``.
    projection : ExperimentProjection
        The projection of its journal.
    leader : LeaderLease, optional
        The lease of the driver that runs it; None if no driver is running.
    """

    storage: Storage
    spec: Mapping[str, Any]
    projection: ExperimentProjection
    leader: LeaderLease | None

    @property
    def state(self) -> Literal["live", "finished", "interrupted"]:
        """Live while a driver runs, finished if all trials have ended, otherwise interrupted."""
        if self.leader is not None:
            return "live"
        return "finished" if self.projection.is_complete else "interrupted"

    @property
    def started(self) -> datetime | None:
        """The start of the experiment, in this machine's time zone; None if it is unknown."""
        with suppress(ValueError, TypeError, OverflowError, OSError):
            return datetime.fromisoformat(self.spec.get("created", "")).astimezone()
        began = self.projection.began
        with suppress(ValueError, OverflowError, OSError):
            return None if isnan(began) else datetime.fromtimestamp(began).astimezone()
        return None

    @property
    def name(self) -> str:
        """The name of the experiment's directory."""
        return self.storage.url.rstrip("/").rpartition("/")[2]


def read_experiment(
    storage: Storage,
    *,
    metric: Metric = None,
    mode: Modes = None,
    watch: Callable[[Mapping[str, Any]], object] | None = None,
) -> Overview:
    """Read an experiment that may be running, and whose files may come from an untrusted source.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    metric, mode
        The objective; by default the experiment's.
    watch : callable, optional
        Called with each record of the journal, in order.

    Raises
    ------
    ConfigError
        If `metric` and `mode` are not a valid objective.
    StorageError
        If there is no experiment, or it is damaged.
    """
    spec = ExperimentStore(storage).spec()
    check_journal_exists(storage, may_be_new=True)
    projection = empty_projection(spec, metric, mode)
    leader = current_leader(storage)
    for record in read_journal(storage):
        projection.add(record)
        if watch is not None:
            watch(record)
    return Overview(storage=storage, spec=spec, projection=projection, leader=leader)


def find_trial(projection: ExperimentProjection, trial_id: str) -> TrialProjection:
    """Return a trial by its ID.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.
    trial_id : str
        The ID.

    Raises
    ------
    ConfigError
        If there is no such trial.
    """
    trial = projection.find(trial_id)
    if trial is None:
        if not projection.trials:
            raise ConfigError(f"the experiment has no trials yet, got TRIAL {trial_id!r}")
        some = [one.trial_id for one in projection.trials[:_MOST_NAMED]]
        more = [] if len(projection.trials) <= _MOST_NAMED else ["..."]
        raise ConfigError(f"TRIAL must be one of {', '.join(some + more)}, got {trial_id!r}")
    return trial
