"""The columns of ``dasktune trials``: fields, metrics and parameters of each trial, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from math import isnan
from typing import Any, Final

from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.model.filter_columns import (
    filter_value,
    message_text,
    status_words,
    trial_name,
    worker_names,
)
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.errors import ConfigError
from dasktune.results.result import is_auto_filled
from dasktune.text.formatting import first_few, one_line
from dasktune.trial.metrics import flatten, number

#: Maximum number of names that a message lists.
_LISTED: Final = 40
_CONFIG: Final = "config/"

_FIELDS: Final[Mapping[str, Callable[[TrialProjection, ExperimentProjection], Any]]] = {
    "trial_id": lambda trial, experiment: trial.trial_id,
    "status": lambda trial, experiment: trial.status,
    "iteration": lambda trial, experiment: trial.iteration,
    "best": lambda trial, experiment: None if isnan(trial.best_value()) else trial.best_value(),
    "runtime_s": lambda trial, experiment: round(trial.runtime(experiment.now), 3),
    "stopped_early": lambda trial, experiment: trial.stopped_early,
    "reason": lambda trial, experiment: trial.reason or None,
    "error": lambda trial, experiment: trial.error or None,
    "failures": lambda trial, experiment: trial.failures,
    "losses": lambda trial, experiment: trial.losses,
    "restores": lambda trial, experiment: trial.restores,
    "pauses": lambda trial, experiment: trial.pauses,
    "checkpoints": lambda trial, experiment: trial.checkpoints,
    "worker": lambda trial, experiment: trial.worker or None,
}

#: For these fields a filter compares the texts of the dashboard's page, not the values above.
_FILTER_FIELDS: Final[Mapping[str, Callable[[TrialProjection], Any]]] = {
    "trial_id": trial_name,
    "status": status_words,
    "reason": lambda trial: message_text(trial.reason),
    "error": lambda trial: message_text(trial.error),
    "worker": worker_names,
}

#: Column names of the dashboard's table. A metric or parameter of the same name has precedence.
_ALIASES: Final = {"trial": "trial_id", "seconds": "runtime_s", "training_iteration": "iteration"}
_ALIAS_FIELDS: Final[Mapping[str, Callable[[TrialProjection], Any]]] = {
    "last": lambda trial: trial.last_value(),
    "why": lambda trial: message_text(trial.error or trial.reason),
}


class TrialTable:
    """The trials of an experiment as a table.

    Columns are fields of a trial (``trial_id``, ``status``, ...), metrics of the last result by
    their names, and parameters as ``config/lr``, or ``lr`` if no other column has that name.

    Parameters
    ----------
    projection : ExperimentProjection
        The experiment.

    Examples
    --------
    >>> projection = ExperimentProjection(metric="loss", mode="min")
    >>> projection.add({"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1}, "time": 1.0})
    >>> table = TrialTable(projection)
    >>> table.resolve("lr"), table.value(projection.trials[0], "config/lr")
    ('config/lr', 0.1)
    """

    def __init__(self, projection: ExperimentProjection) -> None:
        self._projection = projection
        self._metrics = {id(trial): flatten(trial.metrics) for trial in projection.trials}
        metrics = dict.fromkeys(name for one in self._metrics.values() for name in one)
        own = [name for name in metrics if not is_auto_filled(name)]
        #: Names of metrics: first the user's metrics, then the metrics that dasktune adds.
        self.metrics = [*own, *(n for n in metrics if is_auto_filled(n) and n not in _FIELDS)]
        self.metrics = [name for name in self.metrics if not name.startswith(_CONFIG)]
        names = dict.fromkeys(name for trial in projection.trials for name in trial.config)
        self.parameters = [f"{_CONFIG}{name}" for name in names]
        self._known = {*_FIELDS, *self.metrics, *self.parameters}

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*_FIELDS, *self.metrics, *self.parameters]

    @property
    def usual(self) -> list[str]:
        """The columns shown by default: status, objectives, and parameters that vary."""
        goals = [name for name in self._projection.metrics if name in self._known]
        varying = [name for name in self.parameters if self._varies(name)]
        error = ["error"] if any(trial.error for trial in self._projection.trials) else []
        return ["trial_id", "status", "iteration", *goals, *varying, "runtime_s", *error]

    def resolve(self, name: str) -> str:
        """Return the full name of a column.

        Raises
        ------
        ConfigError
            If there is no such column; the message lists the columns.
        """
        for full in (name, f"{_CONFIG}{name}"):
            if full in self._known:
                return full
        short = [one.removeprefix(_CONFIG) for one in self.parameters]
        close = get_close_matches(name, [*self.names, *short])
        hint = f" Did you mean {close[0]!r}?" if close else ""
        listed = first_few([*map(one_line, self.names)], _LISTED)
        raise ConfigError(f"column must be one of {listed}, got {name!r}.{hint}")

    def filter_columns(self) -> dict[str, Callable[[TrialProjection], Any]]:
        """Return the columns of a filter: functions that return a trial's value, by name."""
        columns: dict[str, Callable[[TrialProjection], Any]] = {
            name: partial(self._filter_value, column=name) for name in self.names
        }
        columns |= _FILTER_FIELDS
        for name in self.parameters:
            columns.setdefault(name.removeprefix(_CONFIG), columns[name])
        for goal, name in enumerate(self._projection.metrics):
            columns.setdefault(f"best {name}", partial(TrialProjection.best_value, goal=goal))
            columns.setdefault(f"last {name}", partial(TrialProjection.last_value, goal=goal))
        for alias, name in _ALIASES.items():
            columns.setdefault(alias, columns[name])
        for alias, value_of in _ALIAS_FIELDS.items():
            columns.setdefault(alias, value_of)
        return columns

    def _filter_value(self, trial: TrialProjection, column: str) -> Any:
        return filter_value(self.value(trial, column))

    def value(self, trial: TrialProjection, column: str) -> Any:
        """Return the value of a trial in a column, None if it has none.

        Parameters
        ----------
        trial : TrialProjection
            The trial.
        column : str
            Full name of the column.
        """
        if column in _FIELDS:
            return _FIELDS[column](trial, self._projection)
        if column.startswith(_CONFIG):
            return trial.config.get(column[len(_CONFIG) :])
        value = self._metrics[id(trial)].get(column)
        if value is None and column in self._projection.metrics:
            # The last result may lack an objective: use the value that was reported last.
            last = trial.last_value(self._projection.metrics.index(column))
            return None if isnan(last) else last
        return value

    def rows(self, trials: Iterable[TrialProjection], columns: Sequence[str]) -> list[list[Any]]:
        """Return a row for each trial, with its value in each column."""
        return [[self.value(trial, column) for column in columns] for trial in trials]

    def ordered(
        self, trials: Iterable[TrialProjection], column: str, *, descending: bool
    ) -> list[TrialProjection]:
        """Return trials sorted by a column: numbers, then texts; missing values are always last."""
        numbers: list[tuple[float, TrialProjection]] = []
        texts: list[tuple[str, TrialProjection]] = []
        rest: list[TrialProjection] = []
        for trial in trials:
            value = self.value(trial, column)
            real = number(value)
            if real is not None and not isnan(real):
                numbers.append((real, trial))
            elif real is None and value is not None:
                texts.append((str(value), trial))
            else:
                rest.append(trial)
        numbers.sort(key=lambda pair: pair[0], reverse=descending)
        texts.sort(key=lambda pair: pair[0], reverse=descending)
        return [*(trial for _, trial in numbers), *(trial for _, trial in texts), *rest]

    def _varies(self, column: str) -> bool:
        values = (repr(self.value(trial, column)) for trial in self._projection.trials)
        first = next(values, None)
        return any(value != first for value in values)
