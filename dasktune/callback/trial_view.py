"""Trials as callbacks see them: by Ray Tune's names, and not to be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, overload

from dasktune.errors import StorageError, TrialError
from dasktune.space.searched import searched
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.location import Storage
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.location import Location
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

__all__ = ["Location", "TrialPlaces", "TrialView", "TrialViews"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlaces:
    """Where the trials of an experiment keep things.

    Parameters
    ----------
    trainable_name : str
        What they run.
    storage : Storage or None
        The experiment's directory; None in a simulation.
    checkpoint : callable
        Gives the checkpoint of a record, without reading anything of it.
    space : mapping, default={}
        The search space as the user wrote it.
    """

    trainable_name: str
    storage: Storage | None
    checkpoint: Callable[[CheckpointRecord], Checkpoint]
    space: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, store: ExperimentStore, trainable_name: str, space: Mapping[str, Any] | None = None
    ) -> TrialPlaces:
        """Return those in a store.

        Parameters
        ----------
        store : ExperimentStore
            The experiment's.
        trainable_name : str
            What the trials run.
        space : mapping, optional
            The search space as the user wrote it.
        """
        return cls(
            space=space or {},
            trainable_name=trainable_name,
            storage=store.storage,
            checkpoint=store.checkpoints.reference,
        )


class TrialView:
    """A trial, as it is at the moment of asking; while `replayed`, as it was then.

    Equal if they are of the same trial, so that it can be the key of a dict.

    Parameters
    ----------
    trial : Trial
        The driver's books.
    places : TrialPlaces
        Where it keeps things.
    now : Trial, optional
        The same trial in the present, if `trial` is of the past.

    Examples
    --------
    >>> from dasktune.callback import Callback
    >>> class Tell(Callback):
    ...     def on_trial_complete(self, iteration, trials, trial, **info):
    ...         print(trial.trial_id, trial.config, trial.last_result)
    """

    __slots__ = ("_now", "_places", "_trial")

    def __init__(self, trial: Trial, places: TrialPlaces, now: Trial | None = None) -> None:
        self._trial = trial
        self._places = places
        self._now = trial if now is None else now

    @property
    def trial_id(self) -> str:
        """Its id within the experiment, by which it is known everywhere."""
        return self._trial.trial_id

    @property
    def trial_name(self) -> str:
        """What it is called for people; its id unless ``trial_name_creator`` calls it otherwise."""
        return self._trial.name or self._trial.trial_id

    @property
    def trainable_name(self) -> str:
        """What it runs."""
        return self._places.trainable_name

    @property
    def config(self) -> dict[str, Any]:
        """A copy of its configuration; what is in it must not be changed."""
        return dict(self._trial.config)

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """What of its configuration was searched for, by path: ``{"net/lr": 0.1}``."""
        return searched(self._places.space, self._trial.config)

    @property
    def experiment_tag(self) -> str:
        """What distinguishes it from the others of its grid, ``"lr=0.1,depth=3"``."""
        return self._trial.tag

    @property
    def status(self) -> PublicStatus:
        """``"PENDING"``, ``"RUNNING"``, ``"PAUSED"``, ``"TERMINATED"`` or ``"ERROR"``."""
        return self._trial.public_status

    @property
    def last_result(self) -> dict[str, Any]:
        """A copy of its newest result, empty before the first."""
        return dict(self._trial.last_result)

    @property
    def location(self) -> Location | None:
        """Where it reported its newest result; None before the first, and in a simulation."""
        return Location.of(self._trial.last_result, self._trial.worker)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest one in the storage."""
        record = self._trial.checkpoint
        return None if record is None else self._places.checkpoint(record)

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """What it holds while it runs."""
        return self._trial.resources

    @property
    def resources(self) -> PlacementGroupFactory:
        """As `placement_group_factory`."""
        return self._trial.resources

    @property
    def custom_trial_name(self) -> str | None:
        """What ``trial_name_creator`` calls it; None without one."""
        return self._trial.name or None

    @property
    def custom_dirname(self) -> str | None:
        """What ``trial_dirname_creator`` calls its directory; None without one."""
        return self._trial.dirname or None

    @property
    def num_failures(self) -> int:
        """How often its code has failed."""
        return self._trial.failures

    @property
    def error_message(self) -> str | None:
        """The last failure of its code in one line, "ValueError: no such loss"."""
        return None if self._trial.error is None else self._trial.error.message

    @property
    def reason(self) -> str:
        """Why it ended, was stopped or given up; empty if there is nothing to say."""
        return self._trial.reason

    @property
    def worker(self) -> str:
        """Where it runs, or ran last: the worker's address; empty before its first start."""
        return self._trial.worker

    @property
    def start_time(self) -> float | None:
        """Seconds on the driver's clock, those of the epoch; None before its first start."""
        return self._trial.started_at

    @property
    def storage(self) -> Storage:
        """Its directory, which it has to itself.

        Raises
        ------
        StorageError
            If the experiment is a simulation.
        """
        storage = self._places.storage
        if storage is None:
            raise StorageError(f"trial {self.trial_id} is simulated and has no directory")
        return storage.child("trials", self._trial.folder)

    @property
    def path(self) -> str:
        """The path or URL of its directory."""
        return self.storage.url

    @property
    def local_path(self) -> str | None:
        """The path of its directory, if that is on a disk."""
        return self.storage.path() if self.storage.is_local else None

    @property
    def logdir(self) -> str:
        """As `path`, whose older name this is."""
        return self.path

    @property
    def relative_logdir(self) -> str:
        """The name of its directory."""
        return self._trial.folder

    @property
    def local_experiment_path(self) -> str | None:
        """The path of the experiment's directory, if that is on a disk."""
        storage = self._places.storage
        return storage.path() if storage is not None and storage.is_local else None

    @property
    def local_dir(self) -> str | None:
        """As `local_experiment_path`, whose older name this is."""
        return self.local_experiment_path

    @property
    def experiment_dir_name(self) -> str:
        """The name of the experiment's directory; empty in a simulation."""
        storage = self._places.storage
        return "" if storage is None else storage.url.rstrip("/").rpartition("/")[2]

    @property
    def error_file(self) -> str | None:
        """Where the tracebacks of its failures stand, if there are any."""
        return f"{self.path}/error.txt" if self._trial.errors else None

    @property
    def present(self) -> TrialView:
        """The same trial at the moment of asking, if this is of the past."""
        return TrialView(self._now, self._places)

    @property
    def node_ip(self) -> str | None:
        """The address of the machine of its newest result, as other machines see it."""
        location = self.location
        return None if location is None else location.node_ip

    @property
    def has_reported_at_least_once(self) -> bool:
        """Whether it has a result."""
        return bool(self._trial.history)

    def get_error(self) -> TrialError | None:
        """Return the last failure of its code, None if it never failed."""
        error = self._trial.error
        return (
            None
            if error is None
            else TrialError(self._trial.trial_id, error.message, error.traceback)
        )

    def is_finished(self) -> bool:
        """Whether it has ended for good."""
        return self._trial.status.is_final

    def history_since(self, row: int = 0) -> list[dict[str, Any]]:
        """Return its results of this moment, one for each ``training_iteration``.

        Of a trial that went on as a clone of another one those that it gave up are missing. It may
        be called in any thread.

        Parameters
        ----------
        row : int, default=0
            How many of them to leave out, from the beginning.
        """
        return self._now.history[row:]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialView) and other.trial_id == self.trial_id

    def __hash__(self) -> int:
        return hash(self.trial_id)

    def __str__(self) -> str:
        return self._trial.name or f"{self.trainable_name}_{self.trial_id}"

    def __repr__(self) -> str:
        return f"TrialView({self.trial_id!r}, {self.status.value})"


