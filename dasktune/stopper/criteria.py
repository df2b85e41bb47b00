"""CriteriaStopper: stop a trial when a metric reaches a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from dasktune.errors import check
from dasktune.stopper.stopper import MissingMetricWarner, Stopper
from dasktune.trial.metrics import lookup, number
from dasktune.trial.milestone import Milestone


class CriteriaStopper(Stopper):
    """Stop a trial when any of several metrics is at least a given value.

    The decision depends on the result only. A metric that is NaN, missing or not a number never
    stops a trial. If it is missing or not a number, one warning per metric is logged.

    Parameters
    ----------
    criteria : mapping of str to float
        The value of each metric at or above which a trial stops. A name may be a path, such as
        ``"eval/accuracy"``.

    Raises
    ------
    ConfigError
        If a name is not a string or a value not a number.

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
        #: The criteria, which a worker can check by itself.
        self.criteria = dict(criteria)
        self._milestones = tuple(
            Milestone(name, bound, required=False) for name, bound in self.criteria.items()
        )
        self._absence = MissingMetricWarner("the stop criterion on it cannot be met")

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether any criterion is met; all are checked, for the warnings."""
        return bool(list(self._met(trial_id, result)))

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return a milestone for each criterion, at which the trial waits for the decision."""
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
