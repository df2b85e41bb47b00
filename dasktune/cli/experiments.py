"""Experiments as their directories tell of them. Nothing is unpickled and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Any, Literal

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.sources import described
from dasktune.errors import ConfigError, StorageError
from dasktune.storage.driver_lock import who_leads
from dasktune.storage.experiment_store import SPEC_FILE, ExperimentStore
from dasktune.storage.journal_reader import read_journal
from dasktune.storage.lease import Lease
from dasktune.storage.location import Storage
from dasktune.storage.masking import reading
from dasktune.trial.metrics import Metric, Modes

__all__ = ["Overview", "experiments_below", "read_experiment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """An experiment at the moment at which it was read.

    Parameters
    ----------
    storage : Storage
        Its directory.
    spec : mapping
        What ``experiment.json`` says.
    chronicle : Chronicle
        What its journal tells.
    leader : Lease, optional
        What the driver that runs it says of itself; None if none does.
    is_exhausted : bool
        Whether its searcher has said that there is nothing more to try.
    """

    storage: Storage
    spec: Mapping[str, Any]
    chronicle: Chronicle
    leader: Lease | None
    is_exhausted: bool

    @property
    def state(self) -> Literal["live", "finished", "interrupted"]:
        """Whether a driver runs it, and if none does, whether anything is left to do."""
        if self.leader is not None:
            return "live"
        told, made = self.chronicle, len(self.chronicle.trials)
        all_made = self.is_exhausted or bool(told.stop_reason)
        all_made = all_made or (told.total is not None and made >= told.total)
        return "finished" if all_made and told.num_over == made else "interrupted"

    @property
    def started(self) -> datetime | None:
        """When it was begun, in the zone of this machine; None if nobody knows."""
        with suppress(ValueError, TypeError, OverflowError, OSError):
            return datetime.fromisoformat(self.spec["created"]).astimezone()
        began = self.chronicle.began
        with suppress(ValueError, OverflowError, OSError):
            return None if isnan(began) else datetime.fromtimestamp(began).astimezone()
        return None

    @property
    def name(self) -> str:
        """The name of its directory, by which it is found."""
        return self.storage.url.rstrip("/").rpartition("/")[2]


def read_experiment(
    storage: Storage,
    *,
    metric: Metric = None,
    mode: Modes = None,
    watch: Callable[[Mapping[str, Any]], object] | None = None,
) -> Overview:
    """Read an experiment, which may be anybody's, and may be running.

    Parameters
    ----------
    storage : Storage
        Its directory.
    metric, mode
        What to look at, and which way it is better; by default what was optimised.
    watch : callable, optional
        Is shown each record of the journal, in order.

    Raises
    ------
    ConfigError
        If `metric` and `mode` could not be goals.
    StorageError
        If there is no experiment, or it is damaged.
    """
    spec = ExperimentStore(storage).spec()
    chronicle, is_exhausted = described(spec, metric, mode), False
    leader = who_leads(storage)
    for record in read_journal(storage):
        chronicle.add(record)
        if record.get("event") == "Suggested":
            is_exhausted = record.get("finished") is True
        if watch is not None:
            watch(record)
    return Overview(
        storage=storage,
        spec=spec,
        chronicle=chronicle,
        leader=leader,
        is_exhausted=is_exhausted,
    )


def experiments_below(place: Storage, depth: int) -> Iterator[Storage]:
    """Yield the directory itself if it is an experiment's, else those below it, by their names.

    Parameters
    ----------
    place : Storage
        Where to look. Links below it are not followed.
    depth : int
        How many levels below to look.

    Raises
    ------
    StorageError
        If it cannot be read.
    """
    with reading(SPEC_FILE, place):
        if place.exists(SPEC_FILE):
            yield place
            return
    if depth <= 0:
        return
    with reading("its directories", place):
        names = place.names()
    for name in names:
        # Not a directory, a link, or no name that dasktune would have given.
        with suppress(ConfigError, StorageError):
            yield from experiments_below(place.child(name), depth - 1)