class TrialViews(Sequence[TrialView]):
    """All trials of an experiment in their order; made as they are asked for.

    Parameters
    ----------
    trials : mapping of str to Trial
        By their ids; grows.
    places : TrialPlaces
        Where they keep things.

    Examples
    --------
    >>> from dasktune.callback import Callback
    >>> class Count(Callback):
    ...     def on_trial_error(self, iteration, trials, trial, **info):
    ...         print(sum(one.status == "ERROR" for one in trials), "failed of", len(trials))
    """

    def __init__(self, trials: Mapping[str, Trial], places: TrialPlaces) -> None:
        self._trials = trials
        self._places = places

    def named(self, trial_id: str) -> TrialView:
        """Return a trial by its id, at once however many there are.

        Parameters
        ----------
        trial_id : str
            Its id.

        Raises
        ------
        KeyError
            If there is no such trial.
        """
        return self._view(self._trials[trial_id])

    def as_it_was(self, past: Trial) -> TrialView:
        """Return a view of a trial in the past.

        Parameters
        ----------
        past : Trial
            A copy of that time.
        """
        return TrialView(past, self._places, self._trials[past.trial_id])

    def checkpoint(self, record: CheckpointRecord) -> Checkpoint:
        """Return the checkpoint of a record, without reading anything of it."""
        return self._places.checkpoint(record)

    def _view(self, trial: Trial) -> TrialView:
        return TrialView(trial, self._places)

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialView]:
        return map(self._view, self._trials.values())

    @overload
    def __getitem__(self, index: int) -> TrialView: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrialView]: ...

    def __getitem__(self, index: int | slice) -> TrialView | list[TrialView]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self._trials))[index]
        return self._view(next(islice(self._trials.values(), place, None)))
