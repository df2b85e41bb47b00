"""What the asynchronous successive halvings have in common: brackets, rungs, who is where."""

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
from dasktune.schedulers.by_metric import MetricScheduler, check_flag, real
from dasktune.schedulers.decision import Command, Continue, Decision, Stop
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.rungs import rung_budgets
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["AsyncHalving"]


@dataclass(slots=True)
class _Climber:
    """Where a trial is."""

    #: Index of its bracket, for life.
    bracket: int
    #: How many rungs of it the trial has been recorded at, from the lowest.
    rungs: int = 0


class AsyncHalving(MetricScheduler):
    """Brackets of rungs at ``grace_period * reduction_factor**k``, which trials climb.

    A subclass says in `_reach` what becomes of a trial at a rung. The parameters are those of
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
        self.max_t = real("max_t", max_t)
        check_flag("stop_last_trials", stop_last_trials)
        self.stop_last_trials = stop_last_trials
        first = real("grace_period", grace_period)
        factor = real("reduction_factor", reduction_factor)
        check(0 < first <= self.max_t, "grace_period", f"in (0, max_t={max_t}]", grace_period)
        check(factor > 1, "reduction_factor", "more than 1", reduction_factor)
        budgets = rung_budgets(first, self.max_t, factor)
        self._factor = factor
        #: For each bracket where its rungs are, in ascending order, in units of `time_attr`.
        self._budgets = [budgets[s:] for s in range(brackets)]
        weights = [exp(len(own) - len(budgets)) for own in self._budgets]
        #: Where one bracket's share of the unit interval ends and the next one's begins.
        self._borders = [border / sum(weights) for border in accumulate(weights[:-1])]
        self._rng = default_rng(0)
        self._climbers: dict[str, _Climber] = {}
        self._num_stopped = 0

    def seed(self, seed: SeedSequence) -> None:
        """Take the source of the brackets' choice; until then it is that of seed 0."""
        self._rng = default_rng(seed)

    def on_trial_add(self, trial: Trial) -> None:
        """Draw the trial's bracket, unless it has one."""
        if trial.trial_id not in self._climbers:
            bracket = bisect_right(self._borders, self._rng.random())
            self._climbers[trial.trial_id] = _Climber(bracket)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Judge the trial if it has reached a rung, and stop it at `max_t`."""
        budget = self._time(trial, result)
        if budget is None:
            return Continue()
        decision = self._climb(trial, budget, result)
        if self.stop_last_trials and budget >= self.max_t:
            reason = f"{self.time_attr} {budget:g} has reached max_t={self.max_t:g}"
            decision = Stop(reason, early=False)
        self._num_stopped += isinstance(decision, Stop)
        return decision

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Record the trial at the rungs that it has passed."""
        budget = self._time(trial, result) if result else None
        if budget is not None:
            self._climb(trial, budget, result)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else the first paused one."""
        return first_in(waiting)

    @property
    def starts_in_order(self) -> bool:
        """Unless a subclass chooses otherwise: what stops a trial says nothing about the next."""
        return type(self).choose_trial_to_run is AsyncHalving.choose_trial_to_run

    @property
    def looks_between(self) -> bool:
        """Never, unless a subclass judges results itself: only rungs count."""
        return type(self).on_trial_result is not AsyncHalving.on_trial_result

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the trial's next rung, and `max_t` if trials end there."""
        climber = self._climber(trial)
        budgets = self._budgets[climber.bracket][climber.rungs : climber.rungs + 1]
        if self.stop_last_trials and self.max_t not in budgets:
            budgets.append(self.max_t)
        return tuple(Milestone(self.time_attr, budget) for budget in budgets)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, where each trial is, and the state of the random generator."""
        return {
            "rungs": [list(budgets) for budgets in self._budgets],
            "trials": {name: [at.bracket, at.rungs] for name, at in self._climbers.items()},
            "num_stopped": self._num_stopped,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a scheduler with other rungs.
        """
        own = self._budgets
        rule = f"those of the saved experiment, {state['rungs']}"
        hint = "Restore with the max_t, grace_period, reduction_factor and brackets of then."
        check(state["rungs"] == own, "the rungs of the brackets", rule, own, hint)
        self._climbers = {name: _Climber(*at) for name, at in state["trials"].items()}
        self._num_stopped = state["num_stopped"]
        self._rng.bit_generator.state = state["rng"]

    @abstractmethod
    def _reach(
        self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range
    ) -> Decision:
        """Record the trial at the rungs that it has come to, and judge it on the last of them."""

    def _climber(self, trial: Trial) -> _Climber:
        if trial.trial_id not in self._climbers:
            self.on_trial_add(trial)
        return self._climbers[trial.trial_id]

    def _climb(self, trial: Trial, budget: float, result: Mapping[str, Any]) -> Decision:
        climber = self._climber(trial)
        reached = bisect_right(self._budgets[climber.bracket], budget)
        if reached <= climber.rungs:
            return Continue()
        rungs = range(climber.rungs, reached)
        climber.rungs = reached
        return self._reach(trial, result, climber.bracket, rungs)

    def _place(self, bracket: int, rung: int) -> str:
        return f"at rung {self._budgets[bracket][rung]:g} of bracket {bracket}"
