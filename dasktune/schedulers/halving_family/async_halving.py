"""The base of asynchronous successive halving: brackets, rungs, and the position of each trial."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import Any

from numpy.random import SeedSequence, default_rng

from dasktune.errors import check
from dasktune.schedulers.decision import Command, Continue, Decision, Stop
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.metric_scheduler import MetricScheduler, check_flag, finite_number
from dasktune.schedulers.rungs import rung_budgets
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial


@dataclass(slots=True)
class _RungPosition:
    """The bracket of a trial, and the rungs that it has reached."""

    #: Index of its bracket, which never changes.
    bracket: int
    #: Number of rungs, from the lowest, at which the trial was recorded.
    rungs: int = 0


class AsyncHalving(MetricScheduler):
    """Base class of ASHA schedulers, which decide on trials at the rungs of their brackets.

    The rungs have the budgets ``grace_period * reduction_factor**k``. A subclass implements
    `_reach`, the decision on a trial at a rung. The parameters are those of
    :class:`~dasktune.schedulers.AsyncHyperBandScheduler`.
    """

    def __init__(
        self,
        *,
        time_attr: str,
        metric: str | None,
        mode: Mode | None,
        max_t: float,
        grace_period: float,
        reduction_factor: float,
        brackets: int,
        stop_last_trials: bool,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        whole = type(brackets) is int and brackets >= 1
        check(whole, "brackets", "an int, at least 1", brackets)
        self.max_t = finite_number("max_t", max_t)
        check_flag("stop_last_trials", stop_last_trials)
        self.stop_last_trials = stop_last_trials
        first = finite_number("grace_period", grace_period)
        factor = finite_number("reduction_factor", reduction_factor)
        check(0 < first <= self.max_t, "grace_period", f"in (0, max_t={max_t}]", grace_period)
        check(factor > 1, "reduction_factor", "more than 1", reduction_factor)
        budgets = rung_budgets(first, self.max_t, factor)
        self._factor = factor
        #: The budgets of each bracket's rungs, ascending, in units of `time_attr`.
        self._budgets = [budgets[s:] for s in range(brackets)]
        weights = [exp(len(own) - len(budgets)) for own in self._budgets]
        #: Cumulative probabilities of the brackets, without the last one, which is 1.
        self._borders = [border / sum(weights) for border in accumulate(weights[:-1])]
        self._rng = default_rng(0)
        self._climbers: dict[str, _RungPosition] = {}
        self._num_stopped = 0

    def seed(self, seed: SeedSequence) -> None:
        """Seed the generator that draws brackets; without this call its seed is 0."""
        self._rng = default_rng(seed)

    def on_trial_add(self, trial: Trial) -> None:
        """Draw a bracket for the trial, unless it has one."""
        if trial.trial_id not in self._climbers:
            bracket = bisect_right(self._borders, self._rng.random())
            self._climbers[trial.trial_id] = _RungPosition(bracket)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Decide on the trial if it has reached a rung, and stop it at `max_t`."""
        budget = self._time(trial, result)
        if budget is None:
            return Continue()
        decision = self._advance(trial, budget, result)
        if self.stop_last_trials and budget >= self.max_t:
            reason = f"{self.time_attr} {budget:g} has reached max_t={self.max_t:g}"
            decision = Stop(reason, early=False)
        self._num_stopped += isinstance(decision, Stop)
        return decision

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Record the trial's last result at the rungs that it has reached."""
        budget = self._time(trial, result) if result else None
        if budget is not None:
            self._advance(trial, budget, result)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else the first paused one."""
        return first_in(waiting)

    @property
    def starts_in_order(self) -> bool:
        """True, unless a subclass overrides `choose_trial_to_run`."""
        return type(self).choose_trial_to_run is AsyncHalving.choose_trial_to_run

    @property
    def looks_between(self) -> bool:
        """False, unless a subclass overrides `on_trial_result`: only results at rungs matter."""
        return type(self).on_trial_result is not AsyncHalving.on_trial_result

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the trial's next rung, and `max_t` if trials are stopped there."""
        climber = self._position(trial)
        budgets = self._budgets[climber.bracket][climber.rungs : climber.rungs + 1]
        if self.stop_last_trials and self.max_t not in budgets:
            budgets.append(self.max_t)
        return tuple(Milestone(self.time_attr, budget) for budget in budgets)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, the position of each trial, and the state of the random generator."""
        return {
            "rungs": [list(budgets) for budgets in self._budgets],
            "trials": {name: [at.bracket, at.rungs] for name, at in self._climbers.items()},
            "num_stopped": self._num_stopped,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved by a scheduler with other rungs.
        """
        own = self._budgets
        rule = f"those of the saved experiment, {state['rungs']}"
        hint = "Restore with its max_t, grace_period, reduction_factor and brackets."
        check(state["rungs"] == own, "the rungs of the brackets", rule, own, hint)
        self._climbers = {name: _RungPosition(*at) for name, at in state["trials"].items()}
        self._num_stopped = state["num_stopped"]
        self._rng.bit_generator.state = state["rng"]

    @abstractmethod
    def _reach(self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range) -> Decision:
        """Record the trial at the rungs that it has reached, and decide at the highest of them."""

    def _position(self, trial: Trial) -> _RungPosition:
        if trial.trial_id not in self._climbers:
            self.on_trial_add(trial)
        return self._climbers[trial.trial_id]

    def _advance(self, trial: Trial, budget: float, result: Mapping[str, Any]) -> Decision:
        climber = self._position(trial)
        reached = bisect_right(self._budgets[climber.bracket], budget)
        if reached <= climber.rungs:
            return Continue()
        rungs = range(climber.rungs, reached)
        climber.rungs = reached
        return self._reach(trial, result, climber.bracket, rungs)

    def _place(self, bracket: int, rung: int) -> str:
        return f"at rung {self._budgets[bracket][rung]:g} of bracket {bracket}"
