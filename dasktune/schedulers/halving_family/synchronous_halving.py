"""Synchronous successive halving, the base of HyperBand and SuccessiveHalvingScheduler.

The trials of a cohort (HyperBand: a bracket) pause at each rung until all of them have reached it.
Then the best are promoted to the next rung, and the others are stopped.

Invariants of a cohort:

1. Each of its unfinished trials is either `running` (on its way to the current rung) or `waiting`
   on that rung. A trial that has not been started yet counts as `running`.
2. A full cohort is halved as soon as none of its trials is `running`. Every event that ends or
   removes a trial checks this, so a full cohort with waiting trials always has a running one.
3. A trial that is added after a cohort is full belongs to the next cohort.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Pause,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.schedulers.metric_scheduler import MetricScheduler, check_flag, finite_number
from dasktune.schedulers.rungs import survivors
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial


@dataclass(slots=True)
class _Member:
    """The state of an unfinished trial."""

    #: Number of its cohort, which never changes.
    cohort: int
    #: Its position in the order in which the cohort's trials were added; it breaks ties.
    number: int
    #: `time_attr` and score with which it reached its last rung. A higher score is better, and None
    #: is the worst.
    time: float | None = None
    score: float | None = None
    #: The budget of the highest rung that it reached with that result.
    budget: float | None = None


@dataclass(slots=True)
class _Cohort:
    """Trials that are compared with each other."""

    number: int
    #: The budgets of its rungs, ascending, in units of `time_attr`.
    budgets: list[float]
    #: Number of trials for which it has room; None if unlimited.
    size: int | None
    #: Number of trials that were ever added.
    added: int = 0
    #: Index of the current rung, on which its trials wait or to which they train.
    rung: int = 0
    running: dict[str, None] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)
    #: Trials of `running` that may be started and have not been yet. They are removed from the
    #: front, which costs O(1) in an OrderedDict; a plain dict would scan the deleted entries.
    ready: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def is_full(self) -> bool:
        return self.size is not None and self.added >= self.size

    @property
    def is_at_top(self) -> bool:
        """Whether the current rung is the last one, where no trial waits."""
        return self.rung == len(self.budgets) - 1

    @property
    def is_complete(self) -> bool:
        """Whether all trials of a full cohort have reached the current rung."""
        return self.is_full and not self.running and not self.is_at_top

    @property
    def budget(self) -> float:
        return self.budgets[self.rung]


class SynchronousHalving(MetricScheduler):
    """Pause trials at each rung until their whole cohort has reached it, then promote the best.

    Parameters
    ----------
    time_attr, metric, mode
        As for `MetricScheduler`.
    max_t : float
        Maximum budget of a trial, in units of `time_attr`; more than 0.
    reduction_factor : float
        Halving rate (eta): the best ``1/reduction_factor`` of a rung are promoted. More than 1.
    stop_last_trials : bool
        Whether trials are stopped at `max_t`.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """

    #: The arguments that determine the rungs, for error messages.
    _ARGUMENTS = "max_t and reduction_factor"

    def __init__(
        self,
        *,
        time_attr: str,
        metric: str | None,
        mode: Mode | None,
        max_t: float,
        reduction_factor: float,
        stop_last_trials: bool,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self.max_t = finite_number("max_t", max_t)
        self.reduction_factor = finite_number("reduction_factor", reduction_factor)
        check_flag("stop_last_trials", stop_last_trials)
        self.stop_last_trials = stop_last_trials
        check(self.max_t > 0, "max_t", "more than 0", max_t)
        check(self.reduction_factor > 1, "reduction_factor", "more than 1", reduction_factor)
        #: The unfinished cohorts by number. Only the last one may have room for more trials.
        self._cohorts: dict[int, _Cohort] = {}
        self._num_cohorts = 0
        self._members: dict[str, _Member] = {}
        self._num_stopped = 0

    @abstractmethod
    def _plan(self, number: int) -> tuple[list[float], int | None]:
        """Return the budgets and the size of a cohort; the first cohort is number 0."""

    @property
    def waits_for_others(self) -> bool:
        """True: if the search held trials back, a cohort would be halved without them."""
        return True

    def on_trial_add(self, trial: Trial) -> None:
        """Add the trial to a cohort, unless it belongs to one."""
        if trial.trial_id in self._members:
            return
        cohort = next(reversed(self._cohorts.values()), None)
        if cohort is None or cohort.is_full:
            cohort = _Cohort(self._num_cohorts, *self._plan(self._num_cohorts))
            self._cohorts[cohort.number] = cohort
            self._num_cohorts += 1
        self._members[trial.trial_id] = _Member(cohort.number, cohort.added)
        cohort.added += 1
        cohort.running[trial.trial_id] = cohort.ready[trial.trial_id] = None

    def on_trial_start(self, trial: Trial) -> None:
        """Remove the trial from those that may be started.

        If its worker is lost, `choose_trial_to_run` chooses it before all others.
        """
        cohort = self._cohort_of(trial.trial_id)
        if cohort is not None:
            cohort.ready.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Pause the trial at its rung; if its cohort is complete then, halve the cohort."""
        budget = self._time(trial, result)
        if budget is None:
            return Continue()
        key = trial.trial_id
        cohort = self._cohort_of(key)
        if self.stop_last_trials and budget >= self.max_t:
            if cohort is not None:
                self._record(self._members[key], cohort, budget, self._value(trial, result))
            self._num_stopped += 1
            reason = f"{self.time_attr} {budget:g} has reached max_t={self.max_t:g}"
            return Stop(reason, self._remove(key), early=False)
        if cohort is None or cohort.is_at_top or budget < cohort.budget:
            return Continue()
        if key in cohort.running:
            self._record(self._members[key], cohort, budget, self._value(trial, result))
            del cohort.running[key]
            cohort.ready.pop(key, None)
            cohort.waiting[key] = None
        return self._decide_waiting(key, cohort)

    def _decide_waiting(self, key: str, cohort: _Cohort) -> Decision:
        """Return the decision on a trial that waits at a rung."""
        orders = self._halve_complete(cohort)
        own = orders.pop(key, None)
        commands = tuple(orders.values())
        if own is None:
            done = len(cohort.waiting)
            place = f"at rung {cohort.budget:g} of {self._cohort_name(cohort.number)}"
            return Pause(f"waits {place}, reached by {done} so far", commands=commands)
        if isinstance(own, StopOther):
            return Stop(own.reason, commands)
        cohort.ready.pop(key)  # it continues on its worker and need not be started
        return Continue(commands=commands)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Remove the trial from its cohort, and halve the cohort if it is complete now."""
        return self._forget(trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from its cohort, and halve the cohort if it is complete now."""
        return self._forget(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from its cohort, and halve the cohort if it is complete now."""
        return self._forget(trial)

    def on_search_end(self) -> tuple[Command, ...]:
        """Reduce the last cohort's size to the trials that it has; halve it if all have arrived."""
        cohort = next(reversed(self._cohorts.values()), None)
        if cohort is None or cohort.is_full:
            return ()
        cohort.size = cohort.added
        return tuple(self._halve_complete(cohort).values())

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Halve the last cohort although it is not full."""
        return self.on_search_end()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose a trial of the oldest cohort that has one to start; its other trials wait for it.

        A trial that lost its worker or is retried after a failure has priority. The cost is O(1),
        or O(k) while k promoted trials are still leaving their workers.
        """
        first = next(iter(waiting.pending.values()), None)
        # A trial that was promoted from a rung has been on a worker too: it has no priority.
        if first is not None and first.incarnation and not self._is_ready(first.trial_id):
            return first
        for cohort in self._cohorts.values():
            for key in cohort.ready:
                # It is still paused if it had not left its worker when it was promoted.
                trial = waiting.pending.get(key) or waiting.paused.get(key)
                if trial is not None:
                    return trial
        return first

    def _is_ready(self, key: str) -> bool:
        cohort = self._cohort_of(key)
        return cohort is not None and key in cohort.ready

    @property
    def looks_between(self) -> bool:
        """False, unless a subclass overrides `on_trial_result`: only results at rungs matter."""
        return type(self).on_trial_result is not SynchronousHalving.on_trial_result

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the next rung of the trial."""
        cohort = self._cohort_of(trial.trial_id)
        budget = self.max_t if cohort is None else cohort.budget
        if budget >= self.max_t and not self.stop_last_trials:
            return ()
        return (Milestone(self.time_attr, budget),)

    def debug_string(self) -> str:
        """Return a line for each unfinished cohort."""
        name = type(self).__name__.removesuffix("Scheduler")
        lines = [f"Using {name}: num_stopped={self._num_stopped}"]
        for cohort in self._cohorts.values():
            size = "any" if cohort.size is None else cohort.size
            lines.append(
                f"{self._cohort_name(cohort.number).capitalize()} "
                f"({cohort.added} of {size} trials): "
                f"{len(cohort.waiting)} wait at rung {cohort.budget:g}, "
                f"{len(cohort.running)} train towards it"
            )
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished cohorts and the position of each trial."""
        cohorts = [
            {
                "number": cohort.number,
                "size": cohort.size,
                "added": cohort.added,
                "rung": cohort.rung,
                "running": list(cohort.running),
                "standing": list(cohort.waiting),
                "ready": list(cohort.ready),
            }
            for cohort in self._cohorts.values()
        ]
        members = {
            key: [one.cohort, one.number, one.time, one.score, one.budget]
            for key, one in self._members.items()
        }
        return {
            "rungs": list(self._plan(0)[0]),
            "reduction_factor": self.reduction_factor,
            "cohorts": cohorts,
            "num_cohorts": self._num_cohorts,
            "members": members,
            "num_stopped": self._num_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved by a scheduler with other rungs.
        """
        own = [self._plan(0)[0], self.reduction_factor]
        then = [state["rungs"], state["reduction_factor"]]
        hint = f"Restore with the {self._ARGUMENTS} of the saved experiment."
        check(then == own, "the rungs", f"those of the saved experiment, {then}", own, hint)
        self._cohorts = {}
        for cohort in state["cohorts"]:
            number = cohort["number"]
            budgets, _ = self._plan(number)
            self._cohorts[number] = _Cohort(
                number,
                budgets,
                cohort["size"],
                cohort["added"],
                cohort["rung"],
                dict.fromkeys(cohort["running"]),
                dict.fromkeys(cohort["standing"]),
                OrderedDict.fromkeys(cohort["ready"]),
            )
        self._num_cohorts = state["num_cohorts"]
        self._members = {key: _Member(*member) for key, member in state["members"].items()}
        self._num_stopped = state["num_stopped"]

    def _cohort_name(self, number: int) -> str:
        """Return the name of a cohort in reasons and logs."""
        return f"cohort {number}"

    def _cohort_of(self, key: str) -> _Cohort | None:
        """Return the cohort in which a trial still competes, or None."""
        member = self._members.get(key)
        cohort = None if member is None else self._cohorts.get(member.cohort)
        if cohort is None or not (key in cohort.running or key in cohort.waiting):
            return None
        return cohort

    def _record(self, member: _Member, cohort: _Cohort, budget: float, value: float | None) -> None:
        """Record the time, score and budget with which a trial reached a rung."""
        reached = bisect_right(cohort.budgets, budget)
        member.time = budget
        member.score = self._score(value)
        member.budget = cohort.budgets[reached - 1] if reached else None

    def _forget(self, trial: Trial) -> tuple[Command, ...]:
        """Remove a trial that has ended; return commands for the others."""
        commands = self._remove(trial.trial_id)
        self._members.pop(trial.trial_id, None)
        return commands

    def _remove(self, key: str) -> tuple[Command, ...]:
        """Remove a trial from its cohort, and halve the cohort if it is complete now."""
        cohort = self._cohort_of(key)
        if cohort is None:
            return ()
        for where in (cohort.running, cohort.waiting, cohort.ready):
            where.pop(key, None)
        return tuple(self._halve_complete(cohort).values())

    def _halve_complete(self, cohort: _Cohort) -> dict[str, Command]:
        """Halve a cohort while it is complete; return a command for each trial, by id."""
        orders: dict[str, Command] = {}
        while cohort.is_complete and cohort.waiting:
            self._halve(cohort, orders)
        if cohort.is_full and not cohort.running and not cohort.waiting:
            del self._cohorts[cohort.number]
        return orders

    def _halve(self, cohort: _Cohort, orders: dict[str, Command]) -> None:
        ranked = sorted(cohort.waiting, key=self._rank)
        keep = survivors(cohort.added, cohort.rung + 1, self.reduction_factor)
        place = f"at rung {cohort.budget:g} of {self._cohort_name(cohort.number)}"
        reason = f"not among the best {keep} of {len(ranked)} by {self.metric} {place}"
        for key in ranked[keep:]:
            orders[key] = StopOther(trial_id=key, reason=reason)
            self._num_stopped += 1
        cohort.rung += 1
        cohort.waiting = {}
        for key in ranked[:keep]:
            time = self._members[key].time
            # A trial whose result is beyond this rung too waits on it with the same score.
            jumped = time is not None and time >= cohort.budget and not cohort.is_at_top
            if jumped:
                cohort.waiting[key] = None
            else:
                cohort.running[key] = cohort.ready[key] = None
                orders[key] = Unpause(trial_id=key)

    def _rank(self, key: str) -> tuple[bool, float, int]:
        member = self._members[key]
        return member.score is None, -(member.score or 0.0), member.number
