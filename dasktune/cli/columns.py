"""Trials as rows: what can be asked of each, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isnan
from typing import Any, Final

from dasktune.cli.output import one_line
from dasktune.dashboard.chronicle import Chronicle
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import ConfigError
from dasktune.result import is_auto_filled
from dasktune.trial.metrics import flatten, number

__all__ = ["TrialTable"]

#: Names that a message lists.
_LISTED: Final = 40
_CONFIG: Final = "config/"

_FIELDS: Final[Mapping[str, Callable[[TrialLog, Chronicle], Any]]] = {
    "trial_id": lambda log, told: log.trial_id,
    "status": lambda log, told: log.status,
    "iteration": lambda log, told: log.iteration,
    "best": lambda log, told: None if isnan(log.best_value()) else log.best_value(),
    "runtime_s": lambda log, told: round(log.runtime(told.now), 3),
    "stopped_early": lambda log, told: log.cut,
    "reason": lambda log, told: log.reason or None,
    "error": lambda log, told: log.error or None,
    "failures": lambda log, told: log.failures,
    "losses": lambda log, told: log.losses,
    "restores": lambda log, told: log.restores,
    "pauses": lambda log, told: log.pauses,
    "checkpoints": lambda log, told: log.checkpoints,
    "worker": lambda log, told: log.worker or None,
}


class TrialTable:
    """The trials of an experiment with their columns.

    Columns are fields of ours (``trial_id``, ``status``, ...), metrics by their names, of the last
    result, and parameters as ``config/lr``, or ``lr`` if nothing else is called so.

    Parameters
    ----------
    chronicle : Chronicle
        The experiment.

    Examples
    --------
    >>> chronicle = Chronicle(metric="loss", mode="min")
    >>> chronicle.add({"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1}, "time": 1.0})
    >>> table = TrialTable(chronicle)
    >>> table.resolve("lr"), table.value(chronicle.trials[0], "config/lr")
    ('config/lr', 0.1)
    """

    def __init__(self, chronicle: Chronicle) -> None:
        self._told = chronicle
        self._metrics = {id(log): flatten(log.metrics) for log in chronicle.trials}
        metrics = dict.fromkeys(name for one in self._metrics.values() for name in one)
        own = [name for name in metrics if not is_auto_filled(name)]
        #: Names that the user gave to metrics; those that dasktune fills in come last.
        self.metrics = [*own, *(n for n in metrics if is_auto_filled(n) and n not in _FIELDS)]
        self.metrics = [name for name in self.metrics if not name.startswith(_CONFIG)]
        names = dict.fromkeys(name for log in chronicle.trials for name in log.config)
        self.parameters = [f"{_CONFIG}{name}" for name in names]
        self._known = {*_FIELDS, *self.metrics, *self.parameters}

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [*_FIELDS, *self.metrics, *self.parameters]

    @property
    def usual(self) -> list[str]:
        """The columns that say most: goals, and parameters in which trials differ."""
        goals = [name for name in self._told.metrics if name in self._known]
        varying = [name for name in self.parameters if self._varies(name)]
        error = ["error"] if any(log.error for log in self._told.trials) else []
        return ["trial_id", "status", "iteration", *goals, *varying, "runtime_s", *error]

    def resolve(self, name: str) -> str:
        """Return the full name of a column.

        Raises
        ------
        ConfigError
            If there is none; the message has those that there are.
        """
        for full in (name, f"{_CONFIG}{name}"):
            if full in self._known:
                return full
        short = [one.removeprefix(_CONFIG) for one in self.parameters]
        close = get_close_matches(name, [*self.names, *short])
        hint = f" Did you mean {close[0]!r}?" if close else " Texts stand in quotes."
        listed = ", ".join(map(one_line, self.names[:_LISTED]))
        more = f" and {len(self.names) - _LISTED} more" if len(self.names) > _LISTED else ""
        raise ConfigError(f"column must be one of {listed}{more}, got {name!r}.{hint}")

    def value(self, log: TrialLog, column: str) -> Any:
        """Return what a trial has in a column, None if nothing.

        Parameters
        ----------
        log : TrialLog
            The trial.
        column : str
            Full name of the column.
        """
        if column in _FIELDS:
            return _FIELDS[column](log, self._told)
        if column.startswith(_CONFIG):
            return log.config.get(column[len(_CONFIG) :])
        return self._metrics[id(log)].get(column)

    def rows(self, trials: Iterable[TrialLog], columns: Sequence[str]) -> list[list[Any]]:
        """Return the values of trials in columns."""
        return [[self.value(log, column) for column in columns] for log in trials]

    def ordered(
        self, trials: Iterable[TrialLog], column: str, *, descending: bool
    ) -> list[TrialLog]:
        """Return trials by a column: numbers, then texts; what has neither comes last, always."""
        numbers: list[tuple[float, TrialLog]] = []
        texts: list[tuple[str, TrialLog]] = []
        rest: list[TrialLog] = []
        for log in trials:
            value = self.value(log, column)
            real = number(value)
            if real is not None and not isnan(real):
                numbers.append((real, log))
            elif real is None and value is not None:
                texts.append((str(value), log))
            else:
                rest.append(log)
        numbers.sort(key=lambda pair: pair[0], reverse=descending)
        texts.sort(key=lambda pair: pair[0], reverse=descending)
        return [*(log for _, log in numbers), *(log for _, log in texts), *rest]

    def _varies(self, column: str) -> bool:
        values = (repr(self.value(log, column)) for log in self._told.trials)
        first = next(values, None)
        return any(value != first for value in values)
