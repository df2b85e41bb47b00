"""What is said of each trial, worked out again only for those that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.trial_log import TrialLog

__all__ = ["rows_of"]

T = TypeVar("T")


class _Rows:
    """Rows by the places of their trials, as of a version."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: dict[int, Any] = {}


def rows_of(
    chronicle: Chronicle, name: str, logs: Iterable[TrialLog], row: Callable[[TrialLog], T]
) -> list[T]:
    """Return a row for each trial; it costs as much as the trials that have changed.

    Parameters
    ----------
    chronicle : Chronicle
        Remembers the rows.
    name : str
        Of what they say.
    logs : iterable of TrialLog
        The trials.
    row : callable
        Says it of one, by nothing else than its log.
    """
    memo = chronicle.memo.setdefault(name, _Rows())
    for log in chronicle.changed_since(memo.version):
        memo.rows.pop(log.index, None)
    memo.version = chronicle.version
    rows: dict[int, T] = memo.rows
    found = []
    for log in logs:
        if log.index not in rows:
            rows[log.index] = row(log)
        found.append(rows[log.index])
    return found
