"""Earlier experiments as plain data: configurations, and the last results of their trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, Final

from dasktune.errors import check
from dasktune.search.searcher import EvaluatedTrial
from dasktune.trial.metrics import Metric, Modes, flatten, lookup, number
from dasktune.trial.status import PublicStatus

#: The least number of full trials of an earlier experiment. With fewer, ranks say little.
LEAST_TRIALS: Final = 10

_RULE: Final = (
    "experiments: paths, ResultGrids, ExperimentAnalyses, lists of Results or of (config, value) pairs, "
    "or pairs of one of these and the name of its metric"
)


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of an earlier experiment.

    Parameters
    ----------
    config : mapping
        The configuration, of plain values (see :func:`plain`).
    values : mapping of str to float, or float
        The numbers of the last result by metric; the value alone if that is all that is known.
    length : float
        How often the trial has reported; infinite if its code returned, so that it is complete.
    is_cut : bool
        Whether a scheduler or an error ended the trial early, or it has not ended.
    """

    config: Mapping[str, Any]
    values: Mapping[str, float] | float
    length: float
    is_cut: bool

    def value(self, metric: str) -> float | None:
        """Return the last value of a metric; None if the trial has none."""
        return self.values if isinstance(self.values, float) else self.values.get(metric)


@dataclass(frozen=True, slots=True)
class PastExperiment:
    """An earlier experiment.

    Parameters
    ----------
    name : str
        The path, or what stands for it in messages.
    trials : tuple of PastTrial
        All trials.
    metric : str or None
        The name that the metric had; None if it is the searcher's.
    goal : tuple
        The metric and the mode that the experiment itself optimised; None if they are not known.
    """

    name: str
    trials: tuple[PastTrial, ...]
    metric: str | None = None
    goal: tuple[Metric, Modes] = (None, None)

    @classmethod
    def of(cls, given: Any, name: str, metric: str | None = None) -> PastExperiment:
        """Return the plain data of what a user may give for an experiment.

        Parameters
        ----------
        given : ResultGrid, ExperimentAnalysis, iterable of Result or of pairs
            The experiment.
        name : str
            Its name in messages.
        metric : str, optional
            The name that the metric had.

        Raises
        ------
        ConfigError
            If it is none of these.
        """
        trials = getattr(given, "trials", given)
        is_iterable = isinstance(trials, Iterable) and not isinstance(trials, str | bytes | Mapping)
        check(is_iterable, name, _RULE, given)
        goal = getattr(given, "default_metric", None), getattr(given, "default_mode", None)
        return cls(name, tuple(_trial(one, name) for one in trials), metric, goal)

    def full_values(self, metric: str) -> list[tuple[Mapping[str, Any], float]]:
        """Return the configuration and the last value of each trial that has trained fully.

        Parameters
        ----------
        metric : str
            The name that the metric had in this experiment. Trials without it are left out.
        """
        found = [
            (trial.length, trial.config, value)
            for trial in self.trials
            if not trial.is_cut and (value := trial.value(metric)) is not None
        ]
        longest = max((length for length, _, _ in found if length < inf), default=0.0)
        return [(config, value) for length, config, value in found if length >= longest]

    def full_trials(self, metric: str, mode: str) -> tuple[list[Mapping[str, Any]], list[float]]:
        """Return the configurations and the losses of the trials that have trained fully.

        These are the complete ones and those that have trained as long as the longest of the
        others.

        Parameters
        ----------
        metric : str
            The searcher's metric.
        mode : {"min", "max"}
            Whether lower or higher values are better.

        Returns
        -------
        configs : list of mapping
        losses : list of float
            Lower is better; infinite for NaN.

        Raises
        ------
        ConfigError
            If there are too few, or the experiment optimised the metric in the other direction.
        """
        name = self.metric or metric
        own, direction = self.goal
        agrees = own != name or direction in (None, mode)
        hint = f"It optimised {name!r} with mode={direction!r}: learn only from experiments of the same goal."
        check(agrees, f"mode of {self.name}", repr(mode), direction, hint)
        full = self.full_values(name)
        hint = (
            f"Others were stopped early, failed, have not ended, or have no {name!r}. "
            "Leave this experiment out, or name its metric: past=[(path, metric)]."
        )
        rule = f"an experiment with at least {LEAST_TRIALS} full trials"
        check(len(full) >= LEAST_TRIALS, self.name, rule, f"{len(full)} of {len(self.trials)}", hint)
        sign = -1.0 if mode == "max" else 1.0
        return [config for config, _ in full], [inf if isnan(v) else sign * v for _, v in full]


def _trial(given: Any, name: str) -> PastTrial:
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Mapping):
        value = number(given[1])
        check(value is not None, f"values of {name}", "numbers", given[1])
        assert value is not None
        return PastTrial(plain(given[0]), value, inf, False)
    check(hasattr(given, "history"), name, _RULE, given)
    return _of_result(given)


def _of_result(trial: EvaluatedTrial) -> PastTrial:
    last = trial.history[-1] if trial.history else {}
    values = {key: value for key, raw in flatten(last).items() if (value := number(raw)) is not None}
    # What is no `Result` of ours, but has a history, need not have a status or a reason.
    ended = getattr(trial, "status", PublicStatus.TERMINATED) is PublicStatus.TERMINATED
    returned = not getattr(trial, "reason", "stopped")
    length = number(lookup(last, "training_iteration")) or float(len(trial.history))
    is_cut = trial.error is not None or trial.stopped_early or not ended
    return PastTrial(plain(trial.config), values, inf if returned else length, is_cut)


def plain(value: Any) -> Any:
    """Return a copy of a value made of dicts, lists, floats, ints, bools, strings and None.

    Anything else becomes ``{"$repr": text}``, as in an experiment's journal, so that an option
    equals the one in a configuration that was read from there.

    Examples
    --------
    >>> plain({"size": (3, 4), "kind": int})
    {'size': [3, 4], 'kind': {'$repr': "<class 'int'>"}}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    real = number(value)
    return {"$repr": repr(value)} if real is None else real
