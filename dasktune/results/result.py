"""The result of one trial: `Result`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dasktune.errors import ConfigError, StorageError, TrialError, without_passwords
from dasktune.results.journal_trials import load_trials, retention_of
from dasktune.storage.checkpoints.exports import read_exports
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import format_cell, truncate
from dasktune.text.html_template import render_html
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.location import Location
from dasktune.trial.metrics import Mode, flatten, score, with_nested_names
from dasktune.trial.retention import Retention
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

    from dasktune.storage.checkpoints.checkpoint import Checkpoint

#: Fields that dasktune adds to each result; all others are the user's metrics.
AUTO_FILLED: Final = frozenset(
    {
        "checkpoint_dir_name",
        "config",
        "date",
        "done",
        "episodes_total",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "rank_wait_s",
        "should_checkpoint",
        "slowest_rank",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "timesteps_since_restore",
        "timesteps_total",
        "training_iteration",
        "trial_id",
    }
)

_HTML: Final = """
<div><p>{{ head }}</p>
{% for caption, values in tables.items() %}
<table><caption>{{ caption }}</caption><tbody>
{% for name, value in values.items() %}
<tr><td>{{ name }}</td><td>{{ format_cell(value) }}</td></tr>
{% endfor %}
</tbody></table>
{% endfor %}</div>
"""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result:
    """The result of one trial: configuration, metrics, status, checkpoints and error.

    Parameters
    ----------
    trial_id : str
        The trial's ID, unique within the experiment.
    config : dict
        The trial's configuration.
    history : sequence of dict
        The reported results, flat (nested names joined by ``/``), one for each
        ``training_iteration``. Always an object of the same class, which takes little memory and
        behaves as a list that is only read: it equals a list of the results, its slices are lists,
        and it can be pickled. After a restore, or from a path, it reads older results from the
        journal when they are needed. Where a list is required, make one:
        ``json.dumps(list(result.history))``.
    status : PublicStatus
        The trial's status when the experiment ended.
    path : str
        The trial's directory, below the experiment's.
    error : TrialError, optional
        The error of a failed trial.
    reason : str, default=""
        Why the trial ended or is paused, as a scheduler, a stopper or the user gave it. Empty if
        its code returned.
    stopped_early : bool, default=False
        Whether a trial scheduler stopped the trial before its end.
    records : sequence of CheckpointRecord, default=()
        The kept checkpoints, oldest first.
    retention : Retention, optional
        The rule by which checkpoints were kept.
    load_checkpoint : callable
        Returns the checkpoint of a record.
    worker : str, default=""
        Address of the last Dask worker that ran the trial; empty if it never ran.
    storage : Storage, optional
        The experiment's directory.
    experiment_tag : str, default=""
        The values that distinguish the trial from others: ``"3_lr=0.1"``.

    Examples
    --------
    >>> from dasktune.trial.status import PublicStatus
    >>> result = Result(trial_id="a", config={"lr": 0.1}, history=[{"loss": 0.5}, {"loss": 0.25}],
    ...                 status=PublicStatus.TERMINATED, path="", load_checkpoint=print)
    >>> result.metrics["loss"], result.metrics["config"]
    (0.25, {'lr': 0.1})
    """

    trial_id: str
    config: dict[str, Any]
    history: Sequence[dict[str, Any]]
    status: PublicStatus
    path: str
    error: TrialError | None = None
    reason: str = ""
    stopped_early: bool = False
    records: Sequence[CheckpointRecord] = ()
    retention: Retention = field(default_factory=Retention)
    load_checkpoint: Callable[[CheckpointRecord], Checkpoint] = field(repr=False)
    worker: str = ""
    storage: Storage | None = None
    experiment_tag: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.history, History):
            object.__setattr__(self, "history", History(self.history, owner=self.trial_id))

    @classmethod
    def from_trial(
        cls,
        trial: Trial,
        path: str,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention,
        storage: Storage | None = None,
    ) -> Result:
        """Create a result from the driver's trial; the other arguments are those of the class."""
        return cls(
            trial_id=trial.trial_id,
            config=trial.config,
            history=trial.history,
            status=trial.public_status,
            path=path,
            error=_error_of(trial),
            reason=_reason_of(trial),
            stopped_early=trial.stopped_early,
            records=tuple(trial.checkpoints),
            retention=retention,
            load_checkpoint=load_checkpoint,
            worker=trial.worker,
            storage=storage,
            experiment_tag=trial.tag,
        )

    @classmethod
    def from_path(
        cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Result:
        """Read the result of a trial from its directory.

        The experiment may still be running. Nothing in it is executed or unpickled; values of the
        configuration that JSON lacks are ``{"$repr": text}``.

        Parameters
        ----------
        path : str or path
            The trial's directory or URL, as in :attr:`path`.
        storage_options : mapping, optional
            Options of fsspec for the URL.

        Returns
        -------
        Result
            The result at this moment.

        Raises
        ------
        StorageError
            If the directory is not a trial's, or the experiment's journal is damaged.

        Examples
        --------
        >>> Result.from_path("~/dasktune_results/train/trials/a1b2c_00000")  # doctest: +SKIP
        """
        home, folder, trial_dir = _parted(os.fspath(path))
        storage = Storage(home, storage_options or {})
        trials = load_trials(storage) if folder == "trials" else []
        for trial in trials:
            if trial.folder == trial_dir:
                store = ExperimentStore(storage)
                place = f"{storage.url.rstrip('/')}/trials/{trial_dir}"
                kept = retention_of(storage)
                return cls.from_trial(trial, place, store.checkpoints.load, kept, storage)
        raise StorageError(
            f"no trial of an experiment is stored at {without_passwords(os.fspath(path))}. Give "
            "a directory below <experiment>/trials."
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """The last result, empty if there is none.

        Names are flat, and nested ones can also be read as reported: ``metrics["n/a"]`` is
        ``metrics["n"]["a"]``. As in Ray Tune, ``config``, ``trial_id`` and ``experiment_tag`` are
        among them, unless the trial has reported values of these names.
        """
        if not self.history:
            return {}
        metrics = with_nested_names(self.history[-1])
        # Derived here: the journal has them once for each trial, and not in each result.
        own = {"trial_id": self.trial_id, "experiment_tag": self.experiment_tag, "config": self.config}
        metrics.update((name, value) for name, value in own.items() if name not in metrics)
        return metrics

    @property
    def last_result(self) -> dict[str, Any]:
        """The same as `metrics`; the name of Ray Tune's trials."""
        return self.metrics

    @property
    def logdir(self) -> str:
        """The same as `path`; the name of Ray Tune's trials."""
        return self.path

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem of `path`; None for a simulation."""
        return None if self.storage is None else self.storage.fs

    @property
    def location(self) -> Location | None:
        """The host and process of the last result; None without a result and in a simulation."""
        return Location.of(self.metrics, self.worker)

    @property
    def exported(self) -> dict[str, str]:
        """The exports of a trial that ended without error, as ``{format: path or URL}``.

        Empty without ``export_formats``. Each access reads the storage.
        """
        if self.storage is None:
            return {}
        return read_exports(self.storage, self.path.rstrip("/").rpartition("/")[2])

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """The history as a table, one row for each ``training_iteration``. Needs pandas.

        The columns are the metrics and, in each row, the configuration as ``config/a/b``.
        """
        config = flatten(self.config, "config/")
        return require_pandas().DataFrame([{**flatten(row), **config} for row in self.history])

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None if there is none."""
        return self.load_checkpoint(self.records[-1]) if self.records else None

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The kept checkpoints, the best last, each with the metrics of its result.

        They are sorted from the worst to the best, so ``best_checkpoints[-1]`` is the best.
        Without ``checkpoint_score_attribute`` the newest one is the best.
        """
        best_first = self.retention.best(self.records)
        return [(self.load_checkpoint(record), record.metrics) for record in reversed(best_first)]

    def get_best_checkpoint(self, metric: str, mode: Mode) -> Checkpoint | None:
        """Return the kept checkpoint with the best result, or None if no result has the metric.

        Parameters
        ----------
        metric : str
            The metric to compare; nested names are joined by ``/``.
        mode : {"min", "max"}
            Whether lower or higher values are better.

        Raises
        ------
        ConfigError
            If `mode` is not one of them.
        """
        best = Retention(1, metric, checked_mode(mode)).best(self.records)
        if not best or score(best[0].metrics, metric, mode) is None:
            return None
        return self.load_checkpoint(best[0])

    def _own_metrics(self) -> dict[str, Any]:
        return {key: value for key, value in self.metrics.items() if not is_auto_filled(key)}

    def _repr_html_(self) -> str:
        error = "" if self.error is None else f": {self.error.message}"
        text = truncate(f"{self.reason}{'' if error[2:] == self.reason else error}", 200)
        why = f" ({text})" if text else ""
        place = without_passwords(self.path)
        head = f"Trial {self.trial_id}: {self.status.value}{why}, in {place}"
        iteration = {"training_iteration": self.metrics.get("training_iteration")}
        tables = {"config": flatten(self.config), "metrics": {**self._own_metrics(), **iteration}}
        return render_html(_HTML, head=head, tables=tables, format_cell=format_cell)

    def __repr__(self) -> str:
        own = self._own_metrics()
        parts = [
            f"trial_id={self.trial_id!r}",
            f"status={self.status.value}",
            *([f"reason={self.reason!r}"] if self.reason and self.error is None else []),
            f"metrics={own!r}",
            f"path={without_passwords(self.path)!r}",
        ]
        if self.error is not None:
            parts.append(f"error={self.error.message!r}")
        if self.records:
            parts.append(f"checkpoint={self.records[-1].path!r}")
        return f"Result({', '.join(parts)})"


def _reason_of(trial: Trial) -> str:
    if trial.public_status is PublicStatus.PAUSED:
        return trial.pause_reason
    return trial.reason


def _parted(path: str) -> tuple[str, str, str]:
    """Return the experiment's directory and the last two names of a path."""
    rest, _, trial_id = path.rstrip("/").rpartition("/")
    home, _, folder = rest.rpartition("/")
    return home, folder, trial_id


def _error_of(trial: Trial) -> TrialError | None:
    if trial.public_status is not PublicStatus.ERROR:
        return None
    info = trial.error
    if info is not None and info.message == trial.reason:
        return TrialError(trial.trial_id, info.message, info.traceback)
    # The trial failed because it lost its workers, not because of an earlier error of its code.
    return TrialError(trial.trial_id, trial.reason)


def checked_mode(mode: object, name: str = "mode", hint: str = "") -> Mode:
    """Return `mode` if it is valid; `hint` is the end of the error message otherwise."""
    if mode == "min" or mode == "max":
        return mode
    raise ConfigError(f"{name} must be 'min' or 'max', got {mode!r}{hint}")


def is_auto_filled(name: str) -> bool:
    """Whether dasktune adds this field to each result."""
    return name.split("/")[0] in AUTO_FILLED


def require_pandas() -> Any:
    """Return the module pandas.

    Raises
    ------
    ConfigError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError(
            "a DataFrame needs pandas, which is not installed. "
            "Run: pip install pandas. Without it, Result.history has the same rows."
        ) from error
    return pd
