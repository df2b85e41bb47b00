"""Stop a trial when a metric has reached its goal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from dasktune.errors import check
from dasktune.stopper.absence import AbsenceWarning
from dasktune.stopper.stopper import Stopper
from dasktune.trial.metrics import lookup, number
from dasktune.trial.milestone import Milestone

__all__ = ["CriteriaStopper"]


class CriteriaStopper(Stopper):
    """Stop a trial when any of some metrics is at least what it should come to.

    The answer depends on the result alone. A metric that is NaN, no number or missing never stops a
    trial; the last two are warned of once for each metric.

    Parameters
    ----------
    criteria : mapping of str to float
        The least value of each metric that stops a trial. A name may be a path,
        ``"eval/accuracy"``.

    Raises
    ------
    ConfigError
        If a name is no string or a value no number.

    Examples
    --------
    >>> stopper = CriteriaStopper({"training_iteration": 10, "eval/accuracy": 0.95})
    >>> result = {"training_iteration": 10, "eval": {"accuracy": 0.9}}
    >>> stopper("a_00000", result), stopper.reason("a_00000", result)
    (True, 'training_iteration >= 10')
    """

    def __init__(self, criteria: Mapping[str, float]) -> None:
        hint = "Write stop={'training_iteration': 10}"
        given: object = criteria
        check(isinstance(given, Mapping), "stop", "a dict of metrics and numbers", criteria, hint)
        for name, value in criteria.items():
            check(isinstance(name, str), "a metric in stop", "a string", name, hint)
            bound = number(value)
            usable = bound is not None and not isnan(bound)
            check(usable, f"stop[{name!r}]", "a number", value, hint)
        #: What a worker needs to judge by itself.
        self.criteria = dict(criteria)
        self._milestones = tuple(
            Milestone(name, bound, required=False) for name, bound in self.criteria.items()
        )
        self._absence = AbsenceWarning("the stop criterion on it cannot be met")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a criterion is met; every one is looked at."""
        return bool(list(self._met(trial_id, result)))

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return the criteria themselves: a result that meets one is judged before the next."""
        return self._milestones

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the criteria that are met."""
        return " and ".join(f"{name} >= {bound}" for name, bound in self._met(trial_id, result))

    def _met(self, trial_id: str, result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for name, bound in self.criteria.items():
            value = number(lookup(result, name))
            if value is None:
                self._absence.warn(trial_id, name)
            elif value >= bound:
                yield name, bound
