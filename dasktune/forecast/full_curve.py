"""`FullCurve`: the recorded results of a trial that nothing has ended early."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf, isfinite
from typing import Any

from dasktune.trial.metrics import Mode, lookup, number, score
from dasktune.trial.milestone import Milestone, reached
from dasktune.trial.result_keys import TIME_TOTAL_S, TRAINING_ITERATION


class FullCurve:
    """The results of a trial from its first one to the end of its training.

    Parameters
    ----------
    rows : sequence of mapping
        The results, flat, oldest first; at least one.
    metric : str
        The metric to compare trials by.
    mode : {"min", "max"}
        Whether lower or higher values are better.
    config : mapping, optional
        The trial's configuration.

    Examples
    --------
    >>> rows = [{"training_iteration": n, "time_total_s": 2.0 * n, "loss": 1 / n} for n in (1, 2)]
    >>> curve = FullCurve(rows, "loss", "min")
    >>> curve.seconds, curve.best
    ([0.0, 2.0, 4.0], [-inf, -1.0, -0.5])
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        metric: str,
        mode: Mode,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = [dict(row) for row in rows]
        self.config = dict(config or {})
        #: ``training_iteration`` before the first result (0) and at each of them.
        self.iterations = [0, *(int(row[TRAINING_ITERATION]) for row in self.rows)]
        #: Seconds of training before the first result (0) and until each of them.
        self.seconds = _seconds(self.rows)
        scores = (score(row, metric, mode) for row in self.rows)
        finite = (-inf if one is None or not isfinite(one) else one for one in scores)
        #: The best score before the first result (-inf) and until each of them; higher is better.
        self.best = list(accumulate(finite, max, initial=-inf))
        #: The values of each `time_attr`; None if a result lacks it, or if it decreases.
        self._times: dict[str, list[float] | None] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def next_row(self, milestones: tuple[Milestone, ...], start: int) -> int:
        """Return the index of the first row at a milestone, or of the last row.

        Parameters
        ----------
        milestones : tuple of Milestone
            The results at which the trial waits for a decision.
        start : int
            The first row to consider.
        """
        found = len(self.rows) - 1
        for milestone in milestones:
            times = self._values(milestone.time_attr)
            if times is not None:
                found = min(found, bisect_left(times, milestone.value, start))
            else:
                rows = range(start, found)
                found = next((at for at in rows if reached((milestone,), self.rows[at])), found)
        return found

    def _values(self, time_attr: str) -> list[float] | None:
        if time_attr not in self._times:
            values = [number(lookup(row, time_attr)) for row in self.rows]
            known = [value for value in values if value is not None]
            # A comparison with NaN is false.
            ordered = all(one <= other for one, other in pairwise([-inf, *known, inf]))
            self._times[time_attr] = known if ordered and len(known) == len(values) else None
        return self._times[time_attr]


def _seconds(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of training until each row, with 0 before the first.

    ``time_total_s`` counts over all runs of a trial. Where a row lacks it or it decreases, the sums
    of ``time_this_iter_s`` are used, in which a missing or invalid value counts as 0.
    """
    totals = [number(row.get(TIME_TOTAL_S)) for row in rows]
    known = [0.0, *(total for total in totals if total is not None and isfinite(total))]
    if len(known) == len(rows) + 1 and all(one <= other for one, other in pairwise(known)):
        return known
    steps = (number(row.get("time_this_iter_s")) for row in rows)
    lengths = (step if step is not None and isfinite(step) and step > 0 else 0.0 for step in steps)
    return list(accumulate(lengths, initial=0.0))
