"""Asynchronous successive halving, in its stopping variant."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from dasktune.schedulers.async_halving import AsyncHalving
from dasktune.schedulers.decision import Continue, Decision, Stop
from dasktune.schedulers.rungs import percentile
from dasktune.trial.metrics import Mode
from dasktune.trial.trial import Trial

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]


class AsyncHyperBandScheduler(AsyncHalving):
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
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
        )
        self._quantile = 1 - 1 / self._factor
        #: The finite scores on each rung of each bracket, in ascending order.
        self._scores: list[list[list[float]]] = [[[] for _ in own] for own in self._budgets]

    def debug_string(self) -> str:
        """Return a line for each bracket: its rungs' cutoffs, turned so that higher is better."""
        lines = [f"Using AsyncHyperBand: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._scores, strict=True):
            cutoffs = (
                f"Iter {budget:.3f}: {percentile(scores, self._quantile)}"
                for budget, scores in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(cutoffs)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, where each trial is, and the state of the random generator."""
        scores = [[list(rung) for rung in rungs] for rungs in self._scores]
        return {**super().state_dict(), "scores": scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._scores = [[list(rung) for rung in rungs] for rungs in state["scores"]]

    def _reach(
        self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range
    ) -> Decision:
        value = self._value(trial, result)
        decision = self._judged(bracket, rungs[-1], value)
        score = self._score(value)
        if score is not None:
            for rung in rungs:
                insort(self._scores[bracket][rung], score)
        return decision

    def _judged(self, bracket: int, rung: int, value: float | None) -> Decision:
        cutoff = percentile(self._scores[bracket][rung], self._quantile)
        if cutoff is None:
            return Continue()
        place = self._place(bracket, rung)
        score = self._score(value)
        if score is None:
            return Stop(f"{self.metric} is {value} {place}, where others are finite")
        if score >= cutoff:
            return Continue()
        sign, side = (1, "below") if self.mode == "max" else (-1, "above")
        return Stop(f"{self.metric} {value:.6g} {side} cutoff {sign * cutoff:.6g} {place}")


#: The name that the paper's readers look for.
ASHAScheduler = AsyncHyperBandScheduler
