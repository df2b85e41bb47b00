"""What came of one trial, as its user reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final

from dasktune.cells import cell, clip, html_row
from dasktune.errors import ConfigError, StorageError, TrialError, without_passwords
from dasktune.recall import recalled, retention_of
from dasktune.storage.experiment_store import ExperimentStore
from dasktune.storage.exports import read_exports
from dasktune.storage.location import Storage
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.location import Location
from dasktune.trial.metrics import Mode, flatten, score
from dasktune.trial.retention import Retention
from dasktune.trial.status import PublicStatus
from dasktune.trial.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

    from dasktune.storage.checkpoint import Checkpoint

__all__ = ["AUTO_FILLED", "Result", "checked_mode", "is_auto_filled", "require_pandas"]

#: Fields of each row that dasktune fills in; the user's own metrics are the others.
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
        "should_checkpoint",
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result:
    """What came of one trial.

    Parameters
    ----------
    trial_id : str
        The trial's name within the experiment.
    config : dict
        The configuration that it ran with.
    history : list of dict
        Its results, flat (nested names joined by ``/``), one for each ``training_iteration``.
    status : PublicStatus
        What it was doing when the experiment ended.
    path : str
        Its folder, below the experiment's.
    error : TrialError, optional
        Why it failed for good; None if it did not.
    reason : str, default=""
        Why it ended, or why it is paused, in words: whatever a scheduler, a stopper or the user has
        said. Empty if it just came to its end.
    stopped_early : bool, default=False
        Whether a trial scheduler has ended it though it had further to go.
    records : sequence of CheckpointRecord, default=()
        Its checkpoints that were kept, oldest first.
    retention : Retention, optional
        By what they were kept.
    load_checkpoint : callable
        Opens a record's checkpoint.
    worker : str, default=""
        Address of the Dask worker that it ran on last; empty if it never ran.
    storage : Storage, optional
        The experiment's directory.

    Examples
    --------
    >>> from dasktune.trial.status import PublicStatus
    >>> result = Result(trial_id="a", config={"lr": 0.1}, history=[{"loss": 0.5}, {"loss": 0.25}],
    ...                 status=PublicStatus.TERMINATED, path="", load_checkpoint=print)
    >>> result.metrics
    {'loss': 0.25}
    """

    trial_id: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
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

    @classmethod
    def from_trial(
        cls,
        trial: Trial,
        path: str,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention,
        storage: Storage | None = None,
    ) -> Result:
        """Read it off the driver's books; the arguments are those of the class."""
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
        )

    @classmethod
    def from_path(
        cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Result:
        """Read what came of a trial from its directory, below that of its experiment.

        The experiment may still be running. Nothing in it is executed or unpickled; what JSON
        cannot tell of the configuration is there as ``{"$repr": text}``.

        Parameters
        ----------
        path : str or path
            The trial's directory or its URL: what :attr:`path` says.
        storage_options : mapping, optional
            What fsspec needs for the URL.

        Returns
        -------
        Result
            As it stands now.

        Raises
        ------
        StorageError
            If it is no trial of an experiment, or the experiment's journal is damaged.

        Examples
        --------
        >>> Result.from_path("~/dasktune_results/train/trials/a1b2c_00000")  # doctest: +SKIP
        """
        home, folder, trial_dir = _parted(os.fspath(path))
        storage = Storage(home, storage_options or {})
        trials = recalled(storage) if folder == "trials" else []
        for trial in trials:
            if trial.folder == trial_dir:
                store = ExperimentStore(storage)
                place = f"{storage.url.rstrip('/')}/trials/{trial_dir}"
                kept = retention_of(storage)
                return cls.from_trial(trial, place, store.checkpoints.load, kept, storage)
        raise StorageError(
            f"no trial of an experiment is stored at {without_passwords(os.fspath(path))}. Give "
            "its directory below <experiment>/trials."
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """The last result, empty if there is none."""
        return self.history[-1] if self.history else {}

    @property
    def last_result(self) -> dict[str, Any]:
        """As `metrics`; Ray Tune calls it so where it gives trials."""
        return self.metrics

    @property
    def logdir(self) -> str:
        """As `path`; Ray Tune calls it so where it gives trials."""
        return self.path

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem that `path` lies in; None of a simulation."""
        return None if self.storage is None else self.storage.fs

    @property
    def location(self) -> Location | None:
        """Where it reported its last result; None if there is none, and in a simulation."""
        return Location.of(self.metrics, self.worker)

    @property
    def exported(self) -> dict[str, str]:
        """What its class has exported: ``{format: path or URL}``, empty if nothing.

        Of a trial that came to a good end, with ``export_formats``. It is read when asked for.
        """
        if self.storage is None:
            return {}
        return read_exports(self.storage, self.path.rstrip("/").rpartition("/")[2])

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """The history as a table, one row for each ``training_iteration``. Needs pandas."""
        return require_pandas().DataFrame([flatten(row) for row in self.history])

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, opened when first asked for; None if there is none."""
        return self.load_checkpoint(self.records[-1]) if self.records else None

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The best of the kept checkpoints, best first, each with the metrics of its result.

        Without ``checkpoint_score_attribute`` the newest are the best.
        """
        best = self.retention.best(self.records)
        return [(self.load_checkpoint(record), record.metrics) for record in best]

    def get_best_checkpoint(self, metric: str, mode: Mode) -> Checkpoint | None:
        """Return the kept checkpoint whose result was the best, or None if none has the metric.

        Parameters
        ----------
        metric : str
            What to compare; nested names are joined by ``/``.
        mode : {"min", "max"}
            Which way it is better.

        Raises
        ------
        ConfigError
            If `mode` is neither.
        """
        best = Retention(1, metric, checked_mode(mode)).best(self.records)
        if not best or score(best[0].metrics, metric, mode) is None:
            return None
        return self.load_checkpoint(best[0])

    def _own_metrics(self) -> dict[str, Any]:
        return {key: value for key, value in self.metrics.items() if not is_auto_filled(key)}

    def _repr_html_(self) -> str:
        error = "" if self.error is None else f": {self.error.message}"
        told = clip(f"{self.reason}{'' if error[2:] == self.reason else error}", 200)
        why = f" ({told})" if told else ""
        place = without_passwords(self.path)
        head = f"Trial {self.trial_id}: {self.status.value}{why}, in {place}"
        iteration = {"training_iteration": self.metrics.get("training_iteration")}
        tables = (
            _html_table(caption, values)
            for caption, values in (
                ("config", flatten(self.config)),
                ("metrics", {**self._own_metrics(), **iteration}),
            )
        )
        return f"<div><p>{escape(head)}</p>{''.join(tables)}</div>"

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


def _html_table(caption: str, values: Mapping[str, Any]) -> str:
    rows = "".join(html_row([str(name), cell(value)]) for name, value in values.items())
    return f"<table><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>"


def _parted(path: str) -> tuple[str, str, str]:
    """Return the experiment's directory, and the last two names."""
    rest, _, trial_id = path.rstrip("/").rpartition("/")
    home, _, folder = rest.rpartition("/")
    return home, folder, trial_id


def _error_of(trial: Trial) -> TrialError | None:
    if trial.public_status is not PublicStatus.ERROR:
        return None
    info = trial.error
    if info is not None and info.message == trial.reason:
        return TrialError(trial.trial_id, info.message, info.traceback)
    # It was given up for its lost workers; an earlier failure of its code is not why.
    return TrialError(trial.trial_id, trial.reason)


def checked_mode(mode: object, name: str = "mode", hint: str = "") -> Mode:
    """Return `mode`, if it is one; `hint` ends the sentence that says that it is none."""
    if mode == "min" or mode == "max":
        return mode
    raise ConfigError(f"{name} must be 'min' or 'max', got {mode!r}{hint}")


def is_auto_filled(name: str) -> bool:
    """Return whether a field of a flat result is one that dasktune fills in."""
    return name.split("/")[0] in AUTO_FILLED


def require_pandas() -> Any:
    """Return the module.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError(
            "a dataframe must be made by pandas, which is not installed. "
            "Run: pip install dasktune[pandas]. Without it, Result.history holds the same rows."
        ) from error
    return pd
