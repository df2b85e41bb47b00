"""What came of one trial, as its user reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dasktune.errors import ConfigError, TrialError, without_passwords
from dasktune.trial.checkpoint import CheckpointRecord
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

    @classmethod
    def from_trial(
        cls,
        trial: Trial,
        path: str,
        load_checkpoint: Callable[[CheckpointRecord], Checkpoint],
        retention: Retention,
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
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """The last result, empty if there is none."""
        return self.history[-1] if self.history else {}

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

    def __repr__(self) -> str:
        own = {key: value for key, value in self.metrics.items() if not is_auto_filled(key)}
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
