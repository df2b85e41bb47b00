"""The trials of an experiment, and which of them have full learning curves."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf, isfinite
from typing import Any, Final

from dasktune.errors import ConfigError
from dasktune.text.formatting import format_counts
from dasktune.trial.metrics import Mode, lookup, number, score
from dasktune.trial.milestone import Milestone, reached
from dasktune.trial.result_keys import TIME_TOTAL_S, TRAINING_ITERATION
from dasktune.trial.status import PublicStatus

#: With fewer full curves the probabilities are too coarse to choose by.
LEAST_FULL_CURVES: Final = 20

#: A number of trials at a time counts if it lasted for this share of the experiment.
_LEAST_SHARE: Final = 0.05


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrial:
    """What an experiment has recorded of a trial.

    Parameters
    ----------
    rows : sequence of mapping
        Its results, flat, oldest first.
    config : mapping
        Its configuration.
    status : PublicStatus
        Its status at the end of the experiment.
    reason : str, default=""
        Why it ended; empty if its code returned.
    stopped_early : bool, default=False
        Whether a scheduler has stopped it.
    stays : sequence of tuple of float, default=()
        When it began and ended to run on a worker, in seconds on the driver's clock. A trial that
        has paused has several.
    """

    rows: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any] = field(default_factory=dict)
    status: PublicStatus
    reason: str = ""
    stopped_early: bool = False
    stays: Sequence[tuple[float, float]] = ()

    @property
    def iterations(self) -> int:
        """Its last ``training_iteration``; 0 without a result."""
        return int(self.rows[-1][TRAINING_ITERATION]) if self.rows else 0

    @property
    def has_returned(self) -> bool:
        """Whether its own code has ended it, as it would have under any scheduler."""
        return self.status is PublicStatus.TERMINATED and not (self.stopped_early or self.reason)

    @property
    def censoring(self) -> str:
        """Why its curve ends before its training was complete, as the end of "... trials"."""
        if self.has_returned:
            return "ended without a result"
        if self.status is PublicStatus.TERMINATED:
            return "stopped by the scheduler" if self.stopped_early else "ended by a stop criterion"
        return {PublicStatus.ERROR: "failed", PublicStatus.PAUSED: "paused"}.get(self.status, "unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSelection:
    """The full curves of an experiment, and why the other trials have none."""

    curves: list[FullCurve]
    #: ``training_iteration`` up to which the curves are replayed.
    max_t: int
    #: Number of trials without a full curve, by reason.
    censored: dict[str, int]


def select_full(
    trials: Sequence[RecordedTrial], metric: str, mode: Mode, max_t: int | None = None
) -> CurveSelection:
    """Return the full learning curves of an experiment.

    A curve is full if its trial has reached `max_t`, or if its own code has returned before.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        The trials.
    metric : str
        The metric to compare trials by.
    mode : {"min", "max"}
        Whether lower or higher values are better.
    max_t : int, optional
        ``training_iteration`` at which curves are cut; by default the highest one of all trials.

    Raises
    ------
    ConfigError
        If there are fewer than 20 full curves.
    """
    top = max((trial.iterations for trial in trials), default=0) if max_t is None else max_t
    curves, censored = [], Counter[str]()
    for trial in trials:
        if not trial.rows or not (trial.iterations >= top or trial.has_returned):
            censored[trial.censoring] += 1
            continue
        rows = [row for row in trial.rows if int(row[TRAINING_ITERATION]) <= top]
        curve = FullCurve(rows, metric, mode, trial.config) if rows else None
        if curve is None or not isfinite(curve.best[-1]):
            censored[f"without a finite {metric}"] += 1
        else:
            curves.append(curve)
    if len(curves) < LEAST_FULL_CURVES:
        raise ConfigError(_why_too_few(trials, len(curves), top, censored))
    return CurveSelection(curves=curves, max_t=top, censored=dict(censored))


def _why_too_few(trials: Sequence[RecordedTrial], found: int, top: int, censored: Mapping[str, int]) -> str:
    others = f" ({format_counts(censored)})" if censored else ""
    reached = sorted((trial.iterations for trial in trials), reverse=True)
    lower = reached[LEAST_FULL_CURVES - 1] if len(reached) >= LEAST_FULL_CURVES else 0
    cut = f", or replay up to max_t={lower}, which {sum(one >= lower for one in reached)} trials have reached"
    return (
        f"the experiment must have at least {LEAST_FULL_CURVES} full learning curves, got {found} of "
        f"{len(trials)} trials that have reached training_iteration {top} or returned{others}. Run "
        f"{LEAST_FULL_CURVES} or more trials to their end, without a scheduler"
        f"{cut if 0 < lower < top else ''}."
    )


def busy_workers(trials: Iterable[RecordedTrial]) -> int | None:
    """Return how many trials ran at a time: the largest number that lasted for 5 % of the time.

    Clocks and queues let trials overlap for moments, so the maximum would be too high. A paused
    trial does not run.

    Parameters
    ----------
    trials : iterable of RecordedTrial
        The trials.

    Returns
    -------
    int or None
        None if no trial has a stay.

    Examples
    --------
    >>> def trial(began, ended):
    ...     done = PublicStatus.TERMINATED
    ...     return RecordedTrial(rows=[], status=done, stays=[(began, ended)])
    >>> busy_workers([trial(0, 10), trial(0, 10), trial(9.99, 20)])
    2
    """
    changes: list[tuple[float, int]] = []
    for trial in trials:
        for began, ended in trial.stays:
            changes += [(began, 1), (ended, -1)]
    changes.sort()
    lasted: dict[int, float] = {}
    running = 0
    for (begin, change), (end, _) in pairwise(changes):
        running += change
        lasted[running] = lasted.get(running, 0.0) + end - begin
    needed = _LEAST_SHARE * sum(lasted.values())
    at_least = 0.0
    for workers in sorted(lasted, reverse=True):
        at_least += lasted[workers]
        if workers > 0 and at_least >= needed:
            return workers
    return None
