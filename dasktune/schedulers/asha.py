"""Asynchronous successive halving, in its stopping variant."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import Any

from numpy.random import SeedSequence, default_rng

from dasktune.errors import check
from dasktune.schedulers.decision import Command, Continue, Decision, Stop
from dasktune.schedulers.fifo import first_in
from dasktune.schedulers.metric_scheduler import MetricScheduler, real
from dasktune.schedulers.rungs import Bracket, percentile, rung_budgets
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.trial.metrics import Mode
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]


@dataclass(slots=True)
class _Climber:
    """Where a trial is."""

    #: Index of its bracket, for life.
    bracket: int
    #: How many rungs of it the trial has been recorded at, from the lowest.
    rungs: int = 0


class AsyncHyperBandScheduler(MetricScheduler):
    """Stop a trial at each rung unless it is in the rung's best ``1/reduction_factor``.

    The rungs are at ``grace_period * reduction_factor**k``. Nobody waits for anybody: the first
    trial at a rung goes on, and each later one is compared with those that were there before it.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to judge by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    max_t : float, default=100
        Most that a trial gets, in units of `time_attr`. The paper's R.
    grace_period : float, default=1
        First rung, in units of `time_attr`; nobody is judged earlier. More than 0. The paper's r.
    reduction_factor : float, default=4
        One in so many survives a rung. Unitless, more than 1. The paper's eta.
    brackets : int, default=1
        How many sets of rungs there are; each starts one rung later than the one before. Those
        beyond the number of rungs have none, and let their trials train up to `max_t`.
    stop_last_trials : bool, default=True
        Whether trials end at `max_t`.

    Raises
    ------
    ConfigError
        If ``max_t >= grace_period > 0`` does not hold, or another argument breaks its rule.

    Notes
    -----
    After Algorithm 2 of [1]_, with the one change that a trial which is not promoted is stopped
    rather than paused. Precisely:

    - At a rung a trial stops if its score is below the ``1 - 1/reduction_factor`` quantile of the
      finite scores recorded there before, linearly interpolated. A tie goes on.
    - A trial that jumps over rungs is recorded at each of them with the score that it crosses them
      with; it is judged on the highest only, and never again on a lower one.
    - A score that is missing, no number, NaN or infinite is the worst there is: the trial stops if
      anyone has left a finite score on the rung, and goes on otherwise. It leaves none itself, so
      it cannot move what others are measured by.
    - A result without a number in `time_attr` changes nothing.
    - A trial that ends by itself is recorded too.
    - A trial's bracket is drawn with probabilities proportional to ``exp(number of its rungs)``,
      and kept for life.

    A result costs O(log k) comparisons in the k trials on the rung, and the shift of a list of k.

    References
    ----------
    .. [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
       arXiv:1810.05934.

    Examples
    --------
    >>> asha = ASHAScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3)
    >>> print(asha.debug_string())
    Using AsyncHyperBand: num_stopped=0
    Bracket: Iter 9.000: None | Iter 3.000: None | Iter 1.000: None
    """

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Mode | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        whole = type(brackets) is int and brackets >= 1
        check(whole, "brackets", "an int, at least 1", brackets)
        self.max_t = real("max_t", max_t)
        self.stop_last_trials = stop_last_trials
        first = real("grace_period", grace_period)
        factor = real("reduction_factor", reduction_factor)
        check(0 < first <= self.max_t, "grace_period", f"in (0, max_t={max_t}]", grace_period)
        check(factor > 1, "reduction_factor", "more than 1", reduction_factor)
        budgets = rung_budgets(first, self.max_t, factor)
        self._quantile = 1 - 1 / factor
        self._brackets = [Bracket(budgets[s:]) for s in range(brackets)]
        weights = [exp(len(bracket.budgets) - len(budgets)) for bracket in self._brackets]
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
        """Stop the trial if it has reached a rung and is not good enough there, or `max_t`."""
        budget = self._budget(trial, result)
        if budget is None:
            return Continue()
        reason = self._climb(trial, budget, result)
        if self.stop_last_trials and budget >= self.max_t:
            reason = f"{self.time_attr} {budget:g} has reached max_t={self.max_t:g}"
        if not reason:
            return Continue()
        self._num_stopped += 1
        return Stop(reason)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Record the trial at the rungs that it has passed."""
        budget = self._budget(trial, result) if result else None
        if budget is not None:
            self._climb(trial, budget, result)
        return ()

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose the first pending trial, else the first paused one."""
        return first_in(waiting)

    @property
    def starts_in_order(self) -> bool:
        """Always: what has stopped a trial says nothing about the next one."""
        return True

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the trial's next rung, and `max_t` if trials end there."""
        climber = self._climber(trial)
        budgets = self._brackets[climber.bracket].budgets[climber.rungs : climber.rungs + 1]
        if self.stop_last_trials and self.max_t not in budgets:
            budgets.append(self.max_t)
        return tuple(Milestone(self.time_attr, budget) for budget in budgets)

    def debug_string(self) -> str:
        """Return a line for each bracket: its rungs' cutoffs, turned so that higher is better."""
        lines = [f"Using AsyncHyperBand: num_stopped={self._num_stopped}"]
        for bracket in self._brackets:
            rungs = reversed(list(zip(bracket.budgets, bracket.scores, strict=True)))
            cutoffs = (
                f"Iter {budget:.3f}: {percentile(scores, self._quantile)}"
                for budget, scores in rungs
            )
            lines.append(f"Bracket: {' | '.join(cutoffs)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, where each trial is, and the state of the random generator."""
        return {
            "rungs": [list(bracket.budgets) for bracket in self._brackets],
            "scores": [[list(rung) for rung in bracket.scores] for bracket in self._brackets],
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
        own = [bracket.budgets for bracket in self._brackets]
        rule = f"those of the saved experiment, {state['rungs']}"
        hint = "Restore with the max_t, grace_period, reduction_factor and brackets of then."
        check(state["rungs"] == own, "the rungs of the brackets", rule, own, hint)
        for bracket, scores in zip(self._brackets, state["scores"], strict=True):
            bracket.scores = [list(rung) for rung in scores]
        self._climbers = {name: _Climber(*at) for name, at in state["trials"].items()}
        self._num_stopped = state["num_stopped"]
        self._rng.bit_generator.state = state["rng"]

    def _climber(self, trial: Trial) -> _Climber:
        self.on_trial_add(trial)
        return self._climbers[trial.trial_id]

    def _climb(self, trial: Trial, budget: float, result: Mapping[str, Any]) -> str:
        """Record the trial at the rungs that it has come to; return why it must stop, if so."""
        climber = self._climber(trial)
        bracket = self._brackets[climber.bracket]
        reached = bisect_right(bracket.budgets, budget)
        if reached <= climber.rungs:
            return ""
        value = self._value(trial, result)
        reason = self._judged(climber.bracket, reached - 1, value)
        score = self._score(value)
        if score is not None:
            for scores in bracket.scores[climber.rungs : reached]:
                insort(scores, score)
        climber.rungs = reached
        return reason

    def _judged(self, index: int, rung: int, value: float | None) -> str:
        """Return why a trial with this value must stop at a rung, or nothing."""
        bracket = self._brackets[index]
        cutoff = percentile(bracket.scores[rung], self._quantile)
        if cutoff is None:
            return ""
        place = f"at rung {bracket.budgets[rung]:g} of bracket {index}"
        score = self._score(value)
        if value is None or score is None:
            return f"{self.metric} is {value} {place}, where others are finite"
        if score >= cutoff:
            return ""
        sign, side = (1, "below") if self.mode == "max" else (-1, "above")
        return f"{self.metric} {value:.6g} {side} cutoff {sign * cutoff:.6g} {place}"


#: The name that the paper's readers look for.
ASHAScheduler = AsyncHyperBandScheduler
