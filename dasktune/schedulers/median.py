"""The median stopping rule (Golovin et al., 2017)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf
from typing import Any, Final

from dasktune.errors import check
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, Stop
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.metric_scheduler import MetricScheduler, check_flag, finite_number
from dasktune.schedulers.rungs import percentile
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

#: The smallest ratio of two milestones. With a smaller one the rule would compare trials at nearly
#: every result, as it does without milestones, and store a list for each.
_MIN_FACTOR: Final = 1.1


@dataclass(slots=True)
class _Record:
    """The state of a trial; scores are finite, and higher is better."""

    #: Largest `time_attr` so far; negative before the first result.
    time: float = -1.0
    best: float | None = None
    #: Mean and number of its scores since `mean_start`.
    mean: float = 0.0
    count: int = 0
    #: Number of moments that it has passed, and the mean that it recorded at the last of them.
    passed: int = 0
    recorded_mean: float | None = None
    #: `time_attr` at which it was last paused to give its place to another trial.
    paused_at: float | None = None
    #: Whether it was paused because it is worse than the median. It is not compared any more.
    is_rejected: bool = False

    def add(self, score: float) -> None:
        # Two quotients, because score - mean may overflow; the mean of equal scores stays exact.
        self.count += 1
        self.mean += score / self.count - self.mean / self.count


class MedianStoppingRule(MetricScheduler):
    """Stop a trial whose best result is worse than the median of the other trials' running means.

    By default it compares a trial at each result. With `check_at` or `reduction_factor` it compares
    a trial only when it reaches a milestone. This takes more epochs, but it rarely stops the trial
    that would have become the best.

    Parameters
    ----------
    time_attr : str, default="time_total_s"
        The metric that measures how long a trial has trained; it must not decrease. If workers
        differ in speed, ``"training_iteration"`` compares trials more fairly than seconds.
    metric : str, optional
        The metric to compare trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    grace_period : float, default=60
        No trial is stopped earlier, and by default the means start here. In units of `time_attr`,
        at least 0; more than 0 with `reduction_factor`. Not used with `check_at`, whose first value
        takes its place.
    min_samples_required : int, default=3
        A trial is compared with others only when this number of them have trained as long. At least
        1.
    min_time_slice : float, default=0
        While too few other trials have trained that long, a trial pauses so that waiting trials can
        train. This is the minimum time between two such pauses of a trial, in units of `time_attr`,
        at least 0. With 0 the leading trial pauses at each result. Use a large value for a
        trainable without checkpoints, which starts from the beginning after each pause.
    hard_stop : bool, default=True
        Whether a bad trial is stopped. If False, it is paused once and continues when no other
        trial waits; it is not compared any more.
    check_at : sequence of float, optional
        The milestones: a trial is compared only at its first result at or after each of them. In
        units of `time_attr`, ascending, at least 0. By default a trial is compared at each result.
    reduction_factor : float, optional
        The milestones are ``grace_period * reduction_factor**k``. Unitless, at least 1.1. Give
        either this or `check_at`.
    mean_start : float, optional
        The running means start here: earlier scores do not count in them. In units of `time_attr`,
        from 0 to `grace_period` or the first value of `check_at`, which is the default.

    Raises
    ------
    ConfigError
        If an argument is invalid, or both `check_at` and `reduction_factor` are given.

    Notes
    -----
    This is the rule of [1]_:

    - Trials are compared at *moments*: the values of `time_attr`, from `grace_period` on, that some
      trial was the first to reach. If all trials report at the same times, each of these is a
      moment.
    - At each moment that a trial passes, it records the mean of its scores since `mean_start`. At
      each result, its best score so far is compared with the median of the means that the other
      trials recorded at the latest moment. If the median is better, the trial stops; ties continue.
    - With milestones these are the moments. A trial records its mean at a milestone with its first
      result at or after it, and is compared at this result only. A result that passes several
      milestones counts at each of them, and the trial is compared at the last one.
    - A score that is missing, not a number, NaN or infinite is ignored. A trial without any score
      is the worst.
    - A trial pauses for others only if there would then be enough trials to compare it with.
    - A trial that ends by itself records its means too. No mean is counted twice.

    In [1]_ trials are compared at each result. The trials that have trained longest are those that
    survived all earlier comparisons, so their median rises, and in the end the rule stops most
    trials, among them often the best one. With a few milestones there are few comparisons.

    For each moment that a trial passes, a result costs O(log k) comparisons and an insertion into a
    sorted list, where k is the number of trials that passed the moment before.

    References
    ----------
    .. [1] Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
       section 3.2.2.

    Examples
    --------
    >>> rule = MedianStoppingRule(time_attr="training_iteration", grace_period=5)
    >>> rule.debug_string()
    'Using MedianStoppingRule: num_stopped=0'

    At the milestones 3, 9, 27, 81 and so on:

    >>> rule = MedianStoppingRule(
    ...     time_attr="training_iteration", grace_period=3, reduction_factor=3
    ... )
    """

    check_at: tuple[float, ...] | None = None
    reduction_factor: float | None = None
    mean_start: float | None = None

    def __init__(
        self,
        *,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: Mode | None = None,
        grace_period: float = 60,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
        check_at: Sequence[float] | None = None,
        reduction_factor: float | None = None,
        mean_start: float | None = None,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self.grace_period = finite_number("grace_period", grace_period)
        check(self.grace_period >= 0, "grace_period", "at least 0", grace_period)
        whole = type(min_samples_required) is int and min_samples_required >= 1
        check(whole, "min_samples_required", "an int, at least 1", min_samples_required)
        self.min_samples_required = min_samples_required
        self.min_time_slice = finite_number("min_time_slice", min_time_slice)
        check(self.min_time_slice >= 0, "min_time_slice", "at least 0", min_time_slice)
        check_flag("hard_stop", hard_stop)
        self.hard_stop = hard_stop
        self._set_milestones(check_at, reduction_factor)
        if mean_start is not None:
            self.mean_start = finite_number("mean_start", mean_start)
            rule = f"from 0 to the first comparison, at {self.grace_period:g}"
            check(0 <= self.mean_start <= self.grace_period, "mean_start", rule, mean_start)
        self._records: dict[str, _Record] = {}
        #: The moments, ascending, and the means recorded at each of them, ascending. If there are
        #: milestones, the moments are those that a trial has passed.
        self._moments: list[float] = []
        self._means: list[list[float]] = []
        #: Trials that are on no worker and would be compared with others if they ran.
        self._waiting: dict[str, None] = {}
        self._num_stopped = 0

    def on_trial_add(self, trial: Trial) -> None:
        """Create a new record, unless the trial resumes with its history."""
        self._waiting[trial.trial_id] = None
        if not trial.history:
            self._records.pop(trial.trial_id, None)

    def on_trial_start(self, trial: Trial) -> None:
        """Remove the trial from those that wait for a place."""
        self._waiting.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Stop or pause the trial if its best score is worse than the median of the others."""
        record = self._record(trial)
        passed = record.passed
        if record.is_rejected or not self._add_result(record, trial, result):
            return Continue()
        if record.time < self.grace_period or (self._has_milestones and record.passed == passed):
            return Continue()
        moment = bisect_right(self._moments, record.time) - 1
        median, others = self._median_of_others(moment, record)
        if median is None or others < self.min_samples_required:
            return self._yield_place(trial, record, others)
        if record.best is not None and record.best >= median:
            return Continue()
        return self._reject(record, self._reason(record, median, others, moment))

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Add its last result, unless `on_trial_result` has added it already."""
        self._waiting.pop(trial.trial_id, None)
        record = self._record(trial)
        if result and not record.is_rejected:
            time = self._time(trial, result)
            if time is not None and time > record.time:
                self._add_result(record, trial, result)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from those that wait for a place."""
        self._waiting.pop(trial.trial_id, None)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from those that wait for a place."""
        self._waiting.pop(trial.trial_id, None)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else one that paused for others, else a rejected one."""
        if not waiting.pending:
            for name in self._waiting:
                if name in waiting.paused:
                    return waiting.paused[name]
        return first_in(waiting)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the trial's next milestone, or the grace period without milestones.

        Without milestones the trial waits at every result from the grace period on.
        """
        record = self._records.get(trial.trial_id, _Record())
        if record.is_rejected:
            return ()
        value = self._milestone(record.passed) if self._has_milestones else self.grace_period
        return () if value is None else (Milestone(self.time_attr, value),)

    def debug_string(self) -> str:
        """Return how many trials were stopped, or paused because they are worse than the median."""
        return f"Using MedianStoppingRule: num_stopped={self._num_stopped}"

    def state_dict(self) -> dict[str, Any]:
        """Return the means at each moment, and the state of each trial."""
        return {
            "grace_period": self.grace_period,
            "check_at": None if self.check_at is None else list(self.check_at),
            "reduction_factor": self.reduction_factor,
            "mean_start": self._first_mean,
            "moments": list(self._moments),
            "means": [list(means) for means in self._means],
            "records": {name: list(astuple(record)) for name, record in self._records.items()},
            "waiting": list(self._waiting),
            "num_stopped": self._num_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved with other arguments from which the means are computed:
            `grace_period`, `check_at`, `reduction_factor` or `mean_start`.
        """
        own = self.state_dict()
        for name in ("check_at", "reduction_factor", "grace_period", "mean_start"):
            rule = f"{state[name]} as in the saved experiment"
            check(state[name] == own[name], name, rule, own[name])
        self._moments = list(state["moments"])
        self._means = [list(means) for means in state["means"]]
        self._records = {name: _Record(*fields) for name, fields in state["records"].items()}
        self._waiting = dict.fromkeys(state["waiting"])
        self._num_stopped = state["num_stopped"]

    def _set_milestones(self, check_at: object, reduction_factor: object) -> None:
        if check_at is not None:
            hint = "Give one of check_at and reduction_factor."
            check(reduction_factor is None, "reduction_factor", "None with check_at", reduction_factor, hint)
            rule = "a list of at least one number"
            check(isinstance(check_at, list | tuple) and len(check_at) > 0, "check_at", rule, check_at)
            assert isinstance(check_at, list | tuple)
            self.check_at = tuple(finite_number("each value of check_at", one) for one in check_at)
            is_ascending = list(self.check_at) == sorted({*self.check_at})
            check(self.check_at[0] >= 0 and is_ascending, "check_at", "ascending, from at least 0", check_at)
            self.grace_period = self.check_at[0]
        elif reduction_factor is not None:
            self.reduction_factor = finite_number("reduction_factor", reduction_factor)
            rule = f"at least {_MIN_FACTOR}"
            check(self.reduction_factor >= _MIN_FACTOR, "reduction_factor", rule, reduction_factor)
            # The product of the smallest float does not grow.
            grows = self.grace_period * self.reduction_factor > self.grace_period
            check(grows, "grace_period", "more than 0 with reduction_factor", self.grace_period)

    @property
    def _has_milestones(self) -> bool:
        return self.check_at is not None or self.reduction_factor is not None

    @property
    def _first_mean(self) -> float:
        """The `time_attr` from which on scores count in the running means."""
        return self.grace_period if self.mean_start is None else self.mean_start

    def _milestone(self, index: int) -> float | None:
        """Return a milestone that some trial has passed or the next one; None after the last."""
        if self.check_at is not None:
            return self.check_at[index] if index < len(self.check_at) else None
        assert self.reduction_factor is not None
        if index < len(self._moments):
            return self._moments[index]
        # A product, not a power: that of a large integer would not fit into a float.
        return self._moments[-1] * self.reduction_factor if self._moments else self.grace_period

    def _record(self, trial: Trial) -> _Record:
        return self._records.setdefault(trial.trial_id, _Record())

    def _add_result(self, record: _Record, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Add a result; return whether it has a finite `time_attr`."""
        time = self._time(trial, result)
        if time is None or time == inf:
            return False
        record.time = max(record.time, time)
        score = self._score(self._value(trial, result))
        if score is not None:
            record.best = score if record.best is None else max(record.best, score)
        if self._has_milestones or record.time < self.grace_period:
            # Not `record.time`: a trial without a checkpoint trains again from the start.
            if score is not None and time >= self._first_mean:
                record.add(score)
            if self._has_milestones:
                self._pass_milestones(record)
        else:
            self._pass_moments(record, score)
        return True

    def _pass_milestones(self, record: _Record) -> None:
        """Record the mean, in which the new score counts, at each milestone that is now passed."""
        while (milestone := self._milestone(record.passed)) is not None and milestone <= record.time:
            if record.passed == len(self._moments):
                self._moments.append(milestone)
                self._means.append([])
            self._record_mean(record, record.passed)

    def _pass_moments(self, record: _Record, score: float | None) -> None:
        """Record the mean at each moment up to now; the new score counts at the last one only."""
        now = bisect_left(self._moments, record.time)
        if now == len(self._moments):
            self._moments.append(record.time)
            self._means.append([])
        # If `time_attr` has not increased, the mean of the last moment is replaced.
        again = record.passed > now
        for moment in range(record.passed, now):
            self._record_mean(record, moment)
        if score is not None:
            record.add(score)
        if again and record.recorded_mean is not None:
            means = self._means[now]
            del means[bisect_left(means, record.recorded_mean)]
        if self._moments[now] == record.time:
            self._record_mean(record, now)

    def _record_mean(self, record: _Record, moment: int) -> None:
        record.passed = moment + 1
        record.recorded_mean = record.mean if record.count else None
        if record.recorded_mean is not None:
            insort(self._means[moment], record.recorded_mean)

    def _median_of_others(self, moment: int, record: _Record) -> tuple[float | None, int]:
        """Return the median and the number of the means that other trials recorded at a moment."""
        means = self._means[moment]
        if record.recorded_mean is None:
            return percentile(means, 0.5), len(means)
        own, others = bisect_left(means, record.recorded_mean), len(means) - 1
        middle = ((others - 1) // 2, others // 2) if others else ()
        return percentile([means[i + (i >= own)] for i in middle], 0.5), others

    def _yield_place(self, trial: Trial, record: _Record, others: int) -> Decision:
        """Pause a trial that cannot be compared yet, if others could then train as long."""
        paused = record.paused_at
        long_enough = paused is None or record.time - paused > self.min_time_slice
        if not long_enough or not self._waiting:
            return Continue()
        if others + len(self._waiting) < self.min_samples_required:
            return Continue()
        record.paused_at = record.time
        self._waiting[trial.trial_id] = None
        return Pause(
            f"makes room: {others} of {self.min_samples_required} other trials have reached "
            f"{self.time_attr} {record.time:g}"
        )

    def _reject(self, record: _Record, reason: str) -> Decision:
        self._num_stopped += 1
        if self.hard_stop:
            return Stop(reason)
        # It is not added to `_waiting`: no trial is compared with it any more.
        record.is_rejected = True
        return Pause(reason)

    def _reason(self, record: _Record, median: float, others: int, moment: int) -> str:
        sign, side = (1, "below") if self.mode == "max" else (-1, "above")
        best = "is never finite" if record.best is None else f"{sign * record.best:.6g} at best"
        return (
            f"{self.metric} {best}, {side} the median {sign * median:.6g} of the means of {others} "
            f"other trials at {self.time_attr} {self._moments[moment]:g}"
        )
