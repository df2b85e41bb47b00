"""The median stopping rule."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import inf
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.by_metric import MetricScheduler, check_flag, real
from dasktune.schedulers.decision import Command, Continue, Decision, Pause, Stop
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.rungs import percentile
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["MedianStoppingRule"]


@dataclass(slots=True)
class _Record:
    """What is known of a trial; scores are finite, higher is better."""

    #: How long it has trained; less than 0 before its first result.
    time: float = -1.0
    best: float | None = None
    #: Of its scores since the grace period.
    mean: float = 0.0
    count: int = 0
    #: How many moments it has passed, and what it left at the last of them.
    passed: int = 0
    left: float | None = None
    #: When it last made room for others.
    paused: float | None = None
    #: Whether it was paused for being worse than the others, and is judged no more.
    is_condemned: bool = False

    def add(self, score: float) -> None:
        # In halves of which neither can overflow, and so that the mean of equal scores is exact.
        self.count += 1
        self.mean += score / self.count - self.mean / self.count


class MedianStoppingRule(MetricScheduler):
    """Stop a trial whose best result is worse than the median of the others' running means.

    Parameters
    ----------
    time_attr : str, default="time_total_s"
        The metric that measures how long a trial has trained; it never falls. Seconds are not the
        same everywhere: where workers differ, ``"training_iteration"`` is the fairer one.
    metric : str, optional
        What to judge by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    grace_period : float, default=60
        Nobody is judged earlier, and the means begin here; in units of `time_attr`, at least 0.
    min_samples_required : int, default=3
        How many others must have come as far before anyone is judged, at least 1.
    min_time_slice : float, default=0
        Where too few have: how long a trial trains, in units of `time_attr`, between two times that
        it makes room for those that wait. At least 0. With 0 whoever is ahead of all others makes
        room at each result: a trainable without checkpoints, which begins anew each time, wants a
        large one.
    hard_stop : bool, default=True
        Whether a bad trial ends. If not, it is paused once, and goes on when nobody else waits;
        then nobody judges it any more.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Notes
    -----
    The rule of [1]_. Precisely:

    - Trials are compared at *moments*: the times from `grace_period` on at which a trial was the
      first to come so far. Where all report at the same times, those are all of them.
    - A trial that comes to a moment leaves there the mean of its scores from `grace_period` to the
      moment. At each of its results it is compared with what others have left at the latest moment.
      It stops if the median of that is better than its best score so far; a tie goes on.
    - A score that is missing, no number, NaN or infinite counts nowhere. A trial without any score
      is the worst there is.
    - A trial makes room for others only if, with them, there could be enough to be compared with.
    - A trial that ends by itself leaves its means, too. Nothing counts twice.

    A result costs O(log k) comparisons, and the shift of a list of k, for each moment that the
    trial passes with it, where k trials have been.

    References
    ----------
    .. [1] Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
       section 3.2.2.

    Examples
    --------
    >>> rule = MedianStoppingRule(time_attr="training_iteration", grace_period=5)
    >>> rule.debug_string()
    'Using MedianStoppingRule: num_stopped=0'
    """

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
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self.grace_period = real("grace_period", grace_period)
        check(self.grace_period >= 0, "grace_period", "at least 0", grace_period)
        whole = type(min_samples_required) is int and min_samples_required >= 1
        check(whole, "min_samples_required", "an int, at least 1", min_samples_required)
        self.min_samples_required = min_samples_required
        self.min_time_slice = real("min_time_slice", min_time_slice)
        check(self.min_time_slice >= 0, "min_time_slice", "at least 0", min_time_slice)
        check_flag("hard_stop", hard_stop)
        self.hard_stop = hard_stop
        self._records: dict[str, _Record] = {}
        #: In ascending order, and what trials have left at each of them, likewise.
        self._moments: list[float] = []
        self._means: list[list[float]] = []
        #: Who has no place, could take one, and would be compared with others then.
        self._waiting: dict[str, None] = {}
        self._num_stopped = 0

    def on_trial_add(self, trial: Trial) -> None:
        """Begin a new record, unless the trial goes on with its old life."""
        self._waiting[trial.trial_id] = None
        if not trial.history:
            self._records.pop(trial.trial_id, None)

    def on_trial_start(self, trial: Trial) -> None:
        """Count it no more among those that wait."""
        self._waiting.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Stop the trial, or pause it, if its best score is worse than the median of the others."""
        record = self._record(trial)
        if record.is_condemned or not self._take(record, trial, result):
            return Continue()
        if record.time < self.grace_period:
            return Continue()
        moment = bisect_right(self._moments, record.time) - 1
        median, others = self._median_of_others(moment, record)
        if median is None or others < self.min_samples_required:
            return self._make_room(trial, record, others)
        if record.best is not None and record.best >= median:
            return Continue()
        return self._condemn(record, self._complaint(record, median, others, moment))

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Take its last result, unless it is known already."""
        self._waiting.pop(trial.trial_id, None)
        record = self._record(trial)
        if result and not record.is_condemned:
            time = self._time(trial, result)
            if time is not None and time > record.time:
                self._take(record, trial, result)
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Count it no more among those that wait."""
        self._waiting.pop(trial.trial_id, None)
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Count it no more among those that wait."""
        self._waiting.pop(trial.trial_id, None)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else the first that has made room, else a bad one."""
        if not waiting.pending:
            for name in self._waiting:
                if name in waiting.paused:
                    return waiting.paused[name]
        return first_in(waiting)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the grace period: every result from there on is one."""
        record = self._records.get(trial.trial_id)
        if record is not None and record.is_condemned:
            return ()
        return (Milestone(self.time_attr, self.grace_period),)

    def debug_string(self) -> str:
        """Return how many trials were stopped, or paused for good reason."""
        return f"Using MedianStoppingRule: num_stopped={self._num_stopped}"

    def state_dict(self) -> dict[str, Any]:
        """Return what the trials have left at each moment, and where each of them is."""
        return {
            "grace_period": self.grace_period,
            "moments": list(self._moments),
            "means": [list(means) for means in self._means],
            "records": {name: list(astuple(record)) for name, record in self._records.items()},
            "waiting": list(self._waiting),
            "num_stopped": self._num_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a rule with another grace period, where other means begin.
        """
        rule = f"{state['grace_period']} as in the saved experiment"
        own = self.grace_period
        check(state["grace_period"] == own, "grace_period", rule, own)
        self._moments = list(state["moments"])
        self._means = [list(means) for means in state["means"]]
        self._records = {name: _Record(*fields) for name, fields in state["records"].items()}
        self._waiting = dict.fromkeys(state["waiting"])
        self._num_stopped = state["num_stopped"]

    def _record(self, trial: Trial) -> _Record:
        return self._records.setdefault(trial.trial_id, _Record())

    def _take(self, record: _Record, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Enter a result; return whether it says how far the trial is."""
        time = self._time(trial, result)
        if time is None or time == inf:
            return False
        record.time = max(record.time, time)
        score = self._score(self._value(trial, result))
        if score is not None:
            record.best = score if record.best is None else max(record.best, score)
        if record.time >= self.grace_period:
            self._pass_moments(record, score)
        return True

    def _pass_moments(self, record: _Record, score: float | None) -> None:
        """Leave the mean at each moment up to now, with the new score at none but this one."""
        now = bisect_left(self._moments, record.time)
        if now == len(self._moments):
            self._moments.append(record.time)
            self._means.append([])
        # It was there before if the time stands still; then it leaves another mean instead.
        again = record.passed > now
        for moment in range(record.passed, now):
            self._leave(record, moment)
        if score is not None:
            record.add(score)
        if again and record.left is not None:
            means = self._means[now]
            del means[bisect_left(means, record.left)]
        if self._moments[now] == record.time:
            self._leave(record, now)

    def _leave(self, record: _Record, moment: int) -> None:
        record.passed = moment + 1
        record.left = record.mean if record.count else None
        if record.left is not None:
            insort(self._means[moment], record.left)

    def _median_of_others(self, moment: int, record: _Record) -> tuple[float | None, int]:
        """Return the median of what all but one have left at a moment, and how many these are."""
        means = self._means[moment]
        if record.left is None:
            return percentile(means, 0.5), len(means)
        own, others = bisect_left(means, record.left), len(means) - 1
        middle = ((others - 1) // 2, others // 2) if others else ()
        return percentile([means[i + (i >= own)] for i in middle], 0.5), others

    def _make_room(self, trial: Trial, record: _Record, others: int) -> Decision:
        """Pause a trial that cannot be judged, if that lets enough others come as far."""
        paused = record.paused
        long_enough = paused is None or record.time - paused > self.min_time_slice
        if not long_enough or not self._waiting:
            return Continue()
        if others + len(self._waiting) < self.min_samples_required:
            return Continue()
        record.paused = record.time
        self._waiting[trial.trial_id] = None
        return Pause(
            f"makes room: {others} of {self.min_samples_required} other trials have got to "
            f"{self.time_attr} {record.time:g}"
        )

    def _condemn(self, record: _Record, reason: str) -> Decision:
        self._num_stopped += 1
        if self.hard_stop:
            return Stop(reason)
        # It does not count among those that wait: nobody is ever compared with it again.
        record.is_condemned = True
        return Pause(reason)

    def _complaint(self, record: _Record, median: float, others: int, moment: int) -> str:
        sign, side = (1, "below") if self.mode == "max" else (-1, "above")
        best = "is never finite" if record.best is None else f"{sign * record.best:.6g} at best"
        return (
            f"{self.metric} {best}, {side} the median {sign * median:.6g} of the means of {others} "
            f"other trials at {self.time_attr} {self._moments[moment]:g}"
        )
