"""Read-only views of trials for callbacks, with Ray Tune's attribute names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, overload

from dasktune.errors import StorageError, TrialError
from dasktune.space.inspection import varied_parameters
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.location import Location
from dasktune.trial.metrics import with_nested_names
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial as DriverTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStorage:
    """The storage of an experiment's trials, and other data that the trials' views need.

    Parameters
    ----------
    trainable_name : str
        The name of the trainable.
    storage : Storage or None
        The experiment's directory; None in a simulation.
    checkpoint : callable
        Returns the checkpoint of a record, without reading its files.
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
    ) -> TrialStorage:
        """Return the storage of the trials in an experiment's store.

        Parameters
        ----------
        store : ExperimentStore
            The experiment's store.
        trainable_name : str
            The name of the trainable.
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
    """A read-only view of a trial, whose attributes show the trial's current state.

    In hooks with `replayed` set, they show the trial's state at the time of the event. Two views
    are equal if they show the same trial, so a view can be the key of a dict.

    Parameters
    ----------
    trial : Trial
        The trial.
    trial_storage : TrialStorage
        The storage of the experiment's trials.
    now : Trial, optional
        The trial in its current state, if `trial` is a copy of an earlier one.

    Examples
    --------
    >>> from dasktune.callback import Callback
    >>> class Tell(Callback):
    ...     def on_trial_complete(self, iteration, trials, trial, **info):
    ...         print(trial.trial_id, trial.config, trial.last_result)
    """

    __slots__ = ("_now", "_trial", "_trial_storage")

    #: The values of `status`, under Ray Tune's names.
    PENDING: Final = PublicStatus.PENDING
    RUNNING: Final = PublicStatus.RUNNING
    PAUSED: Final = PublicStatus.PAUSED
    TERMINATED: Final = PublicStatus.TERMINATED
    ERROR: Final = PublicStatus.ERROR

    def __init__(
        self, trial: DriverTrial, trial_storage: TrialStorage, now: DriverTrial | None = None
    ) -> None:
        self._trial = trial
        self._trial_storage = trial_storage
        self._now = trial if now is None else now

    @property
    def trial_id(self) -> str:
        """The trial's id, unique within the experiment."""
        return self._trial.trial_id

    @property
    def trial_name(self) -> str:
        """The trial's display name: the result of ``trial_name_creator``, or else its id."""
        return self._trial.name or self._trial.trial_id

    @property
    def trainable_name(self) -> str:
        """The name of the trainable."""
        return self._trial_storage.trainable_name

    @property
    def config(self) -> dict[str, Any]:
        """A shallow copy of the configuration; do not change nested values."""
        return dict(self._trial.config)

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The searched parameters of the configuration, by path: ``{"net/lr": 0.1}``."""
        return varied_parameters(self._trial_storage.space, self._trial.config)

    @property
    def experiment_tag(self) -> str:
        """The values that distinguish the trial from others: ``"lr=0.1,depth=3"``."""
        return self._trial.tag

    @property
    def status(self) -> PublicStatus:
        """``"PENDING"``, ``"RUNNING"``, ``"PAUSED"``, ``"TERMINATED"`` or ``"ERROR"``."""
        return self._trial.public_status

    @property
    def last_result(self) -> dict[str, Any]:
        """A copy of the newest result; empty before the first."""
        return with_nested_names(self._trial.last_result)

    @property
    def location(self) -> Location | None:
        """Where the newest result was reported; None before the first, and in a simulation."""
        return Location.of(self._trial.last_result, self._trial.worker)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint in the storage."""
        record = self._trial.checkpoint
        return None if record is None else self._trial_storage.checkpoint(record)

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """The resources that the trial holds while it runs."""
        return self._trial.resources

    @property
    def resources(self) -> PlacementGroupFactory:
        """The same as `placement_group_factory`."""
        return self._trial.resources

    @property
    def custom_trial_name(self) -> str | None:
        """The name from ``trial_name_creator``; None without one."""
        return self._trial.name or None

    @property
    def custom_dirname(self) -> str | None:
        """The directory name from ``trial_dirname_creator``; None without one."""
        return self._trial.dirname or None

    @property
    def num_failures(self) -> int:
        """How often the trial's code has failed."""
        return self._trial.failures

    @property
    def error_message(self) -> str | None:
        """The last failure of the trial's code in one line: ``"ValueError: no such loss"``."""
        return None if self._trial.error is None else self._trial.error.message

    @property
    def reason(self) -> str:
        """Why the trial ended, was stopped or failed; empty without a reason."""
        return self._trial.reason

    @property
    def worker(self) -> str:
        """The address of the trial's current or last worker; empty before its first start."""
        return self._trial.worker

    @property
    def start_time(self) -> float | None:
        """Time of the first start, in seconds since the epoch; None before it."""
        return self._trial.started_at

    @property
    def storage(self) -> Storage:
        """The trial's own directory.

        Raises
        ------
        StorageError
            If the experiment is a simulation.
        """
        storage = self._trial_storage.storage
        if storage is None:
            raise StorageError(f"trial {self.trial_id} is simulated and has no directory")
        return storage.child("trials", self._trial.folder)

    @property
    def path(self) -> str:
        """The path or URL of the trial's directory."""
        return self.storage.url

    @property
    def local_path(self) -> str | None:
        """The path of the trial's directory; None if it is not on a disk."""
        return self.storage.path() if self.storage.is_local else None

    @property
    def logdir(self) -> str:
        """Older name of `path`."""
        return self.path

    @property
    def relative_logdir(self) -> str:
        """The name of the trial's directory."""
        return self._trial.folder

    @property
    def local_experiment_path(self) -> str | None:
        """The path of the experiment's directory; None if it is not on a disk."""
        storage = self._trial_storage.storage
        return storage.path() if storage is not None and storage.is_local else None

    @property
    def local_dir(self) -> str | None:
        """Older name of `local_experiment_path`."""
        return self.local_experiment_path

    @property
    def experiment_dir_name(self) -> str:
        """The name of the experiment's directory; empty in a simulation."""
        storage = self._trial_storage.storage
        return "" if storage is None else storage.url.rstrip("/").rpartition("/")[2]

    @property
    def error_file(self) -> str | None:
        """The path of the file with the trial's tracebacks; None if it never failed."""
        return f"{self.path}/error.txt" if self._trial.errors else None

    @property
    def present(self) -> TrialView:
        """A view of the trial in its current state, also in hooks with `replayed` set."""
        return TrialView(self._now, self._trial_storage)

    @property
    def node_ip(self) -> str | None:
        """The network address of the machine that reported the newest result."""
        location = self.location
        return None if location is None else location.node_ip

    @property
    def has_reported_at_least_once(self) -> bool:
        """Whether the trial has a result."""
        return bool(self._trial.history)

    def get_error(self) -> TrialError | None:
        """Return the last failure of the trial's code; None if it never failed."""
        error = self._trial.error
        return None if error is None else TrialError(self._trial.trial_id, error.message, error.traceback)

    def is_finished(self) -> bool:
        """Whether the trial has ended and will not run again."""
        return self._trial.status.is_final

    def history_since(self, row: int = 0) -> list[dict[str, Any]]:
        """Return the current results of the trial, one for each ``training_iteration``.

        After an exploit, the history lacks the trial's discarded results. The method may be called
        in any thread.

        Parameters
        ----------
        row : int, default=0
            Index of the first result to return.
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


#: Ray Tune's name of the class, for annotations and for the values of `status`.
Trial = TrialView


class TrialViews(Sequence[TrialView]):
    """The trials of an experiment in their order, as views that are created on access.

    Parameters
    ----------
    trials : mapping of str to Trial
        The trials by id. The mapping may grow.
    trial_storage : TrialStorage
        The storage of the experiment's trials.

    Examples
    --------
    >>> from dasktune.callback import Callback
    >>> class Count(Callback):
    ...     def on_trial_error(self, iteration, trials, trial, **info):
    ...         print(sum(one.status == "ERROR" for one in trials), "failed of", len(trials))
    """

    def __init__(self, trials: Mapping[str, DriverTrial], trial_storage: TrialStorage) -> None:
        self._trials = trials
        self._trial_storage = trial_storage

    def named(self, trial_id: str) -> TrialView:
        """Return a trial by its id, in constant time.

        Parameters
        ----------
        trial_id : str
            The trial's id.

        Raises
        ------
        KeyError
            If there is no such trial.
        """
        return self._view(self._trials[trial_id])

    def past_view(self, past: DriverTrial) -> TrialView:
        """Return a view of a trial's earlier state.

        Parameters
        ----------
        past : Trial
            A copy of the trial from that time.
        """
        return TrialView(past, self._trial_storage, self._trials[past.trial_id])

    def checkpoint(self, record: CheckpointRecord) -> Checkpoint:
        """Return the checkpoint of a record, without reading its files."""
        return self._trial_storage.checkpoint(record)

    def _view(self, trial: DriverTrial) -> TrialView:
        return TrialView(trial, self._trial_storage)

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
        position = range(len(self._trials))[index]
        return self._view(next(islice(self._trials.values(), position, None)))
