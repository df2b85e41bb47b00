"""An experiment as the records of its journal tell it: up to date, small, and quick to ask."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import isfinite, isnan, nan
from typing import Any, Final

from dasktune.dashboard.curve import MAX_POINTS, Curve
from dasktune.dashboard.intake import take
from dasktune.dashboard.trial_log import Attempt, Better, Exploit, TrialLog
from dasktune.progress import Progress
from dasktune.result import is_auto_filled
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, flatten, number
from dasktune.trial.status import PublicStatus

__all__ = ["Chronicle"]

#: Exploits that are kept, the newest.
_MOST_EXPLOITS: Final = 10_000
#: Stays on workers that are kept, the newest.
_MOST_STAYS: Final = 4_000
#: Improvements that are kept: of more, every second, fourth, ... and the last.
_MOST_IMPROVEMENTS: Final = 4_096

#: Changes of what the cluster has that are kept, the newest.
_MOST_CAPACITIES: Final = 1_000
#: Different requests of trials that are shared among them.
_MOST_REQUESTS: Final = 1_000

#: What the journal's damage, or another version of it, may lead to.
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


class Chronicle:
    """What the journal of an experiment has told so far, in bounded memory.

    A record costs O(1), whatever there is already. Of a trial it keeps its configuration, its last
    result, where and when it ran, and a curve of at most `max_points` for each goal. It is used by
    one thread at a time.

    Parameters
    ----------
    name : str, default=""
        The experiment's.
    metric : str, list of str or None
        What is optimised. If it is None, the first number that anybody reports is followed.
    mode : {"min", "max"}, list of them or None
        Which way it is better. If it is None, nothing is best.
    total : int, optional
        How many trials there will be.
    scales : mapping of str to {"linear", "log"}, optional
        How parameters are spread. That of others is told from their values.
    max_points : int, default=512
        Points of a curve that are kept.

    Attributes
    ----------
    trials : list of TrialLog
        In the order in which they were made.
    counts : dict of str to int
        How many trials stand at each public status.
    version : int
        Counts the records.
    num_results : int
        Results, without those that were computed again.
    exploits : deque of Exploit
        The newest, in order.
    stays : deque of tuple
        The newest stays on workers, each an `Attempt` and its `TrialLog`, as they began.
    num_stays : int
        How many there were.
    num_stopped : int
        Trials that stand at ``TERMINATED`` and were ended before their time.
    memo : dict
        What figures have worked out of it, by a name, so that they need not again.
    improvements : list of tuple
        ``(time, value, trial's place, training_iteration)`` whenever the first goal became better.
    improvements_of : list of list of tuple
        The same for each goal.
    improved_after : list of int
        For each of the improvements: how many results there were by then.
    capacity : deque of tuple
        When the cluster had other resources, and which: ``(time, amounts by name)``, the newest.
    workers : dict of str to int
        Addresses, in the order in which they were first used, and their number in it.
    malformed : int
        Records that were skipped because they make no sense.
    began, now : float
        Time of the first and of the last record, in seconds of the runner's clock; NaN before.
    stop_reason : str
        Why the experiment was ended as a whole; empty if it was not.
    on_hold : bool
        Whether the user lets nothing start.
    full_budget : int
        The most iterations that anybody trains, as far as milestones and results tell.

    Raises
    ------
    ConfigError
        If `metric` and `mode` could not be goals.

    Examples
    --------
    >>> chronicle = Chronicle(metric="loss", mode="min")
    >>> chronicle.extend([
    ...     {"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1}, "time": 1.0},
    ...     {"event": "ResultReported", "trial_id": "a", "time": 3.0, "status": "RUNNING",
    ...      "metrics": {"loss": 0.5, "training_iteration": 1}},
    ... ])
    >>> chronicle.best.trial_id, chronicle.best_value, chronicle.elapsed
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
        told: list[Mode | None] = [*_listed(mode)]
        self.modes = told or [None] * len(self.metrics)
        #: For each goal, what compares its values.
        self.better: list[Better] = [_COMPARISONS[mode] for mode in self.modes]
        self.trials: list[TrialLog] = []
        self._logs: dict[str, TrialLog] = {}
        #: By place; the trial that has changed last is the last one.
        self._changed: OrderedDict[int, TrialLog] = OrderedDict()
        self.counts = {status.value: 0 for status in PublicStatus}
        self.version = self.num_results = self.malformed = 0
        self.exploits: deque[Exploit] = deque(maxlen=_MOST_EXPLOITS)
        self.stays: deque[tuple[Attempt, TrialLog]] = deque(maxlen=_MOST_STAYS)
        self.num_stays = self.num_stopped = 0
        self.memo: dict[str, Any] = {}
        #: Of each goal: at which version, and the trials in order.
        self._ranked: dict[int, tuple[int, list[TrialLog]]] = {}
        self.improvements: list[tuple[float, float, int, int]] = []
        self.improvements_of = [self.improvements, *([] for _ in self.metrics[1:])]
        self.improved_after: list[int] = []
        self.capacity: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=_MOST_CAPACITIES)
        self._requests: dict[tuple[tuple[str, float], ...], Mapping[str, float]] = {}
        self.workers: dict[str, int] = {}
        self.began = self.now = nan
        #: When the driver that leads began, and how many trials had ended then.
        self._session = nan, 0
        self.stop_reason = ""
        self.on_hold = False
        self.full_budget = self.num_cut = self._cut_iterations = 0

    # What there is

    @property
    def metric(self) -> str | None:
        """The first goal; None if there is none."""
        return self.metrics[0] if self.metrics else None

    @property
    def mode(self) -> Mode | None:
        """Which way the first goal is better; None if nobody says."""
        return self.modes[0] if self.modes else None

    @property
    def best(self) -> TrialLog | None:
        """The trial that had the best value of the first goal; None if none has one."""
        return self.trials[self.improvements[-1][2]] if self.improvements else None

    @property
    def best_value(self) -> float:
        """The best value of the first goal that anybody has reported; NaN if there is none."""
        return self.improvements[-1][1] if self.improvements else nan

    @property
    def elapsed(self) -> float:
        """Seconds from the first record to the last, 0 if there are none."""
        return 0.0 if isnan(self.began) else self.now - self.began

    @property
    def num_over(self) -> int:
        """Trials that have ended for good."""
        return self.counts["TERMINATED"] + self.counts["ERROR"]

    @property
    def remaining(self) -> float | None:
        """Seconds until the end, at the rate of this session; None if nobody knows."""
        began, over = self._session
        return Progress(
            counts={PublicStatus(word): count for word, count in self.counts.items()},
            total=self.total,
            elapsed_s=0.0 if isnan(began) else self.now - began,
            finished_before=over,
        ).remaining_s

    @property
    def saved_iterations(self) -> int:
        """Iterations that the trials which were ended early have not done.

        As if each of the `num_cut` trials had gone on to `full_budget`.
        """
        return self.num_cut * self.full_budget - self._cut_iterations

    @property
    def saved_share(self) -> float:
        """How much of all the work was saved by ending trials early, from 0 to 1."""
        saved = self.saved_iterations
        return saved / (saved + self.num_results) if saved else 0.0

    def find(self, trial_id: object) -> TrialLog | None:
        """Return the trial of this name, None if there is none."""
        return self._logs.get(trial_id) if isinstance(trial_id, str) else None

    def changed_since(self, version: int) -> Iterator[TrialLog]:
        """Yield the trials that have changed, the last one first; it takes no longer than that.

        Parameters
        ----------
        version : int
            Of the state that is known; 0 for nothing.
        """
        return takewhile(lambda log: log.version > version, reversed(self._changed.values()))

    def ranked(self, goal: int = 0) -> list[TrialLog]:
        """Return the trials that have a finite best value, best first.

        Parameters
        ----------
        goal : int, default=0
            By which goal. Without a mode they come in their order.
        """
        version, some = self._ranked.get(goal, (-1, []))
        if version != self.version:
            some = [log for log in self.trials if isfinite(log.best_value(goal))]
            mode = self.modes[goal] if goal < len(self.modes) else None
            if mode is not None:
                some.sort(key=lambda log: log.best_value(goal), reverse=mode == "max")
            self._ranked[goal] = self.version, some
        return some.copy()

    # What comes

    def extend(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take in records, in their order.

        Parameters
        ----------
        records : iterable of mapping
            As the journal has them.
        """
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in the next record; one that makes no sense is counted, and skipped.

        Parameters
        ----------
        record : mapping
            As the journal has it. It is kept in part, and must not change.
        """
        self.version += 1
        try:
            take(self, record)
        except _NONSENSE:
            self.malformed += 1

    # What a record changes; for `intake` alone

    def see_time(self, time: float) -> None:
        """Go on to the time of a record."""
        if isnan(self.began):
            self.began, self.now, self._session = time, time, (time, 0)
        elif time > self.now:
            self.now = time

    def add_trial(
        self, trial_id: str, config: Any, time: float, folder: str = ""
    ) -> TrialLog | None:
        """Add a trial, if what was suggested is one."""
        if config is None or trial_id in self._logs:
            return None
        log = TrialLog(
            trial_id=trial_id,
            index=len(self.trials),
            config=flatten(config),
            curves=[Curve(self._max_points) for _ in self.metrics],
            created=time,
            best=[(0, nan)] * len(self.metrics),
            folder=folder or trial_id,
        )
        self.trials.append(log)
        self._logs[trial_id] = log
        self.counts[log.status] += 1
        return log

    def begin_stay(self, log: TrialLog, worker: str, time: float) -> None:
        """Note that a trial has been taken by a worker."""
        self.workers.setdefault(worker, len(self.workers))
        log.begin_attempt(worker, time)
        self.stays.append((log.attempts[-1], log))
        self.num_stays += 1

    def begin_session(self, heard: float, time: float) -> None:
        """Let what ran under the last driver end when that was heard of last."""
        for log in self.trials:
            if log.attempt is not None:
                log.end_attempt("lost", heard)
                self.touch(log)
        self._session, self.stop_reason = (time, self.num_over), ""

    def choose_metric(self, metrics: Mapping[str, Any]) -> None:
        """Follow the first number of a result that the user has reported."""
        own = (name for name in metrics if not is_auto_filled(name))
        name = next((name for name in own if number(metrics[name]) is not None), None)
        if name is None:
            return
        self.metrics, self.modes, self.better = [name], [None], [_COMPARISONS[None]]
        for log in self.trials:
            log.curves, log.best = [Curve(self._max_points)], [(0, nan)]

    def count_result(self, log: TrialLog, iteration: int) -> None:
        """Count a result, if it is new."""
        if iteration <= log.iteration:
            return
        self.num_results += 1
        if log.cut:
            self._cut_iterations += iteration - log.iteration
        log.iteration = iteration
        self.full_budget = max(self.full_budget, iteration)

    def see_capacity(self, workers: Mapping[str, Mapping[str, float]], time: float) -> None:
        """Note what the workers have together, from now on."""
        told = self.request({"bundles": list(workers.values())})
        if not self.capacity or self.capacity[-1][1] != told:
            self.capacity.append((time, told))

    def request(self, told: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the sums over bundles; those that are alike share one."""
        sums: dict[str, float] = {}
        for bundle in told["bundles"]:
            for name, amount in bundle.items():
                sums[name] = sums.get(name, 0.0) + float(amount)
        if len(self._requests) > _MOST_REQUESTS:
            self._requests.clear()
        sums = {name: amount for name, amount in sums.items() if isfinite(amount)}
        return self._requests.setdefault(tuple(sums.items()), sums)

    def see_best(
        self, log: TrialLog, value: float, iteration: int, time: float, goal: int = 0
    ) -> None:
        """Note a trial's best value of a goal, if it is the best of all."""
        told = self.improvements_of[goal]
        best = told[-1][1] if told else nan
        if self.modes[goal] is None or not self.better[goal](value, best):
            return
        lists: list[list[Any]] = [told] if goal else [told, self.improved_after]
        told.append((time, value, log.index, iteration))
        if goal == 0:
            self.improved_after.append(self.num_results)
        if len(told) > _MOST_IMPROVEMENTS:
            for one in lists:
                one[:-1] = one[:-1:2]

    def see_milestones(self, milestones: Sequence[tuple[str, float]]) -> None:
        """Note how far trials are meant to train."""
        for name, budget in milestones:
            if name == "training_iteration" and isfinite(budget):
                self.full_budget = max(self.full_budget, int(budget))

    def cut_early(self, log: TrialLog) -> None:
        """Count a trial as ended before its time, unless everything ends."""
        if log.iteration < self.full_budget and not log.cut and not self.stop_reason:
            self.num_stopped += log.status == "TERMINATED"
            log.cut = True
            self.num_cut += 1
            self._cut_iterations += log.iteration

    def uncut(self, log: TrialLog) -> None:
        """Take back that it was ended before its time."""
        if log.cut:
            self.num_stopped -= log.status == "TERMINATED"
            log.cut = False
            self.num_cut -= 1
            self._cut_iterations -= log.iteration

    def rewind(self, log: TrialLog, iteration: int) -> None:
        """Forget what a trial has reported after an iteration; what it was best at stays told."""
        log.cut_off(iteration, self.better)

    def set_status(self, log: TrialLog, word: str) -> None:
        """Move a trial to a public status."""
        if word != log.status:
            self.counts[word] += 1
            self.counts[log.status] -= 1
            if log.cut:
                self.num_stopped += (word == "TERMINATED") - (log.status == "TERMINATED")
            log.status = word
            if word == "ERROR":
                self.uncut(log)

    def touch(self, log: TrialLog) -> None:
        """Note that a trial has changed."""
        log.version = self.version
        self._changed[log.index] = log
        self._changed.move_to_end(log.index)


def _less(value: float, than: float) -> bool:
    return isnan(than) or value < than


def _more(value: float, than: float) -> bool:
    return isnan(than) or value > than


def _any(value: float, than: float) -> bool:
    """Without a mode what comes last stands for a trial."""
    return True


_COMPARISONS: Final[dict[Mode | None, Better]] = {"min": _less, "max": _more, None: _any}


def _listed(value: str | list[Any] | None) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
