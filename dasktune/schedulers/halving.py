"""Synchronous halving: trials wait for each other at a rung, and only the best of them go on.

What HyperBand and successive halving share. The trials that are compared with each other are a
cohort; HyperBand calls it a bracket.

Invariants of a cohort:

1. Each of its trials that has not ended is either `running`, on its way to the rung, or `standing`
   on it. It is `running` as well while it still waits for a place to run.
2. It is halved as soon as it is full and nobody of it runs; so one that is full never stands
   without somebody who runs, whoever fails, ends by itself or is taken away, and whenever.
3. A trial that comes after the last place was taken belongs to the next cohort.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.by_metric import MetricScheduler, check_flag, real
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Pause,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.schedulers.rungs import survivors
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["SynchronousHalving"]


@dataclass(slots=True)
class _Member:
    """A trial that has not ended."""

    #: Number of its cohort, for life.
    cohort: int
    #: Its place in the order in which the cohort's trials came; it breaks ties.
    number: int
    #: How long it had trained, and what it had come to, when it last came to a rung. Higher is
    #: better, None is the worst.
    time: float | None = None
    score: float | None = None
    #: The highest budget of its cohort that it had reached then.
    budget: float | None = None


@dataclass(slots=True)
class _Cohort:
    """Trials that are compared with each other."""

    number: int
    #: Of its rungs, in ascending order, in units of `time_attr`.
    budgets: list[float]
    #: How many trials it is for; None if for all that come.
    size: int | None
    #: How many trials ever came.
    added: int = 0
    #: The rung that its trials are on, or on their way to.
    rung: int = 0
    running: dict[str, None] = field(default_factory=dict)
    standing: dict[str, None] = field(default_factory=dict)
    #: Those of `running` that were not started since they may be. They leave from the front, where
    #: a plain dict would look at all that are gone.
    ready: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def is_full(self) -> bool:
        return self.size is not None and self.added >= self.size

    @property
    def is_at_top(self) -> bool:
        """Whether its trials are on their way to the last rung, where nobody waits."""
        return self.rung == len(self.budgets) - 1

    @property
    def is_complete(self) -> bool:
        """Whether nobody is missing on the rung."""
        return self.is_full and not self.running and not self.is_at_top

    @property
    def budget(self) -> float:
        return self.budgets[self.rung]


class SynchronousHalving(MetricScheduler):
    """Pauses trials at each rung until all of their cohort are there; then the best go on.

    Parameters
    ----------
    time_attr, metric, mode
        As for `MetricScheduler`.
    max_t : float
        Most that a trial gets, in units of `time_attr`; more than 0.
    reduction_factor : float
        One in so many goes on; more than 1.
    stop_last_trials : bool
        Whether trials end at `max_t`.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    """

    #: What users change by passing other arguments, in error messages.
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
        self.max_t = real("max_t", max_t)
        self.reduction_factor = real("reduction_factor", reduction_factor)
        check_flag("stop_last_trials", stop_last_trials)
        self.stop_last_trials = stop_last_trials
        check(self.max_t > 0, "max_t", "more than 0", max_t)
        check(self.reduction_factor > 1, "reduction_factor", "more than 1", reduction_factor)
        #: Those that are not over, by their numbers. Only the last one may have places left.
        self._cohorts: dict[int, _Cohort] = {}
        self._num_cohorts = 0
        self._members: dict[str, _Member] = {}
        self._num_stopped = 0

    @abstractmethod
    def _plan(self, number: int) -> tuple[list[float], int | None]:
        """Return budgets and size of a cohort; the first one is number 0."""

    @property
    def waits_for_others(self) -> bool:
        """Always: a cohort of which the search holds some back would be halved without them."""
        return True

    def on_trial_add(self, trial: Trial) -> None:
        """Give the trial a place in a cohort, unless it has one."""
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
        """Offer it no more. Should it come back, it is the first of those that wait."""
        cohort = self._cohort_of(trial.trial_id)
        if cohort is not None:
            cohort.ready.pop(trial.trial_id, None)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Let the trial wait at its rung, or halve its cohort if it is the last to come there."""
        budget = self._time(trial, result)
        if budget is None:
            return Continue()
        key = trial.trial_id
        cohort = self._cohort_of(key)
        if self.stop_last_trials and budget >= self.max_t:
            if cohort is not None:
                self._note(self._members[key], cohort, budget, self._value(trial, result))
            self._num_stopped += 1
            reason = f"{self.time_attr} {budget:g} has reached max_t={self.max_t:g}"
            return Stop(reason, self._take_out(key), early=False)
        if cohort is None or cohort.is_at_top or budget < cohort.budget:
            return Continue()
        if key in cohort.running:
            self._note(self._members[key], cohort, budget, self._value(trial, result))
            del cohort.running[key]
            cohort.ready.pop(key, None)
            cohort.standing[key] = None
        return self._decided(key, cohort)

    def _decided(self, key: str, cohort: _Cohort) -> Decision:
        """Return what becomes of a trial that stands at a rung."""
        orders = self._settle(cohort)
        own = orders.pop(key, None)
        commands = tuple(orders.values())
        if own is None:
            done = len(cohort.standing)
            place = f"at rung {cohort.budget:g} of {self._named(cohort.number)}"
            return Pause(f"waits {place}, where {done} stand", commands=commands)
        if isinstance(own, StopOther):
            return Stop(own.reason, commands)
        cohort.ready.pop(key)  # it has its place
        return Continue(commands=commands)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Wait for the trial no longer."""
        return self._forget(trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Wait for the trial no longer."""
        return self._forget(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Wait for the trial no longer."""
        return self._forget(trial)

    def on_search_end(self) -> tuple[Command, ...]:
        """Let the last cohort be as large as it is, and halve it if all of it are there."""
        cohort = next(reversed(self._cohorts.values()), None)
        if cohort is None or cohort.is_full:
            return ()
        cohort.size = cohort.added
        return tuple(self._settle(cohort).values())

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Halve the last cohort, though it is not full."""
        return self.on_search_end()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose a trial of the first cohort in which one may run: others there wait for it.

        One that has lost its worker, or failed, goes first. Costs O(1), and O(k) while k trials
        that go on are still being taken off their workers.
        """
        first = next(iter(waiting.pending.values()), None)
        # Who goes on from a rung has been on a worker, too, and waits for its turn.
        if first is not None and first.incarnation and not self._is_ready(first.trial_id):
            return first
        for cohort in self._cohorts.values():
            for key in cohort.ready:
                # It is paused if it had not left its worker yet when it was to go on.
                trial = waiting.pending.get(key) or waiting.paused.get(key)
                if trial is not None:
                    return trial
        return first

    def _is_ready(self, key: str) -> bool:
        cohort = self._cohort_of(key)
        return cohort is not None and key in cohort.ready

    @property
    def looks_between(self) -> bool:
        """Never, unless a subclass judges results itself: only rungs count."""
        return type(self).on_trial_result is not SynchronousHalving.on_trial_result

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the rung that the trial is on its way to."""
        cohort = self._cohort_of(trial.trial_id)
        budget = self.max_t if cohort is None else cohort.budget
        if budget >= self.max_t and not self.stop_last_trials:
            return ()
        return (Milestone(self.time_attr, budget),)

    def debug_string(self) -> str:
        """Return a line for each cohort that is not over."""
        name = type(self).__name__.removesuffix("Scheduler")
        lines = [f"Using {name}: num_stopped={self._num_stopped}"]
        for cohort in self._cohorts.values():
            size = "any" if cohort.size is None else cohort.size
            lines.append(
                f"{self._named(cohort.number).capitalize()} ({cohort.added} of {size} trials): "
                f"{len(cohort.standing)} stand at rung {cohort.budget:g}, "
                f"{len(cohort.running)} are on their way"
            )
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the cohorts that are not over, and where each trial is."""
        cohorts = [
            {
                "number": cohort.number,
                "size": cohort.size,
                "added": cohort.added,
                "rung": cohort.rung,
                "running": list(cohort.running),
                "standing": list(cohort.standing),
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
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a scheduler with other rungs.
        """
        own = [self._plan(0)[0], self.reduction_factor]
        then = [state["rungs"], state["reduction_factor"]]
        hint = f"Restore with the {self._ARGUMENTS} of then."
        check(then == own, "the rungs", f"those of the saved experiment, {then}", own, hint)
        self._cohorts = {}
        for told in state["cohorts"]:
            number = told["number"]
            budgets, _ = self._plan(number)
            self._cohorts[number] = _Cohort(
                number,
                budgets,
                told["size"],
                told["added"],
                told["rung"],
                dict.fromkeys(told["running"]),
                dict.fromkeys(told["standing"]),
                OrderedDict.fromkeys(told["ready"]),
            )
        self._num_cohorts = state["num_cohorts"]
        self._members = {key: _Member(*told) for key, told in state["members"].items()}
        self._num_stopped = state["num_stopped"]

    def _named(self, number: int) -> str:
        """Return what users read for a cohort."""
        return f"cohort {number}"

    def _cohort_of(self, key: str) -> _Cohort | None:
        """Return the cohort that a trial takes part in; None if it is out of it."""
        member = self._members.get(key)
        cohort = None if member is None else self._cohorts.get(member.cohort)
        if cohort is None or not (key in cohort.running or key in cohort.standing):
            return None
        return cohort

    def _note(self, member: _Member, cohort: _Cohort, budget: float, value: float | None) -> None:
        """Write down what a trial has come to a rung with."""
        reached = bisect_right(cohort.budgets, budget)
        member.time = budget
        member.score = self._score(value)
        member.budget = cohort.budgets[reached - 1] if reached else None

    def _forget(self, trial: Trial) -> tuple[Command, ...]:
        """Wait for a trial no longer that has ended."""
        commands = self._take_out(trial.trial_id)
        self._members.pop(trial.trial_id, None)
        return commands

    def _take_out(self, key: str) -> tuple[Command, ...]:
        """Wait for a trial no longer; return what that lets happen to the others."""
        cohort = self._cohort_of(key)
        if cohort is None:
            return ()
        for where in (cohort.running, cohort.standing, cohort.ready):
            where.pop(key, None)
        return tuple(self._settle(cohort).values())

    def _settle(self, cohort: _Cohort) -> dict[str, Command]:
        """Halve a cohort as often as all of it are there; return what happens to whom."""
        orders: dict[str, Command] = {}
        while cohort.is_complete and cohort.standing:
            self._halve(cohort, orders)
        if cohort.is_full and not cohort.running and not cohort.standing:
            del self._cohorts[cohort.number]
        return orders

    def _halve(self, cohort: _Cohort, orders: dict[str, Command]) -> None:
        ranked = sorted(cohort.standing, key=self._rank)
        keep = survivors(cohort.added, cohort.rung + 1, self.reduction_factor)
        place = f"at rung {cohort.budget:g} of {self._named(cohort.number)}"
        reason = f"not among the best {keep} of {len(ranked)} by {self.metric} {place}"
        for key in ranked[keep:]:
            orders[key] = StopOther(trial_id=key, reason=reason)
            self._num_stopped += 1
        cohort.rung += 1
        cohort.standing = {}
        for key in ranked[:keep]:
            time = self._members[key].time
            # One that has jumped over this rung, too, stands on it with the score that it has.
            jumped = time is not None and time >= cohort.budget and not cohort.is_at_top
            if jumped:
                cohort.standing[key] = None
            else:
                cohort.running[key] = cohort.ready[key] = None
                orders[key] = Unpause(trial_id=key)

    def _rank(self, key: str) -> tuple[bool, float, int]:
        member = self._members[key]
        return member.score is None, -(member.score or 0.0), member.number
