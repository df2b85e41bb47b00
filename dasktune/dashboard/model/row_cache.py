"""Cache one row per trial, and recompute the rows of changed trials only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.trial_projection import TrialProjection

T = TypeVar("T")


class _Rows:
    """Rows by index of the trial, valid for a version of the projection."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: dict[int, Any] = {}


def rows_of(
    projection: ExperimentProjection,
    name: str,
    trials: Iterable[TrialProjection],
    row: Callable[[TrialProjection], T],
) -> list[T]:
    """Return a row for each trial; computes only the rows of trials that have changed.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment, whose `memo` holds the rows.
    name : str
        The name under which the rows are cached.
    trials : iterable of TrialProjection
        The trials.
    row : callable
        Returns the row of a trial; must depend on the trial alone.
    """
    memo = projection.memo.setdefault(name, _Rows())
    for trial in projection.changed_since(memo.version):
        memo.rows.pop(trial.index, None)
    memo.version = projection.version
    rows: dict[int, T] = memo.rows
    found = []
    for trial in trials:
        if trial.index not in rows:
            rows[trial.index] = row(trial)
        found.append(rows[trial.index])
    return found
