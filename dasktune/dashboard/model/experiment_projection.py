"""The projection of an experiment's journal: its present state, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import isfinite, isnan, nan
from typing import Any, Final

import numpy as np

from dasktune.dashboard.model.apply_record import apply_record
from dasktune.dashboard.model.curve import MAX_POINTS, Curve
from dasktune.dashboard.model.trial_projection import Attempt, Better, ExploitMark, TrialProjection
from dasktune.errors import StorageError
from dasktune.progress import Progress
from dasktune.results.result import is_auto_filled
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, flatten, number
from dasktune.trial.status import PUBLIC, PublicStatus
from dasktune.trial.trial import Trial

#: Maximum number of exploits kept: the newest ones.
_MOST_EXPLOITS: Final = 10_000
#: Maximum number of attempts kept: the newest ones.
_MOST_ATTEMPTS: Final = 4_000
#: Maximum number of improvements kept; of more, every second, fourth, ... one and the last.
_MOST_IMPROVEMENTS: Final = 4_096

#: Maximum number of changes of the cluster's resources kept: the newest ones.
_MOST_CAPACITIES: Final = 1_000
#: Maximum number of resource amounts cached, so that trials with equal amounts share one object.
_MOST_REQUESTS: Final = 1_000

#: Exceptions that a damaged record, or one of another version, may cause.
_MALFORMED: Final = (
    StorageError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
)


class ExperimentProjection:
    """The state of an experiment after the records read so far, in bounded memory.

    A record costs O(1), however many came before. For each trial, the projection keeps the
    configuration, the last result, the attempts, and a curve of at most `max_points` per goal.

    The projection has no lock: threads that share it must use their own, as `LiveExperiment` does.

    Parameters
    ----------
    name : str, default=""
        The experiment's name.
    metric : str, list of str or None
        The goals. If None, the first numeric metric that a trial reports becomes the goal.
    mode : {"min", "max"}, list of them or None
        Whether lower or higher values are better. If None, no value is the best.
    total : int, optional
        The total number of trials; None if unknown.
    scales : mapping of str to {"linear", "log"}, optional
        Scales of parameters. The scale of other parameters is derived from their values.
    max_points : int, default=512
        Maximum number of points of a curve.

    Attributes
    ----------
    trials : list of TrialProjection
        The trials, in the order of creation.
    counts : dict of str to int
        The number of trials with each public status.
    version : int
        The number of records read.
    num_results : int
        The number of results; results that a retry repeats count once.
    exploits : deque of ExploitMark
        The newest exploits, in order.
    attempts : deque of tuple
        The newest attempts with their trials, in the order in which they began.
    num_attempts : int
        The number of all attempts.
    num_stopped_early : int
        The number of ended trials that their scheduler has stopped early. A trial that a stop
        criterion, a command or the end of the experiment has ended does not count.
    memo : dict
        Results that figures have computed and reuse, by name.
    improvements : list of tuple
        ``(time, value, index of the trial, training_iteration)`` of each new best first goal.
    improvements_of : list of list of tuple
        The improvements of each goal.
    improved_after : list of int
        The number of results at each of the improvements.
    capacity : deque of tuple
        The newest changes of the cluster's resources: ``(time, amounts by name)``.
    workers : dict of str to int
        Addresses of workers, numbered in the order of their first use.
    malformed : int
        The number of malformed records, which are skipped.
    began, now : float
        Times of the first and the last record, by the runner's clock; NaN without records.
    stop_reason : str
        Why the whole experiment was stopped; empty if it was not.
    is_exhausted : bool
        Whether the searcher has no further suggestions.
    on_hold : bool
        Whether the user holds the experiment, so that no trial starts.
    full_budget : int
        The largest number of iterations in the milestones and results so far.

    Raises
    ------
    ConfigError
        If `metric` or `mode` is invalid.

    Examples
    --------
    >>> one_cpu = {"bundles": [{"CPU": 1}], "strategy": "PACK"}
    >>> start = {"do": "StartTrial", "trial_id": "a", "incarnation": 1, "resources": one_cpu}
    >>> projection = ExperimentProjection(metric="loss", mode="min")
    >>> projection.extend([
    ...     {"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1}, "time": 1.0,
    ...      "actions": [start]},
    ...     {"event": "ResultReported", "trial_id": "a", "incarnation": 1, "time": 3.0,
    ...      "status": "RUNNING", "metrics": {"loss": 0.5, "training_iteration": 1}},
    ... ])
    >>> projection.best.trial_id, projection.best_value, projection.elapsed
    ('a', 0.5, 2.0)
    """

    def __init__(
        self,
        *,
        name: str = "",
        metric: Metric = None,
        mode: Modes = None,
        total: int | None = None,
        scales: Mapping[str, str] | None = None,
        max_points: int = MAX_POINTS,
    ) -> None:
        check_goals(metric, mode)
        self.name, self.total, self.scales = name, total, dict(scales or {})
        self._max_points = max_points
        self.metrics: list[str] = _listed(metric)
        given_modes: list[Mode | None] = [*_listed(mode)]
        self.modes = given_modes or [None] * len(self.metrics)
        #: Comparison function of each goal.
        self.better: list[Better] = [_COMPARISONS[mode] for mode in self.modes]
        self.trials: list[TrialProjection] = []
        self._trials_by_id: dict[str, TrialProjection] = {}
        #: The trials themselves, by id, as all readers of the journal see them.
        self.folded: dict[str, Trial] = {}
        #: Trials by index, ordered by their last change.
        self._changed: OrderedDict[int, TrialProjection] = OrderedDict()
        self.counts = {status.value: 0 for status in PublicStatus}
        self.version = self.num_results = self.malformed = 0
        self.exploits: deque[ExploitMark] = deque(maxlen=_MOST_EXPLOITS)
        self.attempts: deque[tuple[Attempt, TrialProjection]] = deque(maxlen=_MOST_ATTEMPTS)
        self.num_attempts = 0
        self.memo: dict[str, Any] = {}
        #: By goal: the order of the trials as it was last asked for.
        self._rankings: dict[int, _Ranking] = {}
        self.improvements: list[tuple[float, float, int, int]] = []
        self.improvements_of = [self.improvements, *([] for _ in self.metrics[1:])]
        self.improved_after: list[int] = []
        self.capacity: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=_MOST_CAPACITIES)
        self._interned: dict[tuple[tuple[str, float], ...], Mapping[str, float]] = {}
        self.workers: dict[str, int] = {}
        self.began = self.now = nan
        #: When the present driver began, and how many trials had ended before.
        self._session = nan, 0
        self.stop_reason = ""
        self.is_exhausted = self.on_hold = False
        #: Number of trials that the user has added.
        self._added = 0
        self.full_budget = self.num_stopped_early = self._stopped_iterations = 0

    # Reading

    @property
    def metric(self) -> str | None:
        """The first goal; None without goals."""
        return self.metrics[0] if self.metrics else None

    @property
    def mode(self) -> Mode | None:
        """The mode of the first goal; None if it is not known."""
        return self.modes[0] if self.modes else None

    @property
    def best(self) -> TrialProjection | None:
        """The trial that reported the best value of the first goal; None without values."""
        return self.trials[self.improvements[-1][2]] if self.improvements else None

    @property
    def best_value(self) -> float:
        """The best value of the first goal so far; NaN without values."""
        return self.improvements[-1][1] if self.improvements else nan

    @property
    def elapsed(self) -> float:
        """Seconds from the first record to the last; 0 without records."""
        return 0.0 if isnan(self.began) else self.now - self.began

    @property
    def num_finished(self) -> int:
        """The number of trials that have ended."""
        return self.counts["TERMINATED"] + self.counts["ERROR"]

    @property
    def is_complete(self) -> bool:
        """Whether all trials of the experiment have been created and have ended."""
        created = len(self.trials)
        all_created = self.is_exhausted or bool(self.stop_reason)
        all_created = all_created or (self.total is not None and created >= self.total)
        return all_created and self.num_finished == created

    @property
    def remaining(self) -> float | None:
        """Estimated seconds until the end, at the rate of this session; None if unknown."""
        began, over = self._session
        return Progress(
            counts={PublicStatus(word): count for word, count in self.counts.items()},
            total=self.total,
            elapsed_s=0.0 if isnan(began) else self.now - began,
            finished_before=over,
        ).remaining_s

    @property
    def saved_iterations(self) -> int:
        """Estimated number of iterations that early stopping has saved.

        Without early stopping, each stopped trial would have trained up to `full_budget`.
        """
        return self.num_stopped_early * self.full_budget - self._stopped_iterations

    @property
    def saved_share(self) -> float:
        """The share of all iterations that early stopping has saved, from 0 to 1."""
        saved = self.saved_iterations
        return saved / (saved + self.num_results) if saved else 0.0

    def find(self, trial_id: object) -> TrialProjection | None:
        """Return the trial with an id; None if there is none."""
        return self._trials_by_id.get(trial_id) if isinstance(trial_id, str) else None

    def changed_since(self, version: int) -> Iterator[TrialProjection]:
        """Yield the trials that changed after a version, the last change first.

        Costs O(trials that changed).

        Parameters
        ----------
        version : int
            The version that the caller has seen; 0 for none.
        """
        return takewhile(lambda trial: trial.version > version, reversed(self._changed.values()))

    def ranked(self, goal: int = 0) -> list[TrialProjection]:
        """Return the trials that have a finite best value, best first.

        Parameters
        ----------
        goal : int, default=0
            The index of the goal. Without a mode the trials keep their order.
        """
        if goal not in self._rankings:
            self._rankings[goal] = _Ranking(goal)
        mode = self.modes[goal] if goal < len(self.modes) else None
        return self._rankings[goal].order(self, mode)

    # Applying records

    def extend(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Apply records of the journal in their order.

        Parameters
        ----------
        records : iterable of mapping
            Decoded records.
        """
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Apply the next record; a malformed record is counted and skipped.

        Parameters
        ----------
        record : mapping
            The decoded record. Parts of it are kept, so it must not be changed afterwards.
        """
        self.version += 1
        try:
            apply_record(self, record)
        except _MALFORMED:
            self.malformed += 1

    # Changes by a record; called by `apply_record` alone

    def advance_time(self, time: float) -> None:
        """Advance the clock to the time of a record; it never moves back."""
        if isnan(self.began):
            self.began, self.now, self._session = time, time, (time, 0)
        elif time > self.now:
            self.now = time

    def projection_of(self, trial: Trial, record: Mapping[str, Any], time: float) -> TrialProjection:
        """Return the projection of a trial, which begins with the record that adds the trial."""
        found = self._trials_by_id.get(trial.trial_id)
        if found is not None:
            return found
        found = TrialProjection(
            trial=trial,
            index=len(self.trials),
            config=flatten(record["config"]),
            curves=[Curve(self._max_points) for _ in self.metrics],
            created=time,
            best=[(0, nan)] * len(self.metrics),
        )
        self.trials.append(found)
        self._trials_by_id[trial.trial_id] = found
        self.counts[found.status] += 1
        if trial.added:
            self._added += 1
        if self.total is not None:
            self.total = max(self.total + trial.added, len(self.trials))
        return found

    def begin_attempt(self, trial: TrialProjection, worker: str, time: float) -> None:
        """Record that a worker has started a trial."""
        self.workers.setdefault(worker, len(self.workers))
        trial.begin_attempt(worker, time)
        self.attempts.append((trial.attempts[-1], trial))
        self.num_attempts += 1

    def begin_session(self, last_time: float, time: float, total_samples: int | None) -> None:
        """Mark the attempts of the previous driver as lost at the time of its last record.

        The new driver may have another number of trials.
        """
        self.total = None if total_samples is None else max(total_samples + self._added, len(self.trials))
        for trial in self.trials:
            if trial.attempt is not None:
                trial.end_attempt("lost", last_time)
                self.mark_changed(trial)
        self._session, self.stop_reason = (time, self.num_finished), ""

    def choose_metric(self, metrics: Mapping[str, Any]) -> None:
        """Use the user's first metric with a number as the goal."""
        own = (name for name in metrics if not is_auto_filled(name))
        name = next((name for name in own if number(metrics[name]) is not None), None)
        if name is None:
            return
        self.metrics, self.modes, self.better = [name], [None], [_COMPARISONS[None]]
        for trial in self.trials:
            trial.curves, trial.best = [Curve(self._max_points)], [(0, nan)]

    def count_result(self, trial: TrialProjection, iteration: int) -> None:
        """Count a result, unless a retry repeats it."""
        if iteration <= trial.iteration:
            return
        self.num_results += 1
        trial.iteration = iteration
        self.full_budget = max(self.full_budget, iteration)

    def record_capacity(self, workers: Mapping[str, Mapping[str, float]], time: float) -> None:
        """Record the total resources of the workers from a time on."""
        totals = self.intern_resources(workers.values())
        if not self.capacity or self.capacity[-1][1] != totals:
            self.capacity.append((time, totals))

    def intern_resources(self, bundles: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
        """Return the total resources of bundles; equal totals are the same object."""
        sums: dict[str, float] = {}
        for bundle in bundles:
            for name, amount in bundle.items():
                sums[name] = sums.get(name, 0.0) + float(amount)
        if len(self._interned) > _MOST_REQUESTS:
            self._interned.clear()
        sums = {name: amount for name, amount in sums.items() if isfinite(amount)}
        return self._interned.setdefault(tuple(sums.items()), sums)

    def record_best(
        self, trial: TrialProjection, value: float, iteration: int, time: float, goal: int = 0
    ) -> None:
        """Record a trial's value if it is the best of all trials so far."""
        improvements = self.improvements_of[goal]
        best = improvements[-1][1] if improvements else nan
        if self.modes[goal] is None or not self.better[goal](value, best):
            return
        lists: list[list[Any]] = [improvements] if goal else [improvements, self.improved_after]
        improvements.append((time, value, trial.index, iteration))
        if goal == 0:
            self.improved_after.append(self.num_results)
        if len(improvements) > _MOST_IMPROVEMENTS:
            for one in lists:
                one[:-1] = one[:-1:2]

    def record_milestones(self, milestones: Sequence[tuple[str, float]]) -> None:
        """Raise `full_budget` to the iterations that milestones announce."""
        for name, budget in milestones:
            if name == "training_iteration" and isfinite(budget):
                self.full_budget = max(self.full_budget, int(budget))

    def rewind(self, trial: TrialProjection, iteration: int) -> None:
        """Discard a trial's results after an iteration; `improvements` does not change."""
        trial.discard_after(iteration, self.better)

    def mark_changed(self, trial: TrialProjection) -> None:
        """Record that a trial has changed at this version, and count it as what it is now."""
        trial.version = self.version
        self._changed[trial.index] = trial
        self._changed.move_to_end(trial.index)
        status, (was, was_early, was_at) = trial.trial.status, trial.counted
        if status is was and not was_early:
            return
        early = trial.trial.stopped_early and status.is_final
        trial.counted = status, early, trial.iteration
        self.counts[PUBLIC[was].value] -= 1
        self.counts[PUBLIC[status].value] += 1
        self.num_stopped_early += early - was_early
        self._stopped_iterations += early * trial.iteration - was_early * was_at


class _Ranking:
    """The order of the trials by a goal. Asking again costs little where few trials have changed.

    Parameters
    ----------
    goal : int
        The index of the goal.
    """

    def __init__(self, goal: int) -> None:
        self._goal = goal
        #: The best value of each trial, by index, at a version.
        self._values = np.empty(0)
        self._version = -1
        self._ranked: list[TrialProjection] = []

    def order(self, projection: ExperimentProjection, mode: Mode | None) -> list[TrialProjection]:
        """Return the trials with a finite best value, best first; without a mode in their order."""
        if projection.version != self._version:
            trials = projection.trials
            more = len(trials) - len(self._values)
            self._values = np.concatenate((self._values, np.full(more, nan)))
            for trial in projection.changed_since(self._version):
                self._values[trial.index] = trial.best_value(self._goal)
            self._version = projection.version
            order = np.flatnonzero(np.isfinite(self._values))
            if mode is not None:
                scores = self._values[order] if mode == "min" else -self._values[order]
                order = order[np.argsort(scores, kind="stable")]
            self._ranked = [trials[index] for index in order.tolist()]
        return self._ranked.copy()


def _less(value: float, than: float) -> bool:
    return isnan(than) or value < than


def _more(value: float, than: float) -> bool:
    return isnan(than) or value > than


def _always(value: float, than: float) -> bool:
    """Prefer the newest value: without a mode there is no better one."""
    return True


_COMPARISONS: Final[dict[Mode | None, Better]] = {"min": _less, "max": _more, None: _always}


def _listed(value: str | list[Any] | None) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
