"""Milestones: the results at which a worker must wait for a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

from dasktune.trial.metrics import lookup, number


@dataclass(frozen=True, slots=True)
class Milestone:
    """The first result with ``result[time_attr] >= value``, at which a trial must wait.

    A result that lacks `time_attr`, or has NaN there, counts as a milestone, too, because it may
    have passed the value. If the milestone is not `required`, such a result does not count: it
    cannot meet a stop criterion, for example.
    """

    time_attr: str
    value: float
    required: bool = True


#: Wait at each result, for policies that define no milestones.
EVERY_RESULT: tuple[Milestone, ...] = (Milestone("training_iteration", 0),)


def reached(milestones: tuple[Milestone, ...], result: Mapping[str, Any]) -> bool:
    """Whether a worker that reports `result` must wait for a decision.

    Examples
    --------
    >>> reached((Milestone("training_iteration", 4),), {"training_iteration": 3})
    False
    >>> reached((Milestone("epoch", 4),), {"training_iteration": 3})
    True
    """
    for milestone in milestones:
        value = number(lookup(result, milestone.time_attr))
        if value is None or isnan(value):
            if milestone.required:
                return True
        elif value >= milestone.value:
            return True
    return False
